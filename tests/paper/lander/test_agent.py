"""Targets, steps and parameters of the agents."""

import dataclasses
import math

import pytest
import torch
from paper.lander.agent import Agent, double_dqn_target, make_network, make_optimizer
from paper.lander.config import Config
from paper.lander.games import Replay, make

SMALL = Config(environment="CartPole-v1", hidden=8, num_centers=6, random_states=60, batch_size=4, replay_size=50)


@pytest.fixture(scope="module")
def game():
    return make("CartPole-v1")


def test_target_is_double_dqn_with_a_loop():
    online, target = torch.randn(30, 4), torch.randn(30, 4)
    rewards, going_on = torch.randn(30), torch.randint(0, 2, (30,)).float()
    found = double_dqn_target(online, target, rewards, going_on, 0.9)
    plain = rewards + 0.9 * going_on * target.max(1).values
    for i in range(30):
        best = max(range(4), key=lambda a, i=i: float(online[i, a]))
        future = float(target[i, best]) if going_on[i] else 0.0
        assert math.isclose(float(found[i]), float(rewards[i]) + 0.9 * future, abs_tol=1e-6)
    assert not torch.allclose(found, plain)  # the target network does not choose


def test_a_step_is_the_formula(game):
    config = dataclasses.replace(SMALL, agent="dqk", polyak=0.25)
    agent = Agent(config, game)
    for parameter in agent.target.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    online, target = make_network(config, game), make_network(config, game)
    online.load_state_dict(agent.online.state_dict())
    target.load_state_dict(agent.target.state_dict())
    optimizer = make_optimizer(config, online)
    replay = Replay(50, 4)
    for i in range(20):
        replay.add(torch.randn(4), i % 2, float(i), torch.randn(4), terminated=i % 5 == 0)
    for step in range(3):
        batch = replay.sample(8, torch.Generator().manual_seed(step))
        loss = agent.learn(batch)
        states, nexts = batch.states[::2], batch.states[1::2]
        with torch.no_grad():
            chosen = online(nexts).argmax(1)
            wanted = batch.rewards + 0.99 * batch.going_on * target(nexts)[torch.arange(8), chosen]
        expected = torch.nn.functional.smooth_l1_loss(online(states)[torch.arange(8), batch.actions[:, 0]], wanted)
        optimizer.zero_grad()
        expected.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), online.parameters(), strict=True):
                slow += 0.25 * (fast - slow)
        torch.testing.assert_close(loss, expected.detach())
    for ours, theirs in ((agent.online, online), (agent.target, target)):
        torch.testing.assert_close(dict(ours.named_parameters()), dict(theirs.named_parameters()), rtol=1e-4, atol=1e-5)


def test_kernel_parameters_have_their_own_rates_and_decay(game):
    rates = {"first_learning_rate": 0.5, "last_learning_rate": 0.75, "center_learning_rate": 0.25}
    config = dataclasses.replace(SMALL, agent="dqk", kernel_weight_decay=0.125, **rates)
    network = make_network(config, game)
    groups = make_optimizer(config, network).param_groups
    assert [group["lr"] for group in groups] == [1e-3, 0.25, 0.5, 0.75]
    assert [group["weight_decay"] for group in groups] == [0.01, 0.125, 0.125, 0.125]
    assert [len(group["params"]) for group in groups] == [6, 2, 1, 1]
    assert groups[1]["params"][1] is network.last_kernel.centers
    assert groups[2]["params"][0] is network.first_kernel.values
    fixed = dataclasses.replace(config, learn_centers=False, parts="last")
    assert [group["lr"] for group in make_optimizer(fixed, make_network(fixed, game)).param_groups] == [1e-3, 0.75]


def test_parameters_with_equal_rates_and_decay_share_a_group(game):
    config = dataclasses.replace(SMALL, agent="dqk", first_learning_rate=1e-3)
    groups = make_optimizer(config, make_network(config, game)).param_groups
    assert [(len(group["params"]), group["weight_decay"]) for group in groups] == [(6, 0.01), (4, 0.0)]


def test_gromov_monge_changes_the_step_and_not_the_reported_loss(game):
    replay = Replay(50, 4)
    for i in range(20):
        replay.add(torch.randn(4), i % 2, float(i), torch.randn(4), terminated=False)
    batch = replay.sample(8, torch.Generator().manual_seed(0))
    agents = [Agent(dataclasses.replace(SMALL, agent="dqk", gromov_monge=weight), game) for weight in (0.0, 1.0)]
    losses = [[float(agent.learn(batch)) for _ in range(2)] for agent in agents]
    assert losses[0][0] == losses[1][0]
    centers = [agent.online.first_kernel.centers.detach() for agent in agents]
    assert not torch.equal(*centers)


def test_both_agents_start_alike_and_seeds_differ(game):
    plain, kernel, other = (
        make_network(dataclasses.replace(SMALL, agent=agent, seed=seed), game)
        for agent, seed in (("dqn", 1), ("dqk", 1), ("dqk", 2))
    )
    state = torch.randn(7, 4)
    assert torch.equal(plain(state), kernel(state))
    assert not torch.equal(other(state), kernel(state))

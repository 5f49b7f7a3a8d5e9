"""Replay, targets, exploration and settings of the reinforcement learning experiment."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from torchkrr.errors import InputError
from torchkrr.experiments.lander_agent import Agent, double_dqn_target, make_network, make_optimizer
from torchkrr.experiments.lander_config import Config
from torchkrr.experiments.lander_games import EVALUATION, TRAINING, episode_seed, make, random_policy_states, start
from torchkrr.experiments.lander_records import first_above, running_mean
from torchkrr.experiments.lander_replay import Replay
from torchkrr.experiments.lander_report import bootstrap_difference
from torchkrr.experiments.lander_study import VARIANTS, study

SMALL = Config(environment="CartPole-v1", hidden=8, num_centers=6, random_states=60, batch_size=4, replay_size=50)


@pytest.fixture(scope="module")
def game():
    return make("CartPole-v1")


def filled(count, capacity=50):
    replay = Replay(capacity, 2)
    for i in range(count):
        replay.add(torch.tensor([i, i + 0.25]), i % 3, -float(i), torch.tensor([i + 1, 0.5]), terminated=i % 2 == 1)
    return replay


def test_replay_returns_transitions_as_they_were_added():
    batch = filled(20).sample(200, torch.Generator().manual_seed(0))
    assert batch.states.shape == (400, 2)
    assert batch.actions.shape == (200, 1)
    numbers = -batch.rewards
    assert set(numbers.tolist()) == set(range(20))
    assert torch.equal(batch.states[::2], torch.stack((numbers, numbers + 0.25), 1))
    assert torch.equal(batch.states[1::2, 0], numbers + 1)
    assert torch.equal(batch.actions[:, 0], numbers.long() % 3)
    assert torch.equal(batch.going_on, 1 - numbers % 2)


def test_replay_forgets_the_oldest():
    replay = filled(65)
    assert len(replay) == 50
    seen = set((-replay.sample(2000, torch.Generator().manual_seed(0)).rewards).tolist())
    assert seen == set(range(15, 65))


@pytest.mark.parametrize("count", [20, 65])
def test_replay_is_restored_with_its_place(count):
    one, other = filled(count), Replay(50, 2)
    other.load_state_dict(one.state_dict())
    for replay in (one, other):
        replay.add(torch.zeros(2), 1, 99.0, torch.ones(2), terminated=False)
    samples = [replay.sample(100, torch.Generator().manual_seed(5)) for replay in (one, other)]
    assert all(torch.equal(a, b) for a, b in zip(*samples, strict=True))


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


def test_epsilon_decays_exponentially():
    config = Config(epsilon_start=0.8, epsilon_end=0.2, epsilon_decay=100)
    assert config.epsilon(0) == pytest.approx(0.8)
    assert config.epsilon(100) == pytest.approx(0.2 + 0.6 / math.e)
    assert config.epsilon(10**6) == pytest.approx(0.2)


def test_both_agents_start_alike_and_seeds_differ(game):
    plain, kernel, other = (
        make_network(dataclasses.replace(SMALL, agent=agent, seed=seed), game)
        for agent, seed in (("dqn", 1), ("dqk", 1), ("dqk", 2))
    )
    state = torch.randn(7, 4)
    assert torch.equal(plain(state), kernel(state))
    assert not torch.equal(other(state), kernel(state))


def test_episodes_depend_on_their_seeds_alone(game):
    first = start(game, 0, TRAINING, 5)
    assert torch.equal(start(game, 0, TRAINING, 5), first)
    others = [(1, TRAINING, 5), (0, EVALUATION, 5), (0, TRAINING, 6)]
    assert not any(torch.equal(start(game, *which), first) for which in others)
    assert len({episode_seed(0, TRAINING, i) for i in range(500)}) == 500


def test_random_policy_states_are_reproducible(game):
    states = random_policy_states(game, 100, seed=3)
    assert states.shape == (100, 4)
    assert torch.equal(random_policy_states(game, 100, seed=3), states)
    assert not torch.equal(random_policy_states(game, 100, seed=4), states)


def test_running_mean_and_first_above():
    rewards = [0.0, 10.0, 20.0, 30.0, 0.0]
    assert running_mean(rewards, 2).tolist() == [0.0, 5.0, 15.0, 25.0, 15.0]
    assert first_above(rewards, 15.0, window=2) == 4
    assert first_above([100.0] * 3, 50.0, window=4) is None
    assert first_above(rewards, None) is None


def test_bootstrap_interval_covers_and_orders():
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        ours, theirs = rng.normal(1.0, 1.0, 12), rng.normal(0.0, 1.0, 12)
        difference, low, high = bootstrap_difference(ours.tolist(), theirs.tolist(), resamples=500)
        assert low <= difference <= high
        covered += low <= 1.0 <= high
    assert 0.85 * 200 <= covered <= 0.99 * 200


def test_study_has_every_variant_asked_for():
    configs = study(SMALL, [0, 1])
    assert len(configs) == 2 * len(VARIANTS)
    assert [config.seed for config in configs[: len(VARIANTS)]] == [0] * len(VARIANTS)
    labels = {config.label: config for config in configs}
    assert set(labels) == set(VARIANTS)
    assert labels["first-only"].parts == "first"
    assert labels["last-only"].parts == "last"
    assert not labels["values-only"].learn_centers
    assert labels["gromov-monge"].gromov_monge > 0
    assert labels["dqn"].agent == "dqn"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"agent": "ppo"}, "agent must be one of"),
        ({"episodes": 0}, "episodes must be at least 1"),
        ({"discount": 1.5}, "discount must lie between 0 and 1"),
        ({"batch_size": 10, "replay_size": 5}, "batch_size"),
        ({"num_centers": 64, "random_states": 10}, "random_states"),
        ({"variant": "../other"}, "variant is part of file names"),
        ({"seed": -1}, "seed must not be negative"),
        ({"learning_rate": 0.0}, "learning_rate must be positive"),
        ({"parts": "none"}, "parts must be one of"),
        ({"last_on": "values"}, "last_on must be one of"),
        ({"placing": "grid"}, "placing must be one of"),
    ],
)
def test_bad_settings(arguments, message):
    with pytest.raises(InputError, match=message):
        Config(**arguments)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Nothing-v0", "Cannot make the environment 'Nothing-v0'"),
        ("Pendulum-v1", "action values need numbered ones"),
        ("FrozenLake-v1", "must be vectors"),
    ],
)
def test_unsuitable_games(name, message):
    with pytest.raises(InputError, match=message):
        make(name)

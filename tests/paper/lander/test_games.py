"""Games, their seeds, and the memory of an agent."""

import pytest
import torch
from paper.lander.games import EVALUATION, TRAINING, Replay, episode_seed, make, random_policy_states, start

from torchkrr.errors import InputError


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

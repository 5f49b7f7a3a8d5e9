"""Gymnasium environments with discrete actions, and the memory of an agent.

Each episode starts from a seed of its own, so that it depends on no episode before it: a run can be continued from any of
its episodes, and all agents meet the same games.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torchkrr.errors import InputError, MissingExtraError

from ..options import require

# Streams of seeds: what an episode is for decides which ones it gets.
TRAINING, EVALUATION, RANDOM_POLICY, SHOWING, VALIDATION = range(5)


class Game(NamedTuple):
    environment: Any  # gymnasium.Env
    num_features: int
    num_actions: int


def make(name: str, **options: Any) -> Game:
    """The environment of that name, if states are vectors and actions are numbered."""
    require(["gymnasium"], "A game", extra="rl")
    gymnasium = importlib.import_module("gymnasium")
    try:
        environment = gymnasium.make(name, **options)
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(f'{name} needs more packages: {error} Those of Box2D: pip install "torchkrr[rl]".') from None
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise InputError(f"Cannot make the environment {name!r}: {error} Name one such as LunarLander-v3.") from None
    states, actions = environment.observation_space, environment.action_space
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise InputError(f"{name} has actions {actions}, but action values need numbered ones, as LunarLander-v3 has.")
    if not isinstance(states, gymnasium.spaces.Box) or len(states.shape) != 1:
        raise InputError(f"{name} has states {states}, but they must be vectors, as those of LunarLander-v3 are.")
    return Game(environment, int(states.shape[0]), int(actions.n))


def episode_seed(seed: int, stream: int, episode: int) -> int:
    """A seed for one episode of one stream.

    Example:
        >>> episode_seed(0, TRAINING, 1) == episode_seed(0, EVALUATION, 1)
        False
    """
    return int(np.random.SeedSequence((seed, stream, episode)).generate_state(1)[0])


def start(game: Game, seed: int, stream: int, episode: int) -> Tensor:
    """Begin an episode; its first state `(S,)`."""
    first, _ = game.environment.reset(seed=episode_seed(seed, stream, episode))
    return torch.as_tensor(first, dtype=torch.float32)


def move(game: Game, action: int) -> tuple[Tensor, float, bool, bool]:
    """The next state, the reward, and whether the episode is over: terminated by the game, or cut off by its time limit."""
    state, reward, terminated, truncated, _ = game.environment.step(action)
    return torch.as_tensor(state, dtype=torch.float32), float(reward), bool(terminated), bool(truncated)


def random_policy_states(game: Game, count: int, seed: int) -> Tensor:
    """The first states `(count, S)` of episodes played at random."""
    rng = np.random.default_rng((seed, RANDOM_POLICY))
    states: list[Tensor] = []
    episode = 0
    while len(states) < count:
        states.append(start(game, seed, RANDOM_POLICY, episode))
        episode, over = episode + 1, False
        while not over and len(states) < count:
            state, _, terminated, truncated = move(game, int(rng.integers(game.num_actions)))
            over = terminated or truncated
            states.append(state)
    return torch.stack(states)


class Batch(NamedTuple):
    states: Tensor  # (2b, S): state and next state of each transition by turns
    actions: Tensor  # (b, 1) int64
    rewards: Tensor  # (b,)
    going_on: Tensor  # (b,): 0 where the game ended, else 1


class Replay:
    """The last `capacity` transitions; a sample is drawn with replacement.

    Example:
        >>> replay = Replay(10, num_features=2)
        >>> replay.add(torch.zeros(2), 1, 0.5, torch.ones(2), terminated=False)
        >>> len(replay), replay.sample(3, torch.Generator()).rewards
        (1, tensor([0.5000, 0.5000, 0.5000]))
    """

    def __init__(self, capacity: int, num_features: int) -> None:
        self.capacity, self.num_features = capacity, num_features
        self._rows = torch.zeros(capacity, 2 * num_features + 3)
        self._count = 0  # ever added

    def __len__(self) -> int:
        return min(self._count, self.capacity)

    def add(self, state: Tensor, action: int, reward: float, next_state: Tensor, *, terminated: bool) -> None:
        """An episode that was cut off by a time limit is not terminated: its last state has a future."""
        size = self.num_features
        row = self._rows[self._count % self.capacity]
        row[:size], row[size : 2 * size] = state, next_state
        row[2 * size :] = torch.tensor((float(action), reward, 0.0 if terminated else 1.0))
        self._count += 1

    def sample(self, count: int, generator: torch.Generator) -> Batch:
        rows = self._rows[torch.randint(len(self), (count,), generator=generator)]  # (b, 2S + 3)
        size = self.num_features
        actions, rewards, going_on = rows[:, 2 * size :].unbind(1)
        return Batch(rows[:, : 2 * size].reshape(2 * count, size), actions.long().unsqueeze(1), rewards, going_on)

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._rows[: len(self)].clone(), "count": self._count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._rows[: len(state["rows"])] = state["rows"]
        self._count = state["count"]

"""Gymnasium environments with discrete actions, and states to begin with.

Each episode starts from a seed of its own, so that it depends on no episode before it: a run can be continued from any of
its episodes, and all agents meet the same games.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, MissingExtraError
from .extras import needed

# Streams of seeds: what an episode is for decides which ones it gets.
TRAINING, EVALUATION, RANDOM_POLICY, SHOWING, VALIDATION = range(5)


class Game(NamedTuple):
    environment: Any  # gymnasium.Env
    num_features: int
    num_actions: int


def make(name: str, **options: Any) -> Game:
    """The environment of that name, if states are vectors and actions are numbered."""
    gymnasium = needed("gymnasium", "A game", extra="rl")
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

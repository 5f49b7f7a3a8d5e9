"""Every number of the reinforcement learning experiment, in one place, and the variants that a study compares."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Literal

import torchkrr
from torchkrr.errors import InputError

from ..options import check_fields

AGENTS: tuple[Literal["dqn", "dqk"], ...] = ("dqn", "dqk")
# Not part of what a run computes: how long it goes on and how it is looked at.
CHANGEABLE = ("episodes", "stop_when_solved", "evaluation_episodes", "checkpoint_every")
LENGTH = ("episodes", "stop_when_solved", "evaluation_episodes")


@dataclasses.dataclass(frozen=True)
class Config:
    """One run. Defaults are the paper's; where it is silent the comment says so.

    Example:
        >>> Config(agent="dqn").label
        'dqn'
    """

    agent: Literal["dqn", "dqk"] = "dqk"  # the plain network, or the one with kernel parts
    environment: str = "LunarLander-v3"
    seed: int = 0
    episodes: int = 500
    stop_when_solved: bool = False  # before, once 100 games without exploration are

    discount: float = 0.99
    hidden: int = 64
    batch_size: int = 64
    learning_rate: float = 1e-3  # of AdamW
    weight_decay: float = 0.01  # silent: torch's default
    replay_size: int = 100_000  # silent, as all that follows
    polyak: float = 0.005
    epsilon_start: float = 0.9
    epsilon_end: float = 0.05
    epsilon_decay: float = 1000.0  # moves
    gradient_clip: float = 100.0  # of each entry

    num_centers: int = 64  # the paper's
    parts: Literal["both", "first", "last"] = "both"
    last_on: Literal["state", "hidden"] = "state"
    placing: Literal["sample", "farthest"] = "sample"
    lengthscale: float = 1.0  # in mean distances of standardized states; the paper: its normalizing map
    ridge: float = 1e-2  # the paper: 1e-9, which centers that meet would make singular
    learn_centers: bool = True
    learn_values: bool = True
    learn_lengthscale: bool = False
    # Of values (and lengthscales). Those of the first part are hidden activations, those of the last action values. With
    # 1e-3 the first part grows as large as the layer it is added to, losses rise, and CartPole is unlearned again.
    first_learning_rate: float = 1e-4
    last_learning_rate: float = 1e-3
    center_learning_rate: float = 1e-3
    kernel_weight_decay: float = 0.0
    gromov_monge: float = 0.0  # weight of the regularizer, per pair of centers
    random_states: int = 2000  # of a random policy, for centers and scales

    evaluation_episodes: int = 100  # without exploration, after training
    checkpoint_every: int = 25  # episodes
    variant: str = ""  # a name for changed settings

    def __post_init__(self) -> None:
        check_fields(self, RULES)
        if not re.fullmatch(r"[\w-]*", self.variant):
            raise InputError(f"variant is part of file names: letters, digits, - and _ only, got {self.variant!r}.")
        if self.batch_size > self.replay_size:
            raise InputError(f"batch_size ({self.batch_size}) must not exceed replay_size ({self.replay_size}).")
        if self.agent == "dqk" and self.random_states < self.num_centers:
            raise InputError(f"random_states ({self.random_states}) must be at least num_centers ({self.num_centers}).")

    @property
    def label(self) -> str:
        """Names what is compared over seeds."""
        return self.variant or self.agent

    def epsilon(self, moves: int) -> float:
        """The share of random moves after so many of them.

        Example:
            >>> round(Config().epsilon(0), 3), round(Config().epsilon(10**6), 3)
            (0.9, 0.05)
        """
        return self.epsilon_end + (self.epsilon_start - self.epsilon_end) * math.exp(-moves / self.epsilon_decay)

    def identity(self) -> dict[str, Any]:
        """What the numbers of a run depend on, as plain values; of the plain agent, without what is the kernels'."""
        left_out = CHANGEABLE if self.agent == "dqk" else (*CHANGEABLE, *KERNEL_ONLY)
        settings = {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}
        return {**settings, "torchkrr": torchkrr.__version__}

    def record_identity(self) -> dict[str, Any]:
        """What the record of a finished run depends on: its length too."""
        return {**self.identity(), **{name: getattr(self, name) for name in LENGTH}}


RULES = {
    "be at least 1": (
        *("episodes", "hidden", "batch_size", "replay_size", "num_centers", "random_states", "checkpoint_every"),
    ),
    "be positive": (
        *("learning_rate", "first_learning_rate", "last_learning_rate", "center_learning_rate"),
        *("epsilon_decay", "gradient_clip", "lengthscale"),
    ),
    "lie between 0 and 1": ("discount", "polyak", "epsilon_start", "epsilon_end"),
    "not be negative": ("seed", "evaluation_episodes", "ridge", "gromov_monge", "weight_decay", "kernel_weight_decay"),
}
# The plain agent is the same beside every kernel, so its runs are found again.
KERNEL_ONLY = (
    *("num_centers", "parts", "last_on", "placing", "lengthscale", "ridge", "learn_centers", "learn_values"),
    *("learn_lengthscale", "first_learning_rate", "last_learning_rate", "center_learning_rate", "kernel_weight_decay"),
    *("gromov_monge", "random_states"),
)
FIRST_STUDY_SEED = 100  # what is chosen by a study can be measured on other seeds
VARIANTS: dict[str, dict[str, Any]] = {
    "dqn": {"agent": "dqn"},
    "dqk": {},
    "first-only": {"parts": "first"},
    "last-only": {"parts": "last"},
    # With 1e-3 the values of the last part, action values of size one hundred, hardly move: it made up 3 % of the spread of
    # action values after 200 games. A step of the linear layer moves them by 1e-3 for each of 64 activations.
    "last-only-fast": {"parts": "last", "last_learning_rate": 5e-2},
    "fast-last": {"last_learning_rate": 5e-2},
    "fast-first": {"first_learning_rate": 1e-3},
    "values-only": {"learn_centers": False},
    "slow-centers": {"center_learning_rate": 1e-4},
    "farthest-centers": {"placing": "farthest"},
    "half-lengthscale": {"lengthscale": 0.5},
    "double-lengthscale": {"lengthscale": 2.0},
    "learned-lengthscale": {"learn_lengthscale": True},
    "small-ridge": {"ridge": 1e-4},
    "gromov-monge": {"gromov_monge": 1e-2},
    "last-on-hidden": {"last_on": "hidden"},
}


def study(config: Config, seeds: list[int], names: tuple[str, ...] | None = None) -> list[Config]:
    """The runs of the variants, all of them or those named, seed by seed: an interrupted study has whole comparisons."""
    chosen = tuple(VARIANTS) if names is None else names
    return [
        dataclasses.replace(config, seed=seed, **{"agent": "dqk", **VARIANTS[name]}, variant="" if name == "dqn" else name)
        for seed in seeds
        for name in chosen
    ]

"""Every number of the reinforcement learning experiment (the paper's section 4.4), in one place."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any, Literal

from .._checks import check_at_least_one, check_choice, check_integer, check_positive
from ..errors import InputError
from ..models.networks import PARTS, PLACES, PLACINGS, Parts, Place, Placing

AGENTS: tuple[Literal["dqn", "dqk"], ...] = ("dqn", "dqk")
# Not part of what a run computes: how long it goes on and how it is looked at.
CHANGEABLE = ("episodes", "stop_when_solved", "evaluation_episodes", "checkpoint_every")


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
    parts: Parts = "both"
    last_on: Place = "state"
    placing: Placing = "sample"
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
        check_choice("agent", self.agent, AGENTS)
        check_choice("parts", self.parts, PARTS)
        check_choice("last_on", self.last_on, PLACES)
        check_choice("placing", self.placing, PLACINGS)
        check_integer("seed", self.seed)
        counts = ("episodes", "hidden", "batch_size", "replay_size", "num_centers", "random_states", "checkpoint_every")
        for name in counts:
            check_at_least_one(name, getattr(self, name))
        for name in (
            "learning_rate",
            "first_learning_rate",
            "last_learning_rate",
            "center_learning_rate",
            "epsilon_decay",
            "gradient_clip",
            "lengthscale",
        ):
            check_positive(name, getattr(self, name))
        for name in ("discount", "polyak", "epsilon_start", "epsilon_end"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)}.")
        for name in ("seed", "evaluation_episodes", "ridge", "gromov_monge", "weight_decay", "kernel_weight_decay"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}.")
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

    def settings(self) -> dict[str, Any]:
        """What the numbers of a run depend on, as plain values; of the plain agent, without what is the kernels'."""
        left_out = CHANGEABLE if self.agent == "dqk" else (*CHANGEABLE, *KERNEL_ONLY)
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}


# The plain agent is the same beside every kernel, so its runs are found again.
KERNEL_ONLY = (
    *("num_centers", "parts", "last_on", "placing", "lengthscale", "ridge", "learn_centers", "learn_values"),
    *("learn_lengthscale", "first_learning_rate", "last_learning_rate", "center_learning_rate", "kernel_weight_decay"),
    *("gromov_monge", "random_states"),
)

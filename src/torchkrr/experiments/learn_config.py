"""Every number of the experiment on learning with probes (the paper's section 4.3), in one place."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from .._checks import check_at_least_one, check_choice, check_integer, check_positive
from ..errors import InputError
from ..models.features import POOLINGS, Pooling

Head = Literal["kernel", "linear"]
Objective = Literal["loo", "split", "centers"]
Augmentation = Literal["none", "shift", "flip-shift"]
HEADS: tuple[Head, ...] = ("kernel", "linear")
OBJECTIVES: tuple[Objective, ...] = ("loo", "split", "centers")
AUGMENTATIONS: tuple[Augmentation, ...] = ("none", "shift", "flip-shift")
NUM_STAGES = 5
# Not part of what a run computes, but of how it is looked at.
CHANGEABLE = ("checkpoint_every", "tensorboard", "keep_model")


@dataclasses.dataclass(frozen=True)
class Config:
    """One run: a network cut at some depth, trained under one head. Where the paper is silent, the comment says so.

    Example:
        >>> Config(discard=2, head="linear").label
        'vgg-small-discard2-linear-seed0'
    """

    dataset: str = "cifar10"
    network: str = "vgg-small"  # or vit-small, or a name of torchvision or timm; the paper: VGG-19, ViT-B/16
    weights: str | None = None  # silent: from scratch; a file of weights, or "pretrained"
    size: int | None = None  # silent: pixels; None is 32 for the small networks, their own for others
    discard: int = 0  # top stages
    pooling: Pooling = "mean"  # silent
    head: Head = "kernel"
    seed: int = 0
    samples: int | None = 1000  # of the training part; None is all

    epochs: int = 40  # the paper's are 50
    batch_size: int = 64  # at the most; batches of an epoch are of equal size
    learning_rate: float = 1e-3  # of AdamW, with cosine annealing to zero
    weight_decay: float = 0.01  # silent: torch's default
    augmentation: Augmentation = "flip-shift"  # silent, as all that follows
    validation_share: float = 0.1  # of the samples, stratified: chooses the epoch
    smoothing: int = 5  # epochs whose mean validation accuracy an epoch is judged by: few rows make a single one noisy
    patience: int = 0  # epochs without a better one that end a run; 0: none, since the rate is annealed to the last epoch

    objective: Objective = "loo"
    lengthscale: float = 0.5  # of the exponential kernel on features of unit length
    learn_lengthscale: bool = True
    ridge: float = 0.1
    learn_ridge: bool = True
    temperature: float = 0.1
    learn_temperature: bool = True
    kernel_learning_rate: float = 1e-2  # of lengthscale, ridge and temperature
    num_centers: int = 100  # of the objective "centers"
    support_share: float = 0.5  # of the objective "split"
    gromov_monge: float = 0.0  # weight of the regularizer, per pair
    num_neighbors: int = 100  # the paper's M, of the evaluation

    checkpoint_every: int = 5  # epochs
    tensorboard: bool = False
    keep_model: bool = True

    def __post_init__(self) -> None:
        for name, choices in (("head", HEADS), ("objective", OBJECTIVES), ("augmentation", AUGMENTATIONS)):
            check_choice(name, getattr(self, name), choices)
        check_choice("pooling", self.pooling, POOLINGS[:-1])
        for name in ("seed", "discard", "patience"):
            check_integer(name, getattr(self, name))
            if getattr(self, name) < 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}.")
        if self.discard >= NUM_STAGES:
            raise InputError(f"discard must be less than the {NUM_STAGES} stages there are, got {self.discard}.")
        for name in ("epochs", "smoothing", "num_centers", "num_neighbors", "checkpoint_every"):
            check_at_least_one(name, getattr(self, name))
        check_integer("batch_size", self.batch_size)
        if self.batch_size < 4:
            raise InputError(f"batch_size must be at least 4, to predict some rows from others, got {self.batch_size}.")
        if self.samples is not None and self.samples < 8:
            raise InputError(f"samples must be at least 8, got {self.samples}.")
        for name in ("learning_rate", "kernel_learning_rate", "lengthscale", "ridge", "temperature"):
            check_positive(name, getattr(self, name))
        for name in ("weight_decay", "gromov_monge"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{name} must not be negative, got {getattr(self, name)}.")
        for name in ("validation_share", "support_share"):
            if not 0 < getattr(self, name) < 1:
                raise InputError(f"{name} must lie between 0 and 1, got {getattr(self, name)}.")

    @property
    def label(self) -> str:
        """Names the run; part of file names."""
        network = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.network)
        return f"{network}-discard{self.discard}-{self.head}-seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        """What the numbers of a run depend on, as plain values; of the linear head, without what is the kernel's."""
        found = {name: value for name, value in dataclasses.asdict(self).items() if name not in CHANGEABLE}
        if self.head == "linear":
            for name in KERNEL_ONLY:
                del found[name]
        return found


# The linear head is the same beside every objective, so its runs are found again.
KERNEL_ONLY = (
    *("objective", "lengthscale", "learn_lengthscale", "ridge", "learn_ridge", "temperature", "learn_temperature"),
    *("kernel_learning_rate", "num_centers", "support_share", "gromov_monge"),
)

"""Every number of the experiment on learning with probes, in one place."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal

from torchkrr.errors import InputError

from ..options import check_fields

Head = Literal["kernel", "linear"]
Augmentation = Literal["none", "shift", "flip-shift"]
HEADS: tuple[Head, ...] = ("kernel", "linear")
OBJECTIVES: tuple[Literal["loo", "split", "centers"], ...] = ("loo", "split", "centers")
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
    pooling: Literal["mean", "max", "class_token", "flatten"] = "mean"  # silent
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

    objective: Literal["loo", "split", "centers"] = "loo"
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
        check_fields(self, RULES)
        if self.discard >= NUM_STAGES:
            raise InputError(f"discard must be less than the {NUM_STAGES} stages there are, got {self.discard}.")
        if self.batch_size < 4:
            raise InputError(f"batch_size must be at least 4, to predict some rows from others, got {self.batch_size}.")
        if self.samples is not None and self.samples < 8:
            raise InputError(f"samples must be at least 8, or all, got {self.samples}.")
        if self.size is not None and self.size < 1:
            raise InputError(f"size must be at least 1, got {self.size}.")

    @property
    def label(self) -> str:
        """Names the run; part of file names."""
        network = "".join(letter if letter.isalnum() or letter in "-_." else "-" for letter in self.network)
        return f"{network}-discard{self.discard}-{self.head}-seed{self.seed}"

    def settings(self) -> dict[str, Any]:
        """What the numbers of a run depend on, as plain values; of the linear head, without what is the kernel's."""
        left_out = CHANGEABLE if self.head == "kernel" else (*CHANGEABLE, *KERNEL_ONLY)
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in left_out}


RULES = {
    "be at least 1": ("epochs", "smoothing", "num_centers", "num_neighbors", "checkpoint_every"),
    "be positive": ("learning_rate", "kernel_learning_rate", "lengthscale", "ridge", "temperature"),
    "not be negative": ("seed", "discard", "patience", "weight_decay", "gromov_monge"),
    "lie between 0 and 1, both excluded": ("validation_share", "support_share"),
}
# The linear head is the same beside every objective, so its runs are found again.
KERNEL_ONLY = (
    *("objective", "lengthscale", "learn_lengthscale", "ridge", "learn_ridge", "temperature", "learn_temperature"),
    *("kernel_learning_rate", "num_centers", "support_share", "gromov_monge"),
)


def plan(config: Config, *, depths: Sequence[int], seeds: int, heads: Sequence[Head] = HEADS) -> list[Config]:
    """Every run, seed by seed: an experiment that was interrupted has whole comparisons.

    Example:
        >>> [run.label for run in plan(Config(), depths=[1], seeds=1)]
        ['vgg-small-discard1-kernel-seed0', 'vgg-small-discard1-linear-seed0']
    """
    if not depths or not heads or seeds < 1:
        raise InputError("An experiment needs at least one depth, one seed and one head.")
    return [
        dataclasses.replace(config, seed=seed, discard=depth, head=head)
        for seed in range(seeds)
        for depth in depths
        for head in heads
    ]

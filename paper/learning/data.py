"""Images to train on, to choose by and to be judged by; batches of them, changed at random."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from torchkrr.errors import InputError
from torchkrr.runs import fingerprint
from torchkrr.vision import Images, Preparation, Split, open_dataset
from torchkrr.vision.sampling import budget_rows, held_out

from .config import Augmentation, Config

SHIFT = 1 / 8  # of the edge, at the most, in each direction: 4 of 32 pixels


class Rows(NamedTuple):
    """Row numbers of the training part."""

    fit: Tensor  # gradients come from these
    validation: Tensor  # the epoch is chosen by these

    @property
    def all(self) -> Tensor:
        return torch.cat([self.fit, self.validation])


def open_images(name_or_path: str) -> Split:
    """A data set of images, before any of it is chosen."""
    split = open_dataset(name_or_path)
    if not isinstance(split.train, Images) or not isinstance(split.test, Images):
        raise InputError(f"{name_or_path} has features, not images: nothing is left to train. Use `torchkrr transfer`.")
    return split


def data_fingerprint(data: Split) -> str:
    return fingerprint({"train": data.train.fingerprint, "test": data.test.fingerprint})


def choose_rows(labels: Tensor, config: Config) -> Rows:
    """The subsample of a seed, the same for every head and depth, and which of it is held out; both stratified.

    Example:
        >>> rows = choose_rows(torch.arange(400) % 4, Config(samples=100))
        >>> len(rows.fit), len(rows.validation)
        (90, 10)
    """
    chosen = budget_rows(labels, config.samples, config.seed)
    fit, validation = held_out(labels[chosen], config.validation_share, config.seed)
    if len(fit) < 4:
        raise InputError(f"{len(fit)} images are left to train on, at least 4 are needed. Give more samples.")
    return Rows(chosen[fit], chosen[validation])


def num_batches(count: int, batch_size: int) -> int:
    """Batches of an epoch: as few as have at most `batch_size` rows each, of equal size to one."""
    return math.ceil(count / batch_size)


def training_batches(
    images: Images, rows: Tensor, prepare: Preparation, config: Config, generator: torch.Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """Images `(B, 3, H, W)` and labels `(B,)` of an epoch, all rows once in random order."""
    order = rows[torch.randperm(len(rows), generator=generator)]
    for batch in order.tensor_split(num_batches(len(rows), config.batch_size)):
        batch_images = prepare(images.read(batch.tolist()))
        yield augmented(batch_images, config.augmentation, generator), images.labels[batch]


def augmented(images: Tensor, how: Augmentation, generator: torch.Generator) -> Tensor:
    """Each image shifted, and mirrored or not, at random; what comes in from outside is zero, the middle of the colors.

    Example:
        >>> augmented(torch.ones(2, 3, 8, 8), "flip-shift", torch.Generator().manual_seed(0)).shape
        torch.Size([2, 3, 8, 8])
    """
    if how == "none":
        return images
    count, _, height, width = images.shape
    reach = max(1, round(SHIFT * min(height, width)))
    down, right = torch.randint(2 * reach + 1, (2, count, 1), generator=generator)
    rows, columns = down + torch.arange(height), right + torch.arange(width)  # (B, H), (B, W) of the padded images
    if how == "flip-shift":
        mirrored = torch.rand(count, 1, generator=generator) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = torch.nn.functional.pad(images, (reach,) * 4).permute(0, 2, 3, 1)
    picked = padded[torch.arange(count).view(-1, 1, 1), rows.unsqueeze(2), columns.unsqueeze(1)]  # (B, H, W, 3)
    return picked.permute(0, 3, 1, 2)

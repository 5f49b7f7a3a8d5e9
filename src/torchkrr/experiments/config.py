"""What a transfer run is asked for. The settings of the readouts are theirs, in `vision.readouts`."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

from .._checks import check_device
from ..errors import InputError
from ..models.features import Pooling
from ..vision.readouts import READOUTS, default_head, head_named, readout_named
from .command_lines import command_line


@dataclass(frozen=True)
class Config:
    """One run: data, frozen backbone, label budgets and readouts.

    Args:
        dataset: `digits`, `cifar10`, or a path: a folder with one folder of images per class, an .npz of images or features,
            or a CSV manifest.
        backbone: what makes features of images; `None` is `digits` for digits, and the paper's `resnet18` for others. Not
            used where the data are features.
        weights: a file with the weights of the backbone, instead of its own pretrained ones.
        size: of the images given to the backbone, in pixels.
        layer, pooling: where features are taken from, and how maps and tokens become vectors.
        budgets: numbers of labels; `None` is all.
        seeds: subsamples of each budget below all.
        readouts: names in `vision.readouts.READOUTS`.
        head: which readout is written as a head; `None` is `sk-select` if it is among the readouts, else the first of them
            that can be written, else `sk`.
        out: folder for records, figure, report and head.
        cache: folder for features; `None` is a folder `features` inside `out`.
        test_share, split_seed: of the test part, where the data do not bring their own.
        random_weights: an untrained backbone, for tests.
    """

    NAME: ClassVar[str] = "transfer"
    OPTIONS: ClassVar[dict[str, str]] = {}  # of fields whose option has another name
    # Not said in `command`: numbers do not depend on them, or they have no option.
    UNSAID: ClassVar[tuple[str, ...]] = ("out", "cache", "batch_size", "device", "split_seed")

    dataset: str = "digits"
    backbone: str | None = None
    weights: str | None = None
    size: int | None = None
    layer: str | None = None
    pooling: Pooling = "mean"
    budgets: tuple[int | None, ...] = (100, 1000, 10_000, None)
    seeds: int = 5
    readouts: tuple[str, ...] = tuple(READOUTS)
    head: str | None = None
    out: str = "runs/transfer"
    cache: str | None = None
    test_share: float = 0.2
    split_seed: int = 0
    batch_size: int = 64
    device: str = "cpu"
    random_weights: bool = False

    def __post_init__(self) -> None:
        if not self.budgets or not self.readouts:
            raise InputError("A run needs at least one budget and one readout.")
        if self.seeds < 1:
            raise InputError(f"seeds must be at least 1, got {self.seeds}.")
        for name in self.readouts:
            readout_named(name)
        if self.head is not None:
            head_named(self.head)
        check_device(self.device)

    @property
    def network(self) -> str:
        """The name of the backbone."""
        return self.backbone or ("digits" if self.dataset == "digits" else "resnet18")

    @property
    def head_readout(self) -> str:
        """The name of the readout that is written as a head."""
        return self.head or default_head(self.readouts)

    @property
    def command(self) -> str:
        """What makes the same numbers on the command line, wherever files lie.

        Example:
            >>> Config(dataset="/data/photos", budgets=(100, None)).command
            'torchkrr transfer --dataset photos --budgets 100,all'
        """
        changed = {
            self.OPTIONS.get(field.name, f"--{field.name.replace('_', '-')}"): getattr(self, field.name)
            for field in fields(self)
            if field.name not in self.UNSAID and getattr(self, field.name) != field.default
        }
        return command_line(self.NAME, changed)

    def budgets_of(self, count: int) -> list[int]:
        """The budgets, ascending; those of `count` labels and more are all of them.

        Example:
            >>> Config(budgets=(1000, 100, None)).budgets_of(500)
            [100, 500]
        """
        return sorted({count if budget is None else min(budget, count) for budget in self.budgets})

    def larger_than(self, count: int) -> str:
        """A sentence on budgets that were asked for and are larger than `count`, or nothing.

        Example:
            >>> Config(budgets=(100, 1000)).larger_than(384)
            'There are 384 training examples, fewer than the 1,000 labels asked for: all are used instead.'
        """
        default = next(field.default for field in fields(self) if field.name == "budgets")
        larger = sorted({budget for budget in self.budgets if budget is not None and budget > count})
        if not larger or self.budgets == default:  # which nobody asked for
            return ""
        asked = " and ".join(f"{budget:,}" for budget in larger)
        return f"There are {count:,} training examples, fewer than the {asked} labels asked for: all are used instead."

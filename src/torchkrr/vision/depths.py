"""Probing at depth (section 4.2 of the paper): readouts on a frozen network without its top stages.

A probing run is a transfer run at several depths, whose features come from one pass over the images.
"""

from __future__ import annotations

import pathlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar, NamedTuple

from torch import nn
from tqdm import tqdm

from ..errors import InputError
from ..models.features import Depths, Pooling
from ..models.stages import known_layers
from ..runs import Record, Records, fingerprint, make_folder
from .backbones import (
    DIGIT_LAYERS,
    Backbone,
    DigitNetwork,
    backbone_fingerprint,
    has_channels_last,
    in_eval_mode,
    open_network,
    prefix_tokens,
    trial,
)
from .datasets import open_dataset
from .features import Inputs, Part, about_backbone, features_of, inputs_fingerprint
from .figures import LIGHT, draw_depths, write_page, write_png
from .images import FeatureSet, Images, ImageSubset
from .readouts import readout_named
from .report import probe_markdown, probe_page
from .sampling import budget_rows
from .summary import Cell, summarize
from .transfer import Case, TransferConfig, case_key, cases, solve

WRITTEN = ("records.jsonl", "figure.png", "report.html", "report.md")


@dataclass(frozen=True)
class ProbeConfig(TransferConfig):
    """One run: data, frozen network, the layers that end its stages, sizes of the training part and readouts.

    Args:
        layers: the last layer of each stage, in the order they are called; `None` is five stages of a network known to
            `torchkrr.models.known_layers`, and of `digits`.
        budgets: numbers of training examples; `None` is all.
        train_limit: only so many training images, stratified, are used at all; `None` is all. Features of the others are
            not computed.
        others: see `TransferConfig`. `layer` stays `None`.
    """

    COMMAND: ClassVar[str] = "probe"
    OPTIONS: ClassVar[dict[str, str]] = {"budgets": "--sizes"}

    budgets: tuple[int | None, ...] = (1000, None)
    readouts: tuple[str, ...] = ("sk", "head", "linear", "knn")
    out: str = "runs/probe"
    layers: tuple[str, ...] | None = None
    train_limit: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None:
            raise InputError("Probing takes layers=(...), one for each depth, not layer.")
        if self.train_limit is not None and self.train_limit < 2:
            raise InputError(f"train_limit must be at least 2 pictures, got {self.train_limit}.")


class Depth(NamedTuple):
    """What is left of a network when its top stages are discarded."""

    discarded: int
    layer: str  # the last that is left
    shape: tuple[int, ...]  # of its output for one image, before pooling
    columns: slice  # of the features of all depths

    @property
    def num_features(self) -> int:
        return int(self.columns.stop - self.columns.start)


class DepthInputs(NamedTuple):
    """The two parts of a data set, with the features of all depths side by side."""

    name: str
    classes: list[str]
    train: Part
    test: Part
    depths: tuple[Depth, ...]  # the least discarded first
    backbone: dict[str, Any] | None = None  # what was requested, and what came; None: a network of the caller
    num_available: int = 0  # training images, of which `train_limit` may have left some

    @property
    def text(self) -> str:
        assert self.backbone is not None
        count = f"{len(self.train.labels):,}"
        limited = f" of {self.num_available:,}" if len(self.train.labels) < self.num_available else ""
        sizes = f"{count}{limited} training and {len(self.test.labels):,} test examples"
        return f"{self.name}: {sizes} of {len(self.classes)} classes; {self.backbone['text']}"

    def at(self, depth: Depth) -> Inputs:
        """The inputs of readouts at one depth."""
        train, test = (
            part._replace(features=part.features[:, depth.columns].contiguous()) for part in (self.train, self.test)
        )
        backbone = None if self.backbone is None else {**self.backbone, "layer": depth.layer}
        return Inputs(self.name, self.classes, train, test, backbone, inputs_fingerprint(train, test))


class ProbeOutcome(NamedTuple):
    """What a run leaves behind."""

    inputs: DepthInputs
    records: list[Record]  # of this run, new and reused
    cells: list[Cell]
    reused: int  # records of earlier runs
    note: str  # on sizes that there are not
    out: pathlib.Path


def run(config: ProbeConfig, *, progress: bool = False) -> ProbeOutcome:
    """Features, readouts at all depths, figure and report; results of earlier runs are used again."""
    out = make_folder(config.out)
    inputs = read_inputs(config, progress=progress)
    if len(inputs.train.labels) < 2:
        raise InputError("The training part has one picture. Readouts need at least two.")
    records, reused = solve_depths(config, inputs, Records(out / "records.jsonl"), progress=progress)
    cells = summarize(records)
    note = config.budget_note(len(inputs.train.labels))
    about = (f"{inputs.name}: {config.network} at depth", inputs.text, str(config.pooling))
    write_png(out / "figure.png", draw_depths(cells, LIGHT))
    write_page(out / "report.html", probe_page(*about, records, note))
    write_page(out / "report.md", probe_markdown(*about, records, note, config.command))
    return ProbeOutcome(inputs, records, cells, reused, note, out)


def solve_depths(
    config: TransferConfig, inputs: DepthInputs, stored: Records | None = None, *, progress: bool = False
) -> tuple[list[Record], int]:
    """Every readout, at every size and seed, at every depth; the depth with all stages first.

    Args:
        stored: where records of earlier runs are, and new ones are added at once; `None` keeps none.

    Returns:
        The records, and how many of them were stored before.
    """
    requested = list(cases(config, len(inputs.train.labels)))
    records: list[Record] = []
    reused = 0
    with tqdm(total=len(requested) * len(inputs.depths), desc="probes", disable=not progress) as bar:
        for depth in inputs.depths:
            own = inputs.at(depth)
            for case in requested:
                words = f"{readout_named(case.readout).title}, {case.budget:,} examples, {depth.discarded} discarded"
                bar.set_postfix_str(words)
                record = None if stored is None else stored.get(depth_key(case, depth, own))
                if record is not None:
                    reused += 1
                else:
                    record = solve_at(case, depth, own)
                    if stored is not None:
                        stored.add(record)
                records.append(record)
                bar.set_postfix_str(f"{words}: {100 * record['accuracy']:.1f} %", refresh=False)
                bar.update()
    return records, reused


def solve_at(case: Case, depth: Depth, inputs: Inputs) -> Record:
    """One readout at one depth: the record of `transfer`, and for local kernel ridge the mean local error indicator.

    The indicator is the power function at the test examples, between 0 at a training example and 1 far from all.
    """
    record, fitted = solve(case, inputs)
    indicator = None if fitted.indicator is None else float(fitted.indicator(inputs.test.features).double().mean())
    return {
        **record,
        "key": depth_key(case, depth, inputs),
        "discarded": depth.discarded,
        "layer": depth.layer,
        "shape": list(depth.shape),
        "indicator": indicator,
    }


def depth_key(case: Case, depth: Depth, inputs: Inputs) -> str:
    return fingerprint({"case": case_key(case, inputs), "discarded": depth.discarded, "layer": depth.layer})


def read_inputs(config: ProbeConfig, *, progress: bool = False) -> DepthInputs:
    """Open the data, and compute their features at all depths or read them from the cache."""
    split = open_dataset(config.dataset, test_share=config.test_share, seed=config.split_seed)
    if isinstance(split.train, FeatureSet) or isinstance(split.test, FeatureSet):
        raise InputError(f"Probing reads a network at several depths, but {config.dataset} has features. Give pictures.")
    backbone, depths = open_depths(
        config.network,
        weights=config.weights,
        size=config.size,
        layers=config.layers,
        pooling=config.pooling,
        random_weights=config.random_weights,
    )
    source = limited(split.train, config.train_limit, config.split_seed)
    train, test = (features_of(images, backbone, config, progress) for images in (source, split.test))
    requested = {**about_backbone(config, backbone), "layers": [depth.layer for depth in reversed(depths)]}
    available = len(split.train.labels)
    return DepthInputs(split.train.name, list(split.train.classes), train, test, depths, requested, available)


def limited(images: Images, limit: int | None, seed: int) -> Images:
    """So many images, stratified, in the order they have."""
    if limit is None or limit >= len(images):
        return images
    return ImageSubset(images, budget_rows(images.labels, limit, seed).sort().values)


def open_depths(
    name: str,
    *,
    weights: str | None = None,
    size: int | None = None,
    layers: Sequence[str] | None = None,
    pooling: Pooling = "mean",
    random_weights: bool = False,
) -> tuple[Backbone, tuple[Depth, ...]]:
    """A pretrained network by its name, read at the end of each of its stages; its head is not computed.

    Args:
        name, weights, size, pooling, random_weights: see `open_backbone`.
        layers: the last layer of each stage; `None` is five stages of a known network.

    Returns:
        A backbone whose features are those of all depths side by side, and the depths, the least discarded first.

    Example:
        >>> _, depths = open_depths("digits")
        >>> [(depth.discarded, depth.layer, depth.num_features) for depth in depths]
        [(0, 'top', 128), (1, 'top.0', 64), (2, 'middle', 48), (3, 'middle.0', 48), (4, 'stem', 32)]
    """
    if name == "identity":
        raise InputError("The backbone identity has no layers to probe. Name a network.")
    network, prepare, origin = open_network(name, weights=weights, size=size, random_weights=random_weights)
    model = read_depths(in_eval_mode(network), layers, pooling)
    vectors, shapes = trial(name, prepare, model.vectors_and_shapes)
    depths = as_depths(model.layers, [vector.shape[1] for vector in vectors], shapes)
    num_features = sum(depth.num_features for depth in depths)
    places = "; ".join(f"{depth.layer} {depth.shape}" for depth in reversed(depths))
    text = f"{name}: {origin}, {prepare.describe()}, {pooling} of {places}; {num_features} features"
    return Backbone(name, model, prepare, backbone_fingerprint(model, prepare), num_features, text), depths


def read_depths(network: nn.Module, layers: Sequence[str] | None, pooling: Pooling) -> Depths:
    """The network read at these layers, or at the ends of its stages if they are known."""
    if layers is None:
        layers = DIGIT_LAYERS if isinstance(network, DigitNetwork) else known_layers(network)
    if layers is None:
        raise InputError(
            f"Where the stages of {type(network).__name__} end is not known here. Name the last layer of each: "
            "layers=[...], --layers A,B,C (names as in model.named_modules())."
        )
    return Depths(
        network,
        list(layers),
        pooling,
        num_prefix_tokens=prefix_tokens(network),
        channels_last=has_channels_last(network),
    )


def as_depths(layers: Sequence[str], sizes: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> tuple[Depth, ...]:
    """From the first layer to the last; the result begins with the last, with nothing discarded."""
    depths = [
        Depth(len(layers) - 1 - place, layer, shape, slice(end - size, end))
        for place, (layer, size, shape, end) in enumerate(zip(layers, sizes, shapes, accumulate(sizes), strict=True))
    ]
    return tuple(reversed(depths))

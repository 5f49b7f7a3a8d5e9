"""The features of both parts of a data set at every depth of a network, from one pass over the pictures."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import InputError
from ..vision.datasets import open_dataset
from ..vision.features import Inputs, Part, about_backbone, features_of, inputs_fingerprint
from ..vision.images import FeatureSet, Images, ImageSubset
from ..vision.sampling import budget_rows
from .probe_config import ProbeConfig
from .probe_network import Depth, open_depths


class ProbeInputs(NamedTuple):
    name: str
    classes: list[str]
    train: Part  # features of all depths side by side
    test: Part
    depths: tuple[Depth, ...]
    backbone: dict[str, Any]  # what was asked for, and what came
    num_available: int  # training pictures, of which `train_limit` may have left some

    @property
    def text(self) -> str:
        count = f"{len(self.train.labels):,}"
        limited = f" of {self.num_available:,}" if len(self.train.labels) < self.num_available else ""
        sizes = f"{count}{limited} training and {len(self.test.labels):,} test examples"
        return f"{self.name}: {sizes} of {len(self.classes)} classes; {self.backbone['text']}"

    def at(self, depth: Depth) -> Inputs:
        """The inputs of readouts at one depth."""
        train, test = (part._replace(features=_columns(part, depth)) for part in (self.train, self.test))
        asked = {**self.backbone, "layer": depth.layer}
        return Inputs(self.name, self.classes, train, test, asked, inputs_fingerprint(train, test))


def read_probe_inputs(config: ProbeConfig, *, progress: bool = False) -> ProbeInputs:
    """Open the data and make, or find, their features at all depths."""
    split = open_dataset(config.dataset, test_share=config.test_share, seed=config.split_seed)
    if isinstance(split.train, FeatureSet) or isinstance(split.test, FeatureSet):
        raise InputError(f"Probing reads a network at several depths, but {config.dataset} has features. Give pictures.")
    network = open_depths(
        config.network,
        weights=config.weights,
        size=config.size,
        layers=config.layers,
        pooling=config.pooling,
        random_weights=config.random_weights,
    )
    available = len(split.train.labels)
    kept = limited(split.train, config.train_limit, config.split_seed)
    train, test = (features_of(source, network.backbone, config, progress) for source in (kept, split.test))
    asked = {**about_backbone(config, network.backbone), "layers": [depth.layer for depth in reversed(network.depths)]}
    return ProbeInputs(split.train.name, list(split.train.classes), train, test, network.depths, asked, available)


def limited(pictures: Images, limit: int | None, seed: int) -> Images:
    """So many pictures, stratified, in the order they have."""
    if limit is None or limit >= len(pictures):
        return pictures
    return ImageSubset(pictures, budget_rows(pictures.labels, limit, seed).sort().values)


def _columns(part: Part, depth: Depth) -> Any:
    return part.features[:, depth.columns[0] : depth.columns[1]].contiguous()

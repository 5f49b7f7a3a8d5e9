"""The features of both parts of a data set: extracted by a backbone, or given."""

from __future__ import annotations

import hashlib
import pathlib
from typing import Any, NamedTuple

from torch import Tensor

from ..distributed.launch import SINGLE_PROCESS, SingleProcess
from ..errors import InputError
from .backbones import Backbone, open_backbone
from .config import Config
from .datasets import open_dataset
from .features import extract
from .pictures import FeatureSet, Pictures
from .records import fingerprint


class Part(NamedTuple):
    """Training or test rows."""

    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,)
    seconds: float  # to make the features
    source: Pictures | FeatureSet


class Inputs(NamedTuple):
    name: str
    classes: list[str]
    train: Part
    test: Part
    backbone: dict[str, Any] | None  # what `open_backbone` was asked for, and what came; None: features were given
    fingerprint: str  # of features, labels and classes

    @property
    def described(self) -> str:
        sizes = f"{len(self.train.labels):,} training and {len(self.test.labels):,} test examples"
        given = f"{self.train.features.shape[1]} features as given"
        maker = given if self.backbone is None else self.backbone["text"]
        return f"{self.name}: {sizes} of {len(self.classes)} classes; {maker}"


def read_inputs(config: Config, *, progress: bool = False, team: SingleProcess = SINGLE_PROCESS) -> Inputs:
    """Open the data and make, or find, their features; by all of a team."""
    split = team.first_of_all(open_dataset, config.dataset, test_share=config.test_share, seed=config.split_seed)
    backbone = None
    if isinstance(split.train, Pictures):
        backbone = team.first_of_all(
            open_backbone,
            config.network,
            weights=config.weights,
            size=config.size,
            layer=config.layer,
            pooling=config.pooling,
            random_weights=config.random_weights,
        )
    train, test = (features_of(source, backbone, config, progress, team) for source in split)
    if train.features.shape[1] != test.features.shape[1]:
        raise InputError(
            f"The training part of {config.dataset} has {train.features.shape[1]} features, the test part "
            f"{test.features.shape[1]}. Both must come from the same backbone."
        )
    asked = None if backbone is None else asked_backbone(config, backbone)
    content = team.first(fingerprint_of, train, test)  # the others need not read all features
    return Inputs(split.train.name, list(split.train.classes), train, test, asked, content)


def cache_folder(config: Config) -> pathlib.Path:
    return pathlib.Path(config.out) / "features" if config.cache is None else pathlib.Path(config.cache)


def features_of(
    source: Pictures | FeatureSet,
    backbone: Backbone | None,
    config: Config,
    progress: bool,
    team: SingleProcess = SINGLE_PROCESS,
) -> Part:
    """The features of one part: as given, or from the backbone or the cache."""
    if isinstance(source, FeatureSet):
        return Part(source.features, source.labels, 0.0, source)
    assert backbone is not None
    found = extract(
        backbone,
        source,
        cache=cache_folder(config),
        batch_size=config.batch_size,
        device=config.device,
        progress=progress,
        team=team,
    )
    return Part(found.features, source.labels, found.seconds, source)


def asked_backbone(config: Config, backbone: Backbone) -> dict[str, Any]:
    """Enough to open the same backbone again, and to know that it is the same; of a file of weights only its name."""
    return {
        "name": config.network,
        "weights": None if config.weights is None else pathlib.Path(config.weights).name,
        "size": config.size,
        "layer": config.layer,
        "pooling": config.pooling,
        "random_weights": config.random_weights,
        "fingerprint": backbone.fingerprint,
        "text": backbone.text,
    }


def fingerprint_of(train: Part, test: Part) -> str:
    """Of the numbers themselves: whatever changed on the way to them, changes it."""
    digests = []
    for part in (train, test):
        digest: Any = hashlib.sha256(f"{tuple(part.features.shape)} {part.features.dtype}".encode())
        digest.update(part.features.contiguous().numpy())
        digest.update(part.labels.contiguous().numpy())
        digests.append(digest.hexdigest())
    return fingerprint({"classes": list(train.source.classes), "parts": digests})

"""Features of image collections, computed once and cached in a file; the inputs of transfer and probing runs."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from .._checks import check_at_least_one, check_device, check_finite
from .._chunking import new_pool, ranges
from ..distributed.launch import SINGLE_PROCESS, SingleProcess
from ..errors import FileError, InputError, ShapeError
from ..runs import Record, Records, fingerprint, versions
from .backbones import Backbone, open_backbone
from .datasets import open_dataset
from .images import FeatureSet, Images

AHEAD = 2  # batches loaded while one is computed
BYTES = 4  # of a number in float32
HEADER = "header"  # key of the first record of a journal
SETTINGS = ("size", "layer", "pooling", "random_weights")  # of a backbone, beside its name and weights


class Extraction(NamedTuple):
    """Features of a collection, mapped from a file: changes in memory do not reach the file."""

    features: Tensor  # (N, D) float32
    seconds: float  # that computing them took, also if that was in earlier runs
    reused: bool  # nothing had to be computed


class Part(NamedTuple):
    """The features of a training or a test part."""

    features: Tensor  # (N, D) float32
    labels: Tensor  # (N,)
    seconds: float  # to compute the features
    source: Images | FeatureSet


class Inputs(NamedTuple):
    """The features of both parts of a data set."""

    name: str
    classes: list[str]
    train: Part
    test: Part
    backbone: dict[str, Any] | None  # arguments of `open_backbone`, its fingerprint and text; None: features were given
    fingerprint: str  # of features, labels and classes

    @property
    def kind(self) -> dict[str, Any]:
        """What rows are made from, as a fitted head notes it."""
        return {"kind": "features"} if self.backbone is None else {"kind": "images", "backbone": self.backbone}

    @property
    def text(self) -> str:
        sizes = f"{len(self.train.labels):,} training and {len(self.test.labels):,} test examples"
        given = f"{self.train.features.shape[1]} features as given"
        origin = given if self.backbone is None else self.backbone["text"]
        return f"{self.name}: {sizes} of {len(self.classes)} classes; {origin}"


def extract(
    backbone: Backbone,
    images: Images,
    *,
    cache: str | os.PathLike[str],
    batch_size: int = 64,
    device: str = "cpu",
    progress: bool = False,
    team: SingleProcess = SINGLE_PROCESS,
) -> Extraction:
    """The features of all images, from the cache if they are there.

    A run that was interrupted or killed resumes: finished batches are taken from the file if their checksum is right, others
    are computed again, with the batches cut as before, so the numbers are those of an uninterrupted run. Everything the
    features depend on (architecture, weights, preparation, layer and pooling, pixels, labels and their order) is part of
    the file's name, so stale features are never found. Versions of torch are not: they move features by rounding only, and
    are written into the journal.

    Args:
        backbone: see `open_backbone`.
        images: see `open_dataset`.
        cache: folder for the files; it is created if needed.
        batch_size: images per forward pass. A run that resumes keeps that of its beginning.
        device: where the network runs.
        progress: show a progress bar with images per second.
        team: the processes that share the batches. The first one writes the files, which do not depend on how many there
            are.

    Example:
        >>> import tempfile
        >>> backbone, images = open_backbone("identity", size=8), open_dataset("digits").test
        >>> folder = tempfile.mkdtemp()
        >>> extract(backbone, images, cache=folder).features.shape
        torch.Size([359, 192])
        >>> extract(backbone, images, cache=folder).reused
        True
    """
    check_at_least_one("batch_size", batch_size)
    device = team.device(device)
    check_device(device)
    if not len(images):
        raise InputError(f"{images.name} has no images.")
    header = team.first(_new_header, backbone, images, batch_size)
    data, journal = team.first(_cache_files, cache, (images.name, backbone.name, *header["fingerprints"].values()))
    batch_size, done = team.first(_finished_batches, data, journal, header)
    batches = ranges(len(images), batch_size)
    reused = len(done) == len(batches)
    if not reused:
        _compute(backbone, images, data, journal, batches, done, torch.device(device), progress, team)
    seconds = team.first(lambda: sum(done.values()))
    count, width = header["shape"]
    features = torch.from_file(str(data), shared=False, size=count * width, dtype=torch.float32)
    return Extraction(features.view(count, width), seconds, reused)


def read_inputs(config: Any, *, progress: bool = False, team: SingleProcess = SINGLE_PROCESS) -> Inputs:
    """Open the data and compute their features, or read them from the cache; on all ranks of a team.

    Args:
        config: a `TransferConfig`.
    """
    split = team.first_of_all(open_dataset, config.dataset, test_share=config.test_share, seed=config.split_seed)
    backbone = None
    if isinstance(split.train, Images):
        settings = {name: getattr(config, name) for name in SETTINGS}
        backbone = team.first_of_all(open_backbone, config.network, weights=config.weights, **settings)
    train, test = (features_of(source, backbone, config, progress, team) for source in split)
    if train.features.shape[1] != test.features.shape[1]:
        raise InputError(
            f"The training part of {config.dataset} has {train.features.shape[1]} features, the test part "
            f"{test.features.shape[1]}. Both must come from the same backbone."
        )
    about = None if backbone is None else about_backbone(config, backbone)
    content = team.first(inputs_fingerprint, train, test)  # the others need not read all features
    return Inputs(split.train.name, list(split.train.classes), train, test, about, content)


def features_of(
    source: Images | FeatureSet,
    backbone: Backbone | None,
    config: Any,
    progress: bool,
    team: SingleProcess = SINGLE_PROCESS,
) -> Part:
    """The features of one part: as given, or from the backbone or the cache."""
    if isinstance(source, FeatureSet):
        return Part(source.features, source.labels, 0.0, source)
    assert backbone is not None
    cache = pathlib.Path(config.out) / "features" if config.cache is None else config.cache
    options = {"cache": cache, "batch_size": config.batch_size, "device": config.device}
    extraction = extract(backbone, source, progress=progress, team=team, **options)
    return Part(extraction.features, source.labels, extraction.seconds, source)


def about_backbone(config: Any, backbone: Backbone) -> dict[str, Any]:
    """Enough to open the same backbone again, and to know that it is the same; of a file of weights only its name."""
    return {
        "name": config.network,
        "weights": None if config.weights is None else pathlib.Path(config.weights).name,
        **{name: getattr(config, name) for name in SETTINGS},
        "fingerprint": backbone.fingerprint,
        "text": backbone.text,
    }


def inputs_fingerprint(train: Part, test: Part) -> str:
    """A hash of the numbers themselves: whatever changed on the way to them, changes it."""
    digests = []
    for part in (train, test):
        digest: Any = hashlib.sha256(f"{tuple(part.features.shape)} {part.features.dtype}".encode())
        digest.update(part.features.contiguous().numpy())
        digest.update(part.labels.contiguous().numpy())
        digests.append(digest.hexdigest())
    return fingerprint({"classes": list(train.source.classes), "parts": digests})


def _new_header(backbone: Backbone, images: Images, batch_size: int) -> Record:
    """The first line of a journal."""
    return {
        "key": HEADER,
        "images": images.name,
        "backbone": backbone.text,
        "shape": [len(images), backbone.num_features],
        "batch_size": batch_size,
        "fingerprints": {"backbone": backbone.fingerprint, "images": images.fingerprint},
        "versions": versions(("torch",)),
    }


def _cache_files(folder: str | os.PathLike[str], words: Sequence[str]) -> tuple[pathlib.Path, pathlib.Path]:
    """The numbers, row by row, and the journal: a header, and a record of each finished batch."""
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise FileError(f"The folder {folder} for features cannot be made: {error.strerror or error}.") from error
    # Names for people who look into the folder, then fingerprints.
    stem = "-".join(re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:20] for word in words)
    return pathlib.Path(folder) / f"{stem}.f32", pathlib.Path(folder) / f"{stem}.jsonl"


def _finished_batches(data: pathlib.Path, journal: pathlib.Path, header: Record) -> tuple[int, dict[int, float]]:
    """The batch size, and the seconds of each batch whose numbers in the file have the checksum of its record."""
    try:
        records = Records(journal)
    except FileError:  # damaged: begin again
        journal.unlink()
        records = Records(journal)
    if records.get(HEADER) is None:
        records.add(header)
    count, width = header["shape"]
    batch_size, done = (records.get(HEADER) or header)["batch_size"], dict[int, float]()
    with open(data, "ab") as file:
        file.truncate(count * width * BYTES)
    with open(data, "rb") as file:
        for number, rows in enumerate(ranges(count, batch_size)):
            content = file.read((rows.stop - rows.start) * width * BYTES)
            record = records.get(str(number))
            if record is not None and record["crc32"] == zlib.crc32(content):
                done[number] = record["seconds"]
    return batch_size, done


def _compute(
    backbone: Backbone,
    images: Images,
    data: pathlib.Path,
    journal: pathlib.Path,
    batches: list[slice],
    done: dict[int, float],
    device: torch.device,
    progress: bool,
    team: SingleProcess,
) -> None:
    """Compute the batches that are not in `done`; the first rank writes them, and adds them to its `done`."""
    left = [number for number in range(len(batches)) if number not in done]
    model = backbone.model.eval().to(device)

    def work(numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        for number, batch in _loaded(backbone, images, batches, numbers):
            yield number, _features(backbone, images, model, batch.to(device), batches[number])

    computed = team.shared_out(left, work)
    if not team.is_first:
        deque(computed, maxlen=0)  # nothing comes, but this is what does the work
        return
    records, finished = Records(journal), sum(batches[number].stop - batches[number].start for number in done)
    with (
        open(data, "r+b") as file,
        tqdm(
            total=len(images), initial=finished, desc=f"features of {images.name}", unit=" images", disable=not progress
        ) as bar,
    ):
        before = time.perf_counter()
        for number, features in computed:
            content = features.numpy().tobytes()
            file.seek(batches[number].start * features.shape[1] * BYTES)
            file.write(content)
            file.flush()
            before, done[number] = time.perf_counter(), time.perf_counter() - before
            # Its record is the last thing written: a batch without one does not count.
            records.add({"key": str(number), "crc32": zlib.crc32(content), "seconds": done[number]})
            bar.update(len(features))
        os.fsync(file.fileno())


@torch.inference_mode()
def _features(backbone: Backbone, images: Images, model: torch.nn.Module, batch: Tensor, rows: slice) -> Tensor:
    features: Tensor = model(batch).float().cpu().contiguous()
    if features.shape != (rows.stop - rows.start, backbone.num_features):
        raise ShapeError(
            f"{backbone.name} gave features of shape {tuple(features.shape)} for {rows.stop - rows.start} images, "
            f"expected {backbone.num_features} for each."
        )
    check_finite(f"The features of images {rows.start} to {rows.stop - 1} of {images.name}", features)
    return features


def _loaded(
    backbone: Backbone, images: Images, batches: list[slice], numbers: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Batches in order, read and resized by another thread while the network computes."""

    def load(number: int) -> Tensor:
        return backbone.prepare(images.read(range(batches[number].start, batches[number].stop)))

    pool = new_pool(1)
    waiting: deque[tuple[int, Future[Tensor]]] = deque()
    try:
        for number in numbers:
            waiting.append((number, pool.submit(load, number)))
            if len(waiting) > AHEAD:
                first, future = waiting.popleft()
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)

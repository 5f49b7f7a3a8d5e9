"""Features of image collections, computed once and cached in a file; the inputs of transfer and probing runs."""

from __future__ import annotations

import hashlib
import json
import os
import pathlib
import re
import time
import zlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from tqdm import tqdm

from .. import __version__
from .._checks import check_at_least_one, check_device, check_finite
from .._chunking import new_pool, ranges
from .._files import replacing
from ..distributed.launch import SINGLE_PROCESS, SingleProcess
from ..errors import FileError, InputError, ShapeError
from ..runs import fingerprint
from .backbones import Backbone, open_backbone
from .datasets import open_dataset
from .images import FeatureSet, Images

if TYPE_CHECKING:
    from .transfer import TransferConfig

AHEAD = 2  # batches loaded while one is computed
BYTES = 4  # of a number in float32
Line = dict[str, Any]  # of a journal


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
    fingerprints = team.first(lambda: {"backbone": backbone.fingerprint, "images": images.fingerprint})
    cached = CachedFeatures(cache, (images.name, backbone.name), fingerprints, (len(images), backbone.num_features))
    batch_size, done = team.first(cached.open, batch_size, {"images": images.name, "backbone": backbone.text})
    batches = ranges(len(images), batch_size)
    reused = len(done) == len(batches)
    if not reused:
        done = _compute(backbone, images, cached, batches, done, torch.device(device), progress, team)
    seconds = team.first(lambda: sum(line["seconds"] for line in done.values()))
    return Extraction(cached.mapped(), seconds, reused)


class CachedFeatures:
    """One set of features on disk: `.f32` has the numbers, row by row; `.jsonl` has a header and a line per finished batch.

    Args:
        folder: where the files are; it is created if needed.
        words: begin the name of the files, for people who look into the folder.
        fingerprints: of what the features depend on, also in the name.
        shape: `(N, D)`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        words: Sequence[str],
        fingerprints: dict[str, str],
        shape: tuple[int, int],
    ) -> None:
        readable = [re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:40] for word in words]
        stem = "-".join([*readable, *(text[:16] for text in fingerprints.values())])
        self.data, self.journal = (pathlib.Path(folder) / f"{stem}{suffix}" for suffix in (".f32", ".jsonl"))
        self.shape, self.row, self.fingerprints = shape, shape[1] * BYTES, fingerprints

    def open(self, batch_size: int, about: dict[str, str]) -> tuple[int, dict[int, Line]]:
        """The batch size, and the lines of the batches whose checksum is that of the numbers in the file.

        Args:
            batch_size: of features that are not there yet; others keep theirs.
            about: more words for the header.
        """
        try:
            self.data.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(
                f"The folder {self.data.parent} for features cannot be made: {error.strerror or error}."
            ) from error
        header, *lines = self._lines() or [{}]
        if header.get("shape") != list(self.shape):
            versions = {"torchkrr": __version__, "torch": torch.__version__}
            header = {**about, "shape": list(self.shape), "dtype": "float32", "batch_size": batch_size}
            header, lines = {**header, "fingerprints": self.fingerprints, "versions": versions}, []
        batches, done = ranges(self.shape[0], header["batch_size"]), dict[int, Line]()
        with open(self.data, "ab") as data:
            data.truncate(self.shape[0] * self.row)
        with open(self.data, "rb") as data:
            for line in lines:
                rows = batches[line["batch"]]
                data.seek(rows.start * self.row)
                if zlib.crc32(data.read((rows.stop - rows.start) * self.row)) == line["crc32"]:
                    done[line["batch"]] = line
        if len(done) < len(batches):
            # Written anew: its last line may have been cut short, and the next must not be joined to it.
            with replacing(self.journal) as temporary:
                temporary.write_text("".join(json.dumps(line) + "\n" for line in [header, *done.values()]), encoding="utf-8")
        return header["batch_size"], done

    def mapped(self) -> Tensor:
        """The features `(N, D)` without reading them; changes in memory do not reach the file."""
        size = self.shape[0] * self.shape[1]
        return torch.from_file(str(self.data), shared=False, size=size, dtype=torch.float32).view(self.shape)

    def _lines(self) -> list[Line]:
        if not self.journal.exists():
            return []
        lines = self.journal.read_text(encoding="utf-8", errors="replace").split("\n")
        try:
            return [json.loads(line) for line in lines[:-1]]  # what follows the last end of a line was cut short
        except ValueError:  # damaged: begin again
            return []


def read_inputs(config: TransferConfig, *, progress: bool = False, team: SingleProcess = SINGLE_PROCESS) -> Inputs:
    """Open the data and compute their features, or read them from the cache; on all ranks of a team."""
    split = team.first_of_all(open_dataset, config.dataset, test_share=config.test_share, seed=config.split_seed)
    backbone = None
    if isinstance(split.train, Images):
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
    about = None if backbone is None else about_backbone(config, backbone)
    content = team.first(inputs_fingerprint, train, test)  # the others need not read all features
    return Inputs(split.train.name, list(split.train.classes), train, test, about, content)


def features_of(
    source: Images | FeatureSet,
    backbone: Backbone | None,
    config: TransferConfig,
    progress: bool,
    team: SingleProcess = SINGLE_PROCESS,
) -> Part:
    """The features of one part: as given, or from the backbone or the cache."""
    if isinstance(source, FeatureSet):
        return Part(source.features, source.labels, 0.0, source)
    assert backbone is not None
    extraction = extract(
        backbone,
        source,
        cache=pathlib.Path(config.out) / "features" if config.cache is None else config.cache,
        batch_size=config.batch_size,
        device=config.device,
        progress=progress,
        team=team,
    )
    return Part(extraction.features, source.labels, extraction.seconds, source)


def about_backbone(config: TransferConfig, backbone: Backbone) -> dict[str, Any]:
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


def inputs_fingerprint(train: Part, test: Part) -> str:
    """A hash of the numbers themselves: whatever changed on the way to them, changes it."""
    digests = []
    for part in (train, test):
        digest: Any = hashlib.sha256(f"{tuple(part.features.shape)} {part.features.dtype}".encode())
        digest.update(part.features.contiguous().numpy())
        digest.update(part.labels.contiguous().numpy())
        digests.append(digest.hexdigest())
    return fingerprint({"classes": list(train.source.classes), "parts": digests})


def _compute(
    backbone: Backbone,
    images: Images,
    cached: CachedFeatures,
    batches: list[slice],
    done: dict[int, Line],
    device: torch.device,
    progress: bool,
    team: SingleProcess,
) -> dict[int, Line]:
    """Compute the batches that are not done; the first rank writes them, and returns the lines of all."""
    left = [number for number in range(len(batches)) if number not in done]
    model = backbone.model.eval().to(device)

    def work(numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        for number, batch in _loaded(backbone, images, batches, numbers):
            yield number, _features(backbone, images, model, batch.to(device), batches[number])

    computed = team.shared_out(left, work)
    if not team.is_first:
        deque(computed, maxlen=0)  # nothing comes, but this is what does the work
        return done
    known = sum(batches[number].stop - batches[number].start for number in done)
    with (
        open(cached.data, "r+b") as data,
        open(cached.journal, "a", encoding="utf-8") as journal,
        tqdm(
            total=len(images), initial=known, desc=f"features of {images.name}", unit=" images", disable=not progress
        ) as bar,
    ):
        before = time.perf_counter()
        for number, features in computed:
            content = features.numpy().tobytes()
            data.seek(batches[number].start * cached.row)
            data.write(content)
            data.flush()
            now = time.perf_counter()
            # Its line is the last thing written: a batch without one does not count.
            done[number] = {"batch": number, "crc32": zlib.crc32(content), "seconds": now - before}
            journal.write(json.dumps(done[number]) + "\n")
            journal.flush()
            before = now
            bar.update(len(features))
        os.fsync(data.fileno())
    return done


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

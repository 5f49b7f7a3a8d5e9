"""Features of all pictures of a collection, computed once and kept in a file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import torch
from torch import Tensor

from .. import __version__
from .._checks import check_at_least_one, check_device, check_finite
from .._chunking import new_pool, ranges
from .._progress import Progress
from ..distributed.launch import SINGLE_PROCESS, SingleProcess
from ..errors import InputError, ShapeError
from .backbones import Backbone
from .feature_files import Line, Place, begin, complete, finish, mapped, place_for, write_batch
from .pictures import Pictures

AHEAD = 2  # batches prepared while one is computed


class Extracted(NamedTuple):
    """Features of a collection, mapped from a file: what is changed in memory never reaches it."""

    features: Tensor  # (N, D) float32
    seconds: float  # that computing them took, also if that was in earlier runs
    reused: bool  # nothing had to be computed


def extract(
    backbone: Backbone,
    pictures: Pictures,
    *,
    cache: str | os.PathLike[str],
    batch_size: int = 64,
    device: str = "cpu",
    progress: bool = False,
    team: SingleProcess = SINGLE_PROCESS,
) -> Extracted:
    """The features of all pictures, from the cache where they are there.

    A run that was stopped, in whatever way, goes on where it was: finished batches are taken from the file if their checksum
    is right, others are computed again, with the batches cut as before, so that the numbers are those of a run that was not
    stopped. What the features depend on (architecture, weights, preprocessing, layer and pooling, pixels, labels and their
    order) is part of the file's name, so nothing stale is ever found. Versions of torch are not: they move features by
    rounding only, and are written beside them.

    Args:
        backbone: see `open_backbone`.
        pictures: see `open_dataset`.
        cache: folder for the files; it is made if it is not there.
        batch_size: pictures that the network sees together. A run that goes on keeps that of its beginning.
        device: where the network runs.
        progress: show a line with pictures per second.
        team: the processes that do it together, each some batches. The first one writes the files, which do not depend on
            how many there are.

    Example:
        >>> import tempfile
        >>> from torchkrr.experiments.backbones import open_backbone
        >>> from torchkrr.experiments.datasets import open_dataset
        >>> backbone, pictures = open_backbone("identity", size=8), open_dataset("digits").test
        >>> folder = tempfile.mkdtemp()
        >>> extract(backbone, pictures, cache=folder).features.shape
        torch.Size([359, 192])
        >>> extract(backbone, pictures, cache=folder).reused
        True
    """
    check_at_least_one("batch_size", batch_size)
    device = team.device(device)
    check_device(device)
    if not len(pictures):
        raise InputError(f"{pictures.name} has no pictures.")
    fingerprints = team.first(lambda: (backbone.fingerprint, pictures.fingerprint()))
    place = place_for(cache, (pictures.name, backbone.name), fingerprints)
    shape = (len(pictures), backbone.num_features)
    about = team.first(complete, place, shape)
    if about is not None:
        return Extracted(mapped(place, shape), about["seconds"], reused=True)
    batch_size, done = team.first(begin, place, shape, batch_size)
    batches = ranges(len(pictures), batch_size)
    _compute(backbone, pictures, place, batches, done, torch.device(device), progress, team)
    seconds = team.first(lambda: sum(line["seconds"] for line in done.values()))
    about = {
        "pictures": pictures.name,
        "backbone": backbone.text,
        "shape": list(shape),
        "dtype": "float32 of this machine's byte order, row by row",
        "batch_size": batch_size,
        "seconds": seconds,
        "crc32": [done[number]["crc32"] for number in sorted(done)],
        "fingerprints": dict(zip(("backbone", "pictures"), fingerprints, strict=True)),
        "versions": {"torchkrr": __version__, "torch": torch.__version__},
    }
    team.only_first(finish, place, about)
    return Extracted(mapped(place, shape), seconds, reused=False)


def _compute(
    backbone: Backbone,
    pictures: Pictures,
    place: Place,
    batches: list[slice],
    done: dict[int, Line],
    device: torch.device,
    shown: bool,
    team: SingleProcess,
) -> None:
    """All batches into the partial file, with a line about each into `done` and the journal: that of the first rank."""
    left = [number for number in range(len(batches)) if number not in done]
    model = backbone.model.eval().to(device)

    def work(numbers: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        for number, batch in _prepared(backbone, pictures, batches, numbers):
            yield number, _features(backbone, pictures, model, batch.to(device), batches[number])

    computed = team.shared_out(left, work)
    if not team.is_first:
        for _ in computed:  # nothing comes, but this is what does the work
            pass
        return
    with (
        open(place.partial, "r+b") as data,
        open(place.journal, "a", encoding="utf-8") as journal,
        Progress(f"features of {pictures.name}", len(pictures), shown=shown) as bar,
    ):
        bar.advance(sum(batches[number].stop - batches[number].start for number in done))
        began, since = time.perf_counter(), 0
        before = began
        for number, features in computed:
            checksum = write_batch(data, features, batches[number].start)
            now = time.perf_counter()
            # Its line is the last thing written: a batch without one does not count.
            done[number] = {"batch": number, "crc32": checksum, "seconds": now - before}
            journal.write(json.dumps(done[number]) + "\n")
            journal.flush()
            before, since = now, since + len(features)
            bar.advance(len(features), note=f"{since / (now - began):.0f} images/s")
        os.fsync(data.fileno())


@torch.inference_mode()
def _features(backbone: Backbone, pictures: Pictures, model: torch.nn.Module, batch: Tensor, rows: slice) -> Tensor:
    features: Tensor = model(batch).float().cpu().contiguous()
    if features.shape != (rows.stop - rows.start, backbone.num_features):
        raise ShapeError(
            f"{backbone.name} gave features of shape {tuple(features.shape)} for {rows.stop - rows.start} pictures, "
            f"expected {backbone.num_features} for each."
        )
    check_finite(f"The features of pictures {rows.start} to {rows.stop - 1} of {pictures.name}", features)
    return features


def _prepared(
    backbone: Backbone, pictures: Pictures, batches: list[slice], left: Sequence[int]
) -> Iterator[tuple[int, Tensor]]:
    """Batches in order, read and resized by another thread while the network computes."""

    def load(number: int) -> Tensor:
        return backbone.prepare(pictures.read(range(batches[number].start, batches[number].stop)))

    pool = new_pool(1)
    waiting: list[tuple[int, Future[Tensor]]] = []
    try:
        for number in left:
            waiting.append((number, pool.submit(load, number)))
            if len(waiting) > AHEAD:
                first, future = waiting.pop(0)
                yield first, future.result()
        for first, future in waiting:
            yield first, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)

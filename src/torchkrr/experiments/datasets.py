"""Labelled data by name or by path."""

from __future__ import annotations

import contextlib
import io
import pathlib

import numpy as np
import torch

from .._checks import nearest_name
from .._files import replacing
from ..errors import FileError
from ._torchvision import torchvision_module
from .archives import open_archive
from .extras import needed
from .image_files import open_folder, open_manifest
from .pictures import ArrayPictures, Split
from .splitting import stratified_split

CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR10_SIZES = {"x_train": (50_000, 32, 32, 3), "y_train": (50_000,), "x_test": (10_000, 32, 32, 3), "y_test": (10_000,)}
NAMES = ("digits", "cifar10")


def open_dataset(name_or_path: str, *, test_share: float = 0.2, seed: int = 0) -> Split:
    """Labelled pictures or features, divided into a training and a test part.

    Args:
        name_or_path: `"digits"` (1797 of 8 x 8 pixels, from scikit-learn), `"cifar10"` (`~/.cache/torchkrr/cifar10.npz`,
            downloaded by torchvision if it is not there), or a path: a folder with a folder of pictures for each class
            (below `train` and `test`, if the parts are fixed), an .npz file with `features` or `images` and `labels`, or a
            CSV file with the columns `path`, `label` and, if the parts are fixed, `split`.
        test_share: part of each class that is kept for testing, where the data have no test part of their own.
        seed: of that choice.

    Example:
        >>> split = open_dataset("digits")
        >>> len(split.train), len(split.test), split.train.read([0])[0].shape
        (1438, 359, (8, 8, 3))
    """
    if name_or_path == "digits":
        return _digits(test_share, seed)
    if name_or_path == "cifar10":
        return _cifar10()
    path = pathlib.Path(name_or_path)
    if path.is_dir():
        return open_folder(path, test_share=test_share, seed=seed)
    if not path.is_file():
        near = _near(path)
        raise FileError(
            f"The dataset {name_or_path} is neither a name known here ({', '.join(NAMES)}) nor a file or folder that exists."
            + (f" Did you mean {near!r}?" if near else "")
        )
    if path.suffix.lower() == ".npz":
        return open_archive(path, test_share=test_share, seed=seed)
    if path.suffix.lower() == ".csv":
        return open_manifest(path, test_share=test_share, seed=seed)
    raise FileError(
        f"The dataset {path} must be a folder of class folders, an .npz file, or a .csv file that lists path and label."
    )


def cache_folder() -> pathlib.Path:
    """Where data sets that were downloaded are kept."""
    return pathlib.Path.home() / ".cache" / "torchkrr"


def _near(path: pathlib.Path) -> str | None:
    """A name known here, or of something beside the path that is not there, which is almost the same."""
    known = {name: name for name in NAMES} if path.parent == pathlib.Path() else {}
    with contextlib.suppress(OSError):  # a folder that is not there, or may not be read
        known |= {other.name: str(other) for other in sorted(path.parent.iterdir()) if not other.name.startswith(".")}
    near = nearest_name(path.name, list(known), alike=0.6)
    return None if near is None else known[near]


def _digits(test_share: float, seed: int) -> Split:
    bundled = needed("sklearn.datasets", "The dataset digits", extra="demo").load_digits()
    pixels = np.round(bundled.images * (255 / 16)).astype(np.uint8)  # counts from 0 to 16
    labels, classes = torch.from_numpy(bundled.target.astype(np.int64)), [str(digit) for digit in range(10)]
    rows = stratified_split("digits", labels, classes, test_share=test_share, seed=seed)
    return Split(
        *(
            ArrayPictures("digits", classes, labels[part], pixels[part.numpy()], part=name)
            for part, name in zip(rows, ("training", "test"), strict=True)
        )
    )


def _cifar10() -> Split:
    path = cache_folder() / "cifar10.npz"
    if not path.exists():
        _download_cifar10(path)
    split = open_archive(path, test_share=0.2, seed=0, name="cifar10", classes=CIFAR10_CLASSES)
    sizes = {"x_train": len(split.train.labels), "x_test": len(split.test.labels)}
    if isinstance(split.train, ArrayPictures) and sizes == {name: CIFAR10_SIZES[name][0] for name in sizes}:
        return split
    raise FileError(f"{path} is not CIFAR-10 (50,000 and 10,000 pictures). Remove it; it will be downloaded again.")


def _download_cifar10(path: pathlib.Path) -> None:
    datasets = torchvision_module("torchvision.datasets", "The dataset cifar10")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            parts = [datasets.CIFAR10(path.parent / "downloads", train=train, download=True) for train in (True, False)]
    # Whatever the network does, the way out is the same.
    except Exception as error:
        raise FileError(
            f"CIFAR-10 is not at {path}, and downloading it failed: {error}. Put it there as an .npz file with "
            f"{', '.join(f'{name} {size}' for name, size in CIFAR10_SIZES.items())}, or try again with a network."
        ) from error
    arrays = {f"{axis}_{name}": getattr(part, source) for name, part in zip(("train", "test"), parts, strict=True)
              for axis, source in (("x", "data"), ("y", "targets"))}  # fmt: skip
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})

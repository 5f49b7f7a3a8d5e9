"""Labeled data by name or by path: bundled or downloaded, folders of images, CSV lists, and .npz archives."""

from __future__ import annotations

import contextlib
import csv
import io
import pathlib
import zipfile
import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import check_finite, nearest_name
from .._extras import import_extra, import_torchvision
from .._files import replacing
from ..errors import FileError, InputError
from .images import Array, FeatureSet, ImageArray, ImageFiles, Images
from .sampling import check_classes, check_split, encode_labels, stratified_split

NAMES = ("digits", "cifar10")
PARTS = ("training", "test")
CIFAR10_CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
CIFAR10_SIZES = {"x_train": (50_000, 32, 32, 3), "y_train": (50_000,), "x_test": (10_000, 32, 32, 3), "y_test": (10_000,)}

IMAGE_SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".jp2", ".avif"}
TEST_FOLDERS = ("test", "val", "valid", "validation")

DATA, LABELS = ("features", "images", "x"), ("labels", "y")  # arrays of an archive
ARRAYS = {stem + part for stem in (*DATA, *LABELS) for part in ("", "_train", "_test")} | {"classes"}
ARCHIVE = (
    "Expected `features` (N, D) or `images` (N, H, W, 3), with `labels` (N,); or the same names with _train and _test; "
    "and `classes`, their names, if the labels are numbers"
)


class Split(NamedTuple):
    """A training and a test part."""

    train: Images | FeatureSet
    test: Images | FeatureSet


def open_dataset(name_or_path: str, *, test_share: float = 0.2, seed: int = 0) -> Split:
    """Labeled images or features, divided into a training and a test part.

    Args:
        name_or_path: `"digits"` (1797 of 8 x 8 pixels, from scikit-learn), `"cifar10"` (`~/.cache/torchkrr/cifar10.npz`,
            downloaded by torchvision if it is not there), or a path: a folder with a folder of images for each class
            (below `train` and `test`, if the parts are fixed), an .npz file with `features` or `images` and `labels`, or a
            CSV file with the columns `path`, `label` and, if the parts are fixed, `split`.
        test_share: part of each class that is held out for testing, where the data have no test part of their own.
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
        return _open_folder(path, test_share, seed)
    if not path.is_file():
        near = _near(path)
        raise FileError(
            f"The dataset {name_or_path} is neither a name known here ({', '.join(NAMES)}) nor a file or folder that exists."
            + (f" Did you mean {near!r}?" if near else "")
        )
    if path.suffix.lower() == ".npz":
        return _open_archive(path, path.stem, test_share, seed)
    if path.suffix.lower() == ".csv":
        return _open_manifest(path, test_share, seed)
    raise FileError(
        f"The dataset {path} must be a folder of class folders, an .npz file, or a .csv file that lists path and label."
    )


def cache_folder() -> pathlib.Path:
    """Where downloaded data sets are stored."""
    return pathlib.Path.home() / ".cache" / "torchkrr"


def images_by_class(folder: pathlib.Path, root: pathlib.Path | None = None) -> tuple[list[str], list[str]]:
    """The image files below the class folders of a folder, relative to `root` (itself), and the class of each.

    Files with other suffixes, and names that begin with a dot, are ignored.
    """
    root = root or folder
    if not folder.is_dir():
        raise FileError(f"{folder} must be a folder with one folder of images for each class; it is no folder.")
    names = _class_folders(folder)
    if not names:
        loose = any(entry.suffix.lower() in IMAGE_SUFFIXES for entry in folder.iterdir())
        raise FileError(
            f"{folder} must hold one folder of images for each class, but "
            f"{'its images lie in it directly' if loose else 'it has no folders'}. "
            "For labels from a list, give a CSV file with the columns path and label."
        )
    paths: list[str] = []
    labels: list[str] = []
    for name in names:
        own = sorted(
            entry.relative_to(root).as_posix()
            for entry in (folder / name).rglob("*")
            if entry.suffix.lower() in IMAGE_SUFFIXES and not entry.name.startswith(".") and entry.is_file()
        )
        if not own:
            suffixes = ", ".join(sorted(IMAGE_SUFFIXES))
            raise FileError(f"The class folder {folder / name} holds no images ({suffixes}). Add some, or remove it.")
        paths += own
        labels += [name] * len(own)
    return paths, labels


def _open_folder(root: pathlib.Path, test_share: float, seed: int) -> Split:
    folders = _class_folders(root)
    test = next((name for name in TEST_FOLDERS if name in folders), None)
    if "train" not in folders or test is None:
        paths, labels = images_by_class(root)
        return _split_files(str(root), root, root.name, paths, labels, None, test_share, seed)
    (train_paths, train_labels), (test_paths, test_labels) = (images_by_class(root / name, root) for name in ("train", test))
    check_classes(f"The folder {root / 'train'}", sorted(set(train_labels)))
    parts = [PARTS[0]] * len(train_paths) + [PARTS[1]] * len(test_paths)
    paths, labels = train_paths + test_paths, train_labels + test_labels
    return _split_files(str(root), root, root.name, paths, labels, parts, test_share, seed)


def _class_folders(folder: pathlib.Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith((".", "__")))


def _open_manifest(path: pathlib.Path, test_share: float, seed: int) -> Split:
    """A CSV file with columns `path` (relative to the file), `label`, and `split` (`train` or `test`) if one is fixed."""
    rows: list[dict[str, str]] = []
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restval="")
            columns = reader.fieldnames = [name.strip() for name in reader.fieldnames or []]
            if not {"path", "label"} <= set(columns):
                raise FileError(
                    f"{path} must have the columns path and label (and split, if the test part is fixed), "
                    f"its columns are: {', '.join(columns) or 'none'}."
                )
            for line in reader:
                row = {name: (line[name] or "").strip() for name in columns}
                where = f"Line {reader.line_num} of {path}"
                if not row["path"] or not row["label"]:
                    raise FileError(f"{where} has no {'path' if not row['path'] else 'label'}.")
                if not (path.parent / row["path"]).is_file():
                    raise FileError(f"{where} names an image that does not exist: {path.parent / row['path']}.")
                if row.get("split", "train").lower() not in ("train", "test"):
                    raise FileError(f"{where} has the split {row['split']!r}. It must be train or test.")
                rows.append(row)
    except UnicodeDecodeError:
        raise FileError(f"{path} is not encoded in UTF-8. Convert it first: iconv -f latin1 -t utf8 {path}.") from None
    except csv.Error as error:
        raise FileError(f"{path} cannot be read as a CSV file: {error}.") from error
    if not rows:
        raise FileError(f"{path} has a header but no rows.")
    paths, labels = ([row[name] for row in rows] for name in ("path", "label"))
    parts = [PARTS[row["split"].lower() == "test"] for row in rows] if "split" in columns else None
    return _split_files(str(path), path.parent, path.stem, paths, labels, parts, test_share, seed)


def _split_files(
    source: str,
    root: pathlib.Path,
    name: str,
    paths: list[str],
    labels: list[str],
    parts: list[str] | None,
    test_share: float,
    seed: int,
) -> Split:
    """A split of image files as `parts` says, or a stratified one."""
    classes, encoded = encode_labels(labels)
    check_classes(source, classes)
    if parts is None:
        chosen = stratified_split(source, encoded, classes, test_share=test_share, seed=seed)
    else:
        train, test = (torch.tensor([part == own for part in parts]).nonzero().squeeze(1) for own in PARTS)
        check_split(source, classes, encoded[train], encoded[test])
        chosen = train, test
    return Split(*(ImageFiles(name, classes, encoded[rows], root, [paths[row] for row in rows.tolist()]) for rows in chosen))


def _open_archive(
    path: pathlib.Path, name: str, test_share: float, seed: int, *, class_names: list[str] | None = None
) -> Split:
    """An .npz file with `features` or `images`, and `labels`; or `features_train`, `labels_train`, `features_test`, ..."""
    arrays = _read_archive(path)
    received = ", ".join(f"{key} {array.shape}" for key, array in arrays.items())
    data, labels = (
        {part: _array(path, arrays, stems, part) for part in ("", "_train", "_test")} for stems in (DATA, LABELS)
    )
    if not any(array is not None and array.ndim >= 2 for array in data.values()):
        raise FileError(f"{path} has neither features nor images. {ARCHIVE}. It has: {received}.")
    for part in data:
        if (data[part] is None) != (labels[part] is None):
            missing = DATA[0] if data[part] is None else LABELS[0]
            raise FileError(f"{path} has no array {missing + part!r}. {ARCHIVE}. It has: {received}.")
    parts = [part for part in data if data[part] is not None]
    if parts not in ([""], ["_train", "_test"]):
        raise FileError(f"{path} has arrays whose part is not clear: {received}. {ARCHIVE}.")
    if class_names is None and "classes" in arrays:
        class_names = [str(word) for word in arrays["classes"].ravel().tolist()]
    classes, rows = _encode(path, [(labels[part], len(data[part])) for part in parts], class_names)
    if parts == [""]:
        chosen = stratified_split(str(path), rows, classes, test_share=test_share, seed=seed)
        pieces = [(data[""][part.numpy()], rows[part]) for part in chosen]
    else:
        train, test = data["_train"], data["_test"]
        if train.ndim != test.ndim or (train.ndim == 2 and train.shape[1] != test.shape[1]):
            raise FileError(f"{path} has a training part of shape {train.shape} and a test part of shape {test.shape}.")
        pieces = [(train, rows[: len(train)]), (test, rows[len(train) :])]
        check_split(str(path), classes, pieces[0][1], pieces[1][1])
    return Split(*(_part(path, name, classes, *piece, part) for piece, part in zip(pieces, PARTS, strict=True)))


def _read_archive(path: pathlib.Path) -> dict[str, Array]:
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as content:
            if not isinstance(content, np.lib.npyio.NpzFile):
                raise ValueError("it is a single array")
            unknown = sorted(set(content.files) - ARRAYS)
            arrays = {name: content[name] for name in content.files if name in ARRAYS}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} cannot be read as an .npz file: {error}. {ARCHIVE}.") from error
    if not arrays:
        raise FileError(f"{path} has no array of a known name, only: {', '.join(unknown) or 'none'}. {ARCHIVE}.")
    return arrays


def _array(path: pathlib.Path, arrays: dict[str, Array], stems: tuple[str, ...], part: str) -> Any:
    names = [stem + part for stem in stems if stem + part in arrays]
    if len(names) > 1:
        raise FileError(f"{path} has both {names[0]!r} and {names[1]!r}. Keep one of them.")
    return arrays[names[0]] if names else None


def _encode(path: pathlib.Path, labels: list[tuple[Array, int]], class_names: list[str] | None) -> tuple[list[str], Tensor]:
    """The names of the classes, and the row of each label among them; from labels and the number of rows of each part."""
    for array, count in labels:
        if array.shape not in ((count,), (count, 1)):
            raise FileError(f"{path} has labels of shape {array.shape} for {count} rows. Expected one label for each row.")
        if not (np.issubdtype(array.dtype, np.integer) or array.dtype.kind in "US"):
            raise FileError(f"{path} has labels of {array.dtype}. Expected integers or words.")
    joined = np.concatenate([array.ravel() for array, _ in labels])
    classes, rows = encode_labels(joined)
    if class_names is not None and len(joined) and joined.dtype.kind not in "US":
        if len(set(class_names)) != len(class_names) or not 0 <= joined.min() <= joined.max() < len(class_names):
            raise FileError(
                f"{path} has labels from {joined.min()} to {joined.max()}, but {len(set(class_names))} names in `classes`. "
                "Labels must be rows of it, from 0, and no name may be there twice."
            )
        classes, rows = class_names, torch.from_numpy(joined.astype(np.int64))
    check_classes(str(path), [classes[row] for row in rows.unique().tolist()])
    return classes, rows


def _part(
    path: pathlib.Path, name: str, classes: list[str], data: Array, labels: Tensor, part: str
) -> ImageArray | FeatureSet:
    if data.ndim != 2:
        return ImageArray(name, classes, labels, _pixels(path, data), part=part)
    features = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
    try:
        check_finite(f"The {part} part of {path}", features)
    except InputError as error:
        raise FileError(str(error)) from None
    return FeatureSet(name, classes, features, labels, part)


def _pixels(path: pathlib.Path, data: Array) -> Array:
    """Pixels `(N, H, W)` or `(N, H, W, 3)` in uint8, from any usual layout and scale."""
    if data.ndim == 4 and data.shape[1] in (1, 3) and data.shape[3] not in (1, 3, 4):
        data = data.transpose(0, 2, 3, 1)
    if data.ndim == 4 and data.shape[3] == 1:
        data = data[..., 0]
    if data.ndim not in (3, 4) or (data.ndim == 4 and data.shape[3] not in (3, 4)) or 0 in data.shape:
        raise FileError(f"{path} has images of shape {data.shape}. Expected (N, H, W), (N, H, W, 3) or (N, 3, H, W).")
    if data.dtype == np.uint8:
        return data
    low, high = (float(data.min()), float(data.max())) if np.issubdtype(data.dtype, np.number) else (np.nan, np.nan)
    if not (low >= 0 and high <= 255):
        raise FileError(
            f"{path} has images of {data.dtype} from {low:g} to {high:g}. Expected uint8, or numbers from 0 to 1 or 255."
        )
    scale = 255 if np.issubdtype(data.dtype, np.floating) and high <= 1 else 1
    return np.round(data * scale).astype(np.uint8)


def _digits(test_share: float, seed: int) -> Split:
    bundled = import_extra("sklearn.datasets", "The dataset digits", extra="demo").load_digits()
    pixels = np.round(bundled.images * (255 / 16)).astype(np.uint8)  # counts from 0 to 16
    labels, classes = torch.from_numpy(bundled.target.astype(np.int64)), [str(digit) for digit in range(10)]
    train, test = (
        ImageArray("digits", classes, labels[rows], pixels[rows.numpy()], part=part)
        for part, rows in zip(
            PARTS, stratified_split("digits", labels, classes, test_share=test_share, seed=seed), strict=True
        )
    )
    return Split(train, test)


def _cifar10() -> Split:
    path = cache_folder() / "cifar10.npz"
    if not path.exists():
        _download_cifar10(path)
    split = _open_archive(path, "cifar10", 0.2, 0, class_names=CIFAR10_CLASSES)
    sizes = [len(part) for part in split if isinstance(part, ImageArray)]
    if sizes != [CIFAR10_SIZES[name][0] for name in ("x_train", "x_test")]:
        raise FileError(f"{path} is not CIFAR-10 (50,000 and 10,000 images). Remove it; it will be downloaded again.")
    return split


def _download_cifar10(path: pathlib.Path) -> None:
    datasets = import_torchvision("torchvision.datasets", "The dataset cifar10")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.redirect_stdout(io.StringIO()):
            parts = {
                name: datasets.CIFAR10(path.parent / "downloads", train=name == "train", download=True)
                for name in ("train", "test")
            }
    # Whatever the network does, the way out is the same.
    except Exception as error:
        raise FileError(
            f"CIFAR-10 is not at {path}, and downloading it failed: {error}. Put it there as an .npz file with "
            f"{', '.join(f'{name} {size}' for name, size in CIFAR10_SIZES.items())}, or try again with a network."
        ) from error
    arrays = {f"x_{name}": np.asarray(part.data) for name, part in parts.items()}
    arrays |= {f"y_{name}": np.asarray(part.targets) for name, part in parts.items()}
    with replacing(path) as temporary, open(temporary, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


def _near(path: pathlib.Path) -> str | None:
    """A name known here, or of a file beside the path, which is almost the same."""
    known = {name: name for name in NAMES} if path.parent == pathlib.Path() else {}
    with contextlib.suppress(OSError):  # a folder that is not there, or may not be read
        known |= {other.name: str(other) for other in sorted(path.parent.iterdir()) if not other.name.startswith(".")}
    near = nearest_name(path.name, list(known), alike=0.6)
    return None if near is None else known[near]

"""Pictures or features in an .npz file of NumPy."""

from __future__ import annotations

import pathlib
import zipfile
import zlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import check_finite
from ..errors import FileError, InputError
from .pictures import ArrayPictures, FeatureSet, Split
from .splitting import check_classes, check_parts, encode, stratified_split

Array = np.ndarray[Any, Any]
DATA, LABELS = ("features", "images", "x"), ("labels", "y")
EXPECTED = (
    "Expected `features` (N, D) or `images` (N, H, W, 3), with `labels` (N,); or the same names with _train and _test; "
    "and `classes`, their names, if the labels are numbers"
)


def open_archive(
    path: pathlib.Path, *, test_share: float, seed: int, name: str | None = None, classes: list[str] | None = None
) -> Split:
    """An .npz file with `features` or `images`, and `labels`; or `features_train`, `labels_train`, `features_test`, ..."""
    arrays = _read(path)
    given = _class_names(path, arrays) if classes is None else classes
    parts = ("", "_train", "_test")
    data = {part: _one_of(path, arrays, DATA, part) for part in parts}
    labels = {part: _one_of(path, arrays, LABELS, part) for part in parts}
    for part in parts:
        if (data[part] is None) != (labels[part] is None):
            absent = DATA[0] if data[part] is None else LABELS[0]
            raise FileError(f"{path} has no array {absent + part!r}. {EXPECTED}. It has: {_listed(arrays)}.")
    if data[""] is not None and data["_train"] is None and data["_test"] is None:
        names, rows = _rows(path, given, labels[""], len(data[""]))
        chosen = stratified_split(str(path), rows, names, test_share=test_share, seed=seed)
        pieces = [(data[""][part.numpy()], rows[part]) for part in chosen]
    elif data[""] is None and data["_train"] is not None and data["_test"] is not None:
        _same_kind(path, data["_train"], data["_test"])
        count = len(labels["_train"])
        joined = np.concatenate([np.asarray(labels[part]).ravel() for part in parts[1:]])
        names, rows = _rows(path, given, joined, len(data["_train"]) + len(data["_test"]))
        if count != len(data["_train"]):
            raise FileError(f"{path}: there are {len(data['_train'])} training rows, but {count} labels for them.")
        pieces = [(data["_train"], rows[:count]), (data["_test"], rows[count:])]
        check_parts(str(path), names, rows[:count], rows[count:])
    else:
        raise FileError(f"{path} has arrays whose part is not clear: {_listed(arrays)}. {EXPECTED}.")
    title = name or path.stem
    train, test = (_part(path, title, names, *piece, part) for piece, part in zip(pieces, ("training", "test"), strict=True))
    return Split(train, test)


def _part(path: pathlib.Path, name: str, classes: list[str], data: Array, labels: Tensor, part: str) -> Any:
    if data.ndim == 2:
        features = torch.from_numpy(np.ascontiguousarray(data, dtype=np.float32))
        try:
            check_finite(f"The {part} part of {path}", features)
        except InputError as error:
            raise FileError(str(error)) from None
        return FeatureSet(name, classes, features, labels, part)
    return ArrayPictures(name, classes, labels, _pixels(path, data), part=part)


def _pixels(path: pathlib.Path, data: Array) -> Array:
    """Pixels `(N, H, W)` or `(N, H, W, 3)` in uint8, from any usual layout and scale."""
    if data.ndim == 4 and data.shape[1] in (1, 3) and data.shape[3] not in (1, 3, 4):
        data = data.transpose(0, 2, 3, 1)
    if data.ndim == 4 and data.shape[3] == 1:
        data = data[..., 0]
    if data.ndim not in (3, 4) or (data.ndim == 4 and data.shape[3] not in (3, 4)) or 0 in data.shape:
        raise FileError(f"{path} has pictures of shape {data.shape}. Expected (N, H, W), (N, H, W, 3) or (N, 3, H, W).")
    if data.dtype == np.uint8:
        return data
    low, high = (float(data.min()), float(data.max())) if np.issubdtype(data.dtype, np.number) else (np.nan, np.nan)
    if not (low >= 0 and high <= 255):
        raise FileError(
            f"{path} has pictures of {data.dtype} from {low:g} to {high:g}. Expected uint8, or numbers from 0 to 1 or 255."
        )
    scale = 255 if np.issubdtype(data.dtype, np.floating) and high <= 1 else 1
    return np.round(data * scale).astype(np.uint8)


def _rows(path: pathlib.Path, given: list[str] | None, labels: Any, count: int) -> tuple[list[str], Tensor]:
    """Names of the classes and the row of each label."""
    labels = np.asarray(labels)
    labels = labels[:, 0] if labels.ndim == 2 and labels.shape[1] == 1 else labels
    if labels.shape != (count,):
        raise FileError(f"{path} has labels of shape {labels.shape} for {count} rows. Expected one label for each row.")
    if not (np.issubdtype(labels.dtype, np.integer) or labels.dtype.kind in "US"):
        raise FileError(f"{path} has labels of {labels.dtype}. Expected integers or words.")
    names, rows = encode(labels)
    if given is not None and labels.dtype.kind not in "US":
        if int(labels.min()) < 0 or int(labels.max()) >= len(given):
            raise FileError(
                f"{path} has labels from {labels.min()} to {labels.max()}, but {len(given)} names in `classes`. "
                "Labels must be rows of it, from 0."
            )
        names, rows = given, torch.from_numpy(labels.astype(np.int64))
    check_classes(str(path), [names[row] for row in rows.unique().tolist()])
    return names, rows


def _class_names(path: pathlib.Path, arrays: dict[str, Array]) -> list[str] | None:
    if "classes" not in arrays:
        return None
    names = [str(name) for name in arrays.pop("classes").ravel().tolist()]
    if len(set(names)) != len(names):
        raise FileError(f"{path} has the same name twice in `classes`.")
    return names


def _one_of(path: pathlib.Path, arrays: dict[str, Array], stems: tuple[str, ...], part: str) -> Any:
    found = [stem + part for stem in stems if stem + part in arrays]
    if len(found) > 1:
        raise FileError(f"{path} has both {found[0]!r} and {found[1]!r}. Keep one of them.")
    return arrays[found[0]] if found else None


def _same_kind(path: pathlib.Path, train: Array, test: Array) -> None:
    if train.ndim != test.ndim or (train.ndim == 2 and train.shape[1] != test.shape[1]):
        raise FileError(f"{path} has a training part of shape {train.shape} and a test part of shape {test.shape}.")


def _read(path: pathlib.Path) -> dict[str, Array]:
    try:
        with np.load(path, allow_pickle=False) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise FileError(f"{path} is a single array, not an .npz file. {EXPECTED}.")
            known = {stem + part for stem in (*DATA, *LABELS) for part in ("", "_train", "_test")} | {"classes"}
            unknown = sorted(set(file.files) - known)
            if not set(file.files) & known:
                raise FileError(f"{path} has no array of a known name, only: {', '.join(unknown) or 'none'}. {EXPECTED}.")
            arrays = {name: file[name] for name in file.files if name in known}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, FileError):
            raise
        raise FileError(f"{path} cannot be read as an .npz file: {error}. {EXPECTED}.") from error
    if not any(array.ndim >= 2 for name, array in arrays.items() if name.startswith(DATA)):
        raise FileError(f"{path} has neither features nor pictures. {EXPECTED}. It has: {_listed(arrays)}.")
    return arrays


def _listed(arrays: dict[str, Array]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in arrays.items()) or "nothing"

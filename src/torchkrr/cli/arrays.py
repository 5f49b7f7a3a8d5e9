"""Features files: arrays in the .npz or the .safetensors format."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import FileError
from .data import NumberedData
from .tables import Array, Task, as_classes

ENDINGS = (".npz", ".safetensors")
NAMES = ("features", "labels", "targets", "ids", "groups")
ARRAYS = "Expected `features` (N, D), and `labels` (classes) or `targets` (numbers) of each row"


class FeatureData(NumberedData):
    """Arrays of an .npz or .safetensors file."""

    kind = "features"

    def __init__(self, path: str, width: int | None = None) -> None:
        super().__init__(path)
        self.arrays = arrays = _read_arrays(path)
        if "features" not in arrays:
            raise FileError(f"{path} has no array `features`. {ARRAYS}. It has: {', '.join(arrays) or 'nothing'}.")
        features = arrays["features"]
        if features.ndim != 2 or 0 in features.shape or features.dtype.kind not in "iuf":
            raise FileError(
                f"The features of {path} must be numbers (N, D), got the shape {features.shape} of {features.dtype}."
            )
        if width is not None and features.shape[1] != width:
            raise FileError(
                f"The rows of {path} have {features.shape[1]} features, but the model was fitted to rows of {width}."
            )
        self.features = features if features.dtype == np.float64 else features.astype(np.float32)
        strange = ~np.isfinite(self.features)
        if strange.any():
            row, column = (int(at[0]) for at in strange.nonzero())
            raise FileError(
                f"Row {row + 1} of the features of {path} has {features[row, column]} in column {column + 1}. "
                "Expected numbers: remove such rows."
            )
        for name in ("labels", "targets", "ids", "groups"):
            shape = None if name not in arrays else arrays[name].shape
            if shape is not None and shape[:1] != features.shape[:1]:
                raise FileError(f"{path} has {len(features)} rows of features, but `{name}` of the shape {shape}. {ARRAYS}.")
        if "labels" in arrays and "targets" in arrays:
            raise FileError(f"{path} has both `labels` and `targets`. Keep one of them.")

    def num_rows(self) -> int:
        return len(self.features)

    def points(self, piece: range) -> tuple[Array, None]:
        return self.features[self.rows_of(piece)], None

    def task(self, piece: range) -> Task:
        if not {"labels", "targets"} & set(self.arrays):
            raise FileError(f"{self.path} has neither `labels` nor `targets`. {ARRAYS}.")
        return "classification" if "labels" in self.arrays else "regression"

    def targets(self, piece: range) -> Array:
        values = self._array("targets", "iuf", "numbers")[self.rows_of(piece)].astype(np.float64)
        if not np.isfinite(values).all():
            row = piece.start + int((~np.isfinite(values)).reshape(len(values), -1).any(1).argmax())
            raise FileError(f"The target of row {row + 1} of {self.path} is missing. Remove the rows without one.")
        return values.reshape(len(values), -1)

    def labels(self, piece: range, classes: Array | None, *, new: bool = False) -> Array:
        labels = self._array("labels", "iuUS", "whole numbers or text")
        if labels.ndim != 1:
            raise FileError(f"`labels` of {self.path} must have one entry for each row, got the shape {labels.shape}.")
        own = labels[self.rows_of(piece)]
        if own.dtype.kind in "US":
            own = own.astype(str).astype(object)
        where = f"`labels` of {self.path} hold"
        return own if classes is None else as_classes(own, own.astype(str), classes, where, piece.start + 1, new=new)

    def names(self, piece: range) -> list[str] | None:
        return [str(name) for name in self.arrays["ids"][self.rows_of(piece)].tolist()] if "ids" in self.arrays else None

    def groups(self, piece: range) -> Array | None:
        return self.arrays["groups"][self.rows_of(piece)] if "groups" in self.arrays else None

    def carried(self, piece: range) -> Mapping[str, Any]:
        names = self.names(piece)
        return {} if names is None else {"id": names}

    def target_names(self, count: int, *, classes: bool) -> list[str]:
        return ["label"] if classes else ["target"] if count == 1 else [f"target_{at + 1}" for at in range(count)]

    def notes(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def describe(self) -> str:
        return f"{self.features.shape[1]} features"

    def _array(self, name: str, kinds: str, expected: str) -> Array:
        if name not in self.arrays:
            raise FileError(f"{self.path} has no array `{name}`. {ARRAYS}. It has: {', '.join(self.arrays)}.")
        array = self.arrays[name]
        if array.dtype.kind not in kinds:
            raise FileError(f"`{name}` of {self.path} must be {expected}, got {array.dtype}.")
        return array


def _read_arrays(path: str) -> dict[str, Array]:
    read = _read_safetensors if path.lower().endswith(ENDINGS[1]) else _read_npz
    return {name: array for name, array in read(path).items() if name in NAMES}


def _read_npz(path: str) -> dict[str, Array]:
    try:
        # Opened here: of a damaged archive numpy leaves the file open.
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: np.asarray(arrays[name]) for name in arrays.files}
    except (OSError, ValueError, AttributeError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise FileError(f"{path} cannot be read as an .npz file: {error}. {ARRAYS}.") from error


def _read_safetensors(path: str) -> dict[str, Array]:
    import safetensors.torch

    try:
        tensors = safetensors.torch.load_file(path)
    except (OSError, safetensors.SafetensorError) as error:
        raise FileError(f"{path} cannot be read as a .safetensors file: {error}. {ARRAYS}.") from error
    return {
        name: (one.float() if one.itemsize < 4 and one.is_floating_point() else one).numpy() for name, one in tensors.items()
    }

"""Regression tables: `DATA/NAME/{data.csv.gz,test_mask.csv.gz}`, the target last, one column per split in the mask.

With or without a header; columns of text become zeros and ones.
"""

from __future__ import annotations

import argparse
import gzip
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.optional import require


class Split(NamedTuple):
    """Standardized with the statistics of the training part."""

    centers: Tensor  # (N, D)
    values: Tensor  # (N, 1)
    query: Tensor  # (Q, D)
    targets: Tensor  # (Q, 1)


def load(folder: pathlib.Path, name: str, split: int, dtype: torch.dtype = torch.float32) -> Split:
    table = numbers(folder / name / "data.csv.gz")
    test = np.loadtxt(folder / name / "test_mask.csv.gz", delimiter=",")[:, split].astype(bool)
    mean, std = table[~test].mean(0), table[~test].std(0)
    table = (table - mean) / np.where(std > 0, std, 1.0)
    parts = torch.as_tensor(table[~test], dtype=dtype), torch.as_tensor(table[test], dtype=dtype)
    return Split(parts[0][:, :-1], parts[0][:, -1:], parts[1][:, :-1], parts[1][:, -1:])


def numbers(path: pathlib.Path) -> np.ndarray[Any, np.dtype[np.float64]]:
    with gzip.open(path, "rt") as file:
        header = "target" in file.readline()
    if not header:
        return np.loadtxt(path, delimiter=",")
    pandas: Any = require("pandas")
    table = pandas.read_csv(path)
    target = table.pop("target").to_numpy(dtype=float)
    return np.column_stack((pandas.get_dummies(table, dtype=float).to_numpy(dtype=float), target))


def folders_of(folders: Sequence[pathlib.Path]) -> dict[str, pathlib.Path]:
    """The folder in which each table lies."""
    return {path.parent.name: folder for folder in folders for path in sorted(folder.glob("*/data.csv.gz"))}


def rmse(prediction: Tensor, targets: Tensor) -> float:
    return float((prediction - targets).square().mean().sqrt())


def arguments(description: str | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=pathlib.Path, required=True, help="folder with one folder per table")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    chosen = parser.parse_args()
    if not chosen.data.is_dir():
        parser.error(f"--data must be a folder with one folder per table, got {chosen.data}")
    return chosen

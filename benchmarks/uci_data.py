"""UCI regression tables: `DATA/NAME/{data.csv.gz,test_mask.csv.gz}`, the target last, one column per split in the mask."""

from __future__ import annotations

import argparse
import pathlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor


class Split(NamedTuple):
    """Standardized with the statistics of the training part."""

    centers: Tensor  # (N, D)
    values: Tensor  # (N, 1)
    query: Tensor  # (Q, D)
    targets: Tensor  # (Q, 1)


def load(folder: pathlib.Path, name: str, split: int, dtype: torch.dtype = torch.float32) -> Split:
    table = np.loadtxt(folder / name / "data.csv.gz", delimiter=",")
    test = np.loadtxt(folder / name / "test_mask.csv.gz", delimiter=",")[:, split].astype(bool)
    mean, std = table[~test].mean(0), table[~test].std(0)
    table = (table - mean) / np.where(std > 0, std, 1.0)
    parts = torch.as_tensor(table[~test], dtype=dtype), torch.as_tensor(table[test], dtype=dtype)
    return Split(parts[0][:, :-1], parts[0][:, -1:], parts[1][:, :-1], parts[1][:, -1:])


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

"""The way of a call through the package: the files it enters, and how often it changes from one to another."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch

import torchkrr
from torchkrr import functional, kernels, native, nn
from torchkrr.estimators import LocalKernelRidgeRegressor

ROOT = f"{Path(torchkrr.__file__).parent}/"
needs_fused = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")


def walk(call: Callable[[], Any]) -> tuple[list[str], int]:
    """The files of the package that a call enters, and the changes of file between frames that follow each other."""
    frames: list[str] = []

    def follow(frame: FrameType, event: str, _: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(ROOT):
            frames.append(path.removeprefix(ROOT))

    sys.setprofile(follow)
    try:
        call()
    finally:
        sys.setprofile(None)
    files, changes = sorted(set(frames)), sum(a != b for a, b in itertools.pairwise(frames))
    print(f"{len(files)} files, {changes} changes of file: {', '.join(files)}")
    return files, changes


def draw(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


@needs_fused
def test_a_local_prediction_enters_ten_files():
    layer, query = nn.LocalKernelRidge(draw(500, 16), draw(500, 3), 20), draw(8, 16)
    layer(query)  # builds the index
    files, changes = walk(lambda: layer(query))
    assert len(files) <= 10
    assert changes <= 35


@needs_fused
def test_a_small_dense_prediction_enters_six_files():
    centers, values, kernel = draw(100, 8), draw(100, 2), kernels.Matern32(2.0)
    files, _ = walk(lambda: functional.kernel_ridge(centers[:5] + 0.1, centers, values, kernel=kernel))
    assert len(files) <= 6


def test_fitting_an_estimator_enters_the_solvers_of_the_package():
    x, y = draw(200, 4).numpy(), draw(200, 1)[:, 0].numpy()
    files, _ = walk(lambda: LocalKernelRidgeRegressor(n_neighbors=20, random_state=0).fit(x, y))
    assert any(file.startswith(("core/", "functional/")) for file in files)

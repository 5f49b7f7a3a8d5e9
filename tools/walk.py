"""The files of the package that a call passes through, in order.

    python -m tools.walk

prints, for the calls of `docs/architecture.md`, how many files each enters and how often it changes from one to another.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, NamedTuple

import torch

import torchkrr

PACKAGE = pathlib.Path(torchkrr.__file__).parent


class Walk(NamedTuple):
    """The files of a call, and where it went from one to the next."""

    files: list[str]  # in the order they are first entered
    changes: int  # calls that enter another file than the call before

    def __str__(self) -> str:
        return f"{len(self.files)} files, {self.changes} changes of file: {' '.join(self.files)}"


def walk(call: Callable[[], object]) -> Walk:
    """Follow a call, made twice: what is cached after the first does not count."""
    call()
    entered: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        path = pathlib.Path(frame.f_code.co_filename)
        if event == "call" and PACKAGE in path.parents:
            entered.append(str(path.relative_to(PACKAGE)))

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    changes = sum(a != b for a, b in itertools.pairwise(entered))
    return Walk(list(dict.fromkeys(entered)), changes)


def calls() -> dict[str, Callable[[], object]]:
    """The calls that the documentation describes."""
    from torchkrr import functional as F
    from torchkrr import kernels, nn
    from torchkrr.estimators import LocalKernelRidgeRegressor

    generator = torch.Generator().manual_seed(0)
    centers, values, query = (torch.randn(n, d, generator=generator) for n, d in ((500, 8), (500, 2), (50, 8)))
    layer = nn.LocalKernelRidge(centers, values, 30, ridge=1e-3)
    learned = nn.LocalKernelRidge(centers, values, 30, ridge=1e-3, learn_values=True)
    kernel = kernels.Exponential(3.0)
    regressor = LocalKernelRidgeRegressor(n_neighbors=30)
    table, target = centers[:300].numpy(), values[:300, 0].numpy()
    return {
        "LocalKernelRidge.forward": lambda: layer(query),
        "LocalKernelRidge.forward and backward": lambda: learned(query).sum().backward(),
        "F.kernel_ridge": lambda: F.kernel_ridge(query, centers, values, kernel=kernel, ridge=1e-3),
        "LocalKernelRidgeRegressor.fit": lambda: regressor.fit(table, target),
        "LocalKernelRidgeRegressor.predict": lambda: regressor.predict(table),
    }


if __name__ == "__main__":
    for name, call in calls().items():
        print(f"{name}: {walk(call)}")

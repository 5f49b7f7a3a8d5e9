"""The files of the package that a call passes through, in order.

    python -m tools.walk

prints, for the calls of `docs/architecture.md`, how many files each enters and how often it changes from one to another.
"""

from __future__ import annotations

import itertools
import pathlib
import sys
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

import torch

import torchkrr
from torchkrr import functional, kernels, nn
from torchkrr._threads import threads
from torchkrr.estimators import LocalKernelRidgeRegressor

PACKAGE = f"{pathlib.Path(torchkrr.__file__).parent}/"


class Walk(NamedTuple):
    """The files of a call, and where it went from one to the next."""

    files: list[str]  # in the order they are first entered
    changes: int  # calls that enter another file than the call before

    def __str__(self) -> str:
        return f"{len(self.files)} files, {self.changes} changes of file: {' '.join(self.files)}"


def walk(prepare: Callable[[], Callable[[], object]]) -> Walk:
    """Follow the call that `prepare` returns, made twice: what is cached after the first does not count."""
    call = prepare()
    call()
    entered: list[str] = []

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(PACKAGE):
            entered.append(path.removeprefix(PACKAGE))

    with threads(1):  # what other threads do is not seen
        sys.setprofile(profile)
        try:
            call()
        finally:
            sys.setprofile(None)
    changes = sum(a != b for a, b in itertools.pairwise(entered))
    return Walk(list(dict.fromkeys(entered)), changes)


def calls() -> dict[str, Callable[[], Callable[[], object]]]:
    """The calls that the documentation describes, each with what is prepared for it."""
    generator = torch.Generator().manual_seed(0)
    centers, values, query = (torch.randn(*shape, generator=generator) for shape in ((500, 16), (500, 3), (8, 16)))
    layer = nn.LocalKernelRidge(centers, values, 20)
    learned = nn.LocalKernelRidge(centers, values, 20, learn_centers=True, learn_values=True)
    kernel = kernels.Matern32(4.0)
    x, y = centers[:200, :4].numpy(), values[:200, 0].numpy()
    regressor = LocalKernelRidgeRegressor(n_neighbors=20, random_state=0)
    return {
        "forward": lambda: partial(layer, query),
        "backward": lambda: partial(learned(query).sum().backward, retain_graph=True),
        "fit": lambda: partial(regressor.fit, x, y),
        "predict": lambda: partial(regressor.fit(x, y).predict, x[:8]),
        "dense": lambda: partial(functional.kernel_ridge, query, centers[:100], values[:100], kernel=kernel),
    }


if __name__ == "__main__":
    for name, prepare in calls().items():
        print(f"{name}: {walk(prepare)}")

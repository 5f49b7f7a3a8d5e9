"""Layers and data for the tests of this folder."""

from __future__ import annotations

import copy
import itertools
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from torch import Tensor

from torchkrr import kernels, neighbors, nn

NUM_CENTERS, NUM_FEATURES, NUM_OUTPUTS, NUM_NEIGHBORS = 60, 3, 2, 8


CONTINUOUS = {
    "blended": (nn.BlendedKernelRidge, {"num_blended": 3}),
    "hierarchical": (nn.HierarchicalKernelRidge, {"num_coarse": 10}),
}


KINDS = ["dense", "local", *CONTINUOUS]


LEARNED = [{"learn_centers": a, "learn_values": b} for a, b in itertools.product((False, True), repeat=2)]


Layer = nn.KernelRidge | nn.LocalKernelRidge | nn.BlendedKernelRidge | nn.HierarchicalKernelRidge


def data(seed: int = 0, count: int = NUM_CENTERS) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, NUM_FEATURES, generator=generator), torch.randn(count, NUM_OUTPUTS, generator=generator)


def queries(*shape: int, seed: int = 100) -> Tensor:
    return torch.randn(*(shape or (9,)), NUM_FEATURES, generator=torch.Generator().manual_seed(seed))


def make(kind: str, centers: Tensor | None = None, values: Tensor | None = None, **choices: object) -> Layer:
    own_centers, own_values = data()
    centers, values = own_centers if centers is None else centers, own_values if values is None else values
    choices = {"kernel": kernels.Matern32(1.5), "ridge": 1e-4, **choices}
    if kind == "dense":
        return nn.KernelRidge(centers, values, **choices)
    if kind in CONTINUOUS:
        maker, own = CONTINUOUS[kind]
        return maker(centers, values, NUM_NEIGHBORS, **{**own, **choices})
    return nn.LocalKernelRidge(centers, values, NUM_NEIGHBORS, **choices)


def kind_of(layer: Layer) -> str:
    names = {maker: kind for kind, (maker, _) in CONTINUOUS.items()}
    return {**names, nn.KernelRidge: "dense", nn.LocalKernelRidge: "local"}[type(layer)]


def same(kind: str, a: Tensor, b: Tensor) -> bool:
    """Equal; for the continuous layers, which go another way with gradients than without, up to rounding."""
    return torch.allclose(a, b, rtol=1e-4, atol=1e-5) if kind in CONTINUOUS else torch.equal(a, b)


def tolerance(kind: str) -> dict[str, float]:
    """For `assert_close`: torch's own, wider for the continuous layers."""
    return {"rtol": 1e-4, "atol": 5e-5} if kind in CONTINUOUS else {}


def rebuilt(layer: Layer) -> Layer:
    """A new layer from the present tensors and kernel, with nothing remembered."""
    centers, values = layer.centers.detach().clone(), layer.values.detach().clone()
    choices = {name: getattr(layer, name) for name in ("ridge", "trend", "on_singular")}
    if kind_of(layer) == "local":
        choices["fade"] = layer.fade
    own = ("num_blended", "num_anchors", "num_coarse", "coarse", "coarse_ridge")
    choices |= {name: getattr(layer, name) for name in own if hasattr(layer, name)}
    return make(kind_of(layer), centers, values, kernel=copy.deepcopy(layer.kernel), **choices)


def refitted(layer: Layer) -> Layer:
    """The layer; a hierarchical one, which keeps its coarse part when rows come or go, forgets it."""
    if isinstance(layer, nn.HierarchicalKernelRidge):
        layer.refit()
    return layer


def predicts_as_rebuilt(layer: Layer, query: Tensor | None = None) -> bool:
    query = queries().to(layer.centers.dtype) if query is None else query
    return same(kind_of(layer), layer(query), rebuilt(layer)(query))


def run_python(program: str, *arguments: str, timeout: int = 60) -> str:
    """Run a program with one torch thread; it fails the test if it fails or hangs."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def moved(layer: Layer) -> None:
    with torch.no_grad():
        layer.centers.add_(torch.linspace(0, 1, NUM_CENTERS)[:, None])


def grown(layer: Layer) -> None:
    layer.append(queries() + 0.01, data(7, 9)[1])


def shrunk(layer: Layer) -> None:
    layer.remove(layer.explain(queries()).indices[:, 0].unique())


INDEXES: dict[str, Callable[[], neighbors.NeighborIndex]] = {
    "exact": neighbors.ExactIndex,
    "faiss": lambda: pytest.importorskip("faiss") and neighbors.FaissIndex("Flat"),
    "auto": neighbors.AutoIndex,
    "streamed": neighbors.StreamedIndex,
}

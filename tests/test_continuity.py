"""Along a segment the continuous predictors move in proportion to the step; the plain local one jumps."""

from __future__ import annotations

import pytest
import torch
from tests import reference
from torch import Tensor

from torchkrr import kernels, nn

NUM_CENTERS, NUM_NEIGHBORS, STEPS, ZOOMS = 150, 12, 2000, 2
LAYERS = {
    "faded": lambda *data, **choices: nn.LocalKernelRidge(*data, NUM_NEIGHBORS, fade=True, **choices),
    "blended": lambda *data, **choices: nn.BlendedKernelRidge(*data, NUM_NEIGHBORS, num_blended=4, **choices),
    "blended, few anchors": lambda *data, **choices: nn.BlendedKernelRidge(
        *data, NUM_NEIGHBORS, num_blended=4, num_anchors=30, **choices
    ),
    "hierarchical": lambda *data, **choices: nn.HierarchicalKernelRidge(*data, NUM_NEIGHBORS, num_coarse=20, **choices),
}


def points(num_features: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(num_features)
    centers = torch.rand(NUM_CENTERS, num_features, generator=generator, dtype=torch.float64)
    return centers, torch.randn(NUM_CENTERS, 1, generator=generator, dtype=torch.float64)  # rough: nothing hides a jump


def ends(num_features: int) -> Tensor:
    generator = torch.Generator().manual_seed(100 + num_features)
    return torch.rand(2, num_features, generator=generator, dtype=torch.float64)


def segment(start: Tensor, stop: Tensor, steps: int) -> Tensor:
    return torch.lerp(start, stop, torch.linspace(0, 1, steps + 1, dtype=torch.float64)[:, None])


def jumps(layer: torch.nn.Module, path: Tensor) -> Tensor:
    return layer(path).diff(dim=0).abs().squeeze(1)


def largest_jumps(layer: torch.nn.Module, num_features: int) -> tuple[float, float]:
    """With a step and a quarter of it, where the segment is worst: a fading ring can be thinner than any fixed step."""
    path = segment(*ends(num_features), STEPS)
    for _ in range(ZOOMS):
        at = int(jumps(layer, path).argmax())
        path = segment(path[at], path[at + 1], 100)
    steps = (segment(path[0], path[-1], count) for count in (100, 400))
    coarse, fine = (jumps(layer, path).max().item() for path in steps)
    return coarse, fine


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("num_features", [1, 2, 4, 8, 16])
def test_jumps_shrink_with_the_step(num_features, trend):
    centers, values = points(num_features)
    choices = {"kernel": kernels.Matern32(num_features**0.5), "trend": trend, "ridge": 1e-6}
    plain = nn.LocalKernelRidge(centers, values, NUM_NEIGHBORS, **choices)
    coarse, fine = largest_jumps(plain, num_features)
    assert fine > 0.9 * coarse > 0.01, "the plain predictor should jump here, or the test sees nothing"
    for name, make in LAYERS.items():
        layer = make(centers, values, **choices)
        coarse, fine = largest_jumps(layer, num_features)
        assert fine < 0.3 * coarse, name


@pytest.mark.parametrize("num_features", [1, 2, 4, 8, 16])
def test_the_segment_crosses_many_cells(num_features):
    centers, _ = points(num_features)
    path = segment(*ends(num_features), STEPS).numpy()
    lists = reference.nearest(path, centers.numpy(), NUM_NEIGHBORS)
    assert len({tuple(sorted(row)) for row in lists.tolist()}) > 10


@pytest.mark.parametrize("kernel", [kernels.Exponential(), kernels.Matern52()], ids=str)
def test_with_every_center_an_anchor_it_interpolates(kernel):
    centers, values = points(3)
    layer = nn.BlendedKernelRidge(centers, values, NUM_NEIGHBORS, kernel=kernel, ridge=1e-12)
    torch.testing.assert_close(layer(centers), values, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("grad", [False, True])
def test_the_order_of_the_centers_does_not_matter(grad):
    centers, values = points(3)
    order = torch.randperm(NUM_CENTERS, generator=torch.Generator().manual_seed(0))
    query = torch.rand(40, 3, dtype=torch.float64).requires_grad_(grad)
    choices = {"kernel": kernels.Matern32(), "num_blended": 5}
    layer = nn.BlendedKernelRidge(centers, values, NUM_NEIGHBORS, **choices)
    other = nn.BlendedKernelRidge(centers[order], values[order], NUM_NEIGHBORS, **choices)
    torch.testing.assert_close(layer(query), other(query), rtol=1e-8, atol=1e-8)
    # The greedy points start at the first row.
    coarse = {"kernel": kernels.Matern32(), "num_coarse": 20}
    order = torch.cat((torch.tensor([0]), order[order != 0]))
    layer = nn.HierarchicalKernelRidge(centers, values, NUM_NEIGHBORS, **coarse)
    other = nn.HierarchicalKernelRidge(centers[order], values[order], NUM_NEIGHBORS, **coarse)
    torch.testing.assert_close(layer(query), other(query), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("grad", [False, True])
def test_a_trend_reproduces_constants(name, grad):
    centers, values = points(3)
    query = (3 * torch.rand(40, 3, dtype=torch.float64)).requires_grad_(grad)
    layer = LAYERS[name](centers, torch.full_like(values, 7.0), kernel=kernels.Matern32(0.3), trend="constant")
    torch.testing.assert_close(layer(query), torch.full((40, 1), 7.0, dtype=torch.float64))

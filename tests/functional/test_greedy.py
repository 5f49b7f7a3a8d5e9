"""Greedy subsets against brute force, and the guarantee that makes farthest points worth having."""

import itertools

import pytest
import torch

from torchkrr import functional as F
from torchkrr import kernels
from torchkrr.errors import InputError

KERNEL = kernels.Exponential(1.5)


@pytest.fixture
def points():
    return torch.randn(60, 4, dtype=torch.float64)


def brute_farthest(distances, count, start):
    chosen = [start]
    while len(chosen) < count:
        chosen.append(int(distances[:, chosen].min(1).values.argmax()))
    return torch.tensor(chosen)


@pytest.mark.parametrize("start", [0, 17])
def test_farthest_points_equal_brute_force(points, start):
    expected = brute_farthest(torch.cdist(points, points), 25, start)
    assert torch.equal(F.farthest_points(points, 25, start=start), expected)


def test_farthest_points_take_any_distance(points):
    manhattan = torch.cdist(points, points, p=1)
    found = F.farthest_points(points, 20, distance=lambda a, b: torch.cdist(a, b, p=1))
    assert torch.equal(found, brute_farthest(manhattan, 20, 0))
    kernel = kernels.Exponential([0.1, 1.0, 3.0, 9.0])
    embedded = kernel.embed(points)
    assert torch.equal(
        F.farthest_points(points, 20, distance=kernel), brute_farthest(torch.cdist(embedded, embedded), 20, 0)
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("spread", "apart"), [(1.0, 1000.0), (0.01, 100.0)])
def test_clusters_far_apart_are_covered_as_well_as_in_float64(spread, apart, seed):
    torch.manual_seed(seed)
    points = torch.cat((spread * torch.rand(200, 2) - apart, spread * torch.rand(200, 2) + apart))
    chosen = F.farthest_points(points, 100)
    assert torch.equal(chosen, brute_farthest(torch.cdist(points.double(), points.double()), 100, 0))


def test_every_prefix_is_the_answer_for_fewer_points(points):
    values = torch.randn(60, 2, dtype=torch.float64)
    for choose in (
        lambda n: F.farthest_points(points, n),
        lambda n: F.power_greedy(points, n, kernel=KERNEL),
        lambda n: F.residual_greedy(points, values, n, kernel=KERNEL),
    ):
        many = choose(30)
        assert len(many.unique()) == 30
        for n in (1, 2, 11):
            assert torch.equal(choose(n), many[:n])


@pytest.mark.parametrize("seed", range(8))
def test_covering_radius_is_at_most_twice_the_best(seed):
    points = torch.randn(9, 2, generator=torch.Generator().manual_seed(seed))
    distances = torch.cdist(points, points)
    for count in (1, 2, 3, 4):
        radius = distances[:, F.farthest_points(points, count)].min(1).values.max()
        best = min(distances[:, list(subset)].min(1).values.max() for subset in itertools.combinations(range(9), count))
        assert radius <= 2 * best + 1e-6


def test_power_greedy_equals_brute_force(points):
    chosen = [3]
    while len(chosen) < 20:
        power = F.power_function(points, points[chosen], kernel=KERNEL, ridge=0.0)
        chosen.append(int(power.argmax()))
    assert F.power_greedy(points, 20, kernel=KERNEL, start=3).tolist() == chosen


@pytest.mark.parametrize("outputs", [1, 3])
def test_residual_greedy_equals_brute_force(points, outputs):
    values = torch.randn(60, outputs, dtype=torch.float64)
    chosen = [int(torch.linalg.vector_norm(values, dim=1).argmax())]
    while len(chosen) < 20:
        fitted = F.kernel_ridge(points, points[chosen], values[chosen], kernel=KERNEL, ridge=0.0)
        chosen.append(int(torch.linalg.vector_norm(values - fitted, dim=1).argmax()))
    assert F.residual_greedy(points, values, 20, kernel=KERNEL).tolist() == chosen


def test_dependent_points_end_the_greedy_choice():
    points = torch.tensor([[0.0], [0.0], [1.0], [1.0]])
    assert sorted(F.power_greedy(points, 4, kernel=KERNEL).tolist()) == [0, 2]
    assert len(F.residual_greedy(points, torch.ones(4, 1), 4, kernel=KERNEL)) == 2
    assert len(F.farthest_points(points, 4).unique()) == 4  # geometry alone can go on


def test_many_points_do_not_end_the_greedy_choice_early():
    # In float32, where rounding grows with the points chosen, not with those to choose from.
    points, kernel = torch.linspace(0, 1, 20_000).unsqueeze(1), kernels.Matern32()
    chosen = F.power_greedy(points, 20, kernel=kernel)
    assert len(chosen) == 20
    left, best = (
        float(F.power_function(points[::50].double(), points[rows].double(), kernel=kernel, ridge=0.0).max())
        for rows in (chosen, F.power_greedy(points.double(), 20, kernel=kernel))
    )
    assert left < 1.1 * best


def test_bad_counts_are_refused(points):
    with pytest.raises(InputError, match=r"num_points must lie between 1 and the number of points \(60\), got 61"):
        F.farthest_points(points, 61)
    with pytest.raises(InputError, match="start must lie between 0 and 59, got 60"):
        F.power_greedy(points, 3, kernel=KERNEL, start=60)

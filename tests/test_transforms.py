"""The normalizing maps against their formulas, written out in numpy and scipy."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import erfinv
from sklearn.preprocessing import StandardScaler, normalize

import torchkrr.transforms as module
from torchkrr import kernels
from torchkrr.transforms import (
    Compose,
    ErfInv,
    Linear,
    MeanDistance,
    MinDistance,
    SignedRoot,
    Standardize,
    StandardMean,
    UnitCube,
    UnitNorm,
)

MAPS = {
    "Standardize": Standardize,
    "UnitCube": UnitCube,
    "ErfInv": ErfInv,
    "MeanDistance": MeanDistance,
    "MinDistance": MinDistance,
    "UnitNorm": UnitNorm,
    "SignedRoot": SignedRoot,
    "StandardMean": StandardMean,
    "Linear": lambda: Linear(torch.tensor([[1.0, 2.0, 3.0], [0.0, -1.0, 1.0]])),
    "Compose": lambda: Compose(Standardize(), Linear(torch.full((2, 3), 0.5)), MeanDistance()),
}
WITH_STATE = [name for name in MAPS if name not in ("ErfInv", "UnitNorm", "SignedRoot")]
BOTH = [torch.float32, torch.float64]


def unit_cube(x, new):
    """DESIGN's formula, term by term."""
    count, low, width = len(x), x.min(0), x.max(0) - x.min(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        u = (new - low + 0.5 / count * width) / (width * (1 + 1 / count))
    edge = 0.5 / (count + 1)
    return np.where(width == 0, 0.5, np.clip(u, edge, 1 - edge))


def mean_distance(x):
    """Root mean square distance over all ordered pairs."""
    return math.sqrt((cdist(x, x) ** 2).mean())


@pytest.fixture
def points():
    rng = np.random.default_rng(5)
    return rng.normal(size=(40, 3)) * [1.0, 30.0, 0.01] + [0.0, 500.0, -3.0]


@pytest.fixture
def new_points(points):
    # Some inside the fitted range, some far outside on either side.
    rng = np.random.default_rng(6)
    return points.mean(0) + rng.normal(size=(15, 3)) * points.std(0) * 3


def close(actual, expected, **tolerance):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), **tolerance)


def test_standardize_is_that_of_scikit_learn(points, new_points):
    expected = StandardScaler().fit(points).transform(new_points)
    close(Standardize().fit(torch.tensor(points))(torch.tensor(new_points)), expected)


def test_unit_cube_formula(points, new_points):
    fitted = UnitCube().fit(torch.tensor(points))
    close(fitted(torch.tensor(new_points)), unit_cube(points, new_points))
    assert (unit_cube(points, new_points) == 0.5 / 41).any(), "no new point lies outside, so that clipping was not tested"


def test_unit_cube_takes_the_fitted_points_to_the_ends_of_its_range_and_keeps_their_order(points):
    u = UnitCube().fit(torch.tensor(points))(torch.tensor(points))
    close(u.amin(0), np.full(3, 0.5 / 41))
    close(u.amax(0), np.full(3, 1 - 0.5 / 41))
    assert np.array_equal(u.argsort(0).numpy(), points.argsort(0))


def test_unit_cube_of_one_point_is_the_middle():
    close(UnitCube().fit(torch.tensor([[3.0, -7.0]]))(torch.tensor([[3.0, 100.0]])), [[0.5, 0.5]])


def test_erfinv_is_that_of_scipy():
    u = np.concatenate((np.linspace(0.001, 0.999, 101), [1e-12, 1e-9, 1 - 1e-9])).reshape(-1, 2)
    close(ErfInv()(torch.tensor(u)), erfinv(2 * u - 1), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("dtype", [torch.float16, *BOTH])
def test_erfinv_is_finite_everywhere_and_odd_about_one_half(dtype):
    u = torch.tensor([[0.0, 1.0, -5.0, 5.0, 0.5]], dtype=dtype)
    result = ErfInv()(u)
    assert result.isfinite().all()
    close(result, [[-result[0, 1], result[0, 1], -result[0, 1], result[0, 1], 0.0]])
    assert result[0, 1] > 5


def test_erfinv_in_float32_has_float32_accuracy_at_the_edge():
    # 2u - 1 taken in float32 would lose up to half of the digits next to 0 and 1.
    u = torch.tensor([[1e-7, 3e-6, 0.5 + 1e-6, 1 - 1e-6]])
    close(ErfInv()(u), erfinv(2 * u.double().numpy() - 1), rtol=1e-6, atol=0)


def test_erfinv_of_many_rows_is_that_of_each(monkeypatch):
    u = torch.rand(50, 7)
    expected, slope = ErfInv()(u), torch.func.grad(lambda x: ErfInv()(x).sum())(u)
    monkeypatch.setattr(module, "SEARCH_BYTES", 3 * 16 * 7)
    assert torch.equal(ErfInv()(u), expected)
    assert torch.equal(torch.func.grad(lambda x: ErfInv()(x).sum())(u), slope)


def test_mean_distance_is_that_of_all_ordered_pairs(points, new_points):
    fitted = MeanDistance().fit(torch.tensor(points))
    close(fitted(torch.tensor(new_points)), new_points / mean_distance(points))
    close(fitted.scale, math.sqrt(2 * points.var(0).sum()))


def test_min_distance_is_that_to_the_nearest_other_point(points):
    apart = cdist(points, points)
    np.fill_diagonal(apart, np.inf)
    expected = math.sqrt((apart.min(1) ** 2).mean())
    close(MinDistance().fit(torch.tensor(points)).scale, expected)


def test_min_distance_leaves_points_with_a_twin_out():
    # Nearest distances are 0, 0, 1 and 4: the mean is over the last two.
    fitted = MinDistance().fit(torch.tensor([[0.0], [0.0], [1.0], [5.0]]))
    close(fitted.scale, math.sqrt((1 + 16) / 2))


@pytest.mark.parametrize("bytes_at_once", [1, 2000, 9000])
def test_min_distance_does_not_depend_on_chunks(points, monkeypatch, bytes_at_once):
    whole = MinDistance().fit(torch.tensor(points)).scale
    monkeypatch.setattr(module, "SEARCH_BYTES", bytes_at_once)
    close(MinDistance().fit(torch.tensor(points)).scale, whole, rtol=1e-12, atol=0)


def test_unit_norm_is_that_of_scikit_learn(points):
    close(UnitNorm()(torch.tensor(points)), normalize(points))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_unit_norm_neither_overflows_nor_underflows(size):
    # The squares of these float32 numbers are zero and infinite.
    close(UnitNorm()(torch.tensor([[3.0, 4.0], [0.0, 0.0]]) * size), [[0.6, 0.8], [0.0, 0.0]])


def test_signed_root_draws_the_entries_of_a_unit_row_together(points):
    u = points / np.sqrt((points**2).mean(1, keepdims=True))
    close(SignedRoot()(torch.tensor(points)), normalize(np.sign(u) * np.abs(u) / np.sqrt(np.abs(u) + 0.1)))


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_signed_root_depends_on_the_direction_of_a_row_alone(size):
    x = torch.tensor([[9.0, -4.0, 0.0], [0.0, 0.0, 0.0]])
    close(SignedRoot()(size * x), SignedRoot()(x))
    close(SignedRoot()(x)[1], [0.0, 0.0, 0.0])


def test_standard_mean_is_cube_then_erfinv_then_mean_distance(points, new_points):
    normal = erfinv(2 * unit_cube(points, points) - 1)
    expected = erfinv(2 * unit_cube(points, new_points) - 1) / mean_distance(normal)
    fitted = StandardMean().fit(torch.tensor(points))
    close(fitted(torch.tensor(new_points)), expected)
    close(torch.tensor(mean_distance(fitted(torch.tensor(points)).numpy())), 1.0)


def test_standard_mean_does_not_see_scale_and_offset(points):
    x = torch.tensor(points)
    moved = x * torch.tensor([1e3, 1e-3, 7.0]) + torch.tensor([5.0, -2.0, 0.0])
    close(StandardMean().fit(moved)(moved), StandardMean().fit(x)(x).numpy(), rtol=1e-6, atol=1e-8)


CONSTANT = {"Standardize": 0.0, "UnitCube": 0.5, "StandardMean": 0.0}


@pytest.mark.parametrize("name", CONSTANT)
def test_a_constant_feature_says_nothing(name, points):
    points[:, 1] = 4.0
    fitted = MAPS[name]().fit(torch.tensor(points))
    for x in (torch.tensor(points), torch.tensor(points) + 10):
        result = fitted(x)
        assert result.isfinite().all()
        # Standardize alone keeps the distance to the constant: a new value is news.
        if name != "Standardize" or x[0, 1] == 4:
            close(result[:, 1], np.full(40, CONSTANT[name]))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("count", [1, 5])
def test_points_that_are_all_equal_stay_finite(name, count):
    x = torch.full((count, 3), 2.5)
    assert MAPS[name]().fit(x)(x).isfinite().all()


@pytest.mark.parametrize("name", ["UnitCube", "StandardMean"])
@pytest.mark.parametrize("dtype", BOTH)
def test_points_outside_the_fitted_range_stay_finite(name, dtype, points):
    fitted = MAPS[name]().fit(torch.tensor(points, dtype=dtype))
    far = torch.tensor([[-1e30] * 3, [1e30] * 3], dtype=dtype)
    result = fitted(far)
    assert result.isfinite().all()
    # As far out as the outermost fitted point, and no farther.
    inside = fitted(torch.tensor(points, dtype=dtype))
    close(result, torch.stack((inside.amin(0), inside.amax(0))))


@pytest.mark.parametrize("name", MAPS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, *BOTH])
def test_the_result_has_the_dtype_of_the_data(name, dtype, points):
    fitted = MAPS[name]().fit(torch.tensor(points))
    assert fitted(torch.rand(4, 3).to(dtype)).dtype == dtype
    assert all(buffer.dtype == torch.float64 for buffer in fitted.buffers())


@pytest.mark.parametrize("name", MAPS)
def test_leading_dimensions_and_single_rows(name, points):
    fitted = MAPS[name]().fit(torch.tensor(points))
    x = torch.rand(2, 5, 4, 3, dtype=torch.float64)
    rows = torch.stack([fitted(row) for row in x.reshape(-1, 3)])
    close(fitted(x).flatten(0, 2), rows)


@pytest.mark.parametrize("name", MAPS)
def test_derivatives(name):
    x = 0.1 + 0.8 * torch.rand(8, 3, dtype=torch.float64)
    fitted = MAPS[name]().fit(x)
    # Away from the clipped borders, where the derivative jumps.
    query = (0.4 + 0.2 * torch.rand(3, 3, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(fitted, (query,))
    assert torch.autograd.gradgradcheck(fitted, (query,))


def test_gradients_where_a_map_is_not_differentiable_are_finite():
    cases = (UnitNorm(), torch.zeros(1, 3)), (SignedRoot(), torch.eye(3)), (ErfInv(), torch.tensor([[0.0, 1.0, 2.0]]))
    for transform, x in (*cases, (SignedRoot(), torch.zeros(1, 3))):
        x.requires_grad_()
        transform(x).sum().backward()
        assert x.grad.isfinite().all()


@pytest.mark.parametrize("name", WITH_STATE)
def test_state_goes_into_a_transform_that_was_never_fitted(name, points, new_points):
    fitted, other = MAPS[name]().fit(torch.tensor(points)), MAPS[name]()
    other.load_state_dict(fitted.state_dict())
    new = torch.tensor(new_points)
    assert torch.equal(other(new), fitted(new))


def test_state_of_another_number_of_features_replaces_that_of_a_fitted_transform(points):
    other = StandardMean().fit(torch.rand(9, 5))
    fitted = StandardMean().fit(torch.tensor(points))
    other.load_state_dict(fitted.state_dict())
    assert torch.equal(other(torch.tensor(points)), fitted(torch.tensor(points)))


def test_unfitted_state_does_not_make_a_transform_look_fitted():
    other = UnitCube().fit(torch.rand(4, 2))
    other.load_state_dict(UnitCube().state_dict())
    with pytest.raises(RuntimeError, match="UnitCube is not fitted"):
        other(torch.rand(4, 2))


@pytest.mark.parametrize("name", MAPS)
def test_fitting_returns_the_transform_and_the_last_fit_counts(name, points, new_points):
    x, new = torch.tensor(points), torch.tensor(new_points)
    again = MAPS[name]().fit(10 * x + 1)
    assert again.fit(x) is again
    assert torch.equal(again(new), MAPS[name]().fit(x)(new))


@pytest.mark.parametrize("name", MAPS)
def test_fitting_keeps_no_graph_and_leaves_the_points_alone(name, points):
    x = torch.tensor(points, requires_grad=True)
    fitted = MAPS[name]().fit(x)
    assert torch.equal(x.detach(), torch.tensor(points))
    assert not any(buffer.requires_grad for buffer in fitted.buffers())


def test_compose_fits_each_on_what_those_before_it_give(points, new_points):
    x, new = torch.tensor(points), torch.tensor(new_points)
    first = Standardize().fit(x)
    second = UnitCube().fit(first(x))
    third = MeanDistance().fit(second(first(x)))
    composed = Compose(Standardize(), UnitCube(), MeanDistance()).fit(x)
    assert torch.equal(composed(new), third(second(first(new))))


def test_compose_of_nothing_changes_nothing(points):
    x = torch.tensor(points)
    assert torch.equal(Compose().fit(x)(x), x)


def test_linear_multiplies_by_the_transpose(points):
    weight = np.arange(6.0).reshape(2, 3)
    close(Linear(torch.tensor(weight))(torch.tensor(points)), points @ weight.T)


def test_linear_makes_its_product_the_metric_of_the_kernel(points):
    weight, x = torch.randn(2, 3, dtype=torch.float64), torch.tensor(points)
    metric = (weight.mT @ weight).numpy()
    expected = np.exp(-cdist(points, points, "mahalanobis", VI=metric))
    close(kernels.Exponential(input_transform=Linear(weight))(x, x), expected, rtol=1e-6, atol=1e-9)


def test_linear_is_learned_only_when_asked():
    weight = torch.eye(3)
    assert not list(Linear(weight).parameters())
    assert "weight" in Linear(weight).state_dict()
    learned = Linear(weight, learn=True)
    assert [name for name, _ in learned.named_parameters()] == ["weight"]
    optimizer = torch.optim.SGD(learned.parameters(), lr=0.1)
    x = torch.rand(6, 3)
    before = learned(x).square().sum().item()
    for _ in range(5):
        optimizer.zero_grad()
        learned(x).square().sum().backward()
        optimizer.step()
    assert learned(x).square().sum().item() < 0.5 * before
    assert torch.equal(weight, torch.eye(3)), "the caller's tensor was changed"


def test_state_of_a_fixed_linear_map_goes_into_a_learned_one_and_back():
    weight = torch.rand(2, 3)
    fixed, learned = Linear(weight), Linear(torch.zeros(2, 3), learn=True)
    learned.load_state_dict(fixed.state_dict())
    x = torch.rand(4, 3)
    assert torch.equal(learned(x), fixed(x))
    fixed.load_state_dict(Linear(torch.ones(5, 3), learn=True).state_dict())
    assert fixed(x).shape == (4, 5)


@pytest.mark.parametrize("name", MAPS)
def test_copies_are_independent(name, points, new_points):
    fitted, new = MAPS[name]().fit(torch.tensor(points)), torch.tensor(new_points)
    before = fitted(new)
    copy.deepcopy(fitted).fit(torch.tensor(points) ** 2 + 1)
    assert torch.equal(fitted(new), before)


@pytest.mark.parametrize("name", ["Standardize", "UnitCube", "StandardMean"])
def test_half_precision_of_a_module_does_not_round_what_was_fitted(name):
    x = 1000 + torch.rand(500, 2, dtype=torch.float64)
    fitted = MAPS[name]().fit(x)
    close(copy.deepcopy(fitted).half()(x), fitted(x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_maps_of_points_in_half_precision_are_those_of_the_same_points_in_float32(dtype):
    x = torch.randn(100, 2).to(dtype)
    half, single = StandardMean().fit(x), StandardMean().fit(x.float())
    for name, statistic in half.state_dict().items():
        close(statistic, single.state_dict()[name], rtol=1e-6, atol=1e-6)
    assert half(x).dtype == dtype
    assert torch.equal(half(x), single(x.float()).to(dtype))  # not rounded between its steps


def test_counts_that_half_precision_cannot_hold_keep_points_inside_the_cube():
    x = torch.linspace(0, 1, 70_000).unsqueeze(1)
    fitted = UnitCube().fit(x)
    assert torch.equal(fitted(x.half()), fitted(x.half().float()).half())

"""Trends of any degree, dense and local: against the saddle-point system, their derivatives, and undetermined ones."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from tests import problems, reference
from tests.kernel_cases import CONDITIONAL
from torch.autograd import gradcheck, gradgradcheck

import torchkrr
from torchkrr import functional as F
from torchkrr import kernels, neighbors
from torchkrr.errors import InputError, RidgeRaisedWarning, SolveError, TrendWarning

PROFILES = {**reference.PROFILES, **reference.CONDITIONAL}
MAKE = {**{name: make for name, (_, make) in CONDITIONAL.items()}, "Exponential": kernels.Exponential}
# Each kernel with the trend of its order and with the next one; "linear" is one of them.
CASES = [
    (name, trend)
    for name, make in MAKE.items()
    for trend in {0: ("linear", 2), 1: ("constant", "linear"), 2: ("linear", 2), 3: (2, 3)}[make.order]
]
SCALES = {"Quintic": 3.0}  # its entries grow with the fifth power


def scale(name):
    return SCALES.get(name, 0.8)


cases = pytest.mark.parametrize(("name", "trend"), CASES)


def problem(**changes):
    return problems.random_points(**{"num_features": 2, "num_centers": 30, "num_neighbors": 15, **changes})


def embedded(p, name):
    return (p.query / scale(name)).numpy(), (p.centers / scale(name)).numpy(), p.values.numpy()


def small():
    """Query, centers, values and ridge that require grad, and neighbors."""
    p = problems.random_points(3, num_queries=2, num_centers=20, num_features=2)
    ridge = torch.tensor(1e-2, dtype=torch.float64)
    leaves = [tensor.clone().requires_grad_() for tensor in (p.query, p.centers, p.values, ridge)]
    return leaves, p.neighbors(18)


def close(actual, expected, tolerance=1e-8):
    torch.testing.assert_close(actual, torch.as_tensor(expected, dtype=actual.dtype), rtol=tolerance, atol=tolerance)


@cases
@pytest.mark.parametrize("ridge", [0.0, 1e-2])
def test_dense_functions_are_those_of_the_saddle_point_system(name, trend, ridge):
    p = problem()
    query, centers, values = embedded(p, name)
    ours = {"kernel": MAKE[name](scale(name)), "ridge": ridge, "trend": trend}
    theirs = {"profile": PROFILES[name], "ridge": ridge, "trend": trend}
    close(F.kernel_ridge(p.query, p.centers, p.values, **ours), reference.kernel_ridge(query, centers, values, **theirs))
    close(F.cardinal_weights(p.query, p.centers, **ours), reference.cardinal_weights(query, centers, **theirs))
    close(F.power_function(p.query, p.centers, **ours), reference.power_function(query, centers, **theirs), 1e-7)
    close(F.leave_one_out(p.centers, p.values, **ours), reference.leave_one_out(centers, values, **theirs))
    close(F.rkhs_norm(p.centers, p.values, **ours), reference.rkhs_norm(centers, values, **theirs))


@cases
@pytest.mark.parametrize("fade", [False, True])
def test_local_functions_are_those_of_the_saddle_point_system(name, trend, fade):
    p = problem()
    query, centers, values = embedded(p, name)
    kernel, rows, ridges = MAKE[name](scale(name)), p.neighbors(14 + fade), torch.rand(30, dtype=torch.float64) / 10
    ours = {"kernel": kernel, "ridge": ridges, "trend": trend, "fade": fade}
    unit = lambda radius: float(kernel.unit(torch.tensor(radius)))  # noqa: E731
    theirs = {"profile": PROFILES[name], "ridge": ridges.numpy(), "trend": trend, "fade": fade, "unit": unit}
    mean = F.local_kernel_ridge(p.query, p.centers, p.values, rows, **ours)
    close(mean, reference.local_kernel_ridge(query, centers, values, rows.numpy(), **theirs))
    weights = F.local_cardinal_weights(p.query, p.centers, rows, **ours)
    close(weights, reference.local_cardinal_weights(query, centers, rows.numpy(), **theirs))
    power = F.local_power_function(p.query, p.centers, rows, **ours)
    close(power, reference.local_power_function(query, centers, rows.numpy(), **theirs), 1e-7)


@cases
def test_local_on_all_centers_is_dense_and_leave_one_out_is_a_refit(name, trend):
    p = problem(num_centers=15)
    options = {"kernel": MAKE[name](scale(name)), "ridge": 1e-3, "trend": trend}
    close(
        F.local_kernel_ridge(p.query, p.centers, p.values, p.neighbors(15), **options),
        F.kernel_ridge(p.query, p.centers, p.values, **options),
    )
    left_out = torchkrr.tuning.local_leave_one_out(p.centers, p.values, 14, **options)
    close(left_out.means, F.leave_one_out(p.centers, p.values, **options))


@cases
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_of_dense_predictions(name, trend, check):
    leaves, _ = small()
    kernel = MAKE[name](scale(name), learn_lengthscale=True).double()

    def predict(query, centers, values, ridge, _):
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=ridge, trend=trend)

    assert check(predict, [*leaves, kernel.log_lengthscale], fast_mode=True, atol=1e-4)


@cases
@pytest.mark.parametrize("fade", [False, True])
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives_of_local_predictions(name, trend, fade, check):
    leaves, rows = small()
    kernel = MAKE[name](scale(name), learn_lengthscale=True).double()

    def predict(query, centers, values, ridge, _):
        return F.local_kernel_ridge(query, centers, values, rows, kernel=kernel, ridge=ridge, trend=trend, fade=fade)

    assert check(predict, [*leaves, kernel.log_lengthscale], fast_mode=True, atol=1e-4)


@cases
@pytest.mark.parametrize("normalize", [None, "cell"])
@pytest.mark.parametrize("fade", [False, True])
def test_derivatives_of_the_local_power_function_and_weights(name, trend, fade, normalize):
    (query, centers, _, ridge), rows = small()
    options = {"kernel": MAKE[name](scale(name)), "trend": trend, "fade": fade, "normalize": normalize}
    for function in (F.local_power_function, F.local_cardinal_weights):
        assert gradcheck(lambda z, x, r, f=function: f(z, x, rows, ridge=r, **options), [query, centers, ridge])


@cases
def test_derivatives_of_leave_one_out_and_of_the_power_function(name, trend):
    (query, centers, values, ridge), _ = small()
    options = {"kernel": MAKE[name](scale(name)), "trend": trend}
    assert gradcheck(lambda x, y, r: F.leave_one_out(x, y, ridge=r, **options), [centers, values, ridge])
    assert gradcheck(lambda z, x, r: F.power_function(z, x, ridge=r, **options), [query, centers, ridge])


@cases
def test_derivatives_in_the_query_are_finite_differences_of_the_interpolant(name, trend):
    p = problem()
    options = {"kernel": MAKE[name](scale(name)), "trend": trend, "ridge": 0.0}
    rows, step = p.neighbor_indices, 1e-6
    for predict in (
        lambda z: F.kernel_ridge(z, p.centers, p.values, **options),
        lambda z: F.local_kernel_ridge(z, p.centers, p.values, rows, **options),
    ):
        query = p.query.clone().requires_grad_()
        (slope,) = torch.autograd.grad(predict(query)[:, 0].sum(), query)
        for feature in range(2):
            move = torch.eye(2, dtype=torch.float64)[feature] * step
            difference = (predict(p.query + move) - predict(p.query - move))[:, 0] / (2 * step)
            close(slope[:, feature], difference, 1e-3)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("kernel", [kernels.Exponential(2.0), kernels.Linear(2.0)], ids=repr)
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_polynomials_of_the_degree_are_reproduced_wherever_they_are(degree, kernel, offset):
    p = problem(num_centers=60, num_neighbors=25)
    slopes = torch.from_numpy(np.random.default_rng(0).normal(size=(2, degree + 1)))

    def polynomial(x):
        return (slopes.T[:, :, None] * torch.stack([(x / 2) ** k for k in range(degree + 1)]).mT).sum((0, 1))[:, None] + 1

    query, centers = p.query + offset, p.centers + offset
    for ridge in (0.0, 0.5):
        options = {"kernel": kernel, "trend": degree, "ridge": ridge}
        found = F.kernel_ridge(query, centers, polynomial(p.centers), **options)
        close(found, polynomial(p.query), 1e-9 if offset == 0 else 1e-7)
        rows = p.neighbor_indices
        for fade in (False, True):
            found = F.local_kernel_ridge(query, centers, polynomial(p.centers), rows, fade=fade, **options)
            close(found, polynomial(p.query), 1e-9 if offset == 0 else 1e-7)


def test_names_and_degrees_of_a_trend_are_the_same():
    p = problem()
    for name, degree in (("constant", 0), ("linear", 1)):
        by_name = {"kernel": kernels.Exponential(), "trend": name}
        by_degree = by_name | {"trend": degree}
        rows = p.neighbor_indices
        for function, arguments in (
            (F.kernel_ridge, (p.query, p.centers, p.values)),
            (F.local_kernel_ridge, (p.query, p.centers, p.values, rows)),
            (F.leave_one_out, (p.centers, p.values)),
        ):
            assert torch.equal(function(*arguments, **by_name), function(*arguments, **by_degree))


@cases
def test_interpolates_without_a_ridge(name, trend):
    p = problem()
    options = {"kernel": MAKE[name](scale(name)), "trend": trend, "ridge": 0.0}
    rows = neighbors.nearest(p.centers, p.centers, 15)
    close(F.kernel_ridge(p.centers, p.centers, p.values, **options), p.values, 1e-8)
    close(F.local_kernel_ridge(p.centers, p.centers, p.values, rows, **options), p.values, 1e-8)
    close(F.local_power_function(p.centers, p.centers, rows, **options), torch.zeros(30), 1e-5)


@cases
def test_float32_is_as_good_as_float64_rounded(name, trend):
    p = problem(num_centers=80, num_neighbors=20)
    options = {"kernel": MAKE[name](scale(name)), "trend": trend}
    rows, single = p.neighbor_indices, p.float()
    local = F.local_kernel_ridge(single.query, single.centers, single.values, rows, **options)
    close(local.double(), F.local_kernel_ridge(p.query, p.centers, p.values, rows, **options), 5e-3)
    dense = F.kernel_ridge(single.query, single.centers, single.values, **options)
    close(dense.double(), F.kernel_ridge(p.query, p.centers, p.values, **options), 5e-3)


def places(kind, generator):
    """Centers that are hard on float32: regular, crowded at the edge, in clusters, or a little of everything."""
    if kind == "grid":
        axis = torch.linspace(0, 1, 15, dtype=torch.float64)
        return torch.cartesian_prod(axis, axis)
    if kind == "chebyshev":
        axis = (1 - torch.cos(torch.pi * torch.linspace(0, 1, 15, dtype=torch.float64))) / 2
        return torch.cartesian_prod(axis, axis)
    x = torch.rand(225, 2, generator=generator, dtype=torch.float64)
    return x if kind == "uniform" else x[:15].repeat(15, 1) + 1e-3 * x


@cases
@pytest.mark.parametrize("backend", ["auto", "torch"])
@pytest.mark.parametrize("kind", ["grid", "chebyshev", "clusters", "uniform"])
@pytest.mark.filterwarnings("ignore::torchkrr.errors.KernelRidgeWarning")  # float64 is truth for the ridge that it takes
def test_no_float32_prediction_is_wrong_in_silence(name, trend, backend, kind):
    generator = torch.Generator().manual_seed(0)
    centers = places(kind, generator).float().double()
    values = torch.sin(9 * centers.sum(1, keepdim=True)).float().double()
    query = torch.rand(100, 2, generator=generator, dtype=torch.float64).float().double()
    for count in (12, 50):
        rows = neighbors.nearest(query, centers, count)
        for ridge in (1e-9, 1e-4):
            options = {"kernel": MAKE[name](scale(name)), "trend": trend, "ridge": ridge}
            exact = F.local_kernel_ridge(query, centers, values, rows, backend="torch", **options)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                single = F.local_kernel_ridge(
                    query.float(), centers.float(), values.float(), rows, backend=backend, **options
                )
            # Rounded to float32, the places of a cluster may not determine a polynomial; that is said.
            if not any(warning.category is TrendWarning for warning in caught):
                assert (single.double() - exact).abs().max() < 1e-2 * exact.abs().max().clamp_min(1)


@cases
def test_leading_dimensions_are_so_many_problems(name, trend):
    query, centers, values = (torch.randn(3, n, 2, dtype=torch.float64) for n in (4, 15, 15))
    options = {"kernel": MAKE[name](scale(name)), "trend": trend, "ridge": 1e-3}
    each = [F.kernel_ridge(*parts, **options) for parts in zip(query, centers, values, strict=True)]
    close(F.kernel_ridge(query, centers, values, **options), torch.stack(each))
    left = [F.leave_one_out(*parts, **options) for parts in zip(centers, values, strict=True)]
    close(F.leave_one_out(centers, values, **options), torch.stack(left))


@pytest.mark.filterwarnings("ignore:`torch.jit.*` is deprecated:DeprecationWarning")
@cases
def test_inside_torch_func_the_derivatives_are_the_same(name, trend):
    leaves, rows = small()
    query, centers, values, _ = (leaf.detach() for leaf in leaves)
    options = {"kernel": MAKE[name](scale(name)), "trend": trend, "ridge": 1e-2}

    def predict(z):
        return F.local_kernel_ridge(z[None], centers, values, rows[:1], **options)[0]

    def predict_dense(z):
        return F.kernel_ridge(z[None], centers, values, **options)[0]

    for function in (predict, predict_dense):
        slopes = torch.autograd.functional.jacobian(function, query[0])
        close(torch.func.jacrev(function)(query[0]), slopes, 1e-8)
        close(torch.func.vmap(torch.func.jacrev(function))(query)[0], slopes, 1e-8)


def test_compiled_and_exported_programs_keep_the_degree():
    p = problem()
    layer = torchkrr.nn.LocalKernelRidge(p.centers, p.values, 12, kernel=kernels.ThinPlateSpline(), trend=2)
    close(torch.compile(layer, fullgraph=True, backend="eager")(p.query), layer(p.query))
    close(torch.export.export(layer, (p.query,)).module()(p.query), layer(p.query))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_centers_on_a_line_give_the_polynomial_of_the_smallest_norm_and_a_warning(dtype):
    line = torch.linspace(0, 1, 12, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0]) + 0.3
    line, values = line.to(dtype), torch.sin(6 * line[:, :1]).to(dtype)
    options = {"kernel": kernels.ThinPlateSpline(), "trend": "linear", "ridge": 0.0}
    rows = neighbors.nearest(line, line, 8)
    with pytest.warns(TrendWarning, match="^12 sets of centers do not determine"):
        close(F.local_kernel_ridge(line, line, values, rows, **options), values, 1e-5)
    with pytest.warns(TrendWarning, match="^1 set of centers does not determine"):
        close(F.kernel_ridge(line, line, values, **options), values, 1e-5)
    for function, arguments in ((F.kernel_ridge, ()), (F.local_kernel_ridge, (rows,))):
        with pytest.raises(SolveError, match="full column rank"):
            function(line, line, values, *arguments, on_singular="raise", **options)


def test_gradients_are_finite_where_the_polynomial_is_not_determined():
    line = torch.linspace(0, 1, 9, dtype=torch.float64)[:, None] * torch.tensor([1.0, 2.0])
    leaves = [x.clone().requires_grad_() for x in (line[:3] + 0.01, line, torch.randn(9, 1, dtype=torch.float64))]
    rows = neighbors.nearest(leaves[0], line, 6)
    with pytest.warns(TrendWarning):
        mean = F.local_kernel_ridge(*leaves, rows, kernel=kernels.Cubic(), trend=1)
    gradients = torch.autograd.grad(mean.sum(), leaves, create_graph=True)
    assert all(torch.isfinite(g).all() for g in gradients)
    assert torch.isfinite(torch.autograd.grad(gradients[0].square().sum(), leaves[2])[0]).all()


def test_fewer_neighbors_than_monomials_are_warned_of_and_interpolated():
    p = problem()
    rows = neighbors.nearest(p.centers, p.centers, 2)
    with pytest.warns(TrendWarning, match="fewer centers than monomials"):
        found = F.local_kernel_ridge(p.centers, p.centers, p.values, rows, kernel=kernels.Exponential(), trend=1, ridge=0.0)
    close(found, p.values, 1e-7)


def test_leaving_out_a_center_that_the_polynomial_needs_is_a_refit_too():
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [3.0, 0.0], [0.5, 1.0]], dtype=torch.float64)
    y, options = torch.randn(5, 1, dtype=torch.float64), {"kernel": kernels.Linear(), "trend": 1}
    with pytest.warns(TrendWarning):
        found = F.leave_one_out(x, y, **options)
    with pytest.warns(TrendWarning):
        close(found[4:], F.kernel_ridge(x[4:], x[:4], y[:4], **options))
    close(found[:1], F.kernel_ridge(x[:1], x[1:], y[1:], **options))


def test_repeated_centers_raise_the_ridge_by_the_size_of_the_kernel():
    for scale in (1e-6, 1.0, 1e6):
        x = torch.rand(12, 2, dtype=torch.float64) * scale
        x, y = torch.cat((x, x[:1])), torch.arange(13.0, dtype=torch.float64)[:, None]
        options = {"kernel": kernels.ThinPlateSpline(), "trend": 1, "ridge": 0.0}
        with pytest.warns(RidgeRaisedWarning):
            dense = F.kernel_ridge(x, x, y, **options)
        with pytest.warns(RidgeRaisedWarning):
            local = F.local_kernel_ridge(x, x, y, neighbors.nearest(x, x, 13), **options)
        for found in (dense, local):
            close(found[[0, 12]], torch.full((2, 1), 6.0), 1e-3)
            close(found[1:12], y[1:12], 2e-2)
        with pytest.raises(SolveError, match="cannot be solved in float64"):
            F.kernel_ridge(x, x, y, on_singular="raise", **options)


@pytest.mark.parametrize("name", CONDITIONAL)
def test_a_kernel_without_the_trend_that_it_needs_says_which(name):
    p = problem()
    kernel = MAKE[name]()
    needed = {1: "'constant'", 2: "'linear'", 3: "2"}[kernel.order]
    for trend in range(-1, kernel.order - 1):
        trend = None if trend < 0 else trend
        for function, arguments in (
            (F.kernel_ridge, (p.query, p.centers, p.values)),
            (F.local_kernel_ridge, (p.query, p.centers, p.values, p.neighbor_indices)),
            (torchkrr.nn.LocalKernelRidge, (p.centers, p.values)),
            (torchkrr.nn.KernelRidge, (p.centers, p.values)),
        ):
            with pytest.raises(InputError, match=f"{name} is conditionally positive definite .* Use trend={needed}"):
                function(*arguments, kernel=kernel, trend=trend)


@pytest.mark.parametrize("trend", [-1, 1.0, True, "quadratic", "0"])
def test_a_trend_that_is_none_is_named(trend):
    p = problem()
    with pytest.raises(InputError, match="trend must be one of None, 'constant', 'linear', or the degree"):
        F.kernel_ridge(p.query, p.centers, p.values, kernel=kernels.Exponential(), trend=trend)


def test_a_path_with_a_polynomial_says_what_to_do():
    p = problem()
    for kernel, trend in ((kernels.Exponential(), 1), (kernels.Linear(), 0)):
        with pytest.raises(InputError, match="Call local_kernel_ridge once for each number"):
            F.local_path(p.query, p.centers, p.values, p.neighbor_indices, kernel=kernel, trend=trend)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, y, kernel: F.power_greedy(x, 3, kernel=kernel),
        lambda x, y, kernel: F.residual_greedy(x, y, 3, kernel=kernel),
        lambda x, y, kernel: torchkrr.select(x, y, kernels=kernel),
        lambda x, y, kernel: torchkrr.learn_metric(x, y, kernel=kernel, steps=1),
        lambda x, y, kernel: torchkrr.LocalKernelRidgeRegressor(kernel=kernel).fit(x.numpy(), y[:, 0].numpy()),
    ],
    ids=["power_greedy", "residual_greedy", "select", "learn_metric", "estimator"],
)
def test_what_has_no_polynomial_takes_a_positive_definite_kernel_only(call):
    p = problem()
    with pytest.raises(InputError, match="Linear is only conditionally positive definite"):
        call(p.centers, p.values, kernels.Linear())


def test_the_hierarchical_form_says_that_it_has_no_polynomial():
    p = problem()
    with pytest.raises(InputError, match="coarse part has no polynomial trend"):
        torchkrr.nn.HierarchicalKernelRidge(p.centers, p.values, 5, kernel=kernels.Exponential(), trend="linear")


@cases
def test_layers_predict_explain_and_are_saved(name, trend, tmp_path):
    p = problem()
    options = {"kernel": MAKE[name](scale(name)), "trend": trend, "ridge": 1e-3}
    for fade in (False, True):
        layer = torchkrr.nn.LocalKernelRidge(p.centers, p.values, 14, fade=fade, **options)
        rows = neighbors.nearest(p.query, p.centers, 14 + fade)
        close(layer(p.query), F.local_kernel_ridge(p.query, p.centers, p.values, rows, fade=fade, **options))
        explained = layer.explain(p.query)
        close((explained.weights.unsqueeze(-1) * p.values[explained.indices]).sum(-2), layer(p.query))
        torchkrr.save(layer, tmp_path / "layer.krr")
        assert torch.equal(torchkrr.load(tmp_path / "layer.krr")(p.query), layer(p.query))
        assert layer.leave_one_out().means.shape == p.values.shape
    dense = torchkrr.nn.KernelRidge(p.centers, p.values, **options)
    close(dense(p.query), F.kernel_ridge(p.query, p.centers, p.values, **options))


@cases
def test_blended_layers_predict_from_kept_coefficients_as_with_gradients(name, trend):
    p = problem()
    layer = torchkrr.nn.BlendedKernelRidge(p.centers, p.values, 12, kernel=MAKE[name](scale(name)), trend=trend, ridge=1e-3)
    with torch.no_grad():
        kept = layer(p.query)
    close(kept, layer(p.query.clone().requires_grad_()).detach(), 1e-8)


@cases
def test_a_faded_prediction_is_continuous_where_neighbors_change(name, trend):
    p = problem(num_centers=60)
    layer = torchkrr.nn.LocalKernelRidge(
        p.centers, p.values, 16, kernel=MAKE[name](scale(name)), trend=trend, ridge=1e-3, fade=True
    )
    plain = torchkrr.nn.LocalKernelRidge(p.centers, p.values, 16, kernel=layer.kernel, trend=trend, ridge=1e-3)

    def largest_step(layer, count):
        return (
            layer(torch.linspace(0, 1, count, dtype=torch.float64)[:, None] * torch.tensor([0.8, 0.5]) - 0.3)
            .diff(dim=0)
            .abs()
            .max()
        )

    # Steps twice as short are about half as large, but for those across a jump.
    assert largest_step(layer, 16001) < 0.6 * largest_step(layer, 8001)
    assert largest_step(plain, 16001) > 0.9 * largest_step(plain, 8001)


def test_a_determined_polynomial_is_not_warned_of():
    p = problem()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = F.kernel_ridge(p.query, p.centers, p.values, kernel=kernels.Cubic(), trend=1)
    assert bool(found.isfinite().all())

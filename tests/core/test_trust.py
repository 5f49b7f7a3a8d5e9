"""Cells that are singular in their dtype: the posed problem where possible, the smallest ridge where not, never silence."""

import re
import warnings

import pytest
import torch
from tests.properties import trust_hooks

from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn
from torchkrr.core.local import solve_local
from torchkrr.core.options import SolveOptions
from torchkrr.core.trust import ladder
from torchkrr.errors import RidgeRaisedWarning, SolveError

EXPONENTIAL = kernels.Exponential()


def close_pair(dtype):
    """A cell whose two nearest centers are 1e-6 apart with different values: float32 cannot resolve it, float64 can."""
    centers = torch.tensor([[0.0, 0.0], [1e-6, 0.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0], [6.0, 5.0], [5.0, 6.5]])
    values = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [6.0]])
    query = torch.tensor([[3e-7, 0.2], [5.2, 5.2]])
    indices = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 2]])
    return query.to(dtype), centers.to(dtype), values.to(dtype), indices


def duplicates(dtype):
    centers = torch.tensor([[0.0], [0.0], [1.0], [3.0]])
    values = torch.tensor([[10.0], [20.0], [0.0], [7.0]])
    return torch.tensor([[0.0], [2.5]]).to(dtype), centers.to(dtype), values.to(dtype)


@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("fade", [False, True])
def test_float32_cell_is_solved_in_float64_without_a_word(trend, fade):
    query, centers, values, indices = close_pair(torch.float32)
    choices = {"kernel": EXPONENTIAL, "trend": trend}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mean = F.local_kernel_ridge(query, centers, values, indices, fade=fade, **choices)
        power = F.local_power_function(query, centers, indices, fade=fade, **choices)
        weights = F.local_cardinal_weights(query, centers, indices, fade=fade, **choices)
    # The float64 problem is the one posed by the float32 numbers.
    double = (query.double(), centers.double())
    torch.testing.assert_close(
        mean.double(), F.local_kernel_ridge(*double, values.double(), indices, fade=fade, **choices), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        power.double(), F.local_power_function(*double, indices, fade=fade, **choices), rtol=1e-6, atol=1e-6
    )
    torch.testing.assert_close(
        weights.double(), F.local_cardinal_weights(*double, indices, fade=fade, **choices), rtol=1e-6, atol=1e-6
    )


def test_plain_float32_would_have_been_wrong():
    # Without this the test above could pass on cells that never needed float64.
    query, centers, values, indices = close_pair(torch.float32)
    local = centers[indices[0]]
    gram = torch.exp(-torch.cdist(local, local)) + 1e-9 * torch.eye(4)
    cross = torch.exp(-torch.cdist(query[:1], local))
    wrong = cross @ torch.linalg.solve(gram, values[indices[0]])
    right = F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL)[:1]
    assert not abs(float(wrong - right)) < 1e-2


def test_cells_beside_an_unresolved_one_keep_their_bits():
    query, centers, values, indices = close_pair(torch.float32)
    together = F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL)
    alone = F.local_kernel_ridge(query[1:], centers, values, indices[1:], kernel=EXPONENTIAL)
    assert torch.equal(together[1:], alone)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conflicting_duplicates_give_their_mean_and_one_warning(dtype):
    query, centers, values = duplicates(dtype)
    indices = neighbors.nearest(query, centers, 4)
    with pytest.warns(RidgeRaisedWarning, match=r"2 cells are singular in float64") as caught:
        mean = F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL, ridge=0.0)
    assert len(caught) == 1
    assert float(mean[0]) == pytest.approx(15.0, rel=1e-3)
    with pytest.warns(RidgeRaisedWarning):
        dense = F.kernel_ridge(query, centers, values, kernel=EXPONENTIAL, ridge=0.0)
    torch.testing.assert_close(dense, mean, rtol=1e-3, atol=1e-3)


def test_the_ridge_is_the_smallest_rung_that_resolves():
    query, centers, values = duplicates(torch.float64)
    indices = neighbors.nearest(query, centers, 4)
    with pytest.warns(RidgeRaisedWarning) as caught:
        raised = F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL, ridge=0.0)
    used = float(re.search(r"at most ([0-9.e+-]+)\.", str(caught[0].message)).group(1))
    rungs = list(ladder(torch.float64, 0.0))
    (rung,) = [rung for rung in rungs if abs(rung / used - 1) < 0.1]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(
            F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL, ridge=rung), raised, rtol=1e-6, atol=0
        )
    with pytest.warns(RidgeRaisedWarning):
        F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL, ridge=rung / 10)


def test_only_singular_cells_get_the_larger_ridge():
    query = torch.tensor([[0.1], [50.2]], dtype=torch.float64)
    centers = torch.tensor([[0.0], [0.0], [50.0], [51.0]], dtype=torch.float64)
    values = torch.tensor([[1.0], [2.0], [3.0], [4.0]], dtype=torch.float64)
    indices = torch.tensor([[0, 1], [2, 3]])
    with pytest.warns(RidgeRaisedWarning, match="1 cell is"):
        mean = F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL, ridge=0.0)
    good = F.local_kernel_ridge(query[1:], centers, values, indices[1:], kernel=EXPONENTIAL, ridge=0.0)
    assert torch.equal(mean[1:], good)


def test_raise_says_which_query_and_why():
    query, centers, values = duplicates(torch.float32)
    query = torch.cat((torch.full((3, 1), 100.0), query))
    centers, values = torch.cat((centers, torch.tensor([[99.0], [102.0]]))), torch.cat((values, torch.ones(2, 1)))
    indices = torch.tensor([[4, 5, 3], [4, 5, 3], [4, 5, 3], [0, 1, 2], [3, 2, 0]])
    with pytest.raises(
        SolveError, match=r"1 neighborhood has .*float64 .*ridge=0, M=3.*\n?.*query 3.*0 apart[\s\S]*repeated centers"
    ):
        F.local_kernel_ridge(query, centers, values, indices, kernel=EXPONENTIAL, ridge=0.0, on_singular="raise")
    with pytest.raises(SolveError, match=r"Gram matrix.*N=6"):
        F.kernel_ridge(query, centers, values, kernel=EXPONENTIAL, ridge=0.0, on_singular="raise")
    layer = nn.LocalKernelRidge(centers, values, 3, kernel=EXPONENTIAL, ridge=0.0, on_singular="raise")
    with pytest.raises(SolveError):
        layer(query)


def test_one_rule_serves_every_function():
    query, centers, values = duplicates(torch.float32)
    indices = neighbors.nearest(query, centers, 4)
    choices = {"kernel": EXPONENTIAL, "ridge": 0.0, "on_singular": "raise"}
    for call in (
        lambda: F.local_cardinal_weights(query, centers, indices, **choices),
        lambda: F.local_power_function(query, centers, indices, **choices),
        lambda: F.local_path(query, centers, values, indices, **choices),
        lambda: F.cardinal_weights(query, centers, **choices),
        lambda: F.power_function(query, centers, **choices),
        lambda: F.leave_one_out(centers, values, **choices),
        lambda: F.rkhs_norm(centers, values, **choices),
    ):
        with pytest.raises(SolveError):
            call()


@pytest.mark.parametrize("make", [close_pair, lambda dtype: (*duplicates(dtype), torch.tensor([[0, 1, 2], [3, 2, 0]]))])
@pytest.mark.filterwarnings("ignore::torchkrr.errors.RidgeRaisedWarning")
def test_gradients_pass_through_cells_solved_again(make):
    query, centers, values, indices = make(torch.float32)

    def gradients(dtype):
        inputs = [tensor.to(dtype).requires_grad_() for tensor in (query, centers, values)]
        result = F.local_kernel_ridge(*inputs, indices, kernel=EXPONENTIAL, ridge=0.0)
        first = torch.autograd.grad(result.sum(), inputs, create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), inputs[2])
        return [grad.double() for grad in (*first, *second)]

    for single, double in zip(gradients(torch.float32), gradients(torch.float64), strict=True):
        assert torch.isfinite(single).all()
        torch.testing.assert_close(single, double, rtol=1e-3, atol=1e-3)


def test_batch_elements_are_judged_one_by_one():
    good = torch.randn(5, 2)
    bad = good.clone()
    bad[1] = bad[0]
    centers, values = torch.stack((good, bad)), torch.randn(2, 5, 3)
    query = torch.randn(4, 2)
    with pytest.warns(RidgeRaisedWarning, match=r"^4 cells"):  # not all eight
        both = F.kernel_ridge(query, centers, values, kernel=EXPONENTIAL, ridge=0.0)
    # Beside a sound one instead: a batch of the same size, since rounding may depend on that.
    beside = F.kernel_ridge(query, torch.stack((good, good)), values, kernel=EXPONENTIAL, ridge=0.0)
    assert torch.equal(both[0], beside[0])
    alone = F.kernel_ridge(query, good, values[0], kernel=EXPONENTIAL, ridge=0.0)
    torch.testing.assert_close(both[0], alone, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kernel", [kernels.Gaussian(10.0), kernels.Matern52(100.0)])
@pytest.mark.parametrize("ridge", [1e-4, 3e-4, 1e-3])
def test_many_rows_are_judged_more_strictly_in_float32(kernel, ridge):
    # The more rows, and the larger their sums, the more rounding of the matrix moves a prediction.
    centers, query = torch.rand(1000, 3), torch.rand(50, 3)
    values = torch.sin(5 * centers.sum(1, keepdim=True)) + 0.3 * torch.randn(1000, 1)
    indices = neighbors.nearest(query, centers, 300)

    def results(dtype):
        z, x, y = (tensor.to(dtype) for tensor in (query, centers, values))
        choices = {"kernel": kernel, "ridge": ridge}
        for count in (50, 1500):  # fewer queries than centers, and more
            yield F.kernel_ridge(z.repeat(count // 50, 1), x, y, **choices)
        yield F.kernel_ridge(z, x, y, trend="constant", **choices)
        yield F.kernel_ridge(z, x[:190], y[:190], **choices)
        yield F.cardinal_weights(z, x, **choices) @ y
        yield F.leave_one_out(x, y, **choices)
        for backend in ("torch", "auto"):
            yield F.local_kernel_ridge(z, x, y, indices, trend="constant", backend=backend, **choices)

    for single, double in zip(results(torch.float32), results(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=0, atol=0.012)


@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_what_is_left_over_is_judged_by_the_size_of_what_it_was_taken_from(backend):
    # Residuals of a good prior are small and rough; solved in float32 they are as exact as the targets ask for.
    torch.manual_seed(0)
    centers, query = torch.rand(300, 2), torch.rand(20, 2)
    residuals = 1e-3 * torch.randn(300, 3)
    indices = neighbors.nearest(query, centers, 40)
    options = SolveOptions(kernels.Matern52(1.0), 1e-5, backend=backend)
    with trust_hooks.counting() as alone:
        exact, _ = solve_local(query, centers, residuals, indices, options, "mean")
    with trust_hooks.counting() as beside:
        found, _ = solve_local(query, centers, residuals, indices, options, "mean", value_scale=torch.ones(3))
    assert alone.again > 0
    assert beside.again == 0
    assert (found - exact).abs().max() < 1e-3

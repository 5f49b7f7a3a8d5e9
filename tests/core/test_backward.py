"""First and second derivatives against finite differences, for every kernel, dense and local."""

import itertools
import threading

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, neighbors

KERNELS = {
    "exponential": lambda **choices: kernels.Exponential(1.3, **choices),
    "matern32": lambda **choices: kernels.Matern32(1.3, **choices),
    "matern52": lambda **choices: kernels.Matern52(1.3, **choices),
    "gaussian": lambda **choices: kernels.Gaussian(1.3, **choices),
    "rational_quadratic": lambda **choices: kernels.RationalQuadratic(1.3, alpha=0.7, learn_alpha=True, **choices),
    "multiquadric": lambda **choices: kernels.InverseMultiquadric(1.3, **choices),
    # A support that covers all pairs: at its edge a third derivative jumps, which finite differences would see.
    "wendland": lambda **choices: kernels.Wendland(9.0, dimension=2, smoothness=2, **choices),
}
TRENDS_AND_FADES = list(itertools.product([None, "constant"], [False, True]))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
@pytest.mark.parametrize("name", KERNELS)
def test_local_kernel_ridge(small, name, trend, fade, check):
    query, centers, values, ridge, indices = small
    kernel = KERNELS[name](learn_lengthscale=True).double()

    def predict(query, centers, values, ridge, *parameters):
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=ridge, trend=trend, fade=fade)

    assert check(predict, (query, centers, values, ridge, *kernel.parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
@pytest.mark.parametrize("function", [F.local_power_function, F.local_cardinal_weights])
@pytest.mark.parametrize("name", ["exponential", "matern52", "rational_quadratic"])
def test_local_power_function_and_weights(small, name, function, trend, fade, check):
    query, centers, _, ridge, indices = small
    kernel = KERNELS[name](learn_lengthscale=True).double()

    def evaluate(query, centers, ridge, *parameters):
        return function(query, centers, indices, kernel=kernel, ridge=ridge, trend=trend, fade=fade)

    assert check(evaluate, (query, centers, ridge, *kernel.parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("trend", [None, "constant"])
def test_local_path(small, trend, check):
    query, centers, values, ridge, indices = small

    def evaluate(query, centers, values, ridge):
        return tuple(F.local_path(query, centers, values, indices, kernel=kernels.Matern32(1.3), ridge=ridge, trend=trend))

    assert check(evaluate, (query, centers, values, ridge))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("name", KERNELS)
def test_kernel_ridge(small, name, trend, check):
    query, centers, values, ridge, _ = small
    kernel = KERNELS[name](learn_lengthscale=True).double()

    def predict(query, centers, values, ridge, *parameters):
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=ridge, trend=trend)

    assert check(predict, (query, centers, values, ridge, *kernel.parameters()))


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
@pytest.mark.parametrize("trend", [None, "constant"])
@pytest.mark.parametrize("name", ["exponential", "matern52", "rational_quadratic"])
def test_other_dense_functions(small, name, trend, check):
    query, centers, values, ridge, _ = small
    kernel = KERNELS[name](learn_lengthscale=True).double()
    choices = {"kernel": kernel, "trend": trend}
    functions = {
        lambda q, x, r, *_: F.power_function(q, x, ridge=r, **choices): (query, centers, ridge),
        lambda q, x, r, *_: F.cardinal_weights(q, x, ridge=r, **choices): (query, centers, ridge),
        lambda x, y, r, *_: F.leave_one_out(x, y, ridge=r, **choices): (centers, values, ridge),
        lambda x, y, r, *_: F.rkhs_norm(x, y, ridge=r, **choices): (centers, values, ridge),
    }
    for function, inputs in functions.items():
        assert check(function, (*inputs, *kernel.parameters()))


def test_leading_batch_dimensions_broadcast_and_differentiate(small):
    query, centers, values, ridge, _ = small
    kernel = kernels.Exponential(1.3)
    batched = torch.stack((query, query + 0.3))  # (2, Q, D)
    many = torch.stack((values, -values, 2 * values)).unsqueeze(1)  # (3, 1, N, C)

    def predict(query, centers, values):
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=ridge.detach())

    result = predict(batched, centers, many)  # (3, 2, Q, C)
    for i, j in itertools.product(range(3), range(2)):
        torch.testing.assert_close(result[i, j], predict(batched[j], centers, many[i, 0]))
    assert gradcheck(predict, (batched.detach().requires_grad_(), centers, many.detach().requires_grad_()))


def test_per_center_ridge_and_per_feature_lengthscale(small):
    query, centers, values, _, indices = small
    ridge = torch.linspace(0.01, 0.1, len(centers), dtype=torch.float64, requires_grad=True)
    kernel = kernels.Exponential([0.7, 1.9], learn_lengthscale=True).double()

    def local(query, centers, ridge, *parameters):
        return F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=ridge)

    def dense(query, centers, ridge, *parameters):
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=ridge)

    inputs = (query, centers, ridge, *kernel.parameters())
    assert gradcheck(local, inputs)
    assert gradcheck(dense, inputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("trend", "fade"), TRENDS_AND_FADES)
@pytest.mark.parametrize("name", KERNELS)
def test_gradients_are_finite_on_a_center_and_between_duplicates(name, trend, fade, dtype):
    centers = torch.randn(8, 2, dtype=dtype)
    centers[3], centers[5] = centers[2], centers[2]
    query = torch.cat((centers[:4], torch.zeros(1, 2, dtype=dtype))).requires_grad_()
    indices = neighbors.nearest(query, centers, 7)
    centers.requires_grad_()
    values = torch.randn(8, 2, dtype=dtype, requires_grad=True)
    kernel = KERNELS[name](learn_lengthscale=True).double()
    choices = {"kernel": kernel, "ridge": 1e-3, "trend": trend}
    outputs = [
        F.local_kernel_ridge(query, centers, values, indices, fade=fade, **choices),
        F.local_power_function(query, centers, indices, fade=fade, **choices),
        F.kernel_ridge(query, centers, values, **choices),
        F.power_function(query, centers, **choices),
    ]
    for output in outputs:
        grads = torch.autograd.grad(output.sum(), (query, centers, *kernel.parameters()), create_graph=True)
        assert all(torch.isfinite(grad).all() for grad in grads)
        second = torch.autograd.grad(sum(grad.sum() for grad in grads), (query, centers), allow_unused=True)
        assert all(torch.isfinite(grad).all() for grad in second if grad is not None)


@pytest.mark.parametrize("name", ["matern52", "gaussian", "rational_quadratic", "multiquadric", "wendland"])
def test_second_derivative_of_a_smooth_kernel_is_right_on_a_center(name):
    # Away from the fitted values 0 a smooth prediction has curvature at its centers too.
    centers = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.4, 0.8]], dtype=torch.float64)
    values = torch.tensor([[1.0], [0.2], [-0.5]], dtype=torch.float64)
    everyone = torch.arange(3)[None]
    kernel = KERNELS[name]()

    def local(point):
        return F.local_kernel_ridge(point[None], centers, values, everyone, kernel=kernel, ridge=1e-6).squeeze()

    def dense(point):
        return F.kernel_ridge(point[None], centers, values, kernel=kernel, ridge=1e-6).squeeze()

    at, step = centers[0], 1e-4
    expected = torch.empty(2, 2, dtype=torch.float64)
    for i, j in itertools.product(range(2), range(2)):
        di, dj = torch.eye(2, dtype=torch.float64)[i] * step, torch.eye(2, dtype=torch.float64)[j] * step
        expected[i, j] = (local(at + di + dj) - local(at + di - dj) - local(at - di + dj) + local(at - di - dj)) / (
            4 * step**2
        )
    for function in (local, dense):
        hessian = torch.autograd.functional.hessian(function, at.clone())
        torch.testing.assert_close(hessian, expected, rtol=2e-3, atol=1e-4)


def test_backward_keeps_no_matrix_per_query():
    num_queries, num_neighbors = 50, 40
    query, centers, values = torch.randn(num_queries, 3), torch.randn(200, 3), torch.randn(200, 2)
    indices = neighbors.nearest(query, centers, num_neighbors)
    largest = 0

    def pack(tensor):
        nonlocal largest
        largest = max(largest, tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = F.local_kernel_ridge(
            query.requires_grad_(), centers.requires_grad_(), values, indices, kernel=kernels.Exponential()
        )
    result.sum().backward()
    assert 0 < largest < num_queries * num_neighbors * num_neighbors / 4


def test_threads_and_chunks_change_nothing(monkeypatch):
    query, centers, values = torch.randn(300, 4), torch.randn(500, 4), torch.randn(500, 3)
    indices = neighbors.nearest(query, centers, 30)

    def run():
        inputs = [tensor.clone().requires_grad_() for tensor in (query, centers, values)]
        result = F.local_kernel_ridge(*inputs, indices, kernel=kernels.Exponential())
        return result.detach(), *torch.autograd.grad(result.square().sum(), inputs)

    whole = run()
    monkeypatch.setattr("torchkrr._chunking.CPU_CHUNK_BYTES", 100_000)
    chunked = run()
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        threaded = run()
        again = run()
    finally:
        torch.set_num_threads(before)
    for a, b, c, d in zip(whole, chunked, threaded, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(b, c, rtol=1e-4, atol=1e-4)
        assert torch.equal(c, d)  # sums do not depend on which worker was first


def test_worker_threads_leave_the_thread_count_alone():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        query, centers = torch.randn(200, 3), torch.randn(300, 3)
        F.local_power_function(query, centers, neighbors.nearest(query, centers, 30), kernel=kernels.Exponential())
        assert torch.get_num_threads() == 2
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert seen == [2]
    finally:
        torch.set_num_threads(before)


def test_one_tensor_in_two_roles_gets_both_gradients():
    points = torch.randn(9, 2, dtype=torch.float64, requires_grad=True)
    values = torch.randn(9, 1, dtype=torch.float64)
    indices = neighbors.nearest(points, points, 5)

    class Bare(kernels.Exponential):
        def embed(self, x):
            return x  # the very same tensor arrives as query and as centers

    both = F.local_kernel_ridge(points, points, values, indices, kernel=Bare(), ridge=0.1).square().sum()
    (grad,) = torch.autograd.grad(both, points, create_graph=True)
    query, centers = points.detach().clone().requires_grad_(), points.detach().clone().requires_grad_()
    separate = F.local_kernel_ridge(query, centers, values, indices, kernel=Bare(), ridge=0.1).square().sum()
    parts = torch.autograd.grad(separate, (query, centers), create_graph=True)
    torch.testing.assert_close(grad, parts[0] + parts[1])
    (second,) = torch.autograd.grad(grad.square().sum(), points)
    parts_second = torch.autograd.grad((parts[0] + parts[1]).square().sum(), (query, centers))
    torch.testing.assert_close(second, parts_second[0] + parts_second[1])


@pytest.mark.parametrize("which", range(4))
def test_second_derivatives_of_one_input_alone(small, which):
    query, centers, values, ridge, indices = (tensor.detach() for tensor in small)
    leaves = [query, centers, values, ridge]
    leaf = leaves[which].requires_grad_()
    mean = F.local_kernel_ridge(*leaves[:3], indices, kernel=kernels.Matern52(1.3), ridge=leaves[3])
    (gradient,) = torch.autograd.grad(mean.square().sum(), leaf, create_graph=True)
    assert gradient.requires_grad
    (second,) = torch.autograd.grad(gradient.square().sum(), leaf)
    assert bool(second.isfinite().all())

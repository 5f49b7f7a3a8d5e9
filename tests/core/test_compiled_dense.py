"""Small dense problems by the compiled library: same numbers and gradients as torch, and torch where it must be."""

import math

import pytest
import torch
from tests.kernel_cases import KERNELS
from torch.autograd import forward_ad, gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr import kernels, nn, transforms
from torchkrr import native as native
from torchkrr.core import compiled
from torchkrr.errors import BackendError, InputError, ShapeError

pytestmark = pytest.mark.skipif(native.library() is None, reason="the fused solver is not compiled")
# Queries, centers, features, outputs: below, at and above the sizes of registers, tiles and blocks.
SHAPES = [(1, 1, 1, 1), (3, 2, 3, 5), (9, 7, 5, 2), (64, 64, 8, 64), (70, 33, 17, 10), (130, 100, 3, 1)]


def problem(shape, dtype=torch.float64):
    queries, centers, features, outputs = shape
    sizes = ((queries, features), (centers, features), (centers, outputs))
    return [torch.randn(size, dtype=torch.float64).to(dtype) for size in sizes]


def wide(name, features):
    if name.startswith("Wendland"):
        return kernels.Wendland(6.0 * features**0.5, dimension=max(features, 3), smoothness=int(name[-1]))
    return KERNELS[name](1.5 * features**0.5)


def predictions_and_gradients(backend, tensors, kernel, ridge=1e-2):
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    found = F.kernel_ridge(*leaves, kernel=kernel, ridge=ridge, backend=backend)
    slopes = torch.cos(torch.arange(found.numel(), dtype=found.dtype)).view_as(found)
    return [found.detach(), *torch.autograd.grad((found * slopes).sum(), leaves)]


@pytest.mark.parametrize("name", KERNELS)
def test_same_as_torch_in_float64(name):
    for shape in SHAPES:
        kernel, tensors = wide(name, shape[2]), problem(shape)
        ours, theirs = (predictions_and_gradients(backend, tensors, kernel) for backend in ("fused", "torch"))
        for mine, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine, other, rtol=0, atol=1e-10 * max(1.0, float(other.abs().max())))


@pytest.mark.parametrize("name", ["Exponential", "Matern52", "InverseMultiquadric"])
def test_float32_is_as_exact_as_torch(name):
    for shape in SHAPES:
        kernel, tensors = wide(name, shape[2]), problem(shape)
        exact = predictions_and_gradients("torch", tensors, kernel)
        single = [tensor.float() for tensor in tensors]
        ours, theirs = (predictions_and_gradients(backend, single, kernel) for backend in ("fused", "torch"))
        for mine, other, expected in zip(ours, theirs, exact, strict=True):
            error, other_error = (float((found - expected).square().mean().sqrt()) for found in (mine, other))
            assert error <= 3 * other_error + 1e-6 * max(1.0, float(expected.abs().max())), shape


@pytest.mark.parametrize("scale", [1.5, [0.5, 1.0, 3.0]])
def test_first_and_second_derivatives(scale):
    tensors = [tensor.requires_grad_() for tensor in problem((4, 5, 3, 2))]
    kernel = kernels.Matern52(scale)

    def predict(query, centers, values):
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=0.1, backend="fused")

    assert gradcheck(predict, tensors)
    assert gradgradcheck(predict, tensors)


def test_centers_as_queries_have_both_gradients():
    points, values = torch.randn(6, 2, dtype=torch.float64).requires_grad_(), torch.randn(6, 1, dtype=torch.float64)

    def gradient(backend):
        found = F.kernel_ridge(points, points, values, kernel=kernels.Matern32(), ridge=0.1, backend=backend)
        return torch.autograd.grad(found.square().sum(), points)

    torch.testing.assert_close(gradient("fused"), gradient("torch"))


def test_only_what_is_needed_has_a_gradient():
    query, centers, values = problem((7, 5, 2, 3))
    for wanted in (query, centers, values):
        for tensor in (query, centers, values):
            tensor.requires_grad_(tensor is wanted)
        grads = [
            torch.autograd.grad(
                F.kernel_ridge(query, centers, values, kernel=kernels.Exponential(), ridge=0.1, backend=b).sum(), wanted
            )
            for b in ("fused", "torch")
        ]
        torch.testing.assert_close(*grads)


def test_queries_without_a_gradient_do_not_matter():
    query, centers, values = (tensor.requires_grad_() for tensor in problem((150, 20, 3, 2)))
    found = F.kernel_ridge(query, centers, values, kernel=kernels.Exponential(), ridge=0.1, backend="fused")
    picked = torch.autograd.grad(found[::7].sum(), (query, centers, values))
    few = query.detach()[::7].requires_grad_()
    alone = F.kernel_ridge(few, centers, values, kernel=kernels.Exponential(), ridge=0.1, backend="torch")
    expected = torch.autograd.grad(alone.sum(), (few, centers, values))
    torch.testing.assert_close(picked[0][::7], expected[0])
    torch.testing.assert_close(picked[1:], expected[1:])
    assert float(picked[0][1::7].abs().max()) == 0


def test_predictions_can_be_changed_in_place():
    query, centers, values = (tensor.requires_grad_() for tensor in problem((9, 8, 2, 2)))
    choices = {"kernel": kernels.Exponential(), "ridge": 0.1}
    changed = F.kernel_ridge(query, centers, values, backend="fused", **choices).relu_()
    expected = F.kernel_ridge(query, centers, values, backend="torch", **choices).relu()
    inputs = (query, centers, values)
    torch.testing.assert_close(torch.autograd.grad(changed.sum(), inputs), torch.autograd.grad(expected.sum(), inputs))


def test_learned_lengthscale_and_transform_keep_their_gradient():
    query, centers, values = problem((9, 8, 2, 2))
    transform = transforms.StandardMean().fit(centers)
    results = []
    for backend in ("auto", "torch"):
        kernel = kernels.Exponential([1.0, 2.0], learn_lengthscale=True, input_transform=transform)
        found = F.kernel_ridge(query, centers, values, kernel=kernel, ridge=0.1, backend=backend)
        results.append((found.detach(), *torch.autograd.grad(found.square().sum(), kernel.log_lengthscale)))
    torch.testing.assert_close(*results)


def test_tensors_in_any_layout():
    query, centers, values = problem((10, 6, 3, 4))
    expected = F.kernel_ridge(query, centers, values, kernel=kernels.Exponential(), backend="torch")
    turned = [tensor.T.contiguous().T for tensor in (query, centers, values)]
    torch.testing.assert_close(F.kernel_ridge(*turned, kernel=kernels.Exponential(), backend="fused"), expected)


def test_what_is_not_surely_resolved_is_left_to_the_usual_rule():
    centers = torch.tensor([[0.0], [1e-6], [1.0]])
    values = torch.tensor([[1.0], [1.0], [0.0]])
    found = F.kernel_ridge(centers, centers, values, kernel=kernels.Gaussian(), ridge=1e-9)
    assert compiled.dense_mean(centers, centers, values, kernel=kernels.Gaussian(), ridge=1e-9) is None
    assert torch.equal(
        found, F.kernel_ridge(centers, centers, values, kernel=kernels.Gaussian(), ridge=1e-9, backend="torch")
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("transform", [None, "cube"])
def test_what_is_not_finite_is_an_error(bad, which, transform):
    tensors = problem((5, 4, 2, 2))
    fitted = None if transform is None else transforms.UnitCube().fit(tensors[1])
    tensors[which][-1, 1] = bad
    name = ("query", "centers", "values")[which]
    with pytest.raises(InputError, match=f"{name} must be finite"):
        F.kernel_ridge(*tensors, kernel=kernels.Exponential(input_transform=fitted))


def test_far_queries_predict_zero():
    query = torch.tensor([[1e30], [0.0]])
    found = F.kernel_ridge(query, torch.zeros(1, 1), torch.ones(1, 1), kernel=kernels.Exponential())
    assert found.tolist() == [[0.0], [1.0]]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"trend": "constant"}, "it has no trend"),
        ({"ridge": torch.tensor(0.1)}, "number as ridge"),
        ({"kernel": kernels.RationalQuadratic(learn_alpha=True)}, "no gradient for what RationalQuadratic learns"),
        ({"query": torch.randn(2, 5, 3)}, "without leading dimensions"),
        ({"centers": torch.randn(300, 3), "values": torch.randn(300, 2)}, "at most 192 centers"),
        ({"query": torch.randn(600_000, 3)}, "products of queries"),
    ],
)
def test_what_it_cannot_do_is_an_error_if_asked_for_and_done_by_torch_if_not(change, reason):
    query, centers, values = (tensor.float() for tensor in problem((5, 4, 3, 2)))
    arguments = {
        "query": query,
        "centers": centers,
        "values": values,
        "kernel": kernels.Exponential(),
        "ridge": 0.1,
        **change,
    }
    assert torch.equal(F.kernel_ridge(**arguments), F.kernel_ridge(**arguments, backend="torch"))
    with pytest.raises(BackendError, match=rf'backend="fused" cannot solve this: .*{reason}'):
        F.kernel_ridge(**arguments, backend="fused")


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(native, "library", lambda: None)
    with pytest.raises(BackendError, match="it was not compiled"):
        F.kernel_ridge(*problem((5, 4, 3, 2)), kernel=kernels.Exponential(), backend="fused")


def test_values_of_one_dimension_get_the_usual_advice():
    query, centers, values = problem((5, 4, 3, 1))
    with pytest.raises(ShapeError, match=r"values\[:, None\]"):
        F.kernel_ridge(query, centers, values.squeeze(1), kernel=kernels.Exponential(), backend="fused")


def test_wendland_still_refuses_more_features():
    tensors = problem((5, 4, 3, 2))
    with pytest.raises(InputError, match="not positive definite in 3 embedded features"):
        F.kernel_ridge(*tensors, kernel=kernels.Wendland(dimension=2))


def test_a_lengthscale_for_another_number_of_features_is_an_error():
    with pytest.raises(ShapeError, match="lengthscale has 2"):
        F.kernel_ridge(*problem((5, 4, 3, 2)), kernel=kernels.Exponential([1.0, 2.0]))


def test_inside_func_torch_does_it():
    query, centers, values = problem((5, 4, 3, 2))

    def loss(centers):
        return F.kernel_ridge(query, centers, values, kernel=kernels.Exponential(), ridge=0.1).square().sum()

    inside = torch.func.grad(loss)(centers)
    (outside,) = torch.autograd.grad(loss(centers.requires_grad_()), centers)
    torch.testing.assert_close(inside, outside)


@pytest.mark.parametrize("name", ["log_lengthscale", "input_transform.weight"])
def test_inside_func_what_a_kernel_learns_has_its_gradient(name):
    query, centers, values = problem((5, 4, 3, 2))
    linear = transforms.Linear(torch.randn(3, 3), learn=True)
    layer = nn.KernelRidge(centers, values, kernel=kernels.Exponential(2.0, input_transform=linear), ridge=0.1)
    at = layer.kernel.get_parameter(name) if name != "log_lengthscale" else layer.kernel.log_lengthscale

    def loss(tensor):
        return torch.func.functional_call(layer, {f"kernel.{name}": tensor}, (query,)).square().sum()

    inside = torch.func.grad(loss)(at.detach().clone())
    leaf = at.detach().clone().requires_grad_()
    torch.testing.assert_close(inside, torch.autograd.grad(loss(leaf), leaf)[0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_the_gradient_does_not_see_a_later_lengthscale(create_graph):
    query, centers, values = problem((5, 4, 3, 2))
    query.requires_grad_()
    gradients = []
    for later in (1.0, 9.0):
        kernel = kernels.Exponential(math.e)
        mean = F.kernel_ridge(query, centers, values, kernel=kernel, ridge=0.1, backend="fused")
        kernel.log_lengthscale.fill_(later)
        gradients.append(torch.autograd.grad(mean.square().sum(), query, create_graph=create_graph)[0])
    torch.testing.assert_close(*gradients)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")  # torch's own, on entering forward mode
def test_forward_mode_sees_the_profile():
    query, centers, values = problem((5, 4, 3, 2))
    kernel = kernels.RationalQuadratic()

    def predict(log_alpha):
        kernel._buffers["log_alpha"] = log_alpha
        return F.kernel_ridge(query, centers, values, kernel=kernel, ridge=0.1)

    at = kernel.log_alpha.clone()
    with forward_ad.dual_level():
        found = forward_ad.unpack_dual(predict(forward_ad.make_dual(at, torch.ones_like(at)))).tangent
    step = 1e-6
    torch.testing.assert_close(found, (predict(at + step) - predict(at - step)) / (2 * step), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("backend", ["torch", "fused"])
def test_centers_outside_the_support_of_a_hat_function_have_no_gradient(backend):
    # Its slope jumps from -1 to 0 at the border.
    kernel, tensors = kernels.Wendland(dimension=1, smoothness=0), problem((5, 7, 1, 2))
    assert bool(((tensors[0] - tensors[1].mT).abs() > 1).any())

    def predict(*tensors):
        return F.kernel_ridge(*tensors, kernel=kernel, ridge=0.1, backend=backend)

    assert gradcheck(predict, [tensor.requires_grad_() for tensor in tensors])


def test_saved_tensors_may_be_moved_until_they_are_needed():
    """As activation checkpoints and offloading do: what lay where it was saved is gone."""
    torch.manual_seed(0)
    inputs = [torch.randn(shape, requires_grad=True) for shape in ((6, 3), (8, 3), (8, 2))]

    def gradients(pack):
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda moved: moved):
            result = F.kernel_ridge(*inputs, kernel=kernels.Exponential(2.0), ridge=1e-2, backend="fused")
        return torch.autograd.grad(result.square().sum(), inputs)

    def away(tensor):
        moved = tensor.detach().clone()
        if not any(tensor is given or tensor.shape == given.shape for given in inputs):
            tensor.data.fill_(torch.nan)  # unseen by the count of changes, as memory that was given back is
        return moved

    for found, expected in zip(gradients(away), gradients(lambda tensor: tensor), strict=True):
        assert torch.equal(found, expected)

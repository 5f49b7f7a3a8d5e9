"""Centers and values that `torch.nn.utils.parametrize` computes from other tensors."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.func import functional_call
from torch.nn.utils import parametrize

from torchkrr import kernels, nn
from torchkrr.errors import InputError


class Twice(torch.nn.Module):
    def forward(self, tensor):
        return 2 * tensor

    def right_inverse(self, tensor):
        return tensor / 2


KINDS = {
    "dense": nn.KernelRidge,
    "local": lambda *data, **choices: nn.LocalKernelRidge(*data, 8, **choices),
}


@pytest.fixture(
    params=[(kind, name, learned) for kind in KINDS for name in ("centers", "values") for learned in (False, True)]
)
def case(request):
    """A layer, a copy of it of which one tensor is parametrized, the name of that tensor and whether it is learned."""
    kind, name, learned = request.param
    torch.manual_seed(0)
    data = torch.randn(30, 3, dtype=torch.float64), torch.randn(30, 2, dtype=torch.float64)
    layer = KINDS[kind](*data, kernel=kernels.Matern32(1.3), ridge=1e-3, learn_centers=learned, learn_values=learned)
    other = copy.deepcopy(layer)
    parametrize.register_parametrization(other, name, Twice())
    return layer, other, name, learned


@pytest.fixture
def query():
    return torch.randn(5, 3, dtype=torch.float64)


def test_predictions_are_those_of_the_layer(case, query):
    layer, other, _, _ = case
    torch.testing.assert_close(other(query), layer(query))
    torch.testing.assert_close(copy.deepcopy(other)(query), layer(query))
    with torch.no_grad():
        torch.testing.assert_close(other(query), layer(query))
        torch.testing.assert_close(other.power_function(query), layer.power_function(query))


def test_predictions_follow_what_the_tensor_is_computed_from(case, query):
    layer, other, name, _ = case
    with torch.no_grad():
        other(query)
        other.parametrizations[name].original.mul_(1.5)
        getattr(layer, name).mul_(1.5)
        torch.testing.assert_close(other(query), layer(query))


def test_gradients_reach_what_the_tensor_is_computed_from(case, query):
    layer, other, name, learned = case
    if not learned:
        pytest.skip("it is fixed")
    layer(query).square().sum().backward()
    other(query).square().sum().backward()
    torch.testing.assert_close(other.parametrizations[name].original.grad, 2 * getattr(layer, name).grad)


def test_state_is_loaded_and_parts_are_found_by_name(case, query):
    layer, other, name, _ = case
    third = copy.deepcopy(layer)
    parametrize.register_parametrization(third, name, Twice())
    state = {key: 0.9 * tensor for key, tensor in other.state_dict().items()}
    third.load_state_dict(state)
    assert f"parametrizations.{name}.original" in state
    torch.testing.assert_close(functional_call(other, state, query), third(query))


def test_removing_it_gives_the_layer_back(case, query):
    layer, other, name, _ = case
    parametrize.remove_parametrizations(other, name)
    assert type(other) is type(layer)
    assert set(other.state_dict()) == set(layer.state_dict())
    torch.testing.assert_close(other(query), layer(query))


def test_rows_are_not_added(case):
    _, other, name, _ = case
    with pytest.raises(InputError, match=name):
        other.append(torch.zeros(1, 3, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))
    assert name in repr(other)


def test_parameters_of_a_kernel_too(query):
    kernel = kernels.RationalQuadratic(1.3, alpha=0.7, learn_alpha=True, learn_lengthscale=True).double()
    expected = torch.autograd.grad(kernel(query, query).sum(), tuple(kernel.parameters()))
    for name in ("log_lengthscale", "log_alpha"):
        parametrize.register_parametrization(kernel, name, Twice())
    assert list(kernel.profile_tensors()) == ["parametrizations.log_alpha.original"]
    kernel(query, query).sum().backward()
    found = [kernel.parametrizations[name].original.grad for name in ("log_lengthscale", "log_alpha")]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, 2 * other)

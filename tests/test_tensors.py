"""What a call knows about its tensors: their precision, who is watching, and whether they have numbers."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from torchkrr import _tensors
from torchkrr.errors import BackendError

pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")


def test_autocast_is_off_inside_and_half_precision_is_widened():
    @_tensors.full_precision
    def product(a, b=None):
        return a @ b

    half = torch.ones(2, 2, dtype=torch.bfloat16)
    assert product(half, b=half).dtype == torch.bfloat16
    with torch.autocast("cpu", torch.bfloat16):
        assert product(half, b=torch.ones(2, 2)).dtype == torch.float32


def test_states():
    tensor, states = torch.ones(2), []
    assert _tensors.state_of(tensor) == "plain"
    assert _tensors.state_of(tensor.to("meta")) == "symbolic"
    with FakeTensorMode():
        assert _tensors.state_of(torch.ones(2)) == "symbolic"
    torch.func.grad(lambda x: states.append(_tensors.state_of(x)) or x.sum())(tensor)
    torch.func.jvp(lambda x: states.append(_tensors.state_of(x)) or x, (tensor,), (tensor,))
    assert states == ["transformed", "transformed"]


def test_tracing_is_refused():
    def function(x):
        _tensors.state_of(x)
        return x

    with pytest.raises(BackendError, match=r"Use torch\.export\.export"):
        torch.jit.trace(function, torch.ones(2))


def test_who_is_watching():
    fixed, learned = torch.ones(2), torch.ones(2, requires_grad=True)
    assert not _tensors.any_requires_grad(fixed)
    assert _tensors.any_requires_grad(fixed, learned)
    with torch.no_grad():
        assert not _tensors.needs_gradient(learned)
    with torch.autograd.forward_ad.dual_level():
        assert _tensors.any_requires_grad(torch.autograd.forward_ad.make_dual(fixed, fixed))


def test_no_queries_are_computed_as_one_whose_row_is_dropped():
    @_tensors.with_a_row(2)
    def distances(query, centers, indices):
        assert len(query) == len(indices) == 1
        return (query.unsqueeze(1) - centers[indices]).norm(dim=-1)

    found = distances(torch.empty(0, 3), torch.ones(5, 3), torch.empty(0, 2, dtype=torch.int64))
    assert found.shape == (0, 2)

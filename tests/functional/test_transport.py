"""Transport functionals on problems whose answer is known."""

import itertools

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from torchkrr import functional as F
from torchkrr.errors import MissingExtraError, ShapeError


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def test_assignment_is_the_best_of_all_permutations():
    x, y = randn(6, 2), randn(6, 2)
    order = F.assignment(x, y)
    assert sorted(order.tolist()) == list(range(6))
    best = min(float((x - y[list(p)]).square().sum()) for p in itertools.permutations(range(6)))
    assert float(F.monge_cost(x, y)) == pytest.approx(best)


def test_a_permuted_set_costs_nothing_and_is_put_back():
    x = randn(40, 3)
    order = torch.randperm(40)
    assert torch.equal(F.assignment(x[order], x), order)
    assert float(F.monge_cost(x[order], x)) == 0


def test_in_one_dimension_sorting_is_optimal():
    x, y = randn(50, 1), randn(50, 1)
    assert float(F.monge_cost(x, y)) == pytest.approx(float((x.sort(0).values - y.sort(0).values).square().sum()))


def test_costs_can_be_given():
    x, y = randn(12, 2), randn(12, 3)  # only a given cost can compare different spaces
    order = F.assignment(x, y, cost=lambda a, b: (a[:, :1] - b[:, 0]).square())
    assert torch.equal(x[:, 0].argsort().argsort(), y[order][:, 0].argsort().argsort())
    with pytest.raises(ShapeError, match="one number for each pair"):
        F.monge_cost(x, y, cost=lambda a, b: a.sum())


@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_gradients(check):
    x, y = randn(5, 2).requires_grad_(), randn(5, 2).requires_grad_()
    assert check(F.monge_cost, (x, y))
    assert check(lambda x, y: F.gromov_monge(x, y), (x, randn(5, 3).requires_grad_()))


def test_isometric_copies_have_no_gromov_monge_cost():
    x = randn(30, 3)
    rotation, _ = torch.linalg.qr(randn(5, 5))
    y = torch.nn.functional.pad(x, (0, 2)) @ rotation + 7
    assert float(F.gromov_monge(x, y)) < 1e-20
    assert float(F.gromov_monge(x, 2 * x)) == pytest.approx(float(torch.cdist(x, x).square().sum()))


def test_costs_of_both_spaces_can_be_given():
    x, y = randn(9, 2), randn(9, 1)
    expected = (x @ x.T - torch.cdist(y, y)).square().sum()
    assert float(F.gromov_monge(x, y, cost_x=lambda a, b: a @ b.T)) == pytest.approx(float(expected))


@pytest.mark.parametrize("cost", [None, lambda a, b: a @ b.T], ids=["distance", "inner product"])
def test_minibatch_estimate_has_no_bias(cost):
    x, y = randn(12, 2), randn(12, 3)
    generator = torch.Generator().manual_seed(0)
    full = float(F.gromov_monge(x, y, cost_x=cost))
    draws = torch.stack([F.gromov_monge(x, y, cost_x=cost, sample_size=5, generator=generator) for _ in range(4000)])
    error = float(draws.std()) / len(draws) ** 0.5
    assert abs(float(draws.mean()) - full) < 4 * error
    assert error < 0.05 * full


def test_missing_scipy_is_named(monkeypatch):
    def absent(name):
        raise ModuleNotFoundError(name, name="scipy")

    monkeypatch.setattr("importlib.import_module", absent)
    with pytest.raises(MissingExtraError, match=r"torchkrr\[ot\]"):
        F.assignment(randn(3, 1), randn(3, 1))

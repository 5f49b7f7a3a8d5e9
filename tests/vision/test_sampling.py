"""Budgets are stratified, nested, and depend on labels and seed alone."""

import pytest
import torch

from torchkrr.errors import InputError
from torchkrr.vision.sampling import budget_rows, held_out, stratified_order

SKEWED = torch.cat([torch.full((size,), label) for label, size in enumerate((910, 40, 30, 10, 6, 4))])
BALANCED = torch.arange(1000) % 10


@pytest.mark.parametrize("labels", [SKEWED, BALANCED], ids=["skewed", "balanced"])
@pytest.mark.parametrize("budget", [20, 100, 333, 999])
def test_every_class_has_its_share(labels, budget):
    counts = torch.bincount(labels[budget_rows(labels, budget, seed=1)], minlength=10).double()
    shares = torch.bincount(labels, minlength=10) * budget / len(labels)
    rare = (1 - shares)[shares > 0].clamp_min(0).sum()  # rows that rare classes get beyond their share
    assert (counts - shares).abs().max() < 1.5 + rare
    assert set(labels.tolist()) == set(labels[budget_rows(labels, budget, seed=1)].tolist())


def test_equal_classes_stay_equal():
    assert (torch.bincount(BALANCED[budget_rows(BALANCED, 130, seed=0)]) == 13).all()


def test_larger_budgets_contain_smaller_ones():
    small, large = (set(budget_rows(SKEWED, budget, seed=3).tolist()) for budget in (50, 300))
    assert small < large
    assert len(large) == 300


def test_an_order_is_a_permutation_that_follows_the_seed():
    first, again, other = (stratified_order(SKEWED, seed) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert torch.equal(first.sort().values, torch.arange(len(SKEWED)))


def test_all_labels_are_taken_in_their_own_order():
    for budget in (None, len(SKEWED), 10**6):
        assert torch.equal(budget_rows(SKEWED, budget, seed=5), torch.arange(len(SKEWED)))


def test_held_out_rows_are_a_stratified_part():
    fit, judge = held_out(BALANCED, 0.2, seed=0)
    assert len(judge) == 200
    assert torch.equal(torch.cat((fit, judge)).sort().values, torch.arange(1000))
    assert (torch.bincount(BALANCED[judge]) == 20).all()


def test_a_budget_of_nothing_is_an_error():
    with pytest.raises(InputError, match="at least 1 label, got 0"):
        budget_rows(BALANCED, 0, seed=0)
    with pytest.raises(InputError, match="at least 2 of them, got 1"):
        held_out(BALANCED[:1], 0.5, seed=0)

"""Everything in one call: it is its three parts, and no worse than the first of them."""

import pytest
import torch

import torchkrr
from torchkrr import kernels
from torchkrr.errors import InputError
from torchkrr.tuning import recipe


def data(count=250):
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.sin(6 * x[:, :1]) + 0.05 * torch.randn(count, 1, generator=generator, dtype=torch.float64)


@pytest.fixture(autouse=True)
def _small_grids(monkeypatch):
    """Only two kernels and short learning: what is tested is how the parts are joined."""
    select, learn = recipe.select, recipe.learn_metric
    monkeypatch.setattr(recipe, "NEIGHBORS", (10, 20, 40))
    monkeypatch.setattr(recipe, "FIRST_NEIGHBORS", (10, 20))

    def small_select(*arguments, **choices):
        few = {"kernels": [kernels.Exponential(), kernels.Matern52()], "lengthscales": (0.5, 2.0), "ridges": (1e-3, 1e-1)}
        return select(*arguments, **{**few, **choices})

    monkeypatch.setattr(recipe, "select", small_select)
    monkeypatch.setattr(recipe, "learn_metric", lambda *a, **k: learn(*a, **{"steps": 60, "batch_size": 64, **k}))


def test_it_finds_what_matters_and_is_better_than_selection_alone():
    x, y = data()
    first = recipe.select(x, y, num_neighbors=(10, 20))
    found = torchkrr.tune(x, y)
    assert found.score < 0.8 * first.score
    assert found.kernel.lengthscale.argmin() == 0
    assert found.layer(x, y)(x[:3]).shape == (3, 1)


def test_the_first_selection_stays_if_learning_does_not_help(monkeypatch):
    x, y = data(100)
    learn = recipe.learn_metric

    def spoiled(*arguments, **choices):
        learned = learn(*arguments, **choices)
        learned.kernel.log_lengthscale.fill_(-9.0)  # so short that nothing has neighbors
        return learned

    monkeypatch.setattr(recipe, "learn_metric", spoiled)
    found = torchkrr.tune(x, y)
    assert found.kernel.lengthscale.shape == (1,)


def test_linear_metric_of_low_rank():
    x, y = data(150)
    found = torchkrr.tune(x, y, metric="linear", rank=2)
    assert found.kernel.embed(x).shape[1] in (2, 4)


@pytest.mark.parametrize("rows", [2, 5, 9, 12])
def test_very_few_rows(rows):
    x, y = data(rows)
    found = torchkrr.tune(x, y)
    assert 1 <= found.num_neighbors < rows
    counts = {count for trial in found.table for count, _ in trial.curve}
    assert rows - 1 in counts


def test_classes():
    x, _ = data(150)
    y = torch.nn.functional.one_hot((x[:, 0] > 0.5).long()).double()
    found = torchkrr.tune(x, y, loss="cross_entropy")
    assert found.temperature is not None
    assert found.score < 0.35


def test_bad_input():
    with pytest.raises(InputError, match="max_seconds must be"):
        torchkrr.tune(*data(50), max_seconds=-1.0)

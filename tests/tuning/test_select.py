"""The choice against brute force, and what a user sees of it."""

import importlib
import itertools
import math
import sys
import warnings

import matplotlib as mpl
import numpy as np
import pytest
import torch

import torchkrr
from torchkrr import kernels, transforms, tuning
from torchkrr.errors import InputError, MissingExtraError, RidgeRaisedWarning

mpl.use("Agg")
module = importlib.import_module("torchkrr.tuning.select")  # the package has the function under this name


# A small grid, where the size of the grid is not what a test is about.
SMALL = {
    "kernels": [kernels.Exponential(), kernels.Gaussian(0.3)],
    "lengthscales": (0.5, 1.0, 2.0),
    "ridges": (1e-4, 1e-2, 1e-1, 1.0),
    "num_neighbors": (5, 10, 20, 40),
}


def wave(count=200, noise=0.1, features=2):
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(count, features, generator=generator, dtype=torch.float64)
    return x, torch.sin(6 * x[:, :1]) + noise * torch.randn(count, 1, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("trend", [None, "constant"])
def test_the_winner_is_that_of_brute_force(trend):
    x, y = wave(120)
    grid = {"lengthscales": (0.5, 2.0), "ridges": (1e-4, 1e-1), "num_neighbors": (3, 8, 20)}
    choices = [kernels.Exponential(), kernels.Gaussian(0.5)]
    found = torchkrr.select(x, y, kernels=choices, trend=trend, **grid)
    losses = {}
    for base, factor, ridge, count in itertools.product(range(2), *grid.values()):
        kernel = type(choices[base])(factor * float(choices[base].lengthscale))
        left_out = tuning.local_leave_one_out(x, y, count, kernel=kernel, ridge=ridge, trend=trend)
        losses[type(kernel).__name__, factor, ridge, count] = float((left_out.means - y).square().mean())
    best = min(losses, key=losses.get)
    trial = found.table[0]
    assert (trial.kernel, trial.lengthscale, trial.ridge, trial.num_neighbors) == best
    assert math.isclose(found.score, losses[best], rel_tol=1e-6)
    assert (type(found.kernel).__name__, found.ridge, found.num_neighbors) == (best[0], best[2], best[3])
    for trial in found.table:
        for count, loss in trial.curve:
            assert math.isclose(loss, losses[trial.kernel, trial.lengthscale, trial.ridge, count], rel_tol=1e-6)


def test_the_order_of_rows_does_not_matter():
    """Rows sorted by a feature on which the function depends: the first of them are flat, the others are not."""
    x = torch.linspace(0, 1, 900, dtype=torch.float64)[:, None]
    y = torch.where(x < 0.4, 0.0, torch.sin(60 * x)) + 0.05 * torch.randn(900, 1, generator=torch.Generator().manual_seed(0))
    order = torch.randperm(900, generator=torch.Generator().manual_seed(1))
    grid = {
        "kernels": [kernels.Matern32()],
        "lengthscales": tuple(4.0 ** torch.arange(-6, 4).double()),
        "num_neighbors": (10, 30),
    }
    in_order, mixed = torchkrr.select(x, y, **grid), torchkrr.select(x[order], y[order], **grid)
    assert in_order.score < 1.02 * mixed.score


def test_more_noise_asks_for_more_ridge():
    quiet = torchkrr.select(*wave(noise=0.001), **SMALL)
    loud = torchkrr.select(*wave(noise=0.5), **SMALL)
    assert loud.ridge > quiet.ridge
    assert math.isclose(loud.score, 0.25, rel_tol=0.3)


def test_the_layer_is_as_good_as_promised():
    x, y = wave(600, noise=0.05)
    choice = torchkrr.select(x[:500], y[:500], num_samples=300, **SMALL)
    layer = choice.layer(x[:500], y[:500])
    assert layer.num_neighbors == choice.num_neighbors
    assert layer.trend == "constant"
    error = (layer(x[500:]) - y[500:]).square().mean()
    assert 0.5 * choice.score < error < 2 * choice.score
    assert choice.layer(x, y, trend=None).trend is None


def test_the_grid_is_extended_where_the_best_lies_at_its_end():
    x, y = wave(150, noise=0.0)
    far = kernels.Gaussian(1e-3)  # a hundred and more times too short
    found = torchkrr.select(x, y, kernels=far, num_samples=100)
    assert max(trial.lengthscale for trial in found.table) == 64.0
    assert torchkrr.select(x, y, kernels=far, lengthscales=(1.0,), num_samples=50).table[0].lengthscale == 1.0


def test_the_normalizing_map_is_chosen_too():
    generator = torch.Generator().manual_seed(2)
    heavy = torch.randn(200, 2, generator=generator, dtype=torch.float64).mul(3).sinh()
    smooth_in_ranks = torch.sin(heavy.asinh())[:, :1]
    assert isinstance(torchkrr.select(heavy, smooth_in_ranks, num_samples=64).kernel.input_transform, transforms.Compose)


@pytest.mark.parametrize("loss", ["mse", "huber", "log_score"])
def test_every_loss_selects_something_sensible(loss):
    x, y = wave(200, noise=0.05)
    choice = torchkrr.select(x, y, loss=loss, **SMALL)
    assert choice.loss == loss
    assert choice.temperature is None
    assert (choice.layer(x, y)(x) - torch.sin(6 * x[:, :1])).square().mean().sqrt() < 0.05


def test_classification_with_cross_entropy():
    x, _ = wave(300)
    labels = (x[:, 0] > 0.5).long()
    labels[::10] = 1 - labels[::10]  # label noise: probabilities must not be sure
    y = torch.nn.functional.one_hot(labels).double()
    choice = torchkrr.select(x, y, loss="cross_entropy", **SMALL)
    assert choice.temperature is not None
    probability = torch.softmax(choice.layer(x, y)(x) / choice.temperature, -1)
    assert 0.25 < choice.score < 0.5  # the entropy of 10 % noise is 0.33
    assert (probability.argmax(-1) == (x[:, 0] > 0.5)).double().mean() > 0.9


def test_huber_is_not_led_by_outliers():
    x, y = wave(200, noise=0.02)
    y = y.clone()
    y[::50] += 50.0
    robust, squares = (torchkrr.select(x, y, loss=loss, delta=0.1, **SMALL) for loss in ("huber", "mse"))
    clean = torch.sin(6 * x[:, :1])

    def median_error(choice):
        left_out = tuning.local_leave_one_out(x, y, **choice.arguments)
        return (left_out.means - clean).abs().median()

    assert median_error(robust) < median_error(squares)


def test_same_seed_same_choice_and_given_kernels_are_left_alone():
    x, y = wave()
    kernel = kernels.Matern32(0.7, learn_lengthscale=True)
    first, second = (torchkrr.select(x, y, kernels=kernel, num_samples=50, seed=3) for _ in range(2))
    assert [t.loss for t in first.table] == [t.loss for t in second.table]
    assert float(kernel.lengthscale.detach()) == pytest.approx(0.7)
    assert not any(parameter.requires_grad for parameter in first.kernel.parameters())


def test_trials_that_are_singular_do_not_warn():
    x, y = wave(60)
    x = torch.cat((x, x))
    singular = {"kernel": kernels.Gaussian(50.0), "ridge": 0.0}
    with pytest.warns(RidgeRaisedWarning):
        tuning.local_leave_one_out(x, torch.cat((y, y)), 20, **singular)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torchkrr.select(x, torch.cat((y, y)), kernels=singular["kernel"], ridges=(0.0,), num_samples=50)
    assert caught == []


def test_float32_stays_float32_and_memory_of_gradients_is_not_kept():
    x, y = wave()
    x32 = x.float().requires_grad_()
    choice = torchkrr.select(x32, y.float(), **SMALL)
    assert choice.layer(x32.detach(), y.float())(x32.detach()).dtype == torch.float32
    assert x32.grad is None


def test_the_table_reads_and_plots():
    choice = torchkrr.select(*wave(80), num_samples=20)
    text = str(choice)
    assert "lengthscale" in text.splitlines()[0]
    assert "more trials" in text.splitlines()[-1]
    figure = choice.plot()
    assert [axis.get_xlabel() for axis in figure.axes] == ["neighbors M", "lengthscale factor", "ridge"]
    assert len(figure.axes[0].lines) == 4
    mpl.pyplot.close(figure)


def test_plot_without_matplotlib_names_the_extra(monkeypatch):
    choice = torchkrr.select(*wave(60), num_samples=20)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(MissingExtraError, match=r'pip install "torchkrr\[plot\]"'):
        choice.plot()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"kernels": []}, "kernels is empty"),
        ({"lengthscales": [0.0]}, "lengthscales must be positive finite numbers, at least one, got \\[0.0\\]"),
        ({"ridges": [-1.0]}, "ridges must be non-negative finite numbers"),
        ({"ridges": []}, "ridges must be non-negative finite numbers, at least one, got \\[\\]"),
        ({"num_neighbors": 200}, "num_neighbors must lie between 1 and the number of other rows \\(199\\), got 200"),
        ({"num_neighbors": []}, "num_neighbors is empty"),
        ({"num_samples": 0}, "num_samples must be at least 1, got 0"),
        ({"trend": "linear"}, "trend must be one of None, 'constant', got 'linear'"),
        ({"loss": "mae"}, "loss must be one of"),
        ({"delta": 0.0}, "delta must be"),
    ],
    ids=str,
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        torchkrr.select(*wave(), **arguments)


def test_progress_is_a_line_on_standard_error(capsys):
    torchkrr.select(*wave(60), kernels=kernels.Exponential(), num_samples=20, progress=True)
    torchkrr.select(*wave(60), kernels=kernels.Exponential(), num_samples=20)
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sum("selecting: 100%" in line for line in printed.err.split("\n")) == 1  # however often it is redrawn


@pytest.mark.parametrize("loss", ["mse", "log_score", "huber"])
@pytest.mark.parametrize("unit", [1e-9, 1e15])
def test_the_unit_of_the_values_does_not_matter(loss, unit):
    x, y = wave(150)
    plain = torchkrr.select(x.float(), y.float(), loss=loss, delta=0.1, **SMALL)
    other = torchkrr.select(x.float(), (y * unit).float(), loss=loss, delta=0.1 * unit, **SMALL)
    assert (other.ridge, other.num_neighbors, other.table[0].kernel) == (
        plain.ridge,
        plain.num_neighbors,
        plain.table[0].kernel,
    )
    expected = plain.score + math.log(unit) if loss == "log_score" else plain.score * unit**2
    assert other.score == pytest.approx(expected, rel=1e-3)


def test_numpy_integers_are_numbers():
    assert torchkrr.select(*wave(60), **{**SMALL, "num_neighbors": np.int64(5)}).num_neighbors == 5


def test_a_layer_on_fewer_rows_takes_fewer_neighbors():
    x, y = wave(60)
    choice = torchkrr.select(x, y, **{**SMALL, "num_neighbors": 20})
    assert choice.layer(x[:7], y[:7]).num_neighbors == 7


def table_with_noise(count=250):
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(count, 4, generator=generator, dtype=torch.float64)
    return x, torch.sin(6 * x[:, :1]) + 0.05 * torch.randn(count, 1, generator=generator, dtype=torch.float64)


@pytest.fixture
def _small_grids(monkeypatch):
    """Only two kernels and short learning: what is tested is how the parts are joined."""
    select, learn = module.select, module.learn_metric
    monkeypatch.setattr(module, "TUNED_NEIGHBORS", (10, 20, 40))
    monkeypatch.setattr(module, "FIRST_NEIGHBORS", (10, 20))

    def small_select(*arguments, **choices):
        few = {"kernels": [kernels.Exponential(), kernels.Matern52()], "lengthscales": (0.5, 2.0), "ridges": (1e-3, 1e-1)}
        return select(*arguments, **{**few, **choices})

    monkeypatch.setattr(module, "select", small_select)
    monkeypatch.setattr(module, "learn_metric", lambda *a, **k: learn(*a, **{"steps": 60, "batch_size": 64, **k}))


@pytest.mark.usefixtures("_small_grids")
def test_tuning_finds_what_matters_and_is_better_than_selection_alone():
    x, y = table_with_noise()
    first = module.select(x, y, num_neighbors=(10, 20))
    found = torchkrr.tune(x, y)
    assert found.score < 0.8 * first.score
    assert found.kernel.lengthscale.argmin() == 0
    assert found.layer(x, y)(x[:3]).shape == (3, 1)


@pytest.mark.usefixtures("_small_grids")
def test_the_first_selection_stays_if_learning_does_not_help(monkeypatch):
    x, y = table_with_noise(100)
    learn = module.learn_metric

    def spoiled(*arguments, **choices):
        learned = learn(*arguments, **choices)
        learned.kernel.log_lengthscale.fill_(-9.0)  # so short that nothing has neighbors
        return learned

    monkeypatch.setattr(module, "learn_metric", spoiled)
    found = torchkrr.tune(x, y)
    assert found.kernel.lengthscale.shape == (1,)


@pytest.mark.usefixtures("_small_grids")
def test_tuning_a_linear_metric_of_low_rank():
    x, y = table_with_noise(150)
    found = torchkrr.tune(x, y, metric="linear", rank=2)
    assert found.kernel.embed(x).shape[1] in (2, 4)


@pytest.mark.usefixtures("_small_grids")
@pytest.mark.parametrize("rows", [2, 5, 9, 12])
def test_tuning_very_few_rows(rows):
    x, y = table_with_noise(rows)
    found = torchkrr.tune(x, y)
    assert 1 <= found.num_neighbors < rows
    counts = {count for trial in found.table for count, _ in trial.curve}
    assert rows - 1 in counts


@pytest.mark.usefixtures("_small_grids")
def test_tuning_classes():
    x, _ = table_with_noise(150)
    y = torch.nn.functional.one_hot((x[:, 0] > 0.5).long()).double()
    found = torchkrr.tune(x, y, loss="cross_entropy")
    assert found.temperature is not None
    assert found.score < 0.35


def test_a_bad_time_limit():
    with pytest.raises(InputError, match="max_seconds must be"):
        torchkrr.tune(*table_with_noise(50), max_seconds=-1.0)

"""What is learned, from what, and when it stops."""

import math
import pickle

import matplotlib as mpl
import pytest
import torch

import torchkrr
from torchkrr import kernels, transforms
from torchkrr.errors import InputError
from torchkrr.tuning import metric as metric_module

mpl.use("Agg")
QUICK = {"steps": 60, "num_neighbors": 12, "batch_size": 64}


def data(count=300, features=3, dtype=torch.float64):
    """A wave along the first feature; the others are noise."""
    generator = torch.Generator().manual_seed(4)
    x = torch.rand(count, features, generator=generator, dtype=dtype)
    return x, torch.sin(6 * x[:, :1]) + 0.05 * torch.randn(count, 1, generator=generator, dtype=dtype)


def test_features_that_do_not_matter_get_a_long_lengthscale():
    x, y = data()
    learned = torchkrr.learn_metric(x, y, **QUICK)
    scale = learned.kernel.lengthscale
    assert scale[1:].min() > 2 * scale[0]
    assert learned.score < 0.5 * learned.history[0].held_out_loss


@pytest.mark.parametrize("rank", [None, 1])
def test_a_linear_map_finds_a_direction(rank):
    x, _ = data(400, 3)
    direction = torch.tensor([1.0, -1.0, 0.0], dtype=torch.float64) / math.sqrt(2)
    y = torch.sin(6 * (x @ direction))[:, None]
    learned = torchkrr.learn_metric(x, y, metric="linear", rank=rank, learning_rate=0.1, **{**QUICK, "steps": 150})
    weight = learned.kernel.input_transform.transforms[-1].weight
    assert weight.shape == (rank or 3, 3)
    leading = torch.linalg.eigh(weight.mT @ weight).eigenvectors[:, -1]
    assert float((leading @ direction).abs()) > 0.9
    assert learned.score < 0.6 * learned.history[0].held_out_loss


def test_noise_cannot_be_learned():
    """A query that saw its own value would drive the loss far below the variance of the noise."""
    x, _ = data(200)
    noise = torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    learned = torchkrr.learn_metric(x, noise, patience=100, evaluate_every=10, **QUICK)
    assert all(point.loss > 0.75 * float(noise.var()) for point in learned.history[1:])


def test_no_row_is_its_own_neighbor_and_rows_set_aside_take_no_part(monkeypatch):
    x, y = data(200)
    calls = []
    solve = metric_module.solve_local

    def spy(query, centers, values, indices, options):
        calls.append((query, centers, indices))
        return solve(query, centers, values, indices, options)

    monkeypatch.setattr(metric_module, "solve_local", spy)
    torchkrr.learn_metric(x, y, **{**QUICK, "steps": 10})
    sizes = {len(centers) for _, centers, _ in calls}
    assert sizes == {180}
    for query, centers, indices in calls:
        assert not bool((centers[indices] == query[:, None]).all(-1).any())


def test_the_best_state_is_returned(monkeypatch):
    x, y = data(200)
    learned = torchkrr.learn_metric(x, y, learning_rate=1.5, evaluate_every=5, patience=3, **QUICK)  # too fast on purpose
    losses = [point.held_out_loss for point in learned.history]
    assert learned.score == min(losses)
    best = losses.index(min(losses))
    assert learned.ridge == pytest.approx(learned.history[best].ridge, rel=1e-9)
    assert len(losses) - 1 - best <= 3
    assert learned.history[-1].step <= 60


def test_it_stops_in_time():
    x, y = data(400)
    learned = torchkrr.learn_metric(x, y, steps=100000, max_seconds=1.0, num_neighbors=10)
    assert learned.history[-1].seconds < 10
    assert learned.history[-1].step < 100000


@pytest.mark.parametrize("loss", ["mse", "huber", "log_score"])
@pytest.mark.parametrize("kernel", [kernels.Matern52(0.5), kernels.RationalQuadratic(0.5, learn_alpha=True)], ids=str)
def test_every_loss_goes_down(loss, kernel):
    x, y = data(200)
    learned = torchkrr.learn_metric(x, y, kernel=kernel, loss=loss, **QUICK)
    assert learned.score < learned.history[0].held_out_loss
    assert type(learned.kernel) is type(kernel)


def test_classification_learns_metric_and_temperature():
    x, _ = data(300)
    y = torch.nn.functional.one_hot((x[:, 0] > 0.5).long()).double()
    learned = torchkrr.learn_metric(x, y, loss="cross_entropy", **QUICK)
    assert learned.score < 0.3
    assert learned.temperature is not None
    assert learned.kernel.lengthscale.argmin() == 0


def test_the_ridge_can_be_kept():
    x, y = data(200)
    assert torchkrr.learn_metric(x, y, ridge=0.0, learn_ridge=False, **{**QUICK, "steps": 5}).ridge == 0.0
    kept = torchkrr.learn_metric(x, y, ridge=0.02, learn_ridge=False, **{**QUICK, "steps": 5})
    assert kept.ridge == 0.02
    assert torchkrr.learn_metric(x, y, ridge=0.02, **QUICK).ridge != 0.02


def test_the_result_is_fixed_and_the_given_kernel_is_left_alone():
    x, y = data(200)
    given = kernels.Exponential([0.5, 0.5, 0.5], learn_lengthscale=True, input_transform=transforms.Standardize().fit(x))
    learned = torchkrr.learn_metric(x, y, kernel=given, **QUICK)
    assert list(learned.kernel.parameters()) == []
    torch.testing.assert_close(given.lengthscale.detach(), torch.full((3,), 0.5, dtype=torch.float64))
    assert set(learned.kernel.state_dict()) == set(given.state_dict())
    copied = pickle.loads(pickle.dumps(learned))
    layer = copied.layer(x, y, 20)
    torch.testing.assert_close(layer(x[:5]), learned.layer(x, y, 20)(x[:5]))


def test_a_linear_metric_continues_from_lengthscales():
    x, y = data(200)
    given = kernels.Exponential([0.5, 1.0, 2.0])
    learned = torchkrr.learn_metric(x, y, kernel=given, metric="linear", **{**QUICK, "steps": 1, "learning_rate": 1e-9})
    torch.testing.assert_close(learned.kernel.embed(x), given.embed(x), rtol=1e-6, atol=1e-8)


def test_select_goes_on_from_it():
    x, y = data(200)
    learned = torchkrr.learn_metric(x, y, **QUICK)
    choice = torchkrr.select(
        x, y, kernels=learned.kernel, lengthscales=(0.7, 1.4), ridges=(learned.ridge,), num_neighbors=(5, 20)
    )
    proportion = choice.kernel.lengthscale / learned.kernel.lengthscale
    torch.testing.assert_close(proportion, proportion[0].expand(3))


def test_same_seed_same_metric():
    x, y = data(200)
    first, second = (torchkrr.learn_metric(x, y, seed=7, **{**QUICK, "steps": 10}) for _ in range(2))
    torch.testing.assert_close(first.kernel.lengthscale, second.kernel.lengthscale, rtol=1e-9, atol=0)


@pytest.mark.parametrize("metric", ["ard", "linear"])
def test_plot(metric):
    figure = torchkrr.learn_metric(*data(100), metric=metric, **{**QUICK, "steps": 10}).plot()
    assert figure.axes[0].get_xlabel() == "step"
    assert figure.axes[1].get_xlabel() == "feature"
    mpl.pyplot.close(figure)


def test_float32(capsys):
    x, y = data(200, dtype=torch.float32)
    learned = torchkrr.learn_metric(x, y, progress=True, **{**QUICK, "steps": 20})
    assert learned.layer(x, y)(x).dtype == torch.float32
    lines = capsys.readouterr().err.split("\n")
    assert sum("learning the metric: 100%" in line for line in lines) == 1  # however often it is redrawn


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"metric": "cosine"}, "metric must be one of 'ard', 'linear', got 'cosine'"),
        ({"rank": 2}, "rank belongs to metric='linear'"),
        ({"metric": "linear", "rank": 4}, "rank must lie between 1 and the number of embedded features \\(3\\)"),
        ({"num_neighbors": 90}, "num_neighbors must lie between 1 and 89, got 90: of 100 rows, 10 are set aside"),
        ({"steps": 0}, "steps must be at least 1, got 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"max_seconds": 0.0}, "max_seconds must be"),
        ({"ridge": -1.0}, "ridge must be"),
        ({"loss": "mae"}, "loss must be one of"),
        ({"kernel": "rbf"}, "kernel must be"),
    ],
    ids=str,
)
def test_bad_input(arguments, message):
    with pytest.raises(InputError, match=message):
        torchkrr.learn_metric(*data(100), **arguments)


@pytest.mark.parametrize("unit", [1e-8, 1e12])
@pytest.mark.parametrize("loss", ["mse", "log_score", "huber"])
def test_the_unit_of_the_values_does_not_matter(loss, unit):
    x, y = data(200)
    choices = {"loss": loss, **QUICK, "steps": 20}
    plain = torchkrr.learn_metric(x, y, delta=0.1, **choices)
    other = torchkrr.learn_metric(x, y * unit, delta=0.1 * unit, **choices)
    torch.testing.assert_close(other.kernel.lengthscale, plain.kernel.lengthscale, rtol=1e-6, atol=0)
    assert other.ridge == pytest.approx(plain.ridge, rel=1e-6)
    expected = plain.score + math.log(unit) if loss == "log_score" else plain.score * unit**2
    assert other.score == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_it_learns_where_gradients_are_off(mode):
    with mode():
        x, y = data(100)
        learned = torchkrr.learn_metric(x, y, **{**QUICK, "steps": 10})
    assert learned.history[-1].step == 10
    assert learned.kernel.lengthscale.unique().numel() == 3


def test_few_rows():
    x, y = data(12)
    assert torchkrr.learn_metric(x, y, steps=3).kernel.lengthscale.shape == (3,)
    with pytest.raises(InputError, match="centers has 2 rows, but learning needs at least 3"):
        torchkrr.learn_metric(x[:2], y[:2])


def test_a_rank_above_the_number_of_rows():
    x = torch.randn(20, 40, generator=torch.Generator().manual_seed(0))
    learned = torchkrr.learn_metric(x, x[:, :1], metric="linear", rank=25, num_neighbors=5, steps=2)
    assert learned.kernel.embed(x).shape == (20, 25)


def test_losses_that_are_never_finite_are_an_error(monkeypatch):
    monkeypatch.setattr(metric_module._Descent, "_loss", lambda self, *_: self.log_ridge * math.nan)
    with pytest.raises(InputError, match="No metric has a finite loss"):
        torchkrr.learn_metric(*data(100), steps=2)

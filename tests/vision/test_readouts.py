"""Each readout beside a formula, a loop, or another library."""

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression as Oracle
from sklearn.preprocessing import StandardScaler
from tests.vision.labeled import digits, training
from torch.nn.functional import cross_entropy

from torchkrr import functional as F
from torchkrr.errors import InputError
from torchkrr.kernels import default_kernel
from torchkrr.neighbors import nearest
from torchkrr.vision.readouts import (
    READOUTS,
    BlendedReadout,
    HierarchicalReadout,
    LocalReadout,
    LogisticRegression,
    SelectedReadout,
    TrainedHead,
    Training,
    WeightedNeighbors,
    quality,
    readout_named,
)
from torchkrr.vision.selection import Search, choose

SMALL = Search(
    maps=("unit norm", "standardize"),
    kernels=("exponential",),
    lengthscales=(1.0, 2.0),
    ridges=(1e-3, 1e-1),
    num_neighbors=(10, 30),
    rows=80,
)
SHORTER = {
    "linear": TrainedHead(learning_rate=1e-2, least_steps=300),
    "mlp": TrainedHead(hidden=512, least_steps=300),
    "sk-select": SelectedReadout(SMALL),
}


def dense(train, query):
    """Kernel ridge regression on all rows, with the paper's kernel."""
    kernel = default_kernel(train.features)
    return F.kernel_ridge(query.double(), train.features.double(), train.one_hot().double(), kernel=kernel, ridge=1e-9)


def close(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", READOUTS)
def test_a_readout_learns_digits_from_200(name):
    readout = SHORTER.get(name, readout_named(name).readout)
    features, labels = digits(200, start=1000)
    fitted = readout.fit(training(200))
    found = quality(fitted.scores(features), labels, fitted.temperature)
    assert found.accuracy > 0.8
    if fitted.temperature is not None:
        assert found.log_loss < 0.8


def test_the_local_readout_solves_on_the_neighbors():
    train, (query, _) = training(150), digits(6, start=1000)
    kernel = default_kernel(train.features)
    found = LocalReadout(num_neighbors=20).fit(train).scores(query)
    for z, score, rows in zip(query, found, nearest(query, train.features, 20, kernel=kernel), strict=True):
        x, y = train.features[rows].double(), train.one_hot()[rows].double()
        gram = kernel(x, x) + 1e-9 * torch.eye(20, dtype=torch.float64)
        close(score[None], kernel(z[None].double(), x) @ torch.linalg.solve(gram, y))


@pytest.mark.parametrize(
    "readout",
    [LocalReadout(), LocalReadout(fade=True), BlendedReadout(), HierarchicalReadout()],
    ids=["local", "faded", "blended", "hierarchical"],
)
def test_with_every_row_a_neighbor_the_kernel_readouts_are_dense(readout):
    train, (query, _) = training(60), digits(9, start=1000)
    fitted = readout.fit(train)
    assert fitted.chosen["num_neighbors"] == 60
    close(fitted.scores(query), dense(train, query))


def test_a_faded_readout_is_another_one():
    train, (query, _) = training(150), digits(9, start=1000)
    plain, faded = (LocalReadout(20, fade=fade).fit(train).scores(query) for fade in (False, True))
    assert (plain - faded).abs().max() > 1e-3


def test_weighted_neighbors_vote_as_in_a_loop():
    train, (query, _) = training(150), digits(9, start=1000)
    found = WeightedNeighbors(7, 0.1).fit(train).scores(query)
    for z, score in zip(query, found, strict=True):
        cosines = [float(torch.cosine_similarity(z, x, dim=0)) for x in train.features]
        votes = torch.zeros(10, dtype=torch.float64)
        for row in sorted(range(150), key=lambda row: -cosines[row])[:7]:
            votes[train.labels[row]] += math.exp(cosines[row] / 0.1)
        torch.testing.assert_close(score.double(), votes, rtol=1e-4, atol=1e-3)


def test_a_first_step_of_the_linear_head_is_that_of_adamw():
    train = training(50)
    with torch.random.fork_rng():
        torch.manual_seed(train.seed)
        start = torch.nn.Linear(64, 10)
    loss = cross_entropy(start(train.features), train.labels)
    weight, bias = (
        (1 - 1e-3 * 0.01) * p.detach() - 1e-3 * g / (g.abs() + 1e-8)
        for p, g in zip(start.parameters(), torch.autograd.grad(loss, start.parameters()), strict=True)
    )
    head = TrainedHead(batch_size=50, epochs=1, least_steps=1).fit(train)
    torch.testing.assert_close(head.scores(train.features), train.features @ weight.T + bias)


def test_hidden_units_learn_what_a_line_cannot():
    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]])
    train = Training(corners, torch.tensor([0, 1, 1, 0]), 2, 0)
    line, bent = (TrainedHead(hidden, learning_rate=1e-2, least_steps=400).fit(train) for hidden in (None, 32))
    assert quality(line.scores(corners), train.labels, 1.0).accuracy < 1
    assert quality(bent.scores(corners), train.labels, 1.0).accuracy == 1


def test_small_budgets_are_trained_for_as_many_steps():
    assert TrainedHead(batch_size=10, epochs=2, least_steps=30).fit(training(20)).chosen == {"epochs": 15}
    assert TrainedHead(batch_size=10, epochs=2, least_steps=3).fit(training(20)).chosen == {"epochs": 2}


@pytest.mark.parametrize("readout", [TrainedHead(least_steps=30), LogisticRegression(), LocalReadout(), WeightedNeighbors()])
def test_a_fit_is_the_same_every_time_and_leaves_the_random_numbers_alone(readout):
    query, _ = digits(9, start=1000)
    before = torch.get_rng_state()
    first, second = (readout.fit(training(60)).scores(query) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())


def test_logistic_regression_is_that_of_scikit_learn_with_the_chosen_penalty():
    train, (query, _) = training(150), digits(9, start=1000)
    fitted = LogisticRegression(penalties=(1e-3, 1e-1)).fit(train)
    assert fitted.chosen["C"] == 1e-1
    scaler = StandardScaler().fit(train.features.numpy())
    oracle = Oracle(C=1e-1, max_iter=500).fit(scaler.transform(train.features.numpy()), train.labels.numpy())
    expected = torch.from_numpy(oracle.predict_log_proba(scaler.transform(query.numpy())))
    torch.testing.assert_close(fitted.scores(query).double(), expected.double(), rtol=1e-2, atol=1e-2)


def test_logistic_regression_of_two_labels_does_not_search_a_penalty():
    features, labels = digits(20)
    rows = torch.tensor([int((labels == label).nonzero()[0]) for label in (3, 7)])
    fitted = LogisticRegression().fit(Training(features[rows], labels[rows], 10, 0))
    assert fitted.chosen["C"] == 1.0
    assert fitted.scores(features[rows]).argmax(1).tolist() == [3, 7]
    for few in (rows[:1], rows[:1].repeat(4)):
        with pytest.raises(InputError, match=f"at least 2 classes, but all {len(few)} given are of class 3"):
            LogisticRegression().fit(Training(features[few], labels[few], 10, 0))


def test_a_class_without_examples_is_never_predicted():
    features, labels = digits(300)
    kept = labels != 3
    train = Training(features[kept][:100], labels[kept][:100], 10, 0)
    for readout in (LogisticRegression(), WeightedNeighbors(), LocalReadout()):
        scores = readout.fit(train).scores(features[~kept])
        assert scores.shape[1] == 10
        assert scores.isfinite().all()
        assert not (scores.argmax(1) == 3).any()


def test_a_choice_is_plain_and_its_layer_predicts_with_it():
    fitted = SelectedReadout(SMALL).fit(training(120))
    assert fitted.layer.num_neighbors == fitted.chosen["num_neighbors"]
    assert fitted.layer.ridge == fitted.chosen["ridge"]
    assert fitted.temperature == fitted.chosen["temperature"]
    assert set(fitted.chosen["screened"]) == set(SMALL.maps)


def test_names_that_do_not_exist_are_errors():
    with pytest.raises(InputError, match=r"no readout 'skk'\. Choose from linear, mlp"):
        readout_named("skk")
    with pytest.raises(InputError, match=r"no normalizing map 'unit'\. Choose from unit norm"):
        choose(torch.rand(20, 3), torch.eye(20), Search(maps=("unit",)), seed=0)

"""Each readout beside a formula, a loop, or another library."""

import json
import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression as Oracle
from sklearn.preprocessing import StandardScaler
from tests.vision.labeled import digits, training
from torch.nn.functional import cross_entropy

from torchkrr import functional as F
from torchkrr.errors import InputError
from torchkrr.estimators import LocalKernelRidgeClassifier
from torchkrr.kernels import default_kernel
from torchkrr.neighbors import nearest
from torchkrr.vision.readouts import (
    READOUTS,
    BlendedReadout,
    EstimatorReadout,
    HierarchicalReadout,
    LocalReadout,
    LogisticRegression,
    TrainedHead,
    Training,
    WeightedNeighbors,
    quality,
    readout_named,
)
from torchkrr.vision.sampling import held_out


def dense(train, query):
    """Kernel ridge regression on all rows, with the paper's kernel."""
    kernel = default_kernel(train.features)
    return F.kernel_ridge(query.double(), train.features.double(), train.one_hot().double(), kernel=kernel, ridge=1e-9)


def close(found, expected):
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", READOUTS)
def test_a_readout_learns_digits_from_200(name):
    features, labels = digits(200, start=1000)
    fitted = readout_named(name).readout.fit(training(200))
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
    train, (query, _) = training(50), digits(9, start=1000)
    mean = train.features.mean(0)
    scale = (train.features - mean).square().mean().rsqrt()
    start = [torch.zeros(10, 64, requires_grad=True), torch.zeros(10, requires_grad=True)]
    loss = cross_entropy((train.features - mean) * scale @ start[0].T + start[1], train.labels)
    weight, bias = (-1e-3 * g / (g.abs() + 1e-8) for g in torch.autograd.grad(loss, start))
    head = TrainedHead(learning_rates=(1e-3,), epochs=1, least_steps=1).fit(train)
    assert head.chosen == {"learning_rate": 1e-3, "epochs": 1}
    torch.testing.assert_close(head.scores(query), (query - mean) * scale @ weight.T + bias, rtol=0, atol=5e-4)


@pytest.mark.parametrize("count", [50, 200, 800])
def test_the_linear_head_comes_close_to_logistic_regression(count):
    query, labels = digits(600, start=1000)
    losses, accuracies = [], []
    for readout in (readout_named("linear").readout, LogisticRegression()):
        found = quality(readout.fit(training(count)).scores(query), labels, 1.0)
        losses.append(found.log_loss)
        accuracies.append(found.accuracy)
    assert losses[0] <= 1.1 * losses[1]
    assert accuracies[0] >= accuracies[1] - 0.03


def test_hidden_units_learn_what_a_line_cannot():
    corners = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).repeat(10, 1)
    train = Training(corners, torch.tensor([0, 1, 1, 0]).repeat(10), 2, 0)
    line, bent = (TrainedHead(hidden).fit(train) for hidden in (None, 32))
    assert quality(line.scores(corners), train.labels, 1.0).accuracy < 1
    assert quality(bent.scores(corners), train.labels, 1.0).accuracy == 1


def test_rate_and_epochs_are_those_of_the_least_loss_on_rows_held_out():
    train = training(400, 1)
    fit, validation = held_out(train.labels, 0.2, train.seed)
    mean = train.features.mean(0)
    x = (train.features - mean) * (train.features - mean).square().mean().rsqrt()
    losses = {}
    for rate in (1e-3, 3e-2):
        for epochs in (10, 20, 30, 40):  # looks are ten steps apart, and all rows are one batch
            part = train._replace(features=x[fit], labels=train.labels[fit])
            model, _ = TrainedHead()._train(part, rate, epochs)
            losses[rate, epochs] = cross_entropy(model(x[validation]), train.labels[validation]).item()
    chosen = TrainedHead(learning_rates=(1e-3, 3e-2), epochs=40, least_steps=1, patience=1000).fit(train).chosen
    assert (chosen["learning_rate"], chosen["epochs"]) == min(losses, key=losses.get)
    assert 10 < chosen["epochs"] < 40


def test_training_stops_when_rows_held_out_are_predicted_no_better():
    torch.manual_seed(0)
    noise = Training(torch.randn(200, 40), torch.randint(0, 2, (200,)), 2, 0)
    assert TrainedHead(learning_rates=(1e-1,), least_steps=10_000).fit(noise).chosen["epochs"] < 100


def test_of_a_few_rows_of_one_class_there_is_nothing_to_choose_from():
    features, labels = digits(20)
    rows = torch.tensor([int((labels == label).nonzero()[0]) for label in (3, 7)])
    head = TrainedHead(learning_rates=(1e-2, 1e-1), epochs=3, least_steps=20)
    fitted = head.fit(Training(features[rows], labels[rows], 10, 0))
    assert fitted.chosen == {"learning_rate": 1e-2, "epochs": 20}
    assert fitted.scores(features[rows]).argmax(1).tolist() == [3, 7]


@pytest.mark.parametrize(
    "readout", [TrainedHead(least_steps=30), LogisticRegression(), LocalReadout(), WeightedNeighbors(), EstimatorReadout()]
)
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
    for readout in (LogisticRegression(), WeightedNeighbors(), LocalReadout(), EstimatorReadout()):
        scores = readout.fit(train).scores(features[~kept])
        assert scores.shape[1] == 10
        assert scores.isfinite().all()
        assert not (scores.argmax(1) == 3).any()


def test_the_head_is_the_estimator_with_the_names_of_classes_and_rows():
    names = [str(number) for number in range(2, 12)]  # "10" comes before "2"
    train, (query, _) = (
        training(120)._replace(classes=names, ids=[f"{row}.png" for row in range(120)]),
        digits(9, start=1000),
    )
    fitted = EstimatorReadout().fit(train)
    expected = LocalKernelRidgeClassifier().fit(train.features.numpy(), np.array(names)[train.labels.numpy()])
    columns = [expected.classes_.tolist().index(name) for name in names]
    probabilities = torch.softmax(fitted.scores(query) / fitted.temperature, 1)
    torch.testing.assert_close(probabilities, torch.from_numpy(expected.predict_proba(query.numpy())[:, columns]))
    np.testing.assert_array_equal(fitted.indicator(query), expected.error_indicator(query.numpy()))
    assert fitted.estimator.explain(query.numpy(), 1).ids[0, 0].endswith(".png")
    assert json.loads(json.dumps(fitted.chosen))["temperature"] == expected.calibration_.temperature
    assert len(fitted.chosen["members"]) == len(expected.predictor_.members)


def test_names_that_do_not_exist_are_errors():
    with pytest.raises(InputError, match=r"no readout 'skk'\. Choose from linear, mlp"):
        readout_named("skk")

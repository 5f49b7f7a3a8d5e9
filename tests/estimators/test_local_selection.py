"""Kernels on the nearest rows: left-out predictions, the search downhill, principal directions, the number of neighbors."""

import numpy as np
import pytest
import torch
from tests import reference
from tests.estimators.problems import centers_of, linear_prior, request_of, two_classes

from torchkrr.estimators import local_selection
from torchkrr.estimators.candidates import Candidate, Judge, families
from torchkrr.estimators.lengthscales import first_log
from torchkrr.estimators.local_selection import NEARLY, Trials, choose_local_for_classes, principal_directions
from torchkrr.kernels import Matern32
from torchkrr.transforms import Compose, Standardize

LOG = torch.zeros(1, dtype=torch.float64)


def problem(count=160, weights=None, kernel="matern32", noise=0):
    X, y = two_classes(count)
    X = np.hstack((X, np.random.default_rng(1).normal(size=(count, noise))))
    centers = centers_of(X, y, weights)
    (family,) = families(centers.points, kernel)
    return centers, family, Judge(centers.values, centers.weights, False)


def trials_of(centers, family, judge, most=30, prior=None, priors=(0.0,)):
    return Trials(family, centers, most, prior, priors, judge, seed=0)


def at(family, log=LOG, ridge=0.1):
    return Candidate(family, log, ridge, 0.0, torch.zeros(0), np.inf)


@pytest.mark.parametrize("prior", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_left_out_scores_are_those_of_fits_without_the_row(weighted, prior):
    weights = np.random.default_rng(2).uniform(0.5, 2.0, size=60) if weighted else None
    centers, family, judge = problem(60, weights)
    trials = trials_of(centers, family, judge, 12, linear_prior(centers, 3.0), (0.0, 1.0, 4.0))
    found = trials.run(at(family, ridge=0.3), 12, prior)
    assert found.prior == prior
    points, values, weights = family.mapped(centers.points).numpy(), centers.values.numpy(), centers.weights.numpy()
    options = {"profile": reference.matern32, "ridge": 0.3 / weights, "trend": "constant"}

    def without(row, *rows):
        """What the prior predicts for a row in a fit without it and others."""
        rest = np.delete(np.arange(60), [row, *rows])
        return linear_prior(centers.some(rest), 3.0 * prior).predict(centers.points[[row]])[0].numpy() if prior else 0.0

    for row, scores in zip(trials.rows.tolist()[:9], found.scores.numpy(), strict=False):
        others = np.delete(np.arange(60), row)
        near = others[reference.nearest(points[[row]], points[others], 12)]
        targets = values.copy()
        for other in near[0]:
            targets[other] -= without(other, row)
        expected = without(row) + reference.local_kernel_ridge(points[[row]], points, targets, near, **options)[0]
        np.testing.assert_allclose(scores, expected, atol=2e-5)
    assert found.loss == pytest.approx(float(judge.losses(found.scores.unsqueeze(1), trials.rows)))
    best = trials.run(at(family, ridge=0.3), 12)
    assert best.loss == min(trials.run(at(family, ridge=0.3), 12, one).loss for one in (0.0, 1.0, 4.0))


def test_a_kernel_of_the_callers_own_is_tried_as_it_is(monkeypatch):
    monkeypatch.setattr(local_selection, "PRINCIPAL", 1)  # which its lengthscales forbid
    kernel = Matern32(torch.tensor([0.4, 0.9]), input_transform=Standardize().fit(torch.randn(50, 2) * 3))
    centers, family, judge = problem(60, kernel=kernel)
    found = trials_of(centers, family, judge, 12).run(at(family, ridge=0.3), 12)
    (member,) = choose_local_for_classes([found], centers, request_of(12, 0.3), None, (0.0,), judge).members
    torch.testing.assert_close(member.kernel(centers.points, centers.points), kernel(centers.points, centers.points))
    points, values = kernel.embed(centers.points).numpy(), centers.values.numpy()
    options = {"profile": reference.matern32, "ridge": 0.3, "trend": "constant"}
    rows = trials_of(centers, family, judge, 12).rows.tolist()
    for row, scores in zip(rows[:9], found.scores.numpy(), strict=False):
        others = np.delete(np.arange(60), row)
        near = others[reference.nearest(points[[row]], points[others], 12)]
        expected = reference.local_kernel_ridge(points[[row]], points, values, near, **options)[0]
        np.testing.assert_allclose(scores, expected, atol=2e-5)


@pytest.mark.parametrize("fixed_ridge", [False, True])
@pytest.mark.parametrize(("factor", "gain"), [(0.05, 0.95), (20.0, 0.999)])
def test_a_search_goes_downhill(factor, gain, fixed_ridge, monkeypatch):
    monkeypatch.setattr(local_selection, "MOST_TRIALS", 60)
    centers, family, judge = problem()
    trials = trials_of(centers, family, judge)
    start = trials.run(at(family, first_log(family.mapped(centers.points)) + np.log(factor)), 20)
    tried = trials.climb(start, 20, fixed_ridge=fixed_ridge)
    best = min(tried, key=lambda one: one.loss)
    assert tried[0] is start
    assert best.loss < gain * start.loss
    assert ({one.ridge for one in tried} == {0.1}) == fixed_ridge
    places = {(round(float(one.log), 6), round(one.ridge, 9)) for one in tried}
    assert len(places) == len(tried)  # none twice
    ridges = {0.0: (3, 1 / 3)} if not fixed_ridge else {}
    steps = {np.log(2): (1,), -np.log(2): (1,), **ridges}
    around = {(round(float(best.log) + more, 6), round(best.ridge * f, 9)) for more, fs in steps.items() for f in fs}
    assert around <= places  # no step leads further down
    monkeypatch.setattr(local_selection, "MOST_TRIALS", 4)
    assert len(trials.climb(start, 20, fixed_ridge=fixed_ridge)) == 4


def test_a_search_keeps_a_kernel_of_the_callers_own():
    centers, family, judge = problem(kernel=families(problem()[0].points, "matern32")[0].kernel(LOG))
    assert family.fixed
    trials = trials_of(centers, family, judge)
    tried = trials.climb(trials.run(at(family, ridge=10.0), 20), 20, fixed_ridge=False)
    assert {float(one.log) for one in tried} == {0.0}
    assert min(one.ridge for one in tried) < 10.0
    assert len(trials.climb(tried[0], 20, fixed_ridge=True)) == 1


def test_principal_directions_keep_distances_that_lie_in_them():
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(50, 4, generator=generator, dtype=torch.float64)
    frame = torch.linalg.qr(torch.randn(9, 9, generator=generator, dtype=torch.float64)).Q
    points = 3.0 + flat @ frame[:4]
    directions = principal_directions(points, 4)
    torch.testing.assert_close(directions @ directions.T, torch.eye(4, dtype=torch.float64))
    turned = points @ directions.T
    torch.testing.assert_close(torch.cdist(turned, turned), torch.cdist(points, points), atol=1e-6, rtol=0)
    scaled = flat * torch.tensor([0.1, 5.0, 1.0, 0.01])
    assert torch.equal(principal_directions(scaled, 2).abs().argmax(1), torch.tensor([1, 2]))  # the widest first
    assert principal_directions(points, 9) is None
    assert principal_directions(points[:4], 4) is None


def test_principal_directions_are_used_where_they_lose_nothing(monkeypatch):
    monkeypatch.setattr(local_selection, "PRINCIPAL", 2)
    X, y = two_classes(400)
    tiny = 1e-3 * np.random.default_rng(1).normal(size=(400, 3))
    # Beside two wide columns without any meaning the tiny ones are lost, and with them the labels.
    rotated = []
    for first, last in ((X, tiny), (5 * np.random.default_rng(2).normal(size=(400, 2)), X)):
        centers = centers_of(np.hstack((first, last)), y)
        judge = Judge(centers.values, centers.weights, False)
        family = families(centers.points, "gaussian")[0]._replace(transform=Compose())
        start = trials_of(centers, family, judge).run(at(family), 20)
        (member,) = choose_local_for_classes([start], centers, request_of(20), None, (0.0,), judge).members
        rotated.append(member.kernel.embed(centers.points).shape[1] == 2)
    assert rotated == [True, False]


@pytest.mark.parametrize("noise", [0, 2, 6])  # fewer cost 0.2 %, nothing, 0.9 %
def test_fewer_neighbors_are_taken_only_if_the_loss_is_nearly_the_same(noise):
    centers, family, judge = problem(300, noise=noise)
    trials = trials_of(centers, family, judge, 200)
    start = trials.run(at(family, first_log(family.mapped(centers.points))), 100)
    choice = choose_local_for_classes([start], centers, request_of(), None, (0.0,), judge)
    (member,) = choice.members
    log = member.kernel.lengthscale.log()
    losses = {count: trials.run(at(family, log, member.ridge), count).loss for count in local_selection.NEIGHBORS}
    good = {count for count, loss in losses.items() if loss <= min(losses.values()) * (1 + NEARLY)}
    assert member.num_neighbors == min(good)
    assert choice.tried[family.name] == pytest.approx(min(losses.values()))  # nothing better was passed over
    far = trials.run(at(family, start.log, 300.0), 100)
    assert choose_local_for_classes([far], centers, request_of(100), None, (0.0,), judge).tried[family.name] < far.loss
    given = choose_local_for_classes([start], centers, request_of(37, 30.0), None, (0.0,), judge).members[0]
    assert (given.num_neighbors, given.ridge) == (37, 30.0)

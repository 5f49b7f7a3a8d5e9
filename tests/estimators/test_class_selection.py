"""What is chosen for classes: the mixture of kernels, and whether the prior is worth its place."""

import numpy as np
import pytest
import torch
from tests import reference
from tests.estimators.problems import centers_of, linear_prior, request_of, two_classes

from torchkrr.estimators import LocalKernelRidgeClassifier, class_selection
from torchkrr.estimators.candidates import NARROW_FAMILIES, Candidate, Judge
from torchkrr.estimators.class_selection import choose_for_classes
from torchkrr.kernels import Matern32


def choose(centers, kernel=None, ridge=None, num_neighbors=None, prior=None, *, optional=True):
    judge = Judge(centers.values, centers.weights, False)
    request = request_of(num_neighbors, ridge, kernel, prior="auto" if optional else "linear")
    return choose_for_classes(centers, request, prior, judge)


def rings(count=120, noise=0):
    """A class inside the other, as the prior, linear, cannot say; and columns without a meaning."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, 2 + noise))
    return centers_of(X, (np.hypot(*X.T[:2]) + 0.1 * rng.normal(size=count) > 1.1).tolist())


def halves(count=120, features=8):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(count, features))
    return centers_of(X, (X.sum(1) + 0.8 * rng.normal(size=count) > 0).tolist())


def test_the_prior_is_dropped_where_it_harms_and_kept_where_classes_are_linear():
    circles = rings(100, noise=60)
    assert choose(circles, prior=linear_prior(circles, 1e-6)).prior == 0  # it fits 100 rows with 62 columns
    straight = halves()
    assert choose(straight, prior=linear_prior(straight, 20.0)).prior == 1.0


def test_a_prior_that_was_asked_for_stays():
    circles = rings(100, noise=60)
    assert choose(circles, prior=linear_prior(circles, 1e-6), optional=False).prior == 1.0
    assert choose(circles, optional=False).prior == 0
    wide = halves(features=110)
    found = {choose(wide, prior=linear_prior(wide, ridge), optional=False).prior for ridge in (0.01, 2000.0)}
    assert found == {4.0, 1.0}  # a larger ridge if that is better


@pytest.mark.parametrize("problem", [rings, halves])
@pytest.mark.parametrize("with_prior", [False, True])
def test_the_mixture_is_as_good_as_the_best_candidate(problem, with_prior):
    centers = problem()
    choice = choose(centers, prior=linear_prior(centers, 20.0) if with_prior else None)
    shares = [member.share for member in choice.members]
    assert sum(shares) <= 1 + 1e-12
    assert sum(shares) == pytest.approx(1) or choice.prior
    assert shares == sorted(shares, reverse=True)
    assert 1 <= len(shares) <= class_selection.MEMBERS
    if "the mixture" in choice.tried:
        assert choice.tried["the mixture"] <= min(choice.tried.values())
    else:
        assert shares == [1.0]
    families = [name for name in choice.tried if "the" not in name]
    assert {name.removesuffix(" + linear") for name in families} == set(NARROW_FAMILIES)


def test_the_loss_of_the_mixture_is_that_of_left_out_rows():
    centers = rings(90)
    choice = choose(centers)
    assert len(choice.members) > 1
    predicted = np.zeros((90, 2))
    for member in choice.members:
        profile, points = reference.PROFILES[type(member.kernel).__name__], member.kernel.embed(centers.points).numpy()
        options = {"profile": profile, "ridge": member.ridge, "trend": "constant"}
        for row in range(90):
            rest = np.delete(np.arange(90), row)
            scores = reference.kernel_ridge(points[[row]], points[rest], centers.values.numpy()[rest], **options)
            predicted[row] += member.share * scores[0]
    judge = Judge(centers.values, centers.weights, False)
    loss = float(judge.losses(torch.from_numpy(predicted).unsqueeze(1), torch.arange(90)))
    assert loss == pytest.approx(choice.tried["the mixture"], rel=0.01)  # of which small shares were left out


def test_candidates_that_are_wrong_together_are_mixed():
    X, y = two_classes(100)
    centers = centers_of(X, y)
    judge, rows = Judge(centers.values, centers.weights, False), torch.arange(100)
    noise = torch.randn(2, 100, 2, dtype=torch.float64)
    right = [Candidate(None, None, 1.0, 0.0, centers.values + error, 0.0) for error in (*noise, 9 * noise[0])]
    loss, shares = class_selection._mix(right, None, judge, rows)
    alone = [float(judge.losses(one.scores.unsqueeze(1), rows)) for one in right]
    assert loss < min(alone)
    assert shares[0] + shares[1] == pytest.approx(1)
    assert min(shares[:2]) > 0.2
    assert shares[2] == 0
    mixed = sum(share * one.scores for share, one in zip(shares, right, strict=True))
    assert float(judge.losses(mixed.unsqueeze(1), rows)) == pytest.approx(loss)
    several = [right[0]._replace(scores=centers.values + torch.randn(100, 2, dtype=torch.float64)) for _ in range(8)]
    shares = class_selection._mix(several, None, judge, rows)[1]
    assert sum(share > 0 for share in shares) == class_selection.MEMBERS  # each costs time
    assert sum(shares) == pytest.approx(1)
    loss, shares = class_selection._mix(right, centers.values, judge, rows)  # a prior that is right needs no kernel
    assert shares == [0.0, 0.0, 0.0]


def test_what_the_caller_gave_is_kept():
    centers = rings()
    given = choose(centers, "gaussian", 0.25)
    assert {member.ridge for member in given.members} == {0.25}
    assert {type(member.kernel).__name__ for member in given.members} == {"Gaussian"}
    own = Matern32(torch.tensor([0.5, 0.8]))
    member, *rest = choose(centers, own).members
    assert not rest or len({other.kernel.lengthscale for other in rest}) == 1
    torch.testing.assert_close(member.kernel.lengthscale.float(), own.lengthscale.float())
    near = choose(centers, num_neighbors=15).members
    assert [member.num_neighbors for member in near] == [15]


def test_progress_is_shown_if_it_is_asked_for(capsys):
    points, labels = torch.randn(60, 2, generator=torch.Generator().manual_seed(0)), torch.arange(60) % 2
    for verbose in (0, 1):
        LocalKernelRidgeClassifier(20, verbose=verbose).fit(points.numpy(), labels.numpy())
        shown = capsys.readouterr().err
        assert [f"{stage}: 100%" in shown for stage in ("kernels", "finalists", "neighbors")] == 3 * [verbose == 1]


def test_ridges_of_many_rows_are_chosen_on_more_of_them(monkeypatch):
    centers, seen = rings(300), []
    monkeypatch.setattr(class_selection, "MOST_ROWS", 100)
    monkeypatch.setattr(class_selection, "MOST_CONFIRMED", 250)

    def refit(finalist, part, priors, judge, request):
        seen.append(len(part.rows))
        return original(finalist, part, priors, judge, request)

    original = class_selection._refit
    monkeypatch.setattr(class_selection, "_refit", refit)
    choose(centers)
    assert set(seen) == {100, 250}
    assert 1 <= seen.count(250) <= class_selection.CONFIRMED

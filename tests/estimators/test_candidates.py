"""Families of kernels, the loss that compares them, and a part of the rows as if there were no others."""

import numpy as np
import pytest
import torch
from scipy.special import log_expit, log_softmax
from tests.estimators.problems import centers_of, linear_prior, request_of, two_classes

from torchkrr._threads import threads
from torchkrr.estimators.candidates import Candidate, Family, Judge, families, left_over, offset_of, part_of, tried_of
from torchkrr.estimators.prior import RIDGES
from torchkrr.kernels import Gaussian, Matern32
from torchkrr.tuning.calibration import SCREENED

RNG = np.random.default_rng(0)
NARROW, WIDE = (torch.from_numpy(RNG.normal(size=(30, columns))) for columns in (3, 120))
LOG = torch.tensor([0.3], dtype=torch.float64)


def found(points, kernel=None):
    return {family.name: family for family in families(points, kernel)}


def test_the_map_of_a_family_says_what_its_kernel_sees():
    narrow, wide = found(NARROW), found(WIDE)
    assert list(narrow) == ["matern32", "gaussian", "plain gaussian", "laplacian"]
    assert list(wide) == ["unit exponential", "unit matern32", "plain matern32"]
    standard = (NARROW - NARROW.mean(0)) / NARROW.std(0, correction=0)
    torch.testing.assert_close(narrow["plain gaussian"].mapped(NARROW), standard)
    both = narrow["matern32"].mapped(NARROW)
    torch.testing.assert_close(both[:, :3], standard)
    assert torch.equal(both[:, 3:].argsort(0), NARROW.argsort(0))  # the rest are ranks
    torch.testing.assert_close(wide["unit matern32"].mapped(7 * WIDE), WIDE / WIDE.norm(dim=1, keepdim=True))


def test_a_name_is_one_family_and_a_kernel_of_the_callers_own_is_used_as_it_is():
    assert list(found(NARROW, "exponential")) == ["exponential"]
    assert list(found(WIDE, "exponential")) == ["unit exponential"]
    kernel = Matern32(torch.tensor([0.5, 1.0, 2.0]))
    (own,) = families(NARROW, kernel)
    assert own.fixed
    assert not any(family.fixed for family in families(NARROW, None))
    torch.testing.assert_close(own.kernel(torch.zeros(1))(NARROW, NARROW), kernel(NARROW, NARROW))


@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("points", [NARROW, WIDE], ids=["narrow", "wide"])
def test_the_kernel_of_a_family_is_its_profile_of_the_mapped_distances(points, turned):
    for family in families(points, None):
        columns = family.mapped(points).shape[1]
        rotation = torch.linalg.qr(torch.from_numpy(RNG.normal(size=(columns, columns)))).Q[: columns // 2 + 1]
        rotation = rotation if turned else None
        mapped = family.mapped(points, rotation)
        assert mapped.shape[1] == (len(rotation) if turned else columns)
        distances = (mapped.unsqueeze(1) - mapped).norm(dim=2)
        expected = family.profile.profile(distances / LOG.exp())
        torch.testing.assert_close(family.kernel(LOG, rotation)(points, points), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("multilabel", [False, True])
def test_the_loss_is_the_cross_entropy_at_the_best_slope(multilabel):
    rows, weights = torch.tensor([4, 0, 7, 9, 2]), torch.rand(10, dtype=torch.float64) + 0.5
    labels = torch.randint(3, (10,))
    targets = torch.eye(3, dtype=torch.float64)[labels]
    scores = targets[rows].unsqueeze(1) + torch.randn(5, 4, 3, dtype=torch.float64)
    judge = Judge(targets, weights, multilabel)
    doubt = 1 / (weights.sum().item() + 2)
    wanted = ((1 - doubt) * targets + doubt * (0.5 if multilabel else 1 / 3))[rows].numpy()
    shares = (weights[rows] / weights[rows].sum()).numpy()

    def rowwise(own, slope):
        if multilabel:
            return -(wanted * log_expit(slope * own) + (1 - wanted) * log_expit(-slope * own)).sum(1)
        return -(wanted * log_softmax(slope * own, axis=1)).sum(1)

    losses = judge.losses(scores, rows)
    for at in range(4):
        own = scores[:, at].numpy()
        best = min(SCREENED.tolist(), key=lambda slope: shares @ rowwise(own, slope))
        assert float(losses[at]) == pytest.approx(shares @ rowwise(own, best), rel=1e-12)
        np.testing.assert_allclose(judge.per_row(scores[:, at], rows), rowwise(own, best), rtol=1e-12)


def test_a_part_of_the_rows_fits_the_prior_to_itself():
    centers = centers_of(*two_classes(60), RNG.uniform(0.5, 2.0, size=60))
    rows = torch.randperm(60)[:25]
    centers.points[rows[3]] *= 50.0  # of such leverage that it is capped for the kernel
    judge = Judge(centers.values, centers.weights, False)
    part = part_of(centers, rows, linear_prior(centers), judge.losses, (1.0, 4.0, 0.0))
    assert set(part.hats) == {1.0, 4.0}
    for others in (torch.zeros(60, 2), torch.ones(60, 2)):  # nothing of the other rows comes in
        values, points = others.double(), centers.points + 5.0
        values[rows], points[rows] = centers.values[rows], centers.points[rows]
        changed = centers._replace(values=values, points=points)
        again = part_of(changed, rows, linear_prior(changed), judge.losses)
        torch.testing.assert_close(again.hats[1.0].left_out(), part.hats[1.0].left_out())
    for use, hat in part.hats.items():
        own = centers.some(rows)
        spectrum = linear_prior(own).spectrum
        candidates = [use * ridge * float(spectrum.eigenvalues.mean()) for ridge in RIDGES["linear"]]
        errors = [spectrum.leave_one_out(ridge, 1.0) for ridge in candidates]
        assert any(torch.allclose(error, hat.left_out()) for error in errors)  # with a ridge of its own
        torch.testing.assert_close(part.offset(use), own.values - hat.left_out())
        torch.testing.assert_close(part.targets(use), hat.targets())
        assert not torch.allclose(hat.targets(), hat.left_out())
    torch.testing.assert_close(part.targets(0.0), centers.values[rows])
    assert not part.offset(0.0).any()


def test_all_rows_keep_the_prior_as_it_is():
    centers = centers_of(*two_classes(40))
    prior, rows = linear_prior(centers), torch.randperm(40)
    judge = Judge(centers.values, centers.weights, False)
    part = part_of(centers, rows, prior, judge.losses, (1.0, 4.0))
    torch.testing.assert_close(part.hats[1.0].left_out(), prior.spectrum.leave_one_out(0.5, 1.0)[rows])
    torch.testing.assert_close(part.hats[4.0].left_out(), prior.spectrum.leave_one_out(2.0, 1.0)[rows])


def test_what_was_tried_is_the_best_of_each_kernel_with_and_without_the_prior():
    one, two = Family("gaussian", Gaussian(), None), Family("matern32", Matern32(), None)
    losses = {(one, 0.0): (0.5, 0.4), (one, 4.0): (0.3, 0.6), (two, 0.0): (0.7,)}
    nothing = torch.zeros(0)
    tried = [Candidate(kind, LOG, 1.0, use, nothing, loss) for (kind, use), own in losses.items() for loss in own]
    prior = linear_prior(centers_of(*two_classes(20)))
    assert tried_of(tried, prior) == {"gaussian": 0.4, "gaussian + linear": 0.3, "matern32": 0.7}


def test_what_is_left_over_and_what_the_prior_predicts_add_up_to_the_values():
    centers = centers_of(*two_classes(40))
    prior, rows = linear_prior(centers), torch.tensor([3, 30, 8])
    assert torch.equal(left_over(centers.values, prior, 0.0), centers.values)
    assert not offset_of(centers.values, prior, 0.0, rows).any()
    for use in (1.0, 4.0):
        expected = prior.spectrum.leave_one_out(0.5 * use)
        torch.testing.assert_close(left_over(centers.values, prior, use), expected)
        torch.testing.assert_close(offset_of(centers.values, prior, use, rows), (centers.values - expected)[rows])


def test_rows_of_many_columns_are_drawn_together_where_no_feature_is_negative():
    rows = torch.rand(30, 120, dtype=torch.float64)
    assert {family.name.split()[0] for family in families(rows, None)} == {"root", "plain"}
    assert families(rows, "gaussian")[0].name == "root gaussian"
    assert {family.name.split()[0] for family in families(rows - 0.01, None)} == {"unit", "plain"}


def test_items_are_done_in_order_on_one_thread_each():
    def work(number):
        assert not torch.is_grad_enabled()
        return number, torch.get_num_threads()

    with threads(2):
        found = request_of()._replace(workers=2).each(work, list(range(9)), "numbers")
    assert found == [(number, 1) for number in range(9)]

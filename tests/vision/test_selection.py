"""What leave-one-out selects, beside a loop over the candidates."""

from dataclasses import replace

import pytest
import torch
from tests.vision.labeled import training
from torch.nn.functional import cross_entropy

from torchkrr.tuning import local_leave_one_out
from torchkrr.vision.selection import Search, choose, fewer_features

SMALL = Search(
    maps=("unit norm", "standardize"),
    kernels=("exponential",),
    lengthscales=(1.0, 2.0),
    ridges=(1e-3, 1e-1),
    num_neighbors=(10, 30),
    rows=80,
)


def test_what_is_chosen_has_the_least_loss_of_leave_one_out():
    train = training(120)
    choice = choose(train.features, train.one_hot(), SMALL, seed=train.seed)
    assert choice.map in sorted(choice.screened, key=choice.screened.get)[: SMALL.finalists]
    best = choice.selection
    alone = [
        choose(train.features, train.one_hot(), replace(SMALL, maps=(name,)), seed=train.seed).selection.score
        for name in SMALL.maps
    ]
    assert best.score == min(alone)
    rows = torch.randperm(120, generator=torch.Generator().manual_seed(train.seed))[: SMALL.rows]

    def loss(num_neighbors, ridge):
        left_out = local_leave_one_out(
            train.features, train.one_hot(), num_neighbors, kernel=best.kernel, ridge=ridge, rows=rows
        )
        return float(cross_entropy(left_out.means / best.temperature, train.labels[rows]))

    assert loss(best.num_neighbors, best.ridge) == pytest.approx(best.score, abs=2 / SMALL.rows)
    for other in SMALL.num_neighbors:
        assert loss(other, best.ridge) > best.score - 2 / SMALL.rows


def test_points_in_fewer_dimensions_keep_their_distances_and_so_does_what_is_chosen(monkeypatch):
    data = training(60)
    generator = torch.Generator().manual_seed(0)
    wide = data._replace(features=(data.features @ torch.randn(64, 300, generator=generator)).relu())
    fewer = fewer_features(wide.features)
    assert fewer.shape == (60, 60)
    found, expected = (torch.cdist(x.double(), x.double()) for x in (fewer, wide.features))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)
    assert fewer_features(fewer) is fewer
    quick = choose(wide.features, wide.one_hot(), SMALL, seed=wide.seed)
    monkeypatch.setattr("torchkrr.vision.selection.fewer_features", lambda x: x)
    slow = choose(wide.features, wide.one_hot(), SMALL, seed=wide.seed)
    assert quick.map == slow.map
    for name in ("num_neighbors", "ridge", "temperature"):
        assert getattr(quick.selection, name) == getattr(slow.selection, name)
    assert quick.selection.score == pytest.approx(slow.selection.score, rel=1e-4)
    assert quick.selection.kernel(wide.features[:2], wide.features).shape == (2, 60)  # the kernel is one of all features

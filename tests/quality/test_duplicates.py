"""Pairs that are nearer than chance would have it, whatever the dimension."""

import numpy as np
import pytest
import torch

from torchkrr.quality.duplicates import duplicate_groups, groups_of_pairs, near_pairs


@pytest.mark.parametrize("features", [1, 2, 5, 30])
def test_points_by_chance_are_no_duplicates_and_planted_copies_are(features):
    points = torch.randn(1500, features)
    assert near_pairs(points, 0.5).shape[1] <= 4
    points[700:720] = points[:20] + 1e-6 * torch.randn(20, features)
    found = {tuple(pair) for pair in near_pairs(points, 0.5).T.tolist()}
    assert {(row, 700 + row) for row in range(20)} <= found
    assert len(found) <= 56  # of those found, a tenth may be chance, both ways around


def test_points_on_a_grid_are_no_duplicates():
    grid = torch.cartesian_prod(*[torch.arange(8.0)] * 3)
    assert near_pairs(grid, 0.5).shape[1] == 0


def test_the_largest_share_is_a_limit():
    points = torch.randn(1000, 40)
    points[1] = points[0] + 0.05
    assert near_pairs(points, 0.5).T.tolist() == [[0, 1], [1, 0]]
    assert near_pairs(points, 0.001).shape[1] == 0


@pytest.mark.parametrize("count", [0, 1, 2])
def test_too_few_points_have_no_pairs(count):
    assert near_pairs(torch.randn(count, 3), 0.5).shape == (2, 0)


def test_chains_of_pairs_are_one_group_and_disagreement_comes_first():
    pairs = torch.tensor([[0, 1, 5, 7], [1, 2, 6, 8]])
    groups = groups_of_pairs(pairs, 10)
    assert groups[0] == groups[1] == groups[2] != groups[5] == groups[6]
    lonely = np.where(np.bincount(groups)[groups] > 1, groups, -1)
    found = duplicate_groups(lonely, ["a", "a", "a", "x", "x", "b", "b", "c", "d", "x"])
    assert [group.rows.tolist() for group in found] == [[7, 8], [0, 1, 2], [5, 6]]
    assert [group.disagrees for group in found] == [True, False, False]
    assert found[0].labels == ("c", "d")

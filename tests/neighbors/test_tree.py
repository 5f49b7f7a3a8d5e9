"""The k-d tree finds what exact search finds, in the same order."""

import copy
import pickle

import pytest
import torch

import torchkrr
from torchkrr.errors import NotFittedError
from torchkrr.neighbors import ExactIndex, TreeIndex


def found_alike(points, query, count, **choices):
    ours = TreeIndex().build(points).search(query, count, **choices)
    theirs = ExactIndex(backend="torch").build(points).search(query, count, **choices)
    torch.testing.assert_close(ours.distances, theirs.distances)
    return torch.equal(ours.indices, theirs.indices)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("features", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 7, 300])
def test_finds_what_exact_search_finds(features, dtype, count):
    assert found_alike(torch.randn(300, features, dtype=dtype), torch.randn(40, features, dtype=dtype), count)


@pytest.mark.parametrize("count", [3, 9, 60, 121])
def test_ties_go_to_the_lowest_number(count):
    grid = torch.cartesian_prod(torch.arange(11.0), torch.arange(11.0))
    assert found_alike(grid, torch.cat((grid[:30], grid[:30] + 0.5)), count)
    copies = torch.zeros(200, 2)
    assert TreeIndex().build(copies).search(copies[:1], count).indices.tolist() == [list(range(count))]


def test_a_row_can_be_left_out():
    points = torch.cat((torch.randn(50, 2), torch.zeros(30, 2)))
    rows = torch.arange(80)
    assert found_alike(points, points, 5, exclude=rows)
    assert not (TreeIndex().build(points).search(points, 5, exclude=rows).indices == rows[:, None]).any()


def test_points_come_and_go_and_are_never_pickled():
    points, more, query = torch.randn(50, 2), torch.randn(20, 2), torch.randn(9, 2)
    index = TreeIndex(leaf_size=5).build(points)
    index.append(more)
    index.remove([3, 60])
    left = torch.cat((points, more))[[i for i in range(70) if i not in (3, 60)]]
    assert torch.equal(index.search(query, 6).indices, ExactIndex().build(left).search(query, 6).indices)
    for again in (pickle.loads(pickle.dumps(index)), copy.deepcopy(index)):
        assert again.leaf_size == 5
        with pytest.raises(NotFittedError):
            again.search(query, 6)
    index.release()
    assert repr(index) == "TreeIndex(leaf_size=5)"


def test_a_layer_searches_by_it_and_is_saved(tmp_path):
    x, y, query = torch.randn(200, 3), torch.randn(200, 1), torch.randn(9, 3)
    kernel = torchkrr.kernels.Exponential()
    layer = torchkrr.nn.LocalKernelRidge(x, y, 10, kernel=kernel, index=TreeIndex())
    expected = torchkrr.nn.LocalKernelRidge(x, y, 10, kernel=kernel)(query)
    assert torch.equal(layer(query), expected)
    torchkrr.save(layer, tmp_path / "layer.krr")
    assert torch.equal(torchkrr.load(tmp_path / "layer.krr")(query), expected)

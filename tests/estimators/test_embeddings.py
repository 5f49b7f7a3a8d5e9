"""Maps for columns of any distribution."""

import pytest
import torch

from torchkrr.errors import ShapeError
from torchkrr.estimators.embeddings import KNOTS, STEPS, Columns, Ranks, Staircase, values_and_ranks


def test_squared_distances_on_a_staircase_are_sums_of_absolute_differences():
    x = torch.rand(STEPS, 3, dtype=torch.float64)
    e = Staircase().fit(x)(x)
    torch.testing.assert_close(torch.cdist(e, e).square(), torch.cdist(x, x, p=1), atol=1e-12, rtol=1e-9)


def test_a_staircase_has_few_steps_and_is_flat_outside():
    x = torch.rand(5000, 2, dtype=torch.float64)
    staircase = Staircase().fit(x)
    assert staircase(x).shape == (5000, 2 * STEPS)
    assert staircase.groups().bincount().tolist() == [STEPS, STEPS]
    outside = staircase(torch.tensor([[2.0, -3.0]], dtype=torch.float64))
    corner = staircase(torch.stack((x[:, 0].max(), x[:, 1].min()))[None])
    torch.testing.assert_close(outside, corner)


def test_constant_features_have_no_steps():
    x = torch.stack((torch.ones(9), torch.arange(9.0)), 1)
    assert Staircase().fit(x)(x).shape == (9, 8)
    assert (Staircase().fit(torch.ones(4, 2))(torch.ones(4, 2)) == 1).all()


def test_ranks_do_not_change_with_a_monotone_map():
    x = torch.rand(KNOTS, 2, dtype=torch.float64)
    ranks = Ranks().fit(x)(x)
    torch.testing.assert_close(Ranks().fit(x.exp())(x.exp()), ranks)
    torch.testing.assert_close(ranks.mean(0), torch.zeros(2, dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(ranks.std(0, correction=0), torch.ones(2, dtype=torch.float64))


def test_columns_are_those_that_were_kept():
    columns = Columns.keeping(torch.tensor([True, False, True]))
    x = torch.rand(2, 5, 3)
    assert torch.equal(columns(x), x[..., [0, 2]])
    again = Columns()
    again.load_state_dict(columns.state_dict())
    assert torch.equal(again(x), x[..., [0, 2]])
    with pytest.raises(ShapeError, match="features"):
        columns(torch.rand(5, 4))


@pytest.mark.parametrize("transform", [Staircase(), values_and_ranks()])
def test_fitted_state_loads_and_the_number_of_features_is_checked(transform):
    x = torch.rand(50, 3)
    expected = transform.fit(x)(x)
    other = type(transform)() if isinstance(transform, Staircase) else values_and_ranks()
    other.load_state_dict(transform.state_dict())
    torch.testing.assert_close(other(x), expected)
    assert expected.dtype == torch.float32
    with pytest.raises(ShapeError, match="features"):
        transform(torch.rand(5, 4))

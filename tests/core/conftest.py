"""What tests of derivatives share."""

import pytest
import torch

from torchkrr import neighbors


@pytest.fixture
def small():
    """Query, centers, values and ridge that require grad, and neighbors."""
    generator = torch.Generator().manual_seed(3)

    def randn(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    query, centers, values = randn(2, 2), randn(7, 2), randn(7, 2)
    ridge = torch.tensor(1e-2, dtype=torch.float64, requires_grad=True)
    return query, centers, values, ridge, neighbors.nearest(query, centers, 6)

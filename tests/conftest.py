"""Fixtures that several test files share."""

import pytest
import torch


@pytest.fixture
def points():
    """Two sets of points in three dimensions."""
    return torch.randn(30, 3, dtype=torch.float64), torch.randn(20, 3, dtype=torch.float64)

"""Losses of transport as modules."""

import pytest
import torch

from torchkrr import functional as F
from torchkrr import nn


def test_gromov_monge_as_a_regularizer_spreads_centers():
    values = torch.linspace(-1, 1, 30)[:, None]
    layer = nn.KernelRidge(0.01 * torch.randn(30, 1), values, learn_centers=True)
    loss = nn.GromovMongeLoss(sample_size=20, generator=torch.Generator().manual_seed(0))
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    before = layer.centers.std().item()
    for _ in range(200):
        optimizer.zero_grad()
        loss(layer.centers, layer.values).backward()
        optimizer.step()
    assert before < 0.05
    assert layer.centers.std().item() == pytest.approx(values.std().item(), rel=0.2)


def test_modules_are_the_functions():
    x, y = torch.randn(8, 2), torch.randn(8, 2)
    assert torch.equal(nn.MongeLoss()(x, y), F.monge_cost(x, y))
    assert torch.equal(nn.GromovMongeLoss()(x, y), F.gromov_monge(x, y))

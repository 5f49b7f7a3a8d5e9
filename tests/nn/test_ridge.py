"""The dense layer: its weights, and the backend that solves it."""

from __future__ import annotations

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from tests.nn.layers import (
    data,
    make,
    queries,
)

from torchkrr import nn
from torchkrr.errors import InputError


def test_explanation_of_the_dense_layer_is_its_cardinal_weights():
    layer, query = make("dense").double(), queries().double()
    torch.testing.assert_close(layer.cardinal_weights(query) @ layer.values, layer(query))


def test_layer_takes_a_backend():
    centers, values, query = (tensor.double() for tensor in (*data(), queries()))
    by_torch, fused = (nn.KernelRidge(centers, values, backend=backend) for backend in ("torch", "fused"))
    torch.testing.assert_close(by_torch(query), fused(query))
    with pytest.raises(InputError, match="backend must be one of"):
        nn.KernelRidge(centers, values, backend="numpy")

"""Shared by tests and doctests: names that examples may use, and a fixed seed for each."""

import pytest
import torch

import torchkrr


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _names(doctest_namespace):
    doctest_namespace.update(torch=torch, torchkrr=torchkrr, Exponential=torchkrr.kernels.Exponential)

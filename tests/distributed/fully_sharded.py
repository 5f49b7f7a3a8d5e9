"""A network trained whole, and with its parameters sharded over ranks: torchrun fully_sharded.py KIND PARTS."""

from __future__ import annotations

import copy
import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

from torchkrr import kernels, nn

ROWS = 8  # on each rank
LEARNED = ("centers", "values", "kernel.log_lengthscale", "kernel.log_alpha")


def network(kind: str) -> torch.nn.Sequential:
    """A kernel layer between two linear ones, with everything in it learned."""
    torch.manual_seed(0)
    kernel = kernels.RationalQuadratic([1.3, 0.9, 1.1], alpha=0.7, learn_alpha=True, learn_lengthscale=True)
    choices = {"kernel": kernel, "ridge": 1e-2, "learn_centers": True, "learn_values": True}
    data = torch.randn(21, 3), torch.randn(21, 2)
    head = nn.KernelRidge(*data, **choices) if kind == "dense" else nn.LocalKernelRidge(*data, 8, **choices)
    return torch.nn.Sequential(torch.nn.Linear(5, 3), head, torch.nn.Linear(2, 2))


def train(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for _ in range(5):
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()


def main(kind: str, parts: str) -> None:
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", message=".* returned a view tensor")  # of harm only to who writes into it
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    whole = network(kind)
    sharded = copy.deepcopy(whole)
    for layer in sharded if parts == "each" else ():
        fully_shard(layer)
    fully_shard(sharded)
    inputs, targets = torch.randn(ROWS * dist.get_world_size(), 5), torch.randn(ROWS * dist.get_world_size(), 2)
    own = slice(ROWS * rank, ROWS * (rank + 1))
    train(whole, inputs, targets)
    train(sharded, inputs[own], targets[own])
    expected = dict(whole.named_parameters())
    assert {f"1.{name}" for name in LEARNED} <= {name for name, _ in sharded.named_parameters()}
    assert "learned" in repr(sharded)
    for name, parameter in sharded.named_parameters():
        torch.testing.assert_close(parameter.full_tensor(), expected[name], rtol=1e-3, atol=1e-4)
    dist.barrier()
    os._exit(0)  # gloo at times aborts a process whose threads it still has, at the end


if __name__ == "__main__":
    main(*sys.argv[1:])

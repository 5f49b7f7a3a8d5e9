"""Peak extra memory of one task on 10,000 queries at D = 512, in a process of its own.

python -m benchmarks.memory search|solve|layer|gradient
"""

from __future__ import annotations

import json
import sys

import torch

from benchmarks.harness import peak_megabytes
from torchkrr import functional as F
from torchkrr import kernels, neighbors, nn

QUERIES, CENTERS, FEATURES, OUTPUTS, NEIGHBORS = 10_000, 50_000, 512, 10, 100


def main(task: str) -> None:
    torch.manual_seed(0)
    query, centers = torch.randn(QUERIES, FEATURES), torch.randn(CENTERS, FEATURES)
    values = torch.randn(CENTERS, OUTPUTS)
    kernel = kernels.Exponential(30.0)
    indices = torch.randint(0, CENTERS, (QUERIES, NEIGHBORS // 2))
    indices = torch.cat((indices, (indices + CENTERS // 2) % CENTERS), 1)
    # Loading code and starting threads is not the task's memory.
    F.local_kernel_ridge(query[:200], centers[:500], values[:500], indices[:200] % 500, kernel=kernel, ridge=0.1)
    neighbors.nearest(query[:200], centers[:500], 10)
    before = peak_megabytes()
    with torch.no_grad():
        if task == "search":
            neighbors.nearest(query, centers, NEIGHBORS)
        elif task == "solve":
            F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=0.1)
        elif task == "layer":
            nn.LocalKernelRidge(centers, values, NEIGHBORS, kernel=kernel, ridge=0.1)(query)
    if task == "gradient":
        for tensor in (query, centers, values):
            tensor.requires_grad_()
        F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, ridge=0.1).sum().backward()
    print(json.dumps({"megabytes": peak_megabytes() - before}))


if __name__ == "__main__":
    main(sys.argv[1])

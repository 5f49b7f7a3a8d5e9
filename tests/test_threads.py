"""Worker threads leave torch as it was for everybody else."""

import os
import subprocess
import sys
import textwrap

import torch

from torchkrr import _threads


def run(code):
    """In a process of its own: what went wrong would go wrong for the rest of its life."""
    source = textwrap.dedent(code)
    found = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "2"}
    )
    assert found.returncode == 0, found.stderr
    assert not found.stderr


def test_batched_lu_is_right_after_the_torch_path_used_worker_threads():
    run("""
        import torch, torchkrr
        from torchkrr import functional as F, kernels
        torch.manual_seed(0)
        centers, query = torch.randn(500, 3), torch.randn(4000, 3)
        indices = torchkrr.neighbors.nearest(query, centers, 50)
        F.local_kernel_ridge(query, centers, centers, indices, kernel=kernels.Exponential(), backend="torch")
        from torchkrr import _chunking
        assert _chunking._pools, "no worker was started: the test shows nothing"
        matrices = torch.randn(8, 200, 200, dtype=torch.float64)
        found = matrices @ torch.linalg.solve(matrices, torch.ones(8, 200, 1, dtype=torch.float64))
        assert (found - 1).abs().max() < 1e-6, (found - 1).abs().max()
        assert torch.get_num_threads() == 2
    """)


def test_batched_lu_is_right_after_an_estimator_with_n_jobs():
    run("""
        import numpy, torch
        from torchkrr.estimators import LocalKernelRidgeRegressor
        X = numpy.random.default_rng(0).uniform(size=(60, 2))
        LocalKernelRidgeRegressor(5, alpha=1e-3, kernel="exponential", metric=None, n_jobs=2).fit(X, X[:, 0]).predict(X)
        matrices = torch.randn(8, 200, 200, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
        found = matrices @ torch.linalg.solve(matrices, torch.ones(8, 200, 1, dtype=torch.float64))
        assert (found - 1).abs().max() < 1e-6, (found - 1).abs().max()
    """)


def test_without_counts_of_their_own_threads_fall_back_to_torchs_setting(monkeypatch):
    monkeypatch.setattr(_threads, "_runtime", lambda: None)
    before = torch.get_num_threads()
    with _threads.threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before
    assert not _threads.per_thread()

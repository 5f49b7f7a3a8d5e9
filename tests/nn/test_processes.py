"""Layers compiled, in threads, forked, and under DistributedDataParallel."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed
import torch.multiprocessing
from tests.nn.layers import (
    KINDS,
    LEARNED,
    NUM_FEATURES,
    data,
    grown,
    make,
    moved,
    predicts_as_rebuilt,
    queries,
    rebuilt,
    refitted,
    run_python,
    shrunk,
    tolerance,
)
from torch import Tensor

import torchkrr
from torchkrr import kernels


@pytest.mark.parametrize("kind", KINDS)
def test_threads_that_meet_a_fresh_layer_predict_what_one_predicts(kind):
    parts = queries(48).split(4)
    with torch.no_grad():
        expected = [make(kind)(part) for part in parts]
    for _ in range(8):
        layer, together = make(kind), threading.Barrier(4)

        def predict(first, layer=layer, together=together):
            together.wait()
            with torch.no_grad():
                return [layer(part) for part in parts[first:] + parts[:first]]  # each in an order of its own

        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(predict, range(4)))
        for first, predictions in enumerate(found):
            torch.testing.assert_close(predictions, expected[first:] + expected[:first], **tolerance(kind))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")  # the compiler looks at it
@pytest.mark.parametrize(
    ("backend", "kind", "learned"),
    [
        ("eager", "dense", 3),
        ("eager", "local", 3),
        ("aot_eager", "dense", 3),
        ("aot_eager", "local", 3),
        ("eager", "local", 0),
        ("eager", "blended", 3),
        ("eager", "blended", 0),
        ("eager", "hierarchical", 3),
        ("eager", "hierarchical", 0),
    ],
)
def test_compiled_layers_predict_and_differentiate_the_same(backend, kind, learned):
    torch.compiler.reset()
    path = {"backend": "torch"} if kind == "dense" else {}  # what is compiled is torch's path, which rounds differently
    model = torch.nn.Sequential(
        torch.nn.Linear(5, NUM_FEATURES), torch.nn.Tanh(), make(kind, kernel=None, **path, **LEARNED[learned])
    )
    model = model.double()  # compiled, points are embedded in float64 whatever they are: only there gradients can be equal
    compiled = torch.compile(model, backend=backend)
    images = torch.randn(9, 5, dtype=torch.float64)
    results = []
    for run in (model, compiled):
        query = images.clone().requires_grad_()
        prediction = run(query)
        results.append((prediction.detach(), torch.autograd.grad(prediction.square().sum(), (query, *model.parameters()))))
    (plain, plain_gradients), (fast, fast_gradients) = results
    torch.testing.assert_close(fast, plain)
    for ours, theirs in zip(fast_gradients, plain_gradients, strict=True):
        torch.testing.assert_close(ours, theirs)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), plain, **tolerance(kind))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "dense"])
def test_a_compiled_layer_follows_changes(kind):
    torch.compiler.reset()
    layer = make(kind)
    compiled = torch.compile(layer, backend="eager")
    for edit in (lambda layer: None, moved, grown, shrunk):
        edit(layer)
        refitted(layer)
        torch.testing.assert_close(compiled(queries()), rebuilt(layer)(queries()))


def distributed_model(kind: str) -> torch.nn.Module:
    torch.manual_seed(0)
    kernel = kernels.Matern32(1.5, learn_lengthscale=True)
    return torch.nn.Sequential(
        torch.nn.Linear(5, NUM_FEATURES), make(kind, kernel=kernel, learn_centers=True, learn_values=True)
    )


def distributed_loss(model: torch.nn.Module, rank: int, step: int) -> Tensor:
    images = torch.randn(2, 2, 8, 5, generator=torch.Generator().manual_seed(3))
    return model(images[step, rank]).square().mean()


def train_in_one_of_two_processes(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{port}"
    torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    for kind in KINDS:
        model = torch.nn.parallel.DistributedDataParallel(distributed_model(kind))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            distributed_loss(model, rank, step).backward()
            if step == 0:
                torch.save([parameter.grad for parameter in model.parameters()], f"{folder}/{kind}-gradients{rank}")
            optimizer.step()
        torch.save(model.module.state_dict(), f"{folder}/{kind}-state{rank}")
    torch.save(torch.tensor(follows_the_first_process(rank)), f"{folder}/follows{rank}")
    torch.distributed.destroy_process_group()


def follows_the_first_process(rank: int) -> bool:
    """The first process moves its centers, and the next forward sends them to the other, which has an index already."""
    layer = make("local", learn_values=True)
    model = torch.nn.parallel.DistributedDataParallel(layer)
    model(queries()).sum().backward()
    if rank == 0:
        moved(layer)
    model(queries()).sum().backward()
    return not torch.equal(layer.centers, data()[0]) and predicts_as_rebuilt(layer)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="module")
def trained_in_two_processes(tmp_path_factory):
    # Both kinds in one go: starting two interpreters is what takes the time.
    folder = tmp_path_factory.mktemp("distributed")
    torch.multiprocessing.spawn(train_in_one_of_two_processes, (free_port(), str(folder)), nprocs=2)
    return folder


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without distributed")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", KINDS)
def test_data_parallel_gradients_are_the_average_of_those_of_each_process(kind, trained_in_two_processes):
    folder, model = trained_in_two_processes, distributed_model(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(2):
        optimizer.zero_grad()
        (sum(distributed_loss(model, rank, step) for rank in range(2)) / 2).backward()
        if step == 0:
            for rank in range(2):
                found = torch.load(folder / f"{kind}-gradients{rank}", weights_only=True)
                for ours, theirs in zip(found, (parameter.grad for parameter in model.parameters()), strict=True):
                    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
        optimizer.step()
    for rank in range(2):
        state = torch.load(folder / f"{kind}-state{rank}", weights_only=True)
        for name, tensor in model.state_dict().items():
            torch.testing.assert_close(state[name], tensor, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rank", [0, pytest.param(1)])
def test_predictions_follow_centers_sent_by_another_process(rank, trained_in_two_processes):
    assert torch.load(trained_in_two_processes / f"follows{rank}", weights_only=True)


FORK = """
    import os, signal, sys, torch
    from torchkrr import _chunking, functional as F, kernels, neighbors, nn

    torch.manual_seed(0)
    centers, values, query = torch.randn(400, 6), torch.randn(400, 2), torch.randn(64, 6)
    kernel = kernels.Matern32()
    indices = neighbors.nearest(query, centers, 30)
    backend = sys.argv[1]
    layer = nn.LocalKernelRidge(centers, values, 30, kernel=kernel, backend=backend, learn_values=True)
    # The search ran on one thread, so that OpenMP has no threads that a fork would lose: plain torch hangs there by itself.
    torch.set_num_threads(2)


    def function():
        values.requires_grad_()
        prediction = F.local_kernel_ridge(query, centers, values, indices, kernel=kernel, backend=backend)
        (gradient,) = torch.autograd.grad(prediction.sum(), values)
        return prediction.detach(), gradient


    def module():
        torch.set_num_threads(1)  # as a DataLoader does in its workers
        prediction = layer(query)
        (gradient,) = torch.autograd.grad(prediction.sum(), layer.values)
        return prediction.detach(), gradient


    expected = function()
    assert backend == "fused" or _chunking._pools, "no thread pool was used, so that there is nothing to test"
    for use in (function, module):
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            found = use()
            same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(found, expected))
            os._exit(0 if same else 1)
        _, status = os.waitpid(child, 0)
        assert status == 0, f"{use.__name__}: the child ended with status {status} (14: it hung)"
    assert torch.equal(function()[0], expected[0])
    print("both children predicted")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("backend", ["fused", "torch"])
def test_a_forked_child_predicts_after_its_parent_used_threads(backend):
    if backend == "fused" and torchkrr.backend_report().library is None:
        pytest.skip("the fused solver is not compiled")
    assert run_python(FORK, backend, timeout=60) == "both children predicted\n"


def threads() -> Iterator[int]:
    before = torch.get_num_threads()
    for count in (1, 3):
        torch.set_num_threads(count)
        yield count
    torch.set_num_threads(before)


def test_the_number_of_threads_does_not_change_predictions():
    layer, query = make("local", learn_values=True), queries(50)
    results = []
    for _ in threads():
        prediction = layer(query)
        results.append((prediction.detach(), *torch.autograd.grad(prediction.sum(), layer.values)))
    for one, three in zip(*results, strict=True):
        torch.testing.assert_close(one, three)

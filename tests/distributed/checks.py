"""What every rank does in one launch; each check gives named errors, which tests look at.

A check gets the ranks it runs on, all of which call it. Numbers are errors relative to one process; booleans are claims.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from tests.distributed.checkpoint_checks import checkpoints, checkpoints_of_others, raised
from tests.distributed.problems import (
    NUM_CENTERS,
    NUM_FEATURES,
    NUM_NEIGHBORS,
    QUERIES,
    SHARDS,
    World,
    data,
    error,
    learned_kernel,
    plain,
    sharded,
)
from tests.distributed.team_checks import teams
from torch import Tensor

from torchkrr import kernels, neighbors, nn
from torchkrr.distributed import ShardedLocalKernelRidge, even_shards, search, traffic_per_query

Found = dict[str, float | bool]
DTYPES = {"float32": torch.float32, "float64": torch.float64}
TRAFFIC = ("queries", "lists", "requests", "rows", "gradients")
LAYERS: dict[str, Callable[[], dict[str, Any]]] = {
    "default kernel": dict,
    "trend": lambda: {"trend": "constant", "kernel": kernels.Matern32(1.5)},
    "fade": lambda: {"fade": True, "kernel": kernels.Matern32(1.5)},
    "polynomial": lambda: {"trend": "linear", "kernel": kernels.ThinPlateSpline(1.5)},
    "polynomial and fade": lambda: {"trend": "linear", "fade": True, "kernel": kernels.Cubic(2.0)},
    "fade and trend": lambda: {"fade": True, "trend": "constant", "kernel": kernels.Exponential(2.0)},
    "normalized": lambda: {"normalize": "cell", "trend": "constant", "kernel": kernels.Matern52(1.5)},
    "streamed": lambda: {"kernel": kernels.Matern32(1.5), "index": neighbors.StreamedIndex()},
    "faiss": lambda: {"kernel": kernels.Matern32(1.5), "index": faiss_or_exact()},
    "auto index": lambda: {"kernel": kernels.Matern32(1.5), "index": "auto"},
    "torch": lambda: {"kernel": kernels.Matern32(1.5), "backend": "torch", "index": neighbors.ExactIndex(backend="torch")},
}


def faiss_or_exact() -> neighbors.NeighborIndex:
    return neighbors.FaissIndex("Flat") if importlib.util.find_spec("faiss") else neighbors.ExactIndex()


def predictions(world: World, dtype: torch.dtype) -> Found:
    """Means, power functions and explanations of one process, for layers of all kinds."""
    centers, values, query = data(dtype)
    found: Found = {}
    for name, choices in LAYERS.items():
        whole, parts = plain(centers, values, **choices()), sharded(world, centers, values, **choices())
        asked = world.own(query, QUERIES)
        with torch.no_grad():
            found[f"{name}: mean"] = error(parts(asked), world.own(whole(query), QUERIES))
            found[f"{name}: power"] = error(parts.power_function(asked), world.own(whole.power_function(query), QUERIES))
            expected, explained = whole.explain(query), parts.explain(asked)
            found[f"{name}: weights"] = error(explained.weights, world.own(expected.weights, QUERIES))
            found[f"{name}: rows"] = torch.equal(explained.indices, world.own(expected.indices, QUERIES))
            found[f"{name}: neighbors"] = torch.equal(parts.neighbors(asked), world.own(whole.neighbors(query), QUERIES))
        found[f"{name}: count"] = parts.num_centers == NUM_CENTERS
    return found


def gradients(world: World, dtype: torch.dtype) -> Found:
    """Of centers and values on their owner, of queries on theirs, of kernel and ridge on every rank."""
    found: Found = {}
    for name, choices in {"plain": {}, "trend": {"trend": "constant"}, "fade": {"fade": True, "trend": "constant"}}.items():
        layers, queries = [], []
        for alone in (True, False):
            centers, values, query = data(dtype)
            learned = {"kernel": learned_kernel(dtype), "learn_centers": True, "learn_values": True, **choices}
            learned["ridge"] = torch.tensor(0.1, dtype=dtype, requires_grad=True)
            layers.append(plain(centers, values, **learned) if alone else sharded(world, centers, values, **learned))
            queries.append((query if alone else world.own(query, QUERIES)).clone().requires_grad_())
        for layer, asked in zip(layers, queries, strict=True):
            loss = (layer(asked) * asked[:, :1].sin()).sum() + layer.power_function(asked).square().sum()
            loss = loss + layer.explain(asked).weights.square().sum()
            loss.backward()
        whole, parts = layers
        pairs = {
            "centers": (parts.centers.grad, world.own(whole.centers.grad)),
            "values": (parts.values.grad, world.own(whole.values.grad)),
            "query": (queries[1].grad, world.own(queries[0].grad, QUERIES)),
            "lengthscale": (parts.kernel.log_lengthscale.grad, whole.kernel.log_lengthscale.grad),
        }
        found |= {f"{name}: {what}": error(*pair) for what, pair in pairs.items()}
        # Sums of thousands of terms of both signs, in another order: in float32 a digit less.
        for what, pick in {"ridge": lambda layer: layer.ridge, "alpha": lambda layer: layer.kernel.log_alpha}.items():
            found[f"{name}: {what}"] = error(pick(parts).grad, pick(whole).grad) / (10 if dtype == torch.float32 else 1)
    return found


def second_derivatives(world: World, dtype: torch.dtype) -> Found:
    """A penalty on the gradient at the queries, differentiated in centers, values and lengthscale."""
    centers, values, query = data(dtype)
    whole = plain(centers, values, kernel=learned_kernel(dtype), learn_centers=True, learn_values=True)
    parts = sharded(world, centers, values, kernel=learned_kernel(dtype), learn_centers=True, learn_values=True)
    for layer, asked in ((whole, query), (parts, world.own(query, QUERIES))):
        asked = asked.clone().requires_grad_()
        (slope,) = torch.autograd.grad(layer(asked).sum(), asked, create_graph=True)
        slope.square().sum().backward()
    return {
        "centers": error(parts.centers.grad, world.own(whole.centers.grad)),
        "values": error(parts.values.grad, world.own(whole.values.grad)),
        "lengthscale": error(parts.kernel.log_lengthscale.grad, whole.kernel.log_lengthscale.grad),
    }


def mixed_derivatives(world: World, dtype: torch.dtype) -> Found:
    """Through the gradient of the values, which has travelled once already."""
    centers, values, query = data(dtype)
    whole = plain(centers, values, kernel=learned_kernel(dtype), learn_centers=True, learn_values=True)
    parts = sharded(world, centers, values, kernel=learned_kernel(dtype), learn_centers=True, learn_values=True)
    for layer, asked in ((whole, query), (parts, world.own(query, QUERIES))):
        (slope,) = torch.autograd.grad(layer(asked).square().sum(), layer.values, create_graph=True)
        slope.square().sum().backward()
    return {
        "centers": error(parts.centers.grad, world.own(whole.centers.grad)),
        "lengthscale": error(parts.kernel.log_lengthscale.grad, whole.kernel.log_lengthscale.grad),
    }


def ties(world: World, dtype: torch.dtype) -> Found:
    """Integer points: most distances are equal to others, and points to points of other shards."""
    centers = torch.randint(0, 3, (NUM_CENTERS, NUM_FEATURES), generator=torch.Generator().manual_seed(0)).to(dtype)
    _, values, _ = data(dtype)
    query = torch.randint(0, 3, (21, NUM_FEATURES), generator=torch.Generator().manual_seed(1)).to(dtype)
    kernel = kernels.Exponential(2.0)
    whole = plain(centers, values, kernel=kernel, ridge=0.1)
    parts = sharded(world, centers, values, kernel=kernel, ridge=0.1)
    return {
        "rows": torch.equal(parts.neighbors(world.own(query, QUERIES)), world.own(whole.neighbors(query), QUERIES)),
        "mean": error(parts(world.own(query, QUERIES)), world.own(whole(query), QUERIES)),
    }


def many_rounds(world: World, dtype: torch.dtype) -> Found:
    """Queries taken one at a time, in the forward and in the backward pass."""
    centers, values, query = data(dtype)
    whole = plain(centers, values, kernel=learned_kernel(dtype), learn_centers=True)
    parts = sharded(world, centers, values, kernel=learned_kernel(dtype), learn_centers=True)
    before = search.ROUND_BYTES
    search.ROUND_BYTES = 1
    try:
        mean, expected = parts(world.own(query, QUERIES)), whole(query)
        mean.sum().backward()
    finally:
        search.ROUND_BYTES = before
    expected.sum().backward()
    return {
        "mean": error(mean, world.own(expected, QUERIES)),
        "centers": error(parts.centers.grad, world.own(whole.centers.grad)),
        "lengthscale": error(parts.kernel.log_lengthscale.grad, whole.kernel.log_lengthscale.grad),
    }


def growth(world: World, dtype: torch.dtype) -> Found:
    """Rows come to some shards and go from others; one shard is emptied."""
    centers, values, query = data(dtype)
    more, more_values, _ = data(dtype, count=world.size, seed=1)
    kernel, asked = kernels.Matern32(1.5), world.own(query, QUERIES)
    parts = sharded(world, centers, values, kernel=kernel)
    parts(asked)  # there is an index that has to follow
    coming = slice(world.rank, world.rank + world.rank % 2)  # only odd ranks get a row
    parts.append(more[coming], more_values[coming])
    shards = [(start, start + size) for start, size in zip(_starts(SHARDS[world.size]), SHARDS[world.size], strict=True)]
    order: list[Tensor] = []
    order_values: list[Tensor] = []
    for rank, (start, stop) in enumerate(shards):
        order += [centers[start:stop], more[rank : rank + rank % 2]]
        order_values += [values[start:stop], more_values[rank : rank + rank % 2]]
    now, now_values = torch.cat(order), torch.cat(order_values)
    grown = plain(now, now_values, kernel=kernel)
    found: Found = {
        "grown": error(parts(asked), world.own(grown(query), QUERIES)),
        "count": parts.num_centers == len(now),
        "rows": torch.equal(parts.neighbors(asked), world.own(grown.neighbors(query), QUERIES)),
    }
    # Every rank names a row; rank 0 names those of the smallest shard besides.
    first = sum(SHARDS[world.size][:1]) if world.size > 1 else 0
    dropped = [torch.tensor([7 * rank + 1, 11]) for rank in range(world.size)]
    if world.size > 2:
        dropped[0] = torch.cat((dropped[0], torch.arange(first, first + SHARDS[world.size][1] + 1)))
    parts.remove(dropped[world.rank])
    keep = torch.ones(len(now), dtype=torch.bool)
    keep[torch.cat(dropped)] = False
    shrunk = plain(now[keep], now_values[keep], kernel=kernel)
    found["shrunk"] = error(parts(asked), world.own(shrunk(query), QUERIES))
    found["emptied"] = world.size < 3 or world.rank != 1 or len(parts.centers) == 0
    return found


def copies(world: World, dtype: torch.dtype) -> Found:
    """A copy predicts the same in the default group, a state loads, and half precision is solved in float32."""
    centers, values, query = data(dtype)
    asked = world.own(query, QUERIES)
    parts = sharded(world, centers, values, kernel=kernels.Matern32(1.5))
    expected = parts(asked)
    twin = copy.deepcopy(parts)
    twin.process_group = world.group
    other = sharded(world, centers + 1, values - 1, kernel=kernels.Matern32(0.5))
    other.load_state_dict(parts.state_dict())
    halves = [tensor.half() for tensor in (centers, values, query)]
    one, many = (make(*halves[:2], kernel=kernels.Matern32(1.5)) for make in (plain, functools.partial(sharded, world)))
    half = error(many(world.own(halves[2], QUERIES)), world.own(one(halves[2]), QUERIES))
    return {"copied": error(twin(asked), expected), "loaded": error(other(asked), expected), "half": half < 2e-3}


def wrong_input(world: World, dtype: torch.dtype) -> Found:
    """What one rank does wrong stops all of them, with an error each, at once; and the next call works."""
    centers, values, query = data(dtype)
    parts = sharded(world, centers, values, kernel=kernels.Matern32(1.5))
    asked = world.own(query, QUERIES)
    last = world.rank == world.size - 1
    bad = torch.full_like(asked, torch.nan) if last else asked
    found: Found = {"not finite": raised(lambda: parts(bad), "NaN or infinite" if last else "its own error message")}
    if world.size > 1:
        found["another method"] = raised(lambda: parts.power_function(asked) if last else parts.explain(asked), "Rank")
        found["another kernel"] = raised(
            lambda: sharded(world, centers, values, kernel=kernels.Matern32(1.0 + last)), "does something else"
        )
        narrow = world.own(centers)[:, : NUM_FEATURES - last]
        found["another width"] = raised(
            lambda: ShardedLocalKernelRidge(narrow, world.own(values), 2, process_group=world.group), "on every rank"
        )
        found["no neighbors"] = raised(
            lambda: ShardedLocalKernelRidge(world.own(centers), world.own(values), 0, process_group=world.group),
            "at least 1",
        )
        found["all removed"] = raised(lambda: parts.remove(torch.arange(NUM_CENTERS)), "leave nothing")
        found["out of range"] = raised(
            lambda: parts.remove(torch.tensor([90 if last else 0])), "between 0 and 89" if last else "its own error"
        )
    found["next call"] = error(parts(asked), world.own(plain(centers, values, kernel=kernels.Matern32(1.5))(query), QUERIES))
    learned = sharded(world, centers, values, kernel=kernels.Matern32(1.5), learn_centers=True)
    found["learned grows"] = raised(lambda: learned.append(asked, asked), "learned")
    return found


def beside_data_parallel(world: World, dtype: torch.dtype) -> Found:
    """A backbone under DistributedDataParallel and learned centers, two steps: those of one process on the whole batch."""
    centers, values, _ = data(dtype)
    images = torch.randn(2, 12, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)
    learning = {"kernel": lambda: learned_kernel(dtype), "learn_centers": True, "learn_values": True}

    def model(head: nn.LocalKernelRidge, wrap: Callable[[torch.nn.Module], torch.nn.Module]) -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(wrap(torch.nn.Linear(5, NUM_FEATURES, dtype=dtype)), head)

    choices = {name: made() if callable(made) else made for name, made in learning.items()}
    whole = model(plain(centers, values, **choices), lambda module: module)
    choices = {name: made() if callable(made) else made for name, made in learning.items()}
    head = sharded(world, centers, values, average_gradients=True, **choices)
    parts = model(head, lambda m: torch.nn.parallel.DistributedDataParallel(m, process_group=world.group))
    batch = len(images[0]) // world.size
    for one, rows in ((whole, slice(None)), (parts, slice(world.rank * batch, (world.rank + 1) * batch))):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for step in range(2):
            optimizer.zero_grad()
            one(images[step, rows]).square().mean().backward()
            optimizer.step()
    backbone = parts[0].module
    return {
        "backbone": error(backbone.weight, whole[0].weight),
        "centers": error(head.centers, world.own(whole[1].centers)),
        "values": error(head.values, world.own(whole[1].values)),
        "lengthscale": error(head.kernel.log_lengthscale, whole[1].kernel.log_lengthscale),
    }


def traffic(world: World, dtype: torch.dtype) -> Found:
    """Bytes counted against the model, for two numbers of centers, forward and backward."""
    found: Found = {}
    per_query = []
    for count in (2000, 8000):
        torch.manual_seed(0)
        features, outputs, neighbors, asked = 16, 3, 20, 24
        shards = even_shards(count, world.size)
        centers, values = torch.rand(count, features, dtype=dtype), torch.rand(count, outputs, dtype=dtype)
        queries = torch.rand(world.size, asked, features, dtype=dtype)
        own = shards.own(world.rank)
        layer = ShardedLocalKernelRidge(
            centers[own],
            values[own],
            neighbors,
            kernel=kernels.Matern32(1.0),
            process_group=world.group,
            ridge=1e-2,
            learn_values=True,
        )
        layer.comm.traffic.clear()
        layer(queries[world.rank]).sum().backward()
        rows = [len(layer.neighbors(query).unique()) for query in queries]
        sent = dict(layer.comm.traffic)
        # What has been sent since counts no more; the sum over ranks comes last.
        everyone = layer.comm.sum(torch.tensor([float(sent.get(name, 0)) for name in TRAFFIC]), "test") / (
            asked * world.size
        )
        model = traffic_per_query(
            world.size,
            neighbors,
            features,
            outputs,
            element_size=dtype.itemsize,
            different_rows=sum(rows) / world.size / asked,
            learned_columns=outputs,
        )
        # `neighbors` above has sent queries and lists once for each rank.
        times = {"queries": 1 + world.size, "lists": 1 + world.size}
        for name, bytes_sent in zip(TRAFFIC, everyone.tolist(), strict=True):
            expected = getattr(model, name) * times.get(name, 1)
            found[f"{name}, N={count}"] = abs(bytes_sent - expected) <= 0.1 * expected
        per_query.append(float(everyone.sum()))
    found["whatever N"] = abs(per_query[0] - per_query[1]) <= 0.1 * per_query[0]
    return found


def _starts(sizes: tuple[int, ...]) -> list[int]:
    return [sum(sizes[:rank]) for rank in range(len(sizes))]


CHECKS: dict[str, tuple[Callable[[World, torch.dtype], Found], tuple[str, ...]]] = {
    "predictions": (predictions, ("float32", "float64")),
    "gradients": (gradients, ("float32", "float64")),
    "second derivatives": (second_derivatives, ("float64",)),
    "mixed derivatives": (mixed_derivatives, ("float64",)),
    "ties": (ties, ("float32", "float64")),
    "many rounds": (many_rounds, ("float64",)),
    "growth": (growth, ("float32",)),
    "copies": (copies, ("float32",)),
    "wrong input": (wrong_input, ("float32",)),
    "checkpoints": (checkpoints, ("float64",)),
    "checkpoints of others": (checkpoints_of_others, ("float64",)),
    "traffic": (traffic, ("float32", "float64")),
    "beside data parallel": (beside_data_parallel, ("float64",)),
    "teams": (teams, ("float32",)),
}
assert NUM_NEIGHBORS < NUM_CENTERS

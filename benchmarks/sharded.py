"""What do sharded centers cost: time and bytes at 1, 2 and 4 ranks, against the model?

    python -m benchmarks.sharded --out benchmarks/results

Each rank has one thread. Bytes are counted where they are handed to torch.distributed; where this process is root and `ip`
is there, also by the interfaces of hosts of their own (network namespaces), headers and all. The model of time has two
constants, measured on one rank: nanoseconds per query and center, and microseconds per query. It then predicts 2 and 4
ranks, and a billion centers on 64 machines. M = 100, float32, exact search. Writes `sharded.jsonl` and `sharded.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from benchmarks import harness, namespaces
from torchkrr import kernels, nn
from torchkrr.distributed import ShardedLocalKernelRidge, launched
from torchkrr.distributed.launch import Communicator
from torchkrr.distributed.search import Traffic, operations_per_query, traffic_per_query

NEIGHBORS, OUTPUTS = 100, 10
SIZES = (1, 2, 4)
COUNTS = (50_000, 200_000, 800_000)
KINDS = Traffic._fields


class Case(NamedTuple):
    ranks: int
    centers: int  # in all
    features: int = 32
    queries: int = 512  # in all
    learned: bool = False  # values, with a backward pass


def cases() -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for ranks in SIZES:
        for count in COUNTS:
            yield name_of(Case(ranks, count)), partial(in_processes, Case(ranks, count))
    for ranks in SIZES[1:]:
        for case in (Case(ranks, 50_000, features=256), Case(ranks, 50_000, learned=True)):
            yield name_of(case), partial(in_processes, case)
    problem = namespaces.obstacle()
    for ranks in SIZES[1:]:
        for count in COUNTS[:2]:
            case = Case(ranks, count)
            yield f"hosts, {name_of(case)}", partial(on_hosts, case) if problem is None else partial(skipped, problem)


def skipped(reason: str) -> harness.Record:
    return {"skipped": reason}


def name_of(case: Case) -> str:
    return f"R={case.ranks}, N={case.centers}, D={case.features}" + (", learned values" if case.learned else "")


def in_processes(case: Case) -> harness.Record:
    """As torchrun starts them, all on this host."""
    command = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={case.ranks}", "-m", "benchmarks.sharded"]
    done = subprocess.run(
        [sys.executable, *command, "--case", json.dumps(case)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return _record(done.stdout)


def on_hosts(case: Case) -> harness.Record:
    """One process on each host, with an address of its own."""
    with namespaces.hosts(case.ranks) as hosts:
        together = {"WORLD_SIZE": str(case.ranks), "MASTER_ADDR": hosts[0].address, "MASTER_PORT": "29400"}
        arguments = ["-m", "benchmarks.sharded", "--case", json.dumps(case)]
        running = [host.start(arguments, RANK=str(rank), OMP_NUM_THREADS="1", **together) for rank, host in enumerate(hosts)]
        try:
            finished = [process.communicate(timeout=600) for process in running]
        finally:
            for process in running:
                process.kill()
    if any(process.returncode for process in running):
        raise RuntimeError("\n".join(error for _, error in finished))
    return _record(finished[0][0])


def one_rank(case: Case) -> harness.Record:
    """What a rank does; every rank finds the same sums."""
    torch.set_num_threads(1)
    with launched("gloo", timeout=300) as here:
        torch.manual_seed(here.rank)
        own, asked = case.centers // case.ranks, case.queries // case.ranks
        centers, values = torch.randn(own, case.features), torch.randn(own, OUTPUTS)
        query = torch.randn(asked, case.features)
        kernel = kernels.Matern32(float(case.features) ** 0.5)
        layer = ShardedLocalKernelRidge(centers, values, NEIGHBORS, kernel=kernel, ridge=1e-2, learn_values=case.learned)
        predict(layer, query[:8], case.learned)  # builds the index, connects
        layer.comm.traffic.clear()
        interface = namespaces.sent_bytes()
        Communicator().table([0])  # all at once
        start = time.perf_counter()
        found = predict(layer, query, case.learned)
        seconds = time.perf_counter() - start
        on_the_wire = (namespaces.sent_bytes() or 0) - (interface or 0)
        sent = [float(layer.comm.traffic[name]) for name in KINDS]
        rows = len(layer.neighbors(query).unique()) / asked
        sums = layer.comm.sum(torch.tensor([*sent, on_the_wire, rows], dtype=torch.float64), "sums").tolist()
        slowest = max(part[0] for part in layer.comm.table([round(1e6 * seconds)]).tolist()) / 1e6
        record: harness.Record = {
            "seconds": slowest,
            "bytes": {name: bytes_sent / (asked * case.ranks) for name, bytes_sent in zip(KINDS, sums, strict=False)},
            "interface": sums[-2] / (asked * case.ranks) if interface is not None else None,
            "different_rows": sums[-1] / case.ranks,
        }
        if case.ranks == 1:
            record |= alone(centers, values, query, kernel, found)
        return record


def predict(layer: torch.nn.Module, query: torch.Tensor, learned: bool) -> torch.Tensor:
    with torch.set_grad_enabled(learned):
        found: torch.Tensor = layer(query)
        if learned:
            found.square().sum().backward()
    return found.detach()


def alone(
    centers: torch.Tensor, values: torch.Tensor, query: torch.Tensor, kernel: kernels.Kernel, found: torch.Tensor
) -> harness.Record:
    """The layer of one process, and the time that its search alone takes."""
    layer = nn.LocalKernelRidge(centers, values, NEIGHBORS, kernel=kernel, ridge=1e-2)
    with torch.no_grad():
        expected = layer(query)
        start = time.perf_counter()
        layer.neighbors(query)
        search = time.perf_counter() - start
        start = time.perf_counter()
        layer(query)
        whole = time.perf_counter() - start
    return {"search": search, "one process": whole, "error": float((found - expected).abs().max())}


def modelled(case: Case, record: harness.Record) -> Traffic:
    return traffic_per_query(
        case.ranks,
        NEIGHBORS,
        case.features,
        OUTPUTS,
        different_rows=record["different_rows"],
        learned_columns=OUTPUTS if case.learned else 0,
    )


class Constants(NamedTuple):
    """Of time, on one rank with one thread."""

    pair: float  # seconds for a query and a center
    query: float  # seconds for a query, whatever N

    def seconds(self, case: Case, cores: int) -> float:
        """Ranks beyond the cores of the machine wait for each other."""
        work = case.queries * (case.centers * self.pair + self.query) / case.ranks
        return work * max(1.0, case.ranks / cores)


def constants_of(by_case: dict[str, harness.Record]) -> Constants:
    """A line through the times of one rank, in N."""
    few, many = Case(1, COUNTS[0]), Case(1, COUNTS[-1])
    first, last = (by_case[name_of(case)]["seconds"] / case.queries for case in (few, many))
    pair = (last - first) / (many.centers - few.centers)
    return Constants(pair, max(0.0, first - pair * few.centers))


def summarize(records: list[harness.Record]) -> str:
    by_case = {record["case"]: record for record in records}
    machine, constants = by_case["environment"], constants_of(by_case)
    lines = [
        "# Sharded centers",
        "",
        "Made by `python -m benchmarks.sharded`; records in `sharded.jsonl`.",
        f"{machine['processor']}, {machine['cores']} cores, one thread per rank, torch {machine['torch']}, gloo.",
        f"M = {NEIGHBORS}, C = {OUTPUTS}, float32, {Case(1, 1).queries} queries in all, exact search.",
        "",
        "Bytes per query, all ranks together, as counted and as modelled:",
        "",
        "| | " + " | ".join(KINDS) + " | all | model | ratio | interfaces | to counted |",
        "|" + "---|" * (len(KINDS) + 6),
    ]
    for name, case, record in _measured(by_case):
        total, model = sum(record["bytes"].values()), modelled(case, record).total
        numbers = " | ".join(f"{record['bytes'][kind]:.0f}" for kind in KINDS)
        outside = record["interface"] if name.startswith("hosts") else None  # processes of one host do not cross it
        shown = "| |" if outside is None else f"{outside:.0f} | {outside / total:.3f} |"
        ratio = f"{total / model:.3f}" if model else ""
        lines.append(f"| {name} | {numbers} | {total:.0f} | {model:.0f} | {ratio} | {shown}")
    lines += [f"\nHosts of their own: {record['skipped']}." for record in records[-1:] if "skipped" in record]
    lines += [
        "",
        f"Seconds, as measured and as predicted from one rank: {constants.pair * 1e9:.2f} ns per query and center, "
        f"{constants.query * 1e6:.0f} us per query.",
        "",
        "| | measured | predicted | ratio |",
        "|---|---|---|---|",
    ]
    for name, case, record in _measured(by_case):
        if case.features == 32 and not case.learned and not name.startswith("hosts"):
            predicted = constants.seconds(case, machine["cores"])
            lines.append(f"| {name} | {record['seconds']:.2f} | {predicted:.2f} | {record['seconds'] / predicted:.2f} |")
    return "\n".join([*lines, *_billion(constants)]) + "\n"


def _billion(constants: Constants) -> list[str]:
    ranks, centers, features, bandwidth = 64, 1_000_000_000, 32, 1.25e9
    traffic = traffic_per_query(ranks, NEIGHBORS, features, OUTPUTS)
    operations = operations_per_query(centers, NEIGHBORS, features, OUTPUTS)
    search = centers / ranks * constants.pair
    network = traffic.total / ranks / bandwidth
    solve, parts = 1e6 * constants.query, zip(KINDS, traffic, strict=True)
    shares = ", ".join(f"{kind} {sent / 1e3:.1f}" for kind, sent in parts if sent)
    return [
        "",
        f"Predicted for {centers:,} centers of {features} features on {ranks} machines, one core each, 10 Gbit/s:",
        "",
        "| per query | |",
        "|---|---|",
        f"| memory of a shard, centers and values | {4 * centers / ranks * (2 * features + OUTPUTS) / 1e9:.1f} GB |",
        f"| operations of the search, on each machine | {operations.search / ranks:.2g} |",
        f"| exact search, on each machine | {1e3 * search:.1f} ms |",
        f"| solve, on the machine of the query | {solve:.0f} us, on average on each {solve / ranks:.1f} us |",
        f"| bytes sent, all machines | {traffic.total / 1e3:.0f} kB ({shares}) |",
        f"| network, on each machine | {1e6 * network:.1f} us |",
        f"| queries per second, exact search | {1 / (search + network):.0f} |",
    ]


def _measured(by_case: dict[str, harness.Record]) -> Iterator[tuple[str, Case, harness.Record]]:
    for ranks in SIZES:
        every = [Case(ranks, count) for count in COUNTS]
        every += [Case(ranks, 50_000, features=256), Case(ranks, 50_000, learned=True)]
        for start in ("", "hosts, "):
            for case in every:
                record = by_case.get(start + name_of(case), {"skipped": ""})
                if "skipped" not in record:
                    yield start + name_of(case), case, record


def _record(printed: str) -> harness.Record:
    found: harness.Record = json.loads(printed.splitlines()[-1])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--case", type=json.loads, help="what one rank does, printed, nothing written")
    arguments = parser.parse_args()
    if arguments.case:
        found = one_rank(Case(*arguments.case))
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(found))
        return
    records = harness.record(arguments.out / "sharded.jsonl", cases())
    text = summarize(records)
    (arguments.out / "sharded.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

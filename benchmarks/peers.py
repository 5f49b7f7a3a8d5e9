"""How fast is the library beside its peers, and how far from what the machine can do?

    pip install -c constraints.txt -r benchmarks/requirements.txt
    python -m benchmarks.peers --out benchmarks/results        # or: make bench
    python -m benchmarks.peers --quick --out runs/bench        # a minute; the numbers mean nothing

The local solve on given neighborhoods, forward and with gradients; from centers to predictions, search included, with the
error beside the time; time by stage; the fraction of this machine's rate of matrix products; threads; peak memory; one
query; shared neighborhoods. float32, C = 10, one machine, one run, best of five, methods taken in turns. A peer that is not
installed is named in the record and in the tables. An interrupted run goes on where it was.
Writes `peers.jsonl`, `peers.md` and `peers.png`.
"""

from __future__ import annotations

import argparse
import pathlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

from benchmarks import harness, measures, peers_figure, peers_report, pipelines, solve_measures

ALL = tuple(pipelines.PIPELINES)
# scipy and MuyGPyS stop at 1e8 pairs of query and center, scikit-learn at 1e9: beyond they take minutes for one run.
FAST = (pipelines.OURS, pipelines.OURS_GAUSSIAN, pipelines.OURS_AUTO, pipelines.KNN, pipelines.FLAT)
LARGEST = (pipelines.OURS_AUTO, pipelines.FLAT)


class EndToEnd(NamedTuple):
    """One problem and who takes part in it."""

    queries: int
    centers: int
    features: int
    names: tuple[str, ...] = ALL
    repeats: int = 5


class Sizes(NamedTuple):
    """How much is measured."""

    neighbors: tuple[int, ...] = (10, 30, 100, 200)
    features: tuple[int, ...] = (8, 32, 128, 512)
    middle: int = 100  # neighbors, where only the features vary
    centers: int = 20_000
    queries: int = 4000
    large: tuple[int, int] = (1_000_000, 100_000)  # centers and queries of one large solve
    ends: tuple[EndToEnd, ...] = (
        EndToEnd(10_000, 10_000, 32),
        EndToEnd(10_000, 10_000, 8),
        EndToEnd(2000, 10_000, 128),
        EndToEnd(10_000, 100_000, 32, FAST, 3),
        EndToEnd(10_000, 1_000_000, 32, LARGEST, 1),
        EndToEnd(100_000, 100_000, 32, LARGEST, 1),
    )
    memory: tuple[int, int, int] = (10_000, 10_000, 32)
    grid: tuple[int, int] = (50, 200)
    square: int = 2048  # of the matrix product
    calls: int = 300  # of one query
    repeats: int = 5


QUICK = Sizes(
    neighbors=(10, 30),
    features=(8, 32),
    middle=30,
    centers=500,
    queries=100,
    large=(2000, 200),
    ends=(EndToEnd(100, 500, 32, ALL, 1), EndToEnd(100, 2000, 32, FAST, 1)),
    memory=(200, 500, 32),
    grid=(10, 30),
    square=256,
    calls=20,
    repeats=1,
)


def cases(sizes: Sizes) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    yield "peers", measures.peers
    middle, repeats = sizes.middle, sizes.repeats
    for num_neighbors in sizes.neighbors:
        for features in sizes.features:
            run = partial(
                solve_measures.local_solve, num_neighbors, features, sizes.centers, sizes.queries, sizes.square, repeats
            )
            yield f"local solve, M={num_neighbors}, D={features}, N={sizes.centers}", run
    centers, queries = sizes.large
    run = partial(solve_measures.large_solve, middle, 32, centers, queries, min(2, repeats))
    yield f"large solve, M={middle}, D=32, N={centers}, Q={queries}", run
    for end in sizes.ends:
        name = f"end to end, Q={end.queries}, N={end.centers}, D={end.features}, M={middle}"
        run = partial(measures.end_to_end, end.queries, end.centers, end.features, middle, end.names, end.repeats)
        yield name, run
    for num_neighbors, features in dict.fromkeys(
        [(m, 32) for m in sizes.neighbors] + [(middle, features) for features in sizes.features]
    ):
        name = f"stages, M={num_neighbors}, D={features}, N={sizes.centers}"
        yield name, partial(solve_measures.stages, sizes.queries, sizes.centers, num_neighbors, features, repeats)
    for features in (sizes.features[0], sizes.features[-1]):
        run = partial(solve_measures.thread_scaling, middle, features, sizes.centers, min(1000, sizes.queries), repeats)
        yield f"threads, M={middle}, D={features}", run
    for name in ALL:
        queries, centers, features = sizes.memory
        run = partial(measures.memory, name, queries, centers, features, middle)
        yield f"memory of {name}, Q={queries}, N={centers}, D={features}", run
    yield "one query, N=1000, D=32", partial(measures.one_query, 1000, 32, middle, sizes.calls)
    yield "grid", partial(measures.grid, *sizes.grid, middle, repeats)
    yield "stream", partial(measures.stream, sizes.centers // 2, 32, middle, sizes.calls // 10, 10, repeats)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that everything runs")
    parser.add_argument("--neighbors", help="numbers of neighbors, comma-separated; the default is 10,30,100,200")
    given = parser.parse_args(arguments)
    sizes, stem = (QUICK, "peers-quick") if given.quick else (Sizes(), "peers")
    if given.neighbors:
        sizes = sizes._replace(neighbors=tuple(int(number) for number in given.neighbors.split(",")))
    records = harness.record(given.out / f"{stem}.jsonl", cases(sizes))
    peers_figure.draw(records, given.out / f"{stem}.png", sizes.middle)
    text = peers_report.summarize(records, peers_report.million(given.out / "search.jsonl"), sizes.middle)
    (given.out / f"{stem}.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

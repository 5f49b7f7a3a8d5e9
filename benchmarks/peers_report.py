"""The tables of `benchmarks.peers`: what was measured, and which targets were met."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Iterator

from benchmarks import methods, pipelines
from benchmarks.harness import Record
from benchmarks.optional import ADVICE

MOST_MICROSECONDS = {8: 27, 32: 28.5, 512: 100.5}  # per query and number of features, two cores, M = 100


def summarize(records: list[Record], search: list[Record], middle: int) -> str:
    """Markdown; `search` are the records of `benchmarks.search` on a million centers, if there are any."""
    machine, peers = records[0], records[1]
    versions = ", ".join(f"{name} {version}" for name, version in peers["versions"].items())
    blocks = [
        ["# Against peers"],
        [
            "Made by `python -m benchmarks.peers`; records in `peers.jsonl`, figure in `peers.png`.",
            f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads, torch {machine['torch']}, "
            f"commit {machine['commit']}. Solver: {peers['backend']}.",
            f"Peers: {versions}.",
            "float32 unless it says otherwise, C = 10, one run, best of five, methods taken in turns.",
        ],
        *targets(records, search, middle),
        *local_solves(records, "forward_us", "forward"),
        *local_solves(records, "forward_backward_us", "forward + backward"),
        *accuracy(records, middle),
        *large(records),
        *ends(records),
        *fractions(records),
        *stages(records),
        *threads(records),
        *memory(records),
        *latency(records),
        *shared(records),
    ]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def starting(records: list[Record], word: str) -> list[Record]:
    return [record for record in records if record["case"].startswith(word)]


def local_solves(records: list[Record], key: str, title: str) -> Iterator[list[str]]:
    yield [f"## Local solve, {title}"]
    yield [
        "Microseconds per query on given neighborhoods, and in brackets how many times torchkrr is faster. Of several chunk "
        "sizes the fastest counts. GPyTorch has one target per batch element, so ten outputs are ten processes; one output "
        "is shown too. MuyGPyS numpy has no gradients. Slow methods are timed on fewer queries (`queries` in the records)."
    ]
    found = starting(records, "local solve")
    names = [name for name in methods.NAMES if key == "forward_us" or name != methods.MUYGPS_NUMPY]
    rows = []
    for record in found:
        best, ours = methods.fastest(record[key]), record[key][methods.OURS]
        cells = [f"{best[name]:.0f} ({best[name] / ours:.1f})" if name in best else ADVICE for name in names[1:]]
        rows.append([str(record["neighbors"]), str(record["features"]), f"{ours:.1f}", *cells])
    yield table(["M", "D", *names], rows)


def accuracy(records: list[Record], middle: int) -> Iterator[list[str]]:
    yield [f"## Error of the local solve in float32, M = {middle}"]
    yield ["RMS difference to the same formula in float64; for the gradient in the query, relative to its RMS."]
    rows = []
    for record in starting(records, "local solve"):
        if record["neighbors"] == middle:
            values, slopes = methods.worst(record["rmse_against_float64"]), methods.worst(record["gradient_error"])
            cells = [
                f"{values[name]:.0e}" + (f", {slopes[name]:.0e}" if name in slopes else "") if name in values else ADVICE
                for name in methods.NAMES
            ]
            rows.append([str(record["features"]), *cells])
    yield table(["D", *methods.NAMES], rows)


def large(records: list[Record]) -> Iterator[list[str]]:
    for record in starting(records, "large solve"):
        best = methods.fastest(record["forward_us"])
        yield [f"## One {record['case']}"]
        yield table(["method", "us per query"], [[name, f"{value:.1f}"] for name, value in best.items()])


def ends(records: list[Record]) -> Iterator[list[str]]:
    yield ["## From centers to predictions, search included"]
    yield [
        "Building the index and predicting all queries. RMSE is against the function without noise. The difference is to "
        "the same kernel and ridge in float64. The ratio is to torchkrr with the same kernel. scipy and MuyGPyS stop at 1e8 "
        "pairs of query and center, scikit-learn at 1e9. *MuyGPyS torch* is float32 in chunks of 16 MB, which were "
        "fastest; *default* is float64, as it comes, in chunks of 1 GB (it does not chunk by itself: 26 GB at once)."
    ]
    for record in starting(records, "end to end"):
        rows = []
        for name, seconds in record["seconds"].items():
            ours = record["seconds"].get(partner(name, record))
            ratio = f"{seconds / ours:.1f}" if ours is not None else ""
            error, difference = record["rmse"].get(name), record["difference_to_float64"].get(name)
            rows.append([name, f"{seconds:.3f}", ratio, number(error, ".4f"), number(difference, ".0e")])
        rows += [[name, text, "", "", ""] for name, text in record["missing"].items()]
        yield [f"**{record['case'].removeprefix('end to end, ')}**, best of {record['repeats']}"]
        yield table(["method", "seconds", "times torchkrr", "RMSE", "difference to float64"], rows)


def partner(name: str, record: Record) -> str:
    """The pipeline of ours that a peer is compared with."""
    if pipelines.FORMULAS.get(name) == "Gaussian":
        return pipelines.OURS_GAUSSIAN
    return pipelines.OURS if pipelines.OURS in record["seconds"] else pipelines.OURS_AUTO


def number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def fractions(records: list[Record]) -> Iterator[list[str]]:
    found = starting(records, "local solve")
    rates = [record["sgemm_gigaflops"] for record in found]
    yield ["## Fraction of the machine"]
    yield [
        f"(M^2 D + M^3 / 3) operations per query over the rate of a large square product in float32, measured in turns with "
        f"the solve ({min(rates):.0f} to {max(rates):.0f} GFLOP/s)."
    ]
    rows = []
    for record in found:
        parts = record["sgemm_fraction"]
        names = (methods.OURS, methods.TORCH_PATH, methods.PLAIN)
        rows.append([str(record["neighbors"]), str(record["features"]), *(f"{100 * parts[name]:.0f} %" for name in names)])
    yield table(["M", "D", methods.OURS, methods.TORCH_PATH, methods.PLAIN], rows)


def stages(records: list[Record]) -> Iterator[list[str]]:
    found = starting(records, "stages")
    yield ["## Time by stage"]
    yield [
        f"Microseconds per query of `LocalKernelRidge`, Q = {found[0]['queries']}, N = {found[0]['centers']}; *solve* is "
        "gather, Gram, factor and predict in one, *layer* a whole call; embedding and building happen once."
    ]
    names = ("embed", "build", "search", "solve", "layer", "backward")
    rows = [[str(r["neighbors"]), str(r["features"]), *(f"{r['microseconds'][n]:.1f}" for n in names)] for r in found]
    yield table(["M", "D", *names], rows)


def threads(records: list[Record]) -> Iterator[list[str]]:
    yield ["## Threads"]
    yield ["Microseconds per query, and in brackets the gain over one thread."]
    for record in starting(records, "threads"):
        rows = []
        for key, title in (("forward_us", "forward"), ("forward_backward_us", "forward + backward")):
            for name, times in record[key].items():
                rows.append([f"{name}, {title}", *(f"{value:.1f} ({times[0] / value:.2f})" for value in times)])
        yield [f"**{record['case'].removeprefix('threads, ')}**"]
        yield table(["method", *(f"{count} threads" if count > 1 else "1 thread" for count in record["threads"])], rows)


def memory(records: list[Record]) -> Iterator[list[str]]:
    found = starting(records, "memory")
    yield [f"## Peak extra memory, {found[0]['case'].split(', Q=')[1].join(('Q=', ''))}"]
    rows = []
    for record in found:
        name = record["case"].removeprefix("memory of ").rpartition(", Q=")[0]
        rows.append([name, f"{record['megabytes']:.0f} MB" if "megabytes" in record else ADVICE])
    yield table(["method", "beyond the data"], rows)


def latency(records: list[Record]) -> Iterator[list[str]]:
    record = starting(records, "one query")[0]
    yield [f"## {record['case'].replace('one', 'One')}"]
    yield ["Milliseconds for a call, after warm-up, everything built before."]
    rows = [[name, f"{best:.3f}", f"{record['median_ms'][name]:.3f}"] for name, best in record["best_ms"].items()]
    yield table(["method", "best", "median"], rows + [[name, text, ""] for name, text in record["missing"].items()])


def shared(records: list[Record]) -> Iterator[list[str]]:
    grid, stream = starting(records, "grid")[0], starting(records, "stream")[0]
    yield ["## Shared neighborhoods"]
    times, single = grid["microseconds"], stream["milliseconds"]
    yield table(
        ["task", "shared or kept", "not", "ratio"],
        [
            [
                f"{grid['queries']} queries on a fine grid, {grid['neighborhoods']} neighborhoods",
                f"{times['shared']:.1f} us per query",
                f"{times['not shared']:.1f} us",
                f"{times['not shared'] / times['shared']:.1f}",
            ],
            [
                "stream of single queries at places seen before, `keep_factors`",
                f"{single['kept']:.3f} ms per query",
                f"{single['not kept']:.3f} ms",
                f"{single['not kept'] / single['kept']:.1f}",
            ],
        ],
    )


def targets(records: list[Record], search: list[Record], middle: int) -> Iterator[list[str]]:
    yield ["## Targets"]
    what = f"M = {middle}. Lines without an answer need a peer that is not installed, or `python -m benchmarks.search`."
    yield [what if middle == 100 else f"{what} **A quick run: targets are at M = 100; these numbers mean nothing.**"]
    rows = [*_solve_lines(records, middle), *_end_lines(records), *_other_lines(records, search)]
    yield table(
        ["target", "measured", "met"],
        [[target, found, {True: "yes", False: "no", None: ""}[met]] for target, found, met in rows],
    )


Line = tuple[str, str, bool | None]


def _solve_lines(records: list[Record], middle: int) -> Iterator[Line]:
    for record in starting(records, "local solve"):
        features = record["features"]
        if record["neighbors"] != middle or features not in (8, 32, 512):
            continue
        forward, both = methods.fastest(record["forward_us"]), methods.fastest(record["forward_backward_us"])
        gain, least = forward[methods.PLAIN] / forward[methods.OURS], 3 if features == 512 else 4
        yield f"forward, D = {features}: at least {least}x plain torch", f"{gain:.1f}x", gain >= least
        gain = both[methods.PLAIN] / both[methods.OURS]
        yield f"forward + backward, D = {features}: at least 4x plain torch, goal 5x", f"{gain:.1f}x", gain >= 4
        limit = MOST_MICROSECONDS[features]
        us = forward[methods.OURS]
        yield f"forward, D = {features}: at most {limit:.0f} us", f"{us:.1f} us", us <= limit
        if features == 512:
            part = record["sgemm_fraction"][methods.OURS]
            yield "D = 512: 25 % of the machine's sgemm rate", f"{100 * part:.0f} %", part >= 0.25


def _end_lines(records: list[Record]) -> Iterator[Line]:
    record = starting(records, "end to end")[0]
    for name, least in ((pipelines.SCIPY, 10), (pipelines.MUYGPS, 30), (pipelines.MUYGPS_DEFAULT, 30)):
        target = f"{record['case'].rpartition(',')[0]}: at least {least}x {name}, error not larger"
        if name not in record["seconds"]:
            yield target, record["missing"].get(name, ""), None
            continue
        ours = partner(name, record)
        gain = record["seconds"][name] / record["seconds"][ours]
        error, theirs = record["rmse"][ours], record["rmse"][name]
        # Equal means equal in the four digits of the table: the formula is the same.
        yield target, f"{gain:.1f}x, RMSE {error:.4f} against {theirs:.4f}", gain >= least and error <= theirs + 5e-5


def _other_lines(records: list[Record], search: list[Record]) -> Iterator[Line]:
    for name, best in starting(records, "one query")[0]["best_ms"].items():
        if name.startswith("torchkrr"):
            yield f"one query against N = 1000, {name}: within 1 ms", f"{best:.2f} ms", best <= 1
    by_case = {record["case"]: record for record in search}
    for kind in ("clustered", "gaussian"):
        target = f"N = 1,000,000, D = 32, {kind}: built and 10,000 queries within 60 s and 2 GB, RMSE within 1 % of exact"
        if f"million, {kind}, auto" not in by_case or f"million, {kind}, exact" not in by_case:
            yield target, "", None
            continue
        found, exact = by_case[f"million, {kind}, auto"], by_case[f"million, {kind}, exact"]
        seconds, worse = found["build and predict"], found["rmse"] / exact["rmse"] - 1
        text = f"{seconds:.0f} s, {found['megabytes']:.0f} MB, recall {found['recall']:.3f}, RMSE {100 * worse:+.2f} %"
        yield target, text, seconds <= 60 and found["megabytes"] <= 2000 and worse <= 0.01


def million(path: pathlib.Path) -> list[Record]:
    """What `benchmarks.search` found on a million centers, or nothing."""
    if not path.exists():
        return []
    found: list[Record] = [json.loads(line) for line in path.read_text().splitlines()]
    return starting(found, "million")

"""The tables of `benchmarks.search`."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.harness import Record
from benchmarks.peers_report import starting, table

LARGER = (10_000_000, 100_000_000)
WAYS = {"exact": "exact, in memory", "lists": "inverted lists", "graph": "graph", "mapped": "exact, from a file"}


def summarize(records: list[Record]) -> str:
    machine = records[0]
    blocks = [
        ["# Search benchmark"],
        [
            "Made by `python -m benchmarks.search --features FILE`; records in `search.jsonl`.",
            f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, float32, M = 100.",
        ],
        *compared(starting(records, "compared, ")),
        *stages(starting(records, "stages, ")),
        *alone(starting(records, "one query, ")),
        *exact(starting(records, "exact, ")),
        *approximate([record for record in records if record["case"].startswith(("IVF", "HNSW"))]),
        *million(starting(records, "million, ")),
        *spectrum(starting(records, "spectrum, ")),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def name(record: Record) -> str:
    """Of the case, without the word that says what it is a case of."""
    return str(record["case"].split(", ", 1)[1])


def there(records: list[Record]) -> list[Record]:
    return [record for record in records if "missing" not in record]


def missing(records: list[Record]) -> list[str]:
    return [f"Missing: {name(record)} ({record['missing']})." for record in records if "missing" in record]


def compared(records: list[Record]) -> Iterator[list[str]]:
    yield ["## Exact search, 1000 queries among 50,000 points"]
    yield [
        "Real features are of CIFAR-10, queries those of test images; at 512 features by a random projection. Seconds; the "
        "index is built (*build*) and searched once (*first*), which makes its copy in 8 bits. Recall against float64."
    ]
    found = there(records)
    methods = list(dict.fromkeys(method for record in found for method in record["seconds"]))
    rows = []
    for record in found:
        times = [record["build"], record["first"], *(record["seconds"][method] for method in methods)]
        recall = "; ".join(f"{method} {share:.5f}" for method, share in record["recall"].items())
        rows.append([name(record), *(f"{time:.3f}" for time in times), recall, f"{record['ratio']:.2f}"])
    yield table(["points", "build", "first", *methods, "recall", "best other / torchkrr"], rows)
    yield missing(records)


def stages(records: list[Record]) -> Iterator[list[str]]:
    yield ["## One query of a layer, stage by stage"]
    yield ["Milliseconds, the best of 50, in turns."]
    found = there(records)
    methods = list(found[0]["milliseconds"]) if found else []
    rows = []
    for record in found:
        times = [f"{record['milliseconds'][method]:.3f}" for method in methods]
        rows.append([name(record), *times, f"{record['of a product']:.2f}"])
    yield table(["centers", *methods, "call / product"], rows)
    yield missing(records)


def alone(records: list[Record]) -> Iterator[list[str]]:
    for record in records:
        rows = [[method, f"{value:.2f}"] for method, value in record["milliseconds"].items()]
        yield table(["one query against N = 1000, D = 32", "milliseconds"], rows)


def exact(records: list[Record]) -> Iterator[list[str]]:
    yield ["## By size"]
    rows = []
    for record in records:
        times = [f"{record['build']:.2f}", f"{record['search']:.2f}", f"{record['nanoseconds_per_pair']:.1f}"]
        rows.append([name(record), *times])
    yield table(["exact search", "build, s", "search, s", "ns per query and point"], rows)


def approximate(records: list[Record]) -> Iterator[list[str]]:
    rows = []
    for record in records:
        efforts = "; ".join(f"{e['effort']}: {e['microseconds']:.0f}, {e['recall']:.3f}" for e in record["efforts"])
        rows.append([record["case"], f"{record['build']:.1f}", efforts])
    yield table(["faiss, 1000 queries", "build, s", "effort: microseconds per query, recall"], rows)


def million(records: list[Record]) -> Iterator[list[str]]:
    by_name = {name(record): record for record in records}
    yield ["## A million centers", "", "D = 32, C = 1, noise 0.1, 10,000 queries, `LocalKernelRidge`:"]
    rows = []
    for case, record in by_name.items():
        ratio = record["rmse"] / by_name[f"{case.split(', ')[0]}, exact"]["rmse"]
        numbers = [f"{record['build']:.1f}", f"{record['predict']:.1f}", f"{record['megabytes']:.0f}"]
        errors = [f"{record['recall']:.3f}", f"{record['rmse']:.4f}", f"{ratio:.4f}"]
        rows.append([case, *numbers, *errors, record["choice"]])
    head = ["points, index", "build, s", "predict, s", "peak memory, MB", "recall", "RMSE", "to exact", 'choice of "auto"']
    yield table(head, rows)


def spectrum(records: list[Record]) -> Iterator[list[str]]:
    found = there(records)
    yield ["## A million points with the spectrum of real features"]
    if found:
        size = f"{found[0]['points']:,} points of {found[0]['features']} features, {found[0]['queries']} queries"
        yield [f"{size}. Memory is what index and searches need beside the points."]
    rows = []
    for record in found:
        for effort in record["efforts"]:
            seconds = effort["seconds"]
            together, one = 1e3 * seconds["together"] / record["queries"], seconds.get("alone", seconds["together"])
            times = [f"{record['build']:.1f}", f"{record['first']:.2f}", f"{together:.3f}", f"{1e3 * one:.2f}"]
            rest = [f"{effort['recall']:.3f}", f"{record['megabytes']:.0f}"]
            rows.append([WAYS[name(record)], str(effort["effort"] or ""), *times, *rest])
    yield table(
        ["index", "effort", "build, s", "first search, s", "ms a query", "ms, one alone", "recall", "memory, MB"], rows
    )
    yield missing(records)
    yield from on_paper(found)


def on_paper(records: list[Record]) -> Iterator[list[str]]:
    yield ["## Ten and a hundred million points, on paper"]
    yield [
        "Time and memory of the table above for each point, at the effort with the best recall, times the number of points. "
        "Of lists and graphs a share has to be visited that grows a little. Points in a file are read as fast as in the "
        "table only while they stay in memory. Memory includes the points, but for those in a file."
    ]
    rows = []
    for record in records:
        best = max(record["efforts"], key=lambda effort: effort["recall"])
        seconds = best["seconds"]["together"] / record["queries"] / record["points"]
        beside = record["megabytes"] * 2**20 / record["points"]
        of_points = 0 if name(record) == "mapped" else 4 * record["features"]
        cells = []
        for count in LARGER:
            gigabytes = (of_points * count + (beside * count if of_points else record["megabytes"] * 2**20)) / 1e9
            cells += [
                f"{1e3 * seconds * count:,.0f} ms, {gigabytes:,.1f} GB, {record['build'] / record['points'] * count:,.0f} s"
            ]
        rows.append([WAYS[name(record)], f"{1e9 * seconds:.2f}", f"{best['recall']:.3f}", *cells])
    sizes = [f"{count // 1_000_000} million: a query of many, memory, build" for count in LARGER]
    yield table(["index", "ns for each query and point", "recall", *sizes], rows)

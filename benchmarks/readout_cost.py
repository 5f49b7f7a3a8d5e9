"""What does it cost to read SK off cached features of 50,000 images, and to predict 10,000 others?

    python -m benchmarks.readout_cost --train FEATURES.f32 --test FEATURES.f32 --out benchmarks/results

FEATURES.f32 are files that `torchkrr transfer` leaves in its cache, rows of 1280 float32 numbers; without them, features of
that shape are made up (rectified sums of 60 random directions). Memory-mapped, as the command reads them. Each readout runs
in a process of its own: seconds to fit and to predict, and the peak memory of that process with all that Python and torch
take. Labels are random: the cost of SK and of kNN does not depend on them. (That of *SK, selected* does, as it chooses the
number of neighbors by them: `torchkrr transfer` measures it.) Writes `readout_cost.jsonl` and `readout_cost.md`.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile
import time
from functools import partial

import numpy as np
import torch
from torch import Tensor

from benchmarks import harness
from torchkrr.vision.readouts import Training, readout_named

TRAIN, TEST, FEATURES, CLASSES = 50_000, 10_000, 1280, 10
READOUTS = ("sk", "knn")
MOST_SECONDS, MOST_MEGABYTES = 25, 1500


def mapped(path: pathlib.Path, count: int) -> Tensor:
    return torch.from_numpy(np.memmap(path, dtype=np.float32, mode="c", shape=(count, FEATURES)))


def make_up(path: pathlib.Path, count: int, seed: int) -> None:
    """Written in blocks, so that this process never holds them all."""
    directions = torch.randn(60, FEATURES, generator=torch.Generator().manual_seed(0)) / 8
    generator = torch.Generator().manual_seed(seed)
    with path.open("wb") as file:
        for _ in range(count // 1000):
            rows = (torch.randn(1000, 60, generator=generator) @ directions).relu_()
            file.write((rows + 0.1 * torch.rand(1000, FEATURES, generator=generator)).numpy().tobytes())


def measure(readout: str, train: pathlib.Path, test: pathlib.Path) -> harness.Record:
    features, query = mapped(train, TRAIN), mapped(test, TEST)
    labels = torch.randint(0, CLASSES, (TRAIN,), generator=torch.Generator().manual_seed(0))
    before, start = harness.peak_megabytes(), time.perf_counter()
    fitted = readout_named(readout).readout.fit(Training(features, labels, CLASSES, 0))
    middle = time.perf_counter()
    fitted.scores(query)
    return {
        "readout": readout_named(readout).title,
        "fit": middle - start,
        "predict": time.perf_counter() - middle,
        "megabytes": harness.peak_megabytes(),
        "megabytes_before": before,
    }


def in_process(readout: str, train: pathlib.Path, test: pathlib.Path) -> harness.Record:
    command = [sys.executable, "-m", "benchmarks.readout_cost", "--one", readout, "--train", str(train), "--test", str(test)]
    runs = [json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout) for _ in range(2)]
    best: harness.Record = min(runs, key=lambda run: run["fit"] + run["predict"])
    return best


def report(records: list[harness.Record], source: str) -> str:
    machine, *found = records
    lines = [
        "# What a kernel readout costs",
        "",
        "Made by `python -m benchmarks.readout_cost`; records in `readout_cost.jsonl`.",
        f"{machine['processor']}, {machine['threads']} threads, torch {machine['torch']}, commit {machine['commit']}.",
        f"{TRAIN:,} training rows and {TEST:,} queries of {FEATURES} features, {source}; the better of two runs.",
        f"Targets of SK: {MOST_SECONDS} s in all, below {MOST_MEGABYTES} MB.",
        "",
        "| readout | fit | predict | in all | peak memory of the process | of it, before the readout |",
        "|---|---|---|---|---|---|",
    ]
    for run in found:
        cells = (f"{run['fit']:.1f} s", f"{run['predict']:.1f} s", f"{run['fit'] + run['predict']:.1f} s")
        memory = (f"{run['megabytes']:.0f} MB", f"{run['megabytes_before']:.0f} MB")
        lines.append(f"| {' | '.join((run['readout'], *cells, *memory))} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"), help="where the records go")
    parser.add_argument("--train", type=pathlib.Path, help="features of the training images")
    parser.add_argument("--test", type=pathlib.Path, help="features of the images to predict")
    parser.add_argument("--one", choices=READOUTS, help="this readout here, printed as JSON")
    chosen = parser.parse_args()
    if chosen.one is not None:
        print(json.dumps(measure(chosen.one, chosen.train, chosen.test)))
        return
    with tempfile.TemporaryDirectory() as folder:
        train, test = chosen.train, chosen.test
        made_up = train is None or test is None
        if made_up:
            train, test = pathlib.Path(folder, "train.f32"), pathlib.Path(folder, "test.f32")
            make_up(train, TRAIN, 1)
            make_up(test, TEST, 2)
        kind = "made up" if made_up else "of images"
        cases = [(f"{name}, features {kind}", partial(in_process, name, train, test)) for name in READOUTS]
        records = harness.record(chosen.out / "readout_cost.jsonl", cases)
    text = report(records, kind)
    (chosen.out / "readout_cost.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()

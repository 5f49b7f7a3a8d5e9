"""What does a training step under a kernel readout cost beside one under a linear head?

    python -m benchmarks.learn_step

VGG-16 of torchvision with random weights, cut after each of its five blocks, batch 64: forward, loss, backward, AdamW. Both
heads step on networks of the same weights, by turns, in one run; best of all. The kernel readout is the default of `python
-m paper.learning`, leave-one-out in the batch; the other objectives are beside it. Writes `learn_step.jsonl` and
`learn_step.md`.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Sequence

import torch
from paper.learning.config import OBJECTIVES, Config
from paper.learning.heads import CentersHead, KernelHead, LinearHead, make_optimizer
from paper.learning.networks import cut_network
from torch import nn

from benchmarks import harness

CLASSES = 10
LIMIT = 1.5  # times the linear head's step


def step_of(config: Config, images: torch.Tensor, labels: torch.Tensor) -> tuple[Callable[[], object], int]:
    """A training step as `python -m paper.learning` takes it, and the number of features."""
    cut = cut_network(config)
    cut.backbone.train()
    head: nn.Module
    if config.head == "linear":
        head = LinearHead(cut.num_features, CLASSES)
    elif config.objective == "centers":
        with torch.no_grad():
            rows = torch.arange(config.num_centers) % len(images)
            features = cut.backbone(images)[rows]
            head = CentersHead(config, CLASSES, features + 1e-3 * torch.randn_like(features), labels[rows])
    else:
        head = KernelHead(config, CLASSES)
    optimizer = make_optimizer(config, cut.backbone, head)

    def step() -> None:
        loss = head.loss(cut.backbone(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, cut.num_features


def measure(network: str, size: int, batch: int, discard: int, repeats: int) -> harness.Record:
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, size, size, generator=generator).contiguous(memory_format=torch.channels_last)
    labels = torch.arange(batch) % CLASSES
    base = Config(network=network, size=size, discard=discard, batch_size=batch)
    steps: dict[str, Callable[[], object]] = {}
    for name in ("linear", *OBJECTIVES):
        kind = {"head": "linear"} if name == "linear" else {"head": "kernel", "objective": name}
        steps[name], num_features = step_of(dataclasses.replace(base, **kind), images, labels)  # type: ignore[arg-type]
    began = time.perf_counter()
    best = harness.interleaved(steps, repeats)
    found: harness.Record = {"network": network, "size": size, "batch": batch, "discard": discard, "features": num_features}
    found |= {f"{name}_ms": 1e3 * seconds for name, seconds in best.items()}
    found |= {f"{name}_ratio": best[name] / best["linear"] for name in OBJECTIVES}
    return found | {"repeats": repeats, "seconds": time.perf_counter() - began}


def table(records: Sequence[harness.Record]) -> str:
    about, cases = records[0], [record for record in records if "loo_ratio" in record]
    lines = [
        "# A training step under a kernel readout, beside one under a linear head",
        "",
        "Made by `python -m benchmarks.learn_step`. Forward, loss, backward and AdamW of the whole cut network; the heads "
        f"take turns, best of {cases[0]['repeats']}. In brackets: times the linear head's step. The limit for leave-one-out "
        f"is {LIMIT}.",
        "",
        "| network | px | discarded | features | linear ms | leave-one-out ms | split ms | centers ms |",
        "|---" * 8 + "|",
    ]
    for case in cases:
        others = " | ".join(f"{case[f'{name}_ms']:.0f} ({case[f'{name}_ratio']:.2f})" for name in OBJECTIVES)
        about_case = f"{case['network']} | {case['size']} | {case['discard']} | {case['features']}"
        lines.append(f"| {about_case} | {case['linear_ms']:.0f} | {others} |")
    machine = f"{about['processor']}, {about['cores']} cores, {about['threads']} threads, torch {about['torch']}"
    return "\n".join([*lines, "", f"Commit {about['commit']}, {machine}."]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    parser.add_argument("--network", default="vgg16")
    parser.add_argument("--sizes", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--discard", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--repeats", type=int, default=5)
    chosen = parser.parse_args()
    cases = [
        (
            f"{chosen.network} {size} px discard {discard}, batch {chosen.batch}, best of {chosen.repeats}",
            functools.partial(measure, chosen.network, size, chosen.batch, discard, chosen.repeats),
        )
        for size in chosen.sizes
        for discard in (chosen.discard if size == min(chosen.sizes) else chosen.discard[:1])
    ]
    found = harness.record(chosen.out / "learn_step.jsonl", cases)
    (chosen.out / "learn_step.md").write_text(table(found))


if __name__ == "__main__":
    main()

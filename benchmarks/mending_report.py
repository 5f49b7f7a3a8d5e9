"""Table and figure of `benchmarks.mending`: what corrections reach, against predictions changed elsewhere."""

from __future__ import annotations

import pathlib
import statistics

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.harness import Record

COLUMNS = {
    "success": "corrected pictures right",
    "moved": "moved by two pixels",
    "flipped": "flipped",
    "others_changed": "other predictions changed",
    "elsewhere": "accuracy on the others",
}
HUNDREDTHS = ("others_changed", "elsewhere")
LOOKS = {
    "kernel, margin 1": ("#f0a98f", "o", "-"),
    "kernel, margin 10": ("#dd6b4d", "o", "-"),
    "kernel, margin 100": ("#a8200d", "o", "-"),
    "kernel, margin 100, pinned": ("#a8200d", "o", ":"),
    "codebook": ("#0b6e99", "D", "-"),
    "last layer trained, with training pictures": ("#4a7c37", "^", "-"),
    "last layer trained": ("#8a8a8a", "v", "-"),
}
PANELS = {
    "Moved by two pixels": ("others_changed", "moved"),
    "Flipped": ("others_changed", "flipped"),
    "Moved by two pixels, and the accuracy on the others": ("elsewhere", "moved"),
}
LABELS = {
    "others_changed": "other test predictions changed, %",
    "elsewhere": "accuracy on the test pictures not corrected, %",
    "moved": "copies of corrected pictures right, %",
    "flipped": "copies of corrected pictures right, %",
}
LINEAR_BELOW = 0.01  # percent: one of 9,700 predictions
WORST = 92.0  # percent: what loses more than some points does not count


def report(command: str, records: list[Record]) -> str:
    machine = ", ".join(f"{key} {records[0][key]}" for key in ("commit", "torch", "processor", "threads"))
    undoing = [record for record in records if "scores_that_differ" in record]
    scores = sum(record["scores"] for record in undoing)
    differ = {name: sum(record["scores_that_differ"][name] for record in undoing) for name in ("corrected", "undone")}
    lines = [
        "# Mending a network in use",
        "",
        f"`{command}` ({machine}). ResNet-20 on the test pictures of CIFAR-10; 300 of its mistakes are corrected.",
        "In percent: mean and standard deviation over five draws of the mistakes. The others are all test pictures that are",
        "not corrected. The setting is a lengthscale (of the Gaussian kernel, where none is named), a radius, or how long",
        "the layer is trained, in units of the steps at which its loss on a held-out fifth is least. Pinned, and with",
        "training pictures: 10,000 of them are given too (3,000 to the estimator).",
        "",
        f"All corrections undone, {differ['undone']:,} of {scores:,} scores of the network differ from those before;",
        f"with the corrections {differ['corrected']:,} do.",
        "",
        f"| method | setting | {' | '.join(COLUMNS.values())} |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    for (method, setting), own in grouped(records).items():
        cells = [shown([record[name] for record in own], 2 if name in HUNDREDTHS else 1) for name in COLUMNS]
        lines.append(f"| {method} | {f'{setting:g}' if setting else ''} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def grouped(records: list[Record]) -> dict[tuple[str, float], list[Record]]:
    """The records of all seeds by method and setting, in the order in which they were measured."""
    groups: dict[tuple[str, float], list[Record]] = {}
    for record in records:
        if "method" in record:
            groups.setdefault((record["method"], record["setting"]), []).append(record)
    return groups


def spread(values: list[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0


def shown(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {spread(values):.{digits}f}"


def draw(records: list[Record], path: pathlib.Path) -> None:
    groups = grouped(records)
    before = next(own for (method, _), own in groups.items() if method == "no correction")
    figure, axes = plt.subplots(1, 3, figsize=(15, 5.4), layout="constrained")
    for panel, (title, (across, up)) in zip(axes, PANELS.items(), strict=True):
        for name in LOOKS:
            curve(panel, [own for (method, _), own in groups.items() if method == name], name, (across, up))
        level = statistics.mean(record[up] for record in before)
        panel.axhline(level, color="#222222", linewidth=1, linestyle=":", label="no correction")
        panel.set_title(title, loc="left", fontsize=11)
        panel.set(xlabel=LABELS[across], ylabel=LABELS[up], ylim=(0, 102))
        panel.grid(alpha=0.2)
        panel.spines[["top", "right"]].set_visible(False)
        if across == "elsewhere":
            panel.set_xlim(statistics.mean(record[across] for record in before) + 0.2, WORST)  # the best is on the left
            continue
        panel.set_xscale("symlog", linthresh=LINEAR_BELOW, linscale=0.4)
        panel.set_xlim(-0.1 * LINEAR_BELOW, 100)
        panel.set_xticks([0, 0.01, 0.1, 1, 10, 100])
        panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, fontsize=9.5)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def curve(panel: Axes, groups: list[list[Record]], method: str, columns: tuple[str, str]) -> None:
    """A point for each setting, with one standard deviation over the seeds in both directions."""
    across, up = ([[record[name] for record in own] for own in groups] for name in columns)
    color, marker, line = LOOKS[method]
    panel.errorbar(
        [statistics.mean(values) for values in across],
        [statistics.mean(values) for values in up],
        xerr=[spread(values) for values in across],
        yerr=[spread(values) for values in up],
        label=method,
        color=color,
        marker=marker,
        linestyle=line,
        markersize=5,
        linewidth=1.6,
        elinewidth=0.8,
    )

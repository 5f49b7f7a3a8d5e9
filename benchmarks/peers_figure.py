"""The figure of `benchmarks.peers`: time per query against features, and time against error."""

from __future__ import annotations

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from benchmarks import methods, pipelines
from benchmarks.harness import Record

COLORS = {
    methods.OURS: "#c2361f",
    methods.TORCH_PATH: "#e69b7f",
    methods.PLAIN: "#222222",
    methods.GPYTORCH: "#0b6e99",
    methods.GPYTORCH_ONE: "#7db6cf",
    methods.MUYGPS: "#4a7c37",
    methods.MUYGPS_NUMPY: "#a3c585",
}
END_COLORS = {
    pipelines.OURS: "#c2361f",
    pipelines.OURS_GAUSSIAN: "#c2361f",
    pipelines.SCIPY: "#7a4fa3",
    pipelines.MUYGPS: "#4a7c37",
    pipelines.MUYGPS_DEFAULT: "#4a7c37",
    pipelines.MUYGPS_NUMPY: "#a3c585",
    pipelines.KNN: "#b5851c",
}


def draw(records: list[Record], path: pathlib.Path, middle: int) -> None:
    figure, axes = plt.subplots(1, 3, figsize=(16, 4.8), layout="constrained")
    found = [r for r in records if r["case"].startswith("local solve") and r["neighbors"] == middle]
    for panel, key, title in zip(
        axes, ("forward_us", "forward_backward_us"), ("forward", "forward + backward"), strict=False
    ):
        against_features(panel, found, key)
        panel.set_title(f"Local solve, {title}\n{middle} neighbors, 10 outputs")
    axes[0].set_ylabel("microseconds per query")
    against_error(axes[2], next(record for record in records if record["case"].startswith("end to end")))
    for panel in axes:
        panel.grid(alpha=0.2, which="major")
        panel.spines[["top", "right"]].set_visible(False)
    machine = records[0]
    figure.supxlabel(
        f"{machine['processor']}, {machine['threads']} threads, float32, best of five in one run",
        fontsize=9,
        color="#666666",
    )
    figure.savefig(path, dpi=160)
    plt.close(figure)


def against_features(panel: Axes, found: list[Record], key: str) -> None:
    features = [record["features"] for record in found]
    best = [methods.fastest(record[key]) for record in found]
    ends = []
    for name, color in COLORS.items():
        if name not in best[0]:
            continue
        times = [values[name] for values in best]
        ours = name == methods.OURS
        panel.plot(
            features, times, marker="o", markersize=5, color=color, linewidth=2.8 if ours else 1.6, zorder=3 if ours else 2
        )
        ends.append((times[-1], name, color))
    panel.set(xscale="log", yscale="log", xlabel="features D")
    panel.margins(y=0.1)  # room for the names
    panel.set_xticks(features, [str(value) for value in features])
    panel.minorticks_off()
    panel.set_xlim(features[0] / 1.2, features[-1] * (features[-1] / features[0]) ** 0.62)
    low, high = panel.get_ylim()
    height = 0.0
    for value, name, color in sorted(ends):  # labels at the ends of the lines, moved up where they would touch
        height = max(value, height * (high / low) ** 0.055)
        weight = "bold" if name == methods.OURS else "normal"
        panel.text(features[-1] * 1.15, height, name, color=color, va="center", fontsize=9, weight=weight)


def against_error(panel: Axes, record: Record) -> None:
    for name, error in record["rmse"].items():
        if name not in END_COLORS:
            continue
        seconds, ours = record["seconds"][name], name.startswith("torchkrr")
        panel.plot(error, seconds, marker="o", markersize=11 if ours else 8, color=END_COLORS[name])
        offset, across, down = (10, 0), "left", "center"
        if pipelines.FORMULAS.get(name) == "Gaussian":  # the same formula has the same error, so these are in a column
            offset, across = (-10, 0), "right"
        elif ours:
            offset, across, down = (0, -11), "center", "top"
        panel.annotate(
            f"{name}\n{seconds:.2g} s",
            (error, seconds),
            xytext=offset,
            textcoords="offset points",
            ha=across,
            va=down,
            fontsize=9,
            color=END_COLORS[name],
            weight="bold" if ours else "normal",
        )
    panel.set(yscale="log", xlabel="RMSE against the function without noise", ylabel="seconds")
    panel.margins(x=1.0, y=0.22)
    panel.yaxis.set_minor_formatter(NullFormatter())
    sizes = f"{record['queries']:,} queries, {record['centers']:,} centers, {record['features']} features"
    panel.set_title(f"From centers to predictions, search included\n{sizes}")

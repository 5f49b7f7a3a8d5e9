"""A head for handwritten digits, without training.

    python examples/digits.py --out runs/demo

Reads scikit-learn's bundled digits (1797 images of 8 x 8 pixels), puts local kernel ridge regression beside nearest
neighbors and logistic regression at several label budgets, prints a table, and writes `figure.png`, `report.html` and
`records.jsonl`.
"""

from __future__ import annotations

import argparse
import base64
import json
import pathlib
import time
from collections.abc import Callable

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.nn.functional import one_hot

from torchkrr import nn
from torchkrr.kernels import Exponential
from torchkrr.transforms import MeanDistance

BUDGETS = (100, 300, 1000)
SEEDS = 5
NUM_NEIGHBORS = 50
COLORS = {"local kernel ridge": "#0b6e99", "5 nearest neighbors": "#d9730d", "logistic regression": "#6b6b6b"}
CAPTION = (
    f"Accuracy on 600 test images, mean of {SEEDS} splits, and the seconds to fit and predict. On the right of the figure "
    "each framed test image is followed by the training images that weigh most in its prediction: their label and weight."
)
Head = Callable[[Tensor, Tensor, Tensor], Tensor]


def local_kernel_ridge(images: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    scores: Tensor = build_head(images, labels)(queries)
    return scores.argmax(1)


def build_head(images: Tensor, labels: Tensor) -> nn.LocalKernelRidge:
    kernel = Exponential(input_transform=MeanDistance().fit(images))
    return nn.LocalKernelRidge(images, one_hot(labels, 10).to(images.dtype), NUM_NEIGHBORS, kernel=kernel)


def nearest_neighbors(images: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    return torch.from_numpy(KNeighborsClassifier(5).fit(images.numpy(), labels.numpy()).predict(queries.numpy()))


def logistic_regression(images: Tensor, labels: Tensor, queries: Tensor) -> Tensor:
    head = LogisticRegression(max_iter=5000).fit(images.numpy(), labels.numpy())
    return torch.from_numpy(head.predict(queries.numpy()))


HEADS: dict[str, Head] = {
    "local kernel ridge": local_kernel_ridge,
    "5 nearest neighbors": nearest_neighbors,
    "logistic regression": logistic_regression,
}


def load(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    pixels, labels = load_digits(return_X_y=True)
    split = train_test_split(pixels / 16, labels, test_size=600, stratify=labels, random_state=seed)
    images, queries, train_labels, test_labels = split
    return (
        torch.from_numpy(images).float(),
        torch.from_numpy(train_labels),
        torch.from_numpy(queries).float(),
        torch.from_numpy(test_labels),
    )


def run() -> list[dict[str, float | str | int]]:
    records: list[dict[str, float | str | int]] = []
    for seed in range(SEEDS):
        images, labels, queries, truth = load(seed)
        for budget in BUDGETS:
            for name, head in HEADS.items():
                start = time.perf_counter()
                predicted = head(images[:budget], labels[:budget], queries)
                seconds = time.perf_counter() - start
                accuracy = float((predicted == truth).double().mean())
                records.append({"head": name, "budget": budget, "seed": seed, "accuracy": accuracy, "seconds": seconds})
    return records


def table(records: list[dict[str, float | str | int]]) -> list[list[str]]:
    rows = [["head", *(f"{budget} labels" for budget in BUDGETS), f"seconds, {BUDGETS[-1]} labels"]]
    for name in HEADS:
        of_head = [record for record in records if record["head"] == name]
        means = [np.mean([r["accuracy"] for r in of_head if r["budget"] == budget]) for budget in BUDGETS]
        seconds = np.median([r["seconds"] for r in of_head if r["budget"] == BUDGETS[-1]])
        rows.append([name, *(f"{100 * mean:.1f} %" for mean in means), f"{seconds:.3f}"])
    return rows


def draw(records: list[dict[str, float | str | int]]) -> Figure:
    figure = plt.figure(figsize=(10, 4.2), layout="constrained")
    left, right = np.asarray(figure.subfigures(1, 2, width_ratios=(1, 1.1)))
    axes = left.subplots()
    for shift, (name, color) in zip((0.97, 1.0, 1.03), COLORS.items(), strict=True):
        scores = [
            [100 * float(r["accuracy"]) for r in records if r["head"] == name and r["budget"] == budget]
            for budget in BUDGETS
        ]
        means = [np.mean(score) for score in scores]
        spread = [[mean - min(score) for mean, score in zip(means, scores, strict=True)]]
        spread += [[max(score) - mean for mean, score in zip(means, scores, strict=True)]]
        axes.errorbar(
            np.multiply(BUDGETS, shift), means, yerr=spread, label=name, color=color, marker="o", capsize=3, linewidth=1.8
        )
    axes.set(xscale="log", xlabel="labeled images", ylabel="test accuracy (%)")
    axes.set_xticks(BUDGETS, [str(budget) for budget in BUDGETS])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower right")
    axes.set_title(f"Mean, min and max of {SEEDS} splits", fontsize=10)
    draw_explanations(right)
    return figure


def draw_explanations(panel: matplotlib.figure.SubFigure) -> None:
    """The test images with the largest error indicator, and the training images that weigh most in their prediction."""
    images, labels, queries, truth = load(0)
    head = build_head(images, labels)
    hardest = head.power_function(queries).argsort(descending=True)[:4]
    explanation = head.explain(queries[hardest])
    predicted = head(queries[hardest]).argmax(1)
    panel.suptitle("Least certain test images, and the training images behind each prediction", fontsize=9)
    for row, axes_row in enumerate(panel.subplots(4, 6)):
        strongest = explanation.weights[row].abs().argsort(descending=True)[:5]
        shown = [queries[hardest[row]], *images[explanation.indices[row, strongest]]]
        titles = [f"{int(truth[hardest[row]])} read as {int(predicted[row])}"]
        titles += [
            f"{int(labels[i])}: {float(w):+.2f}"
            for i, w in zip(explanation.indices[row, strongest], explanation.weights[row, strongest], strict=True)
        ]
        for axes, pixels, title in zip(axes_row, shown, titles, strict=True):
            axes.imshow(pixels.reshape(8, 8), cmap="gray_r")
            axes.set_title(title, fontsize=7, pad=2)
            axes.set_xticks([])
            axes.set_yticks([])
        for spine in axes_row[0].spines.values():
            spine.set(color=COLORS["local kernel ridge"], linewidth=2)


def page(rows: list[list[str]], picture: bytes) -> str:
    cells = [
        "".join(f"<{tag}>{cell}</{tag}>" for cell in row)
        for tag, row in zip(["th", *["td"] * (len(rows) - 1)], rows, strict=True)
    ]
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    style = "body{font:16px system-ui;max-width:60rem;margin:3rem auto;padding:0 1rem}img{max-width:100%}"
    style += "td,th{padding:.3rem 1rem;text-align:left;border-bottom:1px solid #ddd}"
    source = base64.b64encode(picture).decode()
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Digits without training</title><style>{style}</style>'
        f"<h1>Digits without training</h1><p>{CAPTION}</p><table>{body}</table>"
        f'<p><img alt="Accuracy against labels, and explanations" src="data:image/png;base64,{source}"></p></html>'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("runs/demo"))
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    records = run()
    rows = table(records)
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
    draw(records).savefig(out / "figure.png", dpi=150)
    (out / "report.html").write_text(page(rows, (out / "figure.png").read_bytes()))
    (out / "records.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    print(f"wrote {out / 'figure.png'}, {out / 'report.html'} and {out / 'records.jsonl'}")


if __name__ == "__main__":
    main()

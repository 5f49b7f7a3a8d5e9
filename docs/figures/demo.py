"""Digits, without a network: three readouts of pixels at three budgets, and what is behind the least certain predictions.

python docs/figures/demo.py
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor
from torch.nn.functional import one_hot

import torchkrr
from style import BLUE, GRAY, ORANGE, save

BUDGETS = (100, 300, 1000)
SEEDS = 5
NUM_TEST = 500
NUM_NEIGHBORS, RIDGE = 50, 1e-3
SHOWN, BEHIND = 4, 5


def digits(seed: int) -> tuple[Tensor, Tensor]:
    """Pixels between 0 and 1, and labels, in an order drawn by `seed`."""
    pixels, labels = load_digits(return_X_y=True)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    return torch.from_numpy(pixels / 16)[order], torch.from_numpy(labels)[order]


def head(x: Tensor, y: Tensor) -> torchkrr.nn.LocalKernelRidge:
    kernel = torchkrr.kernels.Matern52(2.0)
    return torchkrr.nn.LocalKernelRidge(x, one_hot(y, 10).double(), NUM_NEIGHBORS, kernel=kernel, ridge=RIDGE)


def accuracies(seed: int, budget: int) -> dict[str, float]:
    x, y = digits(seed)
    train, test = slice(NUM_TEST, NUM_TEST + budget), slice(NUM_TEST)
    right = {"local kernel ridge": head(x[train], y[train])(x[test]).argmax(1) == y[test]}
    peers = {"5 nearest neighbors": KNeighborsClassifier(5), "logistic regression": LogisticRegression(max_iter=2000)}
    for name, peer in peers.items():
        right[name] = torch.from_numpy(peer.fit(x[train], y[train]).predict(x[test])) == y[test]
    return {name: 100 * float(hits.double().mean()) for name, hits in right.items()}


def draw_budgets(axes: Axes, found: dict[int, list[dict[str, float]]]) -> None:
    for name, color in {"local kernel ridge": BLUE, "5 nearest neighbors": ORANGE, "logistic regression": GRAY}.items():
        runs = np.array([[run[name] for run in found[budget]] for budget in BUDGETS])
        axes.plot(BUDGETS, runs.mean(1), marker="o", color=color, label=name)
        axes.fill_between(BUDGETS, runs.min(1), runs.max(1), color=color, alpha=0.13, linewidth=0)
    axes.set(xscale="log", xlabel="labeled images", ylabel="test accuracy (%)")
    axes.set_xticks(BUDGETS, [str(budget) for budget in BUDGETS])
    axes.minorticks_off()
    axes.set_title(f"Mean, least and most of {SEEDS} splits")
    axes.grid(True)
    axes.legend(loc="lower right")


def draw_image(axes: Axes, pixels: Tensor, title: str, *, framed: bool) -> None:
    axes.imshow(pixels.reshape(8, 8), cmap="Greys", vmin=0, vmax=1)
    axes.set(xticks=(), yticks=())
    axes.set_title(title, fontsize=8.5, loc="center", pad=3)
    for spine in axes.spines.values():
        spine.set(visible=True, color=BLUE if framed else GRAY, linewidth=2.4 if framed else 0.6)


@torch.no_grad()
def main() -> None:
    found = {budget: [accuracies(seed, budget) for seed in range(SEEDS)] for budget in BUDGETS}
    x, y = digits(0)
    train, test = slice(NUM_TEST, NUM_TEST + BUDGETS[-1]), slice(NUM_TEST)
    layer = head(x[train], y[train])
    best = layer(x[test]).topk(2, dim=1).values
    doubtful = (best[:, 0] - best[:, 1]).argsort()[:SHOWN]
    scores, why = layer(x[test][doubtful]), layer.explain(x[test][doubtful])

    figure = plt.figure(figsize=(10, 4.6), layout="constrained")
    parts: Any = figure.subfigures(1, 2, width_ratios=(1, 1.25))
    left, right = parts
    draw_budgets(left.subplots(), found)
    right.suptitle("The least certain test images, and the training images of largest weight", fontsize=10.5)
    for row, images in enumerate(right.subplots(SHOWN, BEHIND + 1)):
        query = doubtful[row]
        draw_image(images[0], x[test][query], f"{int(y[test][query])} read as {int(scores[row].argmax())}", framed=True)
        for axes, at in zip(images[1:], why.weights[row].abs().argsort(descending=True)[:BEHIND], strict=True):
            center, weight = why.indices[row, at], float(why.weights[row, at])
            label = int(layer.values[center].argmax())
            draw_image(axes, layer.centers[center], f"{label}: {weight:+.2f}", framed=False)
    means = {}
    for budget, runs in found.items():
        means[str(budget)] = {name: float(np.mean([run[name] for run in runs])) for name in runs[0]}
    save(figure, "demo", {"seeds": SEEDS, "test_images": NUM_TEST, "mean_accuracy_percent": means})


if __name__ == "__main__":
    main()

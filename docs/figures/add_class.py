"""A class added to a head by a few images, and taken away again: accuracy and milliseconds.

python docs/figures/add_class.py

Each digit in turn is the new class. The head knows the training images of the other nine; some images of the new one are
appended, others of it are in the test part.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from typing import NamedTuple

import matplotlib.pyplot as plt
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from style import BLUE, INK, ORANGE, save
from torchkrr.kernels import Exponential
from torchkrr.nn import LocalKernelRidge
from torchkrr.transforms import Compose, MeanDistance, UnitNorm
from torchkrr.vision import Images, extract, open_backbone, open_dataset

COUNTS = (1, 2, 5, 10, 20, 50, 100)
SEEDS = 5
SHOWN = 20
NUM_NEIGHBORS, RIDGE = 50, 0.01


class Trial(NamedTuple):
    """Accuracies in percent, and milliseconds."""

    new_before: float
    old_before: float
    new_after: float
    old_after: float
    append: float
    predict: float
    as_before: bool  # predictions after the images were removed again


def digits() -> list[tuple[Tensor, Tensor]]:
    """Features and labels of the training and of the test part."""
    backbone, parts = open_backbone("digits"), []
    with tempfile.TemporaryDirectory() as cache:
        for part in open_dataset("digits"):
            assert isinstance(part, Images)
            parts.append((extract(backbone, part, cache=cache).features.clone(), part.labels))
    return parts


def made_head(features: Tensor, labels: Tensor) -> LocalKernelRidge:
    kernel = Exponential(input_transform=Compose(UnitNorm(), MeanDistance()).fit(features))
    head = LocalKernelRidge(features, one_hot(labels, 10).float(), NUM_NEIGHBORS, kernel=kernel, ridge=RIDGE)
    head(features[:1])  # builds the index, as any prediction does
    return head


def trial(train: tuple[Tensor, Tensor], test: tuple[Tensor, Tensor], digit: int, count: int, seed: int) -> Trial:
    (features, labels), (query, truth) = train, test
    known, new = labels != digit, (labels == digit).nonzero().squeeze(1)
    head = made_head(features[known], labels[known])
    chosen = new[torch.randperm(len(new), generator=torch.Generator().manual_seed(seed))[:count]]
    before = head(query)
    start = time.perf_counter()
    head.append(features[chosen], one_hot(labels[chosen], 10).float())
    appended = time.perf_counter()
    after = head(query)
    predicted = time.perf_counter()
    head.remove(torch.arange(int(known.sum()), head.num_centers))
    again = head(query)
    return Trial(
        *_accuracies(before, truth, digit),
        *_accuracies(after, truth, digit),
        1000 * (appended - start),
        1000 * (predicted - appended),
        torch.equal(before, again),
    )


def _accuracies(scores: Tensor, truth: Tensor, digit: int) -> tuple[float, float]:
    """Of the new class and of the others, in percent."""
    right = scores.argmax(1) == truth
    new = truth == digit
    return 100 * float(right[new].double().mean()), 100 * float(right[~new].double().mean())


@torch.no_grad()
def main() -> None:
    train, test = digits()
    found = {
        count: [trial(train, test, digit, count, seed) for digit in range(10) for seed in range(SEEDS)] for count in COUNTS
    }
    means = {
        count: {name: statistics.mean(getattr(one, name) for one in trials) for name in Trial._fields[:4]}
        for count, trials in found.items()
    }
    shown = found[SHOWN]
    numbers = {
        "known_images": len(train[1]) * 9 // 10,
        "test_images": len(test[1]),
        "trials": len(shown),
        "accuracy_percent": {str(count): means[count] for count in COUNTS},
        "append_milliseconds_median": statistics.median(one.append for one in shown),
        "predict_milliseconds_median": statistics.median(one.predict for one in shown),
        "as_before_after_remove": all(one.as_before for trials in found.values() for one in trials),
    }
    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    for name, color, label in (("old_after", BLUE, "the nine known classes"), ("new_after", ORANGE, "the new class")):
        lines = [[getattr(one, name) for one in found[count]] for count in COUNTS]
        axes.plot(COUNTS, [statistics.mean(line) for line in lines], marker="o", color=color, label=label)
        low, high = ([statistics.quantiles(line, n=10)[at] for line in lines] for at in (0, -1))
        axes.fill_between(COUNTS, low, high, color=color, alpha=0.15, linewidth=0)
    axes.axhline(means[COUNTS[0]]["old_before"], color=INK, linewidth=1, linestyle=":", label="the nine, before")
    axes.set(xscale="log", xlabel="images of the new class", ylabel="test accuracy (%)")
    axes.set_xticks(COUNTS, [str(count) for count in COUNTS])
    axes.minorticks_off()
    axes.grid(True)
    axes.legend(loc="lower right")
    axes.set_title(f"Each digit in turn added to a head of the others: mean and middle 80 % of {len(shown)}")
    save(figure, "add_class", numbers)


if __name__ == "__main__":
    main()

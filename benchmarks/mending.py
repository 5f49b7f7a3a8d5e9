"""How are mistakes of a network in use corrected, without spoiling what it gets right?

    python -m benchmarks.mending --weights resnet20-12fca82f.th

A ResNet-20 on the test pictures of CIFAR-10, its last layer alone or with corrections. Each of five seeds draws 300 of its
mistakes. They are corrected by a kernel layer on the residuals of the last layer (`nn.PriorKernelRidge`, points are the 64
pooled features) with several lengthscales, by training the last layer on them, and by a codebook: the label of the nearest
corrected picture within a radius, as in GRACE (Hartvigsen et al. 2023). Writes `mending.jsonl`, `mending.md`, `mending.png`.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from benchmarks import harness, mending_report
from mend_resnet import in_parts, moved, read_network, read_pictures
from torchkrr.estimators import LocalKernelRidgeClassifier
from torchkrr.kernels import Exponential, Gaussian, Kernel
from torchkrr.nn import PriorKernelRidge
from torchkrr.vision import open_dataset

SEEDS, CORRECTED, PINNED = range(5), 300, 10_000
RIDGE = 1e-6
MOVES = ((-2, 0), (2, 0), (0, -2), (0, 2))
RATES = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
MOST_STEPS, PATIENCE = 2000, 50
METHODS: dict[str, tuple[float, ...]] = {
    "no correction": (0.0,),
    "kernel, margin 1": (0.5, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0),
    "kernel, margin 10": (0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5),
    "kernel, margin 100": (0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2),
    "kernel, margin 100, pinned": (0.3, 0.4, 0.5, 0.55, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2),
    "exponential kernel, margin 1": (0.3, 0.5, 0.7, 1.0, 2.0, 4.0),
    "estimator, all chosen, pinned": (0.0,),
    "codebook": (1.0, 1.25, 1.5, 1.75, 2.0, 2.25, 2.5, 3.0),
    "last layer trained": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
    "last layer trained, with training pictures": (0.125, 0.25, 0.5, 1.0, 2.0, 4.0),
}
Predict = Callable[[Tensor], Tensor]


class Source(NamedTuple):
    """Where network and pictures come from."""

    weights: pathlib.Path
    data: str


class Features(NamedTuple):
    """Pooled features, their labels, and the last layer."""

    test: Tensor
    labels: Tensor
    mistakes: Tensor  # rows of the test pictures
    flipped: Tensor  # of the mistakes
    moved: list[Tensor]
    training: Tensor
    training_labels: Tensor
    last: nn.Linear


class Problem(NamedTuple):
    """What one seed corrects."""

    chosen: Tensor  # rows of the mistakes
    points: Tensor
    labels: Tensor
    all: Features

    @property
    def pinned(self) -> tuple[Tensor, Tensor]:
        """Training pictures; on those that the network gets right the target is its own score."""
        return self.all.training, self.all.training_labels


@functools.cache
def read_features(source: Source) -> Features:
    split, network = open_dataset(source.data), read_network(source.weights)
    pictures, labels = read_pictures(split.test)
    training, training_labels = read_pictures(split.train, PINNED)
    test = in_parts(network.pooled, pictures)
    last = network.linear
    assert isinstance(last, nn.Linear)
    mistakes = (last(test).argmax(1) != labels).nonzero().squeeze(1)
    wrong = pictures[mistakes]
    flipped, shifted = in_parts(network.pooled, wrong.flip(2)), [in_parts(network.pooled, moved(wrong, *by)) for by in MOVES]
    found = (test, labels, mistakes, flipped, shifted, in_parts(network.pooled, training), training_labels)
    return Features(*found, last.requires_grad_(False))


def draw(source: Source, seed: int) -> Problem:
    features = read_features(source)
    order = torch.randperm(len(features.mistakes), generator=torch.Generator().manual_seed(seed))
    chosen = order[:CORRECTED].sort().values
    rows = features.mistakes[chosen]
    return Problem(chosen, features.test[rows], features.labels[rows], features)


# Methods: from a problem and a setting to a function from features to scores, and what there is to say about it.


def by_kernel(problem: Problem, kernel: Kernel, margin: float, *, pinned: bool = False) -> Predict:
    layer = PriorKernelRidge(problem.all.last, kernel=kernel, ridge=RIDGE)
    layer.correct(problem.points, problem.labels, margin=margin)
    if pinned:
        layer.correct(*problem.pinned, margin=margin)
    return layer


def by_estimator(problem: Problem) -> Predict:
    """Kernel, lengthscale and ridge chosen by leave-one-out over the mistakes and some of the training pictures."""
    points, labels = (torch.cat((own, more[:3000])) for own, more in zip(problem[1:3], problem.pinned, strict=True))
    model = LocalKernelRidgeClassifier(prior=problem.all.last).fit(points.numpy(), labels.numpy())
    return lambda query: torch.from_numpy(model.predict_proba(query.numpy()))


def by_codebook(problem: Problem, radius: float) -> Predict:
    def predict(query: Tensor) -> Tensor:
        distances, nearest = torch.cdist(query, problem.points).min(1)
        scores = problem.all.last(query)
        answers = nn.functional.one_hot(problem.labels[nearest], scores.shape[1]).to(scores)
        return torch.where((distances < radius).unsqueeze(1), answers, scores)

    return predict


def by_training(source: Source, seed: int, stretch: float, with_pinned: bool) -> tuple[Predict, harness.Record]:
    """Adam on all rows; its rate, and when to stop, are chosen by the loss of a fifth that is held out."""
    rate, steps = choose_training(source, seed, with_pinned)
    problem = draw(source, seed)
    layer = copy_of(problem.all.last)
    for _ in train(layer, groups_of(problem, with_pinned), rate, max(1, round(steps * stretch))):
        pass
    return layer, {"rate": rate, "steps": steps}


@functools.cache  # the same for every stretch
def choose_training(source: Source, seed: int, with_pinned: bool) -> tuple[float, int]:
    problem, generator = draw(source, seed), torch.Generator().manual_seed(seed)
    fitted, held_out = [], []
    for points, labels in groups_of(problem, with_pinned):
        held, rest = torch.randperm(len(points), generator=generator).tensor_split([len(points) // 5])
        fitted.append((points[rest], labels[rest]))
        held_out.append((points[held], labels[held]))
    best = (float("inf"), 0.0, 0)
    for rate in RATES:
        layer, own = copy_of(problem.all.last), (float("inf"), rate, 0)
        for step, _ in enumerate(train(layer, fitted, rate, MOST_STEPS), 1):
            with torch.no_grad():
                own = min(own, (float(loss_of(layer, held_out)), rate, step))
            if step - own[2] >= PATIENCE:
                break
        best = min(best, own)
    return best[1:]


def groups_of(problem: Problem, with_pinned: bool) -> list[tuple[Tensor, Tensor]]:
    return [(problem.points, problem.labels)] + ([problem.pinned] if with_pinned else [])


def train(layer: nn.Linear, groups: list[tuple[Tensor, Tensor]], rate: float, steps: int) -> Iterator[None]:
    optimizer = torch.optim.Adam(layer.parameters(), lr=rate)
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(layer, groups).backward()
        optimizer.step()
        yield


def loss_of(layer: nn.Linear, groups: list[tuple[Tensor, Tensor]]) -> Tensor:
    """The mean cross-entropies of the groups, added up: mistakes count as much as many more training pictures."""
    return torch.stack([nn.functional.cross_entropy(layer(points), labels) for points, labels in groups]).sum()


def copy_of(layer: nn.Linear) -> nn.Linear:
    other = nn.Linear(layer.in_features, layer.out_features)
    other.load_state_dict(layer.state_dict())
    return other


def make(source: Source, method: str, setting: float, seed: int) -> tuple[Predict, harness.Record]:
    problem, kind = draw(source, seed), method.split(",")[0]
    if kind == "no correction":
        return problem.all.last, {}
    if kind == "estimator":
        return by_estimator(problem), {}
    if kind == "codebook":
        return by_codebook(problem, setting), {}
    if kind == "last layer trained":
        return by_training(source, seed, setting, "pictures" in method)
    kernel = Exponential(setting) if kind.startswith("exponential") else Gaussian(setting)
    margin = float(method.split(",")[1].removeprefix(" margin "))
    return by_kernel(problem, kernel, margin, pinned="pinned" in method), {}


# Measuring


def measure(source: Source, method: str, setting: float, seed: int) -> harness.Record:
    start = time.perf_counter()
    predict, said = make(source, method, setting, seed)
    seconds = time.perf_counter() - start
    with torch.no_grad():
        found = outcome(predict, draw(source, seed))
    return {"method": method, "setting": setting, "seed": seed, "seconds": seconds, **said, **found}


def outcome(predict: Predict, problem: Problem) -> harness.Record:
    """Shares in percent."""
    features = problem.all
    before, after = features.last(features.test).argmax(1), predict(features.test).argmax(1)
    others = torch.ones(len(before), dtype=torch.bool)
    others[features.mistakes[problem.chosen]] = False

    def right(points: Tensor) -> Tensor:
        return predict(points[problem.chosen]).argmax(1) == problem.labels

    return {
        "success": percent(after[~others] == features.labels[~others]),
        "moved": percent(torch.cat([right(points) for points in features.moved])),
        "flipped": percent(right(features.flipped)),
        "others_changed": percent((after != before)[others]),
        "elsewhere": percent((after == features.labels)[others]),
    }


def percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())


def undone(source: Source, seed: int) -> harness.Record:
    """The scores of the network itself, before its corrections and after they were removed again."""
    network, problem = read_network(source.weights), draw(source, seed)
    pictures, _ = read_pictures(open_dataset(source.data).test)
    before = in_parts(network, pictures)
    network.linear = layer = PriorKernelRidge(network.linear, kernel=Gaussian(0.8), ridge=RIDGE)
    layer.correct(problem.points, problem.labels, margin=10.0)
    corrected = in_parts(network, pictures)
    layer.remove(torch.arange(len(problem.points)))
    after = in_parts(network, pictures)
    differing = {name: int((scores != before).sum()) for name, scores in (("corrected", corrected), ("undone", after))}
    return {"seed": seed, "scores": before.numel(), "scores_that_differ": differing}


def cases(source: Source) -> Iterator[tuple[str, Callable[[], harness.Record]]]:
    for seed in SEEDS:
        for method, settings in METHODS.items():
            for setting in settings:
                yield f"{method}, {setting:g}, seed {seed}", partial(measure, source, method, setting, seed)
        yield f"undone, seed {seed}", partial(undone, source, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=pathlib.Path, required=True)
    parser.add_argument("--data", default="cifar10", help="cifar10, or an .npz file like it")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("benchmarks/results"))
    chosen = parser.parse_args()
    records = harness.record(chosen.out / "mending.jsonl", cases(Source(chosen.weights, chosen.data)))
    command = f"python -m benchmarks.mending --weights {chosen.weights.name}"
    (chosen.out / "mending.md").write_text(mending_report.report(command, records))
    mending_report.draw(records, chosen.out / "mending.png")


if __name__ == "__main__":
    main()

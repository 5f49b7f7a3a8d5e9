"""Scores of predictions, from parts of a table or from the folds of a cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from tqdm import tqdm

from ..errors import InputError
from .tables import Array

TITLES = {
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R2",
    "nll": "NLL",
    "coverage90": "coverage of 90 %",
    "accuracy": "accuracy",
    "log_loss": "log-loss",
    "calibration_error": "calibration error",
}
COVERAGE = 0.9
BINS = 15
LEAST = 1e-15  # probability


class Scores:
    """Scores of each target of a model, part by part.

    `predict` gives the columns that `add` takes: the probability of each class; or prediction, standard deviation and limits
    of the 90 % interval, each for all targets.
    """

    def __init__(self, model: Any, targets: Sequence[str]) -> None:
        self.model, self.classifies = model, hasattr(model, "classes_")
        self.scores: list[Any] = [ClassificationScores() if self.classifies else RegressionScores() for _ in targets]
        self.targets = targets

    def predict(self, query: Any) -> dict[str, Array]:
        parts = [self.model.predict_proba(query)] if self.classifies else self.model.predict_with_interval(query, COVERAGE)
        columns = np.concatenate([part.reshape(len(query), -1) for part in parts], axis=1)
        return {str(at): column for at, column in enumerate(columns.T)}

    def add(self, known: Array, columns: Mapping[str, Any], weights: Array | None = None) -> None:
        """`known` targets `(n, targets)` or classes `(n,)`, and how many rows each row counts as: one by default."""
        predicted = np.stack([np.asarray(column, dtype=np.float64) for column in columns.values()], axis=1)
        if self.classifies:
            self.scores[0].add(np.searchsorted(self.model.classes_, known), predicted, weights)
            return
        for at, score in enumerate(self.scores):
            score.add(known[:, at], *predicted[:, at :: len(self.scores)].T, weights)

    def result(self) -> dict[str, dict[str, float]]:
        return {name: score.result() for name, score in zip(self.targets, self.scores, strict=True)}


class RegressionScores:
    """Scores of one target."""

    def __init__(self) -> None:
        self.count = self.mean = self.spread = 0.0
        self.sums = np.zeros(
            4
        )  # of squared and absolute errors, negative log-likelihoods, and targets inside their interval

    def add(self, y: Array, mean: Array, std: Array, lower: Array, upper: Array, weights: Array | None = None) -> None:
        weights = np.ones(len(y)) if weights is None else weights
        errors, deviation, count = y - mean, np.maximum(std, np.finfo(np.float64).tiny), float(weights.sum())
        surprise = np.log(deviation) + 0.5 * np.square(errors / deviation)
        self.sums += np.stack([np.square(errors), np.abs(errors), surprise, (lower <= y) & (y <= upper)]) @ weights
        # Mean and spread of the targets, part by part (Chan, Golub and LeVeque).
        own = float(weights @ y) / count
        shift, total = own - self.mean, self.count + count
        self.spread += float(weights @ np.square(y - own)) + shift**2 * self.count * count / total
        self.mean += shift * count / total
        self.count = total

    def result(self) -> dict[str, float]:
        square, size, surprise, inside = (self.sums / self.count).tolist()
        return {
            "rmse": square**0.5,
            "mae": size,
            "r2": 1 - square * self.count / self.spread if self.spread > 0 else float("nan"),
            "nll": surprise + 0.5 * float(np.log(2 * np.pi)),
            "coverage90": inside,
        }


class ClassificationScores:
    """Accuracy, log-loss, and the expected calibration error of the predicted class in 15 bins."""

    def __init__(self) -> None:
        self.count = self.surprise = 0.0
        self.correct, self.confidence = np.zeros(BINS), np.zeros(BINS)

    def add(self, codes: Array, probabilities: Array, weights: Array | None = None) -> None:
        """Classes as numbers `(n,)`, and the probability of each class `(n, C)`."""
        weights = np.ones(len(codes)) if weights is None else weights
        confidence = probabilities.max(1)
        bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        self.count += float(weights.sum())
        self.surprise -= float(weights @ np.log(np.maximum(probabilities[np.arange(len(codes)), codes], LEAST)))
        self.correct += np.bincount(bins, weights=weights * (probabilities.argmax(1) == codes), minlength=BINS)
        self.confidence += np.bincount(bins, weights=weights * confidence, minlength=BINS)

    def result(self) -> dict[str, float]:
        return {
            "accuracy": float(self.correct.sum() / self.count),
            "log_loss": self.surprise / self.count,
            "calibration_error": float(np.abs(self.correct - self.confidence).sum() / self.count),
        }


def check_folds(folds: int, values: Array, weights: Array | None, *, classes: bool) -> None:
    """Check that there are rows enough, before a fit that takes long; rows of weight zero do not count."""
    used = values if weights is None else values[weights > 0]
    if folds > len(used):
        raise InputError(f"--folds {folds} needs at least {folds} rows, got {len(used)}. Ask for fewer folds.")
    if not classes:
        return
    labels, counts = np.unique(used, return_counts=True)
    if folds > counts.max():
        raise InputError(
            f"--folds {folds} needs a class with at least {folds} rows; the largest has {counts.max()}. Ask for fewer folds."
        )
    if counts.min() < 2:
        raise InputError(
            f"Class {labels.tolist()[counts.argmin()]!r} has a single row, which cannot be both learned and held out. "
            "Give it more rows, or leave out --folds."
        )


def cross_validate(
    model: Any,
    points: Any,
    values: Array,
    weights: Array | None,
    targets: list[str],
    *,
    groups: Array | None = None,
    folds: int,
    seed: int,
    progress: bool = False,
) -> dict[str, dict[str, dict[str, Any]]]:
    """Mean, standard error and values of the K-fold scores of each target.

    Only the parameters of `model` are used: every fold makes all choices again. Rows of one group are in one fold.
    """
    # Rows of weight zero are neither learned from nor tested on.
    used = np.arange(len(values)) if weights is None else np.flatnonzero(weights > 0)
    classes = hasattr(model, "classes_")
    alone, together = (StratifiedKFold, StratifiedGroupKFold) if classes else (KFold, GroupKFold)
    splitter = alone if groups is None else together
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")  # it has two rows or more
        groups_used = None if groups is None else groups[used]
        splits = list(splitter(folds, shuffle=True, random_state=seed).split(used, values[used], groups_used))
    results = []
    for parts in tqdm(splits, desc="holding out folds", disable=not progress):
        train, test = (used[part] for part in parts)
        fold = clone(model)
        given = {"sample_weight": weights, "groups": groups}
        own = {name: None if values is None else values[train] for name, values in given.items()}
        fold.fit(_some(points, train), values[train], **own)
        scores, known = Scores(fold, targets), values[test]
        known = known if scores.classifies else known.reshape(len(test), -1)
        scores.add(known, scores.predict(_some(points, test)), None if weights is None else weights[test])
        results.append(scores.result())
    return {name: {key: _over_folds([one[name][key] for one in results]) for key in results[0][name]} for name in targets}


def _some(points: Any, rows: Array) -> Any:
    return points.iloc[rows] if hasattr(points, "iloc") else points[rows]


def _over_folds(scores: list[float]) -> dict[str, Any]:
    error = np.std(scores, ddof=1) / np.sqrt(len(scores))
    return {"mean": float(np.mean(scores)), "standard_error": float(error), "folds": scores}

"""How well a whole fit, with every choice made again, predicts rows that it has not seen: K-fold cross-validation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold, StratifiedKFold

from .._progress import Progress
from ..errors import InputError
from .scores import ClassificationScores, RegressionScores
from .values import Array

COVERAGE = 0.9


class Held(NamedTuple):
    """One score on held-out rows."""

    mean: float  # over the folds
    standard_error: float  # of that mean
    folds: list[float]


def check_folds(folds: int, values: Array, weights: Array | None, *, classes: bool) -> None:
    """That there are rows enough, before a fit that takes long; rows of weight zero do not count."""
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


def held_out(
    model: Any,
    frame: Any,
    values: Array,
    weights: Array | None,
    targets: list[str],
    *,
    folds: int,
    seed: int,
    progress: bool = False,
) -> dict[str, dict[str, Held]]:
    """Scores of each target. `model` says which parameters were asked for; it is not used otherwise."""
    # Rows of weight zero are neither learned from nor tested on.
    used = np.arange(len(values)) if weights is None else np.flatnonzero(weights > 0)
    found: list[dict[str, dict[str, float]]] = []
    with Progress("holding out folds", folds, shown=progress) as bar:
        for train, test in _split(values[used], folds, seed, classes=hasattr(model, "classes_")):
            parts = (used[train], used[test])
            found.append(_scored(clone(model), frame, values, weights, parts, targets))
            bar.advance()
    return {name: {key: _over_folds([one[name][key] for one in found]) for key in found[0][name]} for name in targets}


def _split(values: Array, folds: int, seed: int, *, classes: bool) -> Iterator[tuple[Array, Array]]:
    kind = StratifiedKFold if classes else KFold
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The least populated class")  # it has two rows or more
        yield from kind(folds, shuffle=True, random_state=seed).split(values, values if classes else None)


def _scored(
    model: Any, frame: Any, values: Array, weights: Array | None, parts: tuple[Array, Array], targets: list[str]
) -> dict[str, dict[str, float]]:
    """Of each target: fitted on one part of the rows, tested on the other."""
    train, test = parts
    model.fit(frame.iloc[train], values[train], sample_weight=None if weights is None else weights[train])
    query, known, counted = frame.iloc[test], values[test], None if weights is None else weights[test]
    if hasattr(model, "classes_"):
        classes = ClassificationScores()
        classes.add(np.searchsorted(model.classes_, known), model.predict_proba(query), counted)
        return {targets[0]: classes.result()}
    predicted = [one.reshape(len(test), -1) for one in model.predict_with_interval(query, COVERAGE)]
    known = known.reshape(len(test), -1)
    scores = {}
    for at, name in enumerate(targets):
        score = RegressionScores()
        mean, std, lower, upper = (one[:, at] for one in predicted)
        score.add(known[:, at], mean, std, lower, upper, counted)
        scores[name] = score.result()
    return scores


def _over_folds(scores: list[float]) -> Held:
    return Held(float(np.mean(scores)), float(np.std(scores, ddof=1) / np.sqrt(len(scores))), scores)

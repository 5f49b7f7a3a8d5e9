"""A model from a table."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from .._files import writable
from ..errors import InputError, KernelRidgeWarning
from ..estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from .features import Features, features_of_table
from .folds import Held, check_folds, held_out
from .tables import Table, open_table
from .targets import Task, target_labels, target_numbers, task_of
from .values import Array, Place, numbers

AT_ONCE = 100_000
FEW_ROWS, MOSTLY = 20, 0.9  # from 20 rows on, a column with more than 90 % different texts is taken for names


class Wanted(NamedTuple):
    """What `torchkrr fit` was asked for."""

    table: str
    out: str
    target: list[str]
    task: Task | Literal["auto"] = "auto"
    categorical: Sequence[str] = ()
    ignore: Sequence[str] = ()
    sample_weight: str | None = None
    neighbors: int | str = "auto"
    alpha: float | str = "auto"
    kernel: str = "auto"
    metric: str = "auto"
    seed: int = 0
    folds: int | None = None  # None: no cross-validation
    delimiter: str | None = None
    progress: bool = False


class Fitted(NamedTuple):
    model: Any
    features: Features
    task: Task
    rows: int
    chosen: str
    scores: dict[str, dict[str, float]]  # leave-one-out, of each target
    held: dict[str, dict[str, Held]] | None  # cross-validation, of each target
    seconds: float


def fit_table(wanted: Wanted) -> Fitted:
    """Read a table, fit, and write the model; `wanted.out` is there at the end, or not at all."""
    start = time.monotonic()
    writable(wanted.out, reads=[wanted.table])
    table = open_table(wanted.table, wanted.delimiter)
    names = _feature_names(wanted, table)
    used = [name for name in table.names if name in {*names, *wanted.target, wanted.sample_weight}]
    whole = pa.concat_tables(list(table.parts(used, AT_ONCE)))
    place = Place(table.path, 1, table.delimiter is None)
    task = task_of(whole.column(wanted.target[0]), wanted.target[0], place) if wanted.task == "auto" else wanted.task
    if task == "classification" and len(wanted.target) > 1:
        raise InputError(f"Classification takes one target, got {', '.join(wanted.target)}. Fit a model for each.")
    features = features_of_table(names, whole, wanted.categorical, place)
    _warn_of_names(features, whole)
    weights = None if wanted.sample_weight is None else _weights(whole, wanted.sample_weight, place)
    model = _estimator(wanted, task, features)
    frame, values = features.frame(whole, place), _targets(wanted.target, whole, task, place)
    if wanted.folds is not None:
        check_folds(wanted.folds, values, weights, classes=task == "classification")
    model.fit(frame, values, sample_weight=weights)
    model.set_params(verbose=0)
    model.notes_ = {"targets": wanted.target}
    scores = left_out_scores(model, wanted.target)
    held = None
    if wanted.folds is not None:
        held = held_out(
            model, frame, values, weights, wanted.target, folds=wanted.folds, seed=wanted.seed, progress=wanted.progress
        )
    model.save(wanted.out)
    return Fitted(model, features, task, whole.num_rows, chosen(model), scores, held, time.monotonic() - start)


def chosen(model: Any) -> str:
    """In words; of several kernels the one with the largest share."""
    members = model.predictor_.members
    name, rest = type(model.kernel_).__name__, f"alpha {model.alpha_:.3g}, {model.n_neighbors_} neighbors"
    if len(members) == 1:
        return f"{name} kernel, {rest}"
    return f"mix of {len(members)} kernels, of which {name} counts most ({100 * members[0].share:.0f} %): {rest}"


def left_out_scores(model: Any, targets: list[str]) -> dict[str, dict[str, float]]:
    found = model.leave_one_out()
    if found is None:
        return {}
    predictions, values = found
    if hasattr(model, "classes_"):
        surprise = -(values * np.log(np.maximum(predictions, 1e-15))).sum(1)
        right = predictions.argmax(1) == values.argmax(1)
        return {targets[0]: {"accuracy": float(right.mean()), "log_loss": float(surprise.mean())}}
    errors = predictions - values
    return {
        name: {
            "rmse": float(np.sqrt(np.square(errors[:, at]).mean())),
            "mae": float(np.abs(errors[:, at]).mean()),
        }
        for at, name in enumerate(targets)
    }


def _feature_names(wanted: Wanted, table: Table) -> list[str]:
    table.require(wanted.target, "named by --target")
    table.require(wanted.categorical, "named by --categorical")
    table.require(wanted.ignore, "named by --ignore")
    table.require([wanted.sample_weight] if wanted.sample_weight else [], "named by --sample-weight")
    names = [name for name in table.data if name not in {*wanted.target, *wanted.ignore, wanted.sample_weight}]
    if not names:
        raise InputError(f"{table.path} has no columns to predict from besides {', '.join(wanted.target)}.")
    return names


def _warn_of_names(features: Features, whole: Any) -> None:
    """Texts that hardly repeat, such as dates and names, tell rows apart and say nothing of new ones."""
    for feature in features.all:
        column = whole.column(feature.name).drop_null()
        if feature.kind == "text" and len(column) >= FEW_ROWS and len(column.unique()) > MOSTLY * len(column):
            warnings.warn(
                f"Column {feature.name!r} has a different text in almost every row, from which nothing can be learned for "
                "new ones. Leave it out with --ignore; turn dates into numbers.",
                KernelRidgeWarning,
                stacklevel=2,
            )


def _targets(names: list[str], whole: Any, task: Task, place: Place) -> Any:
    if task == "classification":
        return target_labels(whole.column(names[0]), names[0], place)
    several = len(names) > 1
    found = np.stack([target_numbers(whole.column(name), name, place, one_of_several=several) for name in names], axis=1)
    return found[:, 0] if len(names) == 1 else found


def _weights(whole: Any, name: str, place: Place) -> Array:
    weights = numbers(whole.column(name), name, place)
    bad = np.flatnonzero(~(weights >= 0))
    if len(bad):
        raise InputError(f"Weight {name!r} of {place.path} is missing or negative in row {place.first + bad[0]}.")
    return weights


def _estimator(wanted: Wanted, task: Task, features: Features) -> Any:
    kind = LocalKernelRidgeClassifier if task == "classification" else LocalKernelRidgeRegressor
    return kind(
        wanted.neighbors,
        alpha=wanted.alpha,
        kernel=wanted.kernel,
        metric=None if wanted.metric == "none" else wanted.metric,  # type: ignore[arg-type]
        categorical_features=features.categorical or None,
        random_state=wanted.seed,
        verbose=int(wanted.progress),
    )

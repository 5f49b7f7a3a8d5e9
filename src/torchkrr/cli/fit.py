"""`torchkrr fit`: a model from labeled rows: a table, a column of text, pictures, or features."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from .._files import writable
from ..errors import InputError
from .options import STORE, add_training_data, number, require_table_packages, resumable
from .reports import count_classes, describe_classes, say, say_chosen, say_found, say_next

if TYPE_CHECKING:
    from .data import Data

STORED_NEIGHBORS = 100
KERNELS = ("auto", "exponential", "matern32", "matern52", "gaussian", "laplacian")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_training_data(parser)
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--out", metavar="FILE", help="where the model goes, such as model.krr")
    place.add_argument("--store", metavar="URI", help=f"its rows go into a database, and all else with them: {STORE}")
    add = parser.add_argument_group("model").add_argument
    add(
        "--metric",
        choices=("auto", "none", "ard", "linear"),
        default="auto",
        help="what is learned about distances: nothing, a scale per column, a linear map",
    )
    neighbors = number(int, lambda value: value >= 1, "a whole number of at least 1", auto=True)
    alpha = number(float, lambda value: 0 <= value < math.inf, "a number that is not negative", auto=True)
    seed = number(int, lambda value: 0 <= value < 2**32, "a whole number from 0 to 2^32 - 1")
    folds = number(int, lambda value: value >= 2, "a whole number of at least 2, such as 5")
    add("--neighbors", type=neighbors, default="auto", metavar="N", help="rows per prediction")
    add("--alpha", type=alpha, default="auto", metavar="X", help="ridge: larger is smoother")
    add("--kernel", choices=KERNELS, default="auto", help="auto: by leave-one-out")
    add("--seed", type=seed, default=0, help="of the rows that choices are made on, and of --folds (0)")
    add("--folds", type=folds, metavar="K", help="also K-fold cross-validation, with all choices made in each fold")


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from ..estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
    from .opening import open_training
    from .scores import TITLES, check_folds, cross_validate

    start = time.monotonic()
    if args.out is not None:
        writable(args.out, reads=[args.data, args.weights])
    else:  # the rows of a store serve one kernel, and the nearest of them a prediction
        _check_store(args.store)
        args.neighbors = STORED_NEIGHBORS if args.neighbors == "auto" else args.neighbors
    data = open_training(args)
    with reading(data, args) as (piece, points):
        task = data.task(piece) if args.task == "auto" else args.task
        classifies = task == "classification"
        if classifies and args.target and len(args.target) > 1:
            raise InputError(f"Classification takes one target, got {', '.join(args.target)}. Fit a model for each.")
        values = data.labels(piece, None) if classifies else data.targets(piece)
        targets = data.target_names(1 if classifies else values.shape[1], classes=classifies)
        counts = count_classes(values.tolist()) if classifies else None
        if counts is not None and len(counts) < 2:
            raise InputError(f"{data.path} has a single class, {next(iter(counts))!r}. Classification needs two or more.")
        values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
        weights, groups, categorical = data.weights(piece), data.groups(piece), data.categorical
        estimator = LocalKernelRidgeClassifier if classifies else LocalKernelRidgeRegressor
        model: Any = estimator(
            args.neighbors,
            alpha=args.alpha,
            kernel=args.kernel,
            metric=None if args.metric == "none" else args.metric,
            categorical_features=categorical or None,
            random_state=args.seed,
            verbose=int(not args.quiet),
        )
        if args.folds is not None:
            check_folds(args.folds, values, weights, classes=classifies)
        model.fit(points, values, sample_weight=weights, groups=groups, ids=data.names(piece))
        model.set_params(verbose=0)
        model.notes_ = {"targets": targets, "input": data.notes()}
        left_out, held_out = left_out_scores(model, targets), None
        if args.folds is not None:
            options = {"folds": args.folds, "seed": args.seed, "progress": not args.quiet}
            held_out = cross_validate(model, points, values, weights, targets, groups=groups, **options)
        place, size = _kept(model, args)
    seconds, rows = time.monotonic() - start, data.length(piece)

    say_found(data, rows)
    say("task", f"{task} of {', '.join(targets)}" + ("" if counts is None else f": {describe_classes(counts)}"))
    say_chosen(model)
    for name, scores in left_out.items():
        unit = "" if classifies else f" (in units of {name})"
        say("left out", f"{', '.join(f'{TITLES[key]} {value:.4g}' for key, value in scores.items())}{unit}")
    for name, folds in (held_out or {}).items():
        say("held out", _held_out_line(f" of {name}" if len(targets) > 1 else "", folds, args.folds))
    say("time", f"{seconds:.1f} s")
    say("model", place if size is None else f"{place} ({size / 1000:.0f} kB)")
    named = [place] if args.out is not None else ["--store", place]
    line = say_next("torchkrr", "predict", args.data, *named, "--out", "predictions.csv")
    chosen = (type(model.kernel_).__name__, float(model.alpha_), int(model.n_neighbors_))
    return {
        "model": place,
        "bytes": size,
        "kind": data.kind,
        "task": task,
        "rows": rows,
        "skipped": data.skipped,
        "missing": data.missing,
        "classes": counts,
        "features": data.columns_used,
        "categorical": categorical,
        "chosen": dict(zip(("kernel", "alpha", "neighbors"), chosen, strict=True)),
        "tried": getattr(model, "candidates_", None) or [],
        "left_out": left_out,
        "held_out": held_out,
        "seconds": seconds,
        "next": line,
    }


def _check_store(uri: str) -> None:
    """That it can be reached, and that nothing is there, before any work is done."""
    from ..kernels import Exponential
    from ..stores import open_store, without_password

    with open_store(uri, kernel=Exponential()) as store:
        if len(store):
            raise InputError(f"{without_password(uri)} has rows already. Name another table, behind #.")


def _kept(model: Any, args: argparse.Namespace) -> tuple[str, int | None]:
    """Keep the model: where it is, as it may be shown, and of a file its size."""
    if args.out is not None:
        model.save(args.out)
        return args.out, os.path.getsize(args.out)
    from ..stores import open_store, without_password

    with open_store(args.store, kernel=model.kernel_) as store:
        model.to_store(store)
    return without_password(args.store), None


@contextlib.contextmanager
def reading(data: Data, args: argparse.Namespace) -> Iterator[tuple[Any, Any]]:
    """All rows and their points. Features of pictures are kept beside the result until it is there, or for another try."""
    own = f"{args.out or 'torchkrr'}.features" if args.cache is None else None
    args.cache = args.cache or own
    try:
        with resumable(args.cache) if data.kind == "images" else contextlib.nullcontext():
            piece, points = data.everything(progress=not args.quiet)
            data.missing += data.missing_in(piece)
            yield piece, points
    except Exception:  # not an interrupt
        _remove(own)
        raise
    _remove(own)


def _remove(folder: str | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def left_out_scores(model: Any, targets: list[str]) -> dict[str, dict[str, float]]:
    """Leave-one-out scores of each target; empty for too few rows."""
    import numpy as np

    left_out = model.leave_one_out()
    if left_out is None:
        return {}
    predictions, values = left_out
    if hasattr(model, "classes_"):
        surprise = -(values * np.log(np.maximum(predictions, 1e-15))).sum(1)
        correct = predictions.argmax(1) == values.argmax(1)
        return {targets[0]: {"accuracy": float(correct.mean()), "log_loss": float(surprise.mean())}}
    errors = predictions - values
    rmse, mae = np.sqrt(np.square(errors).mean(0)).tolist(), np.abs(errors).mean(0).tolist()
    return {name: {"rmse": rmse[at], "mae": mae[at]} for at, name in enumerate(targets)}


def _held_out_line(of: str, scores: Mapping[str, Any], folds: int) -> str:
    """Such as `RMSE 58.1 ± 3.2 (5 folds), coverage of 90 % 0.86`."""
    from .scores import TITLES

    first, second = [key for key in ("rmse", "accuracy", "coverage90", "log_loss") if key in scores]
    mean, error = scores[first]["mean"], scores[first]["standard_error"]
    # As many decimals as two digits of the error have.
    decimals = max(0, 1 - math.floor(math.log10(error))) if 0 < error < math.inf else 3
    main = f"{TITLES[first]}{of} {mean:.{decimals}f} ± {error:.{decimals}f} ({folds} folds)"
    return f"{main}, {TITLES[second]} {scores[second]['mean']:.2f}"

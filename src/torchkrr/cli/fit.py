"""`torchkrr fit`: a model from a table."""

from __future__ import annotations

import argparse
import math
import os
import time
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .._files import writable
from ..errors import InputError, KernelRidgeWarning
from .options import add_delimiter, names, number, require_table_packages

if TYPE_CHECKING:
    from .tables import Array, Part, Table

KERNELS = ("auto", "exponential", "matern32", "matern52", "gaussian", "laplacian")
FEW_ROWS, MOSTLY = 20, 0.9  # from 20 rows on, a column with more than 90 % different texts is taken for names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("table", help="training data, .csv or .parquet")
    add("--target", type=names, required=True, metavar="A,B", help="column to predict, or several")
    add("--out", required=True, metavar="FILE", help="where the model goes, such as model.krr")
    add("--task", choices=("auto", "regression", "classification"), default="auto", help="auto: by the target")
    add("--categorical", type=names, default=[], metavar="A,B", help="columns of numbers that are categories")
    add("--ignore", type=names, default=[], metavar="A,B", help="columns to leave out")
    add("--sample-weight", metavar="A", help="column with the weight of each row")
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
    add_delimiter(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    require_table_packages()
    from ..estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
    from .scores import TITLES, check_folds, cross_validate
    from .tables import open_table

    start = time.monotonic()
    writable(args.out, reads=[args.table])
    table = open_table(args.table, args.delimiter)
    features = _feature_names(args, table)
    part = table.read({*features, *args.target, args.sample_weight})
    task = part.task(args.target[0]) if args.task == "auto" else args.task
    if task == "classification" and len(args.target) > 1:
        raise InputError(f"Classification takes one target, got {', '.join(args.target)}. Fit a model for each.")
    kinds = {name: part.kind(name, categorical=name in args.categorical) for name in features}
    _warn_of_names(kinds, part)
    weights = None if args.sample_weight is None else _sample_weights(part, args.sample_weight)
    categorical = [name for name, kind in kinds.items() if kind != "number"]
    estimator = LocalKernelRidgeClassifier if task == "classification" else LocalKernelRidgeRegressor
    model: Any = estimator(
        args.neighbors,
        alpha=args.alpha,
        kernel=args.kernel,
        metric=None if args.metric == "none" else args.metric,
        categorical_features=categorical or None,
        random_state=args.seed,
        verbose=int(not args.quiet),
    )
    frame = part.frame(kinds)
    if task == "classification":
        values = part.target_labels(args.target[0])
    else:
        values = part.target_numbers(args.target)
        values = values[:, 0] if len(args.target) == 1 else values
    if args.folds is not None:
        check_folds(args.folds, values, weights, classes=task == "classification")
    model.fit(frame, values, sample_weight=weights)
    model.set_params(verbose=0)
    model.notes_ = {"targets": args.target}
    left_out, held_out = left_out_scores(model, args.target), None
    if args.folds is not None:
        held_out = cross_validate(
            model, frame, values, weights, args.target, folds=args.folds, seed=args.seed, progress=not args.quiet
        )
    model.save(args.out)
    seconds, size = time.monotonic() - start, os.path.getsize(args.out)

    described = f"{len(features) - len(categorical)} columns of numbers"
    described += f", {len(categorical)} of categories ({', '.join(categorical)})" if categorical else ""
    print(f"task      {task} of {', '.join(args.target)}, {len(frame)} rows: {described}")
    print(f"chosen    {describe_choice(model)}")
    for name, scores in left_out.items():
        unit = "" if task == "classification" else f" (in units of {name})"
        print(f"left out  {', '.join(f'{TITLES[key]} {value:.4g}' for key, value in scores.items())}{unit}")
    for name, folds in (held_out or {}).items():
        print(f"held out  {_held_out_line(f' of {name}' if len(args.target) > 1 else '', folds, args.folds)}")
    print(f"time      {seconds:.1f} s")
    print(f"model     {args.out} ({size / 1000:.0f} kB)")
    chosen = (type(model.kernel_).__name__, float(model.alpha_), int(model.n_neighbors_))
    return {
        "model": args.out,
        "bytes": size,
        "task": task,
        "rows": len(frame),
        "features": features,
        "categorical": categorical,
        "chosen": dict(zip(("kernel", "alpha", "neighbors"), chosen, strict=True)),
        "left_out": left_out,
        "held_out": held_out,
        "seconds": seconds,
    }


def describe_choice(model: Any) -> str:
    """In words; of several kernels the one with the largest share."""
    members = model.predictor_.members
    name, rest = type(model.kernel_).__name__, f"alpha {model.alpha_:.3g}, {model.n_neighbors_} neighbors"
    if len(members) == 1:
        return f"{name} kernel, {rest}"
    return f"mix of {len(members)} kernels, of which {name} counts most ({100 * members[0].share:.0f} %): {rest}"


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


def _feature_names(args: argparse.Namespace, table: Table) -> list[str]:
    weight = [] if args.sample_weight is None else [args.sample_weight]
    for option in ("target", "categorical", "ignore"):
        table.require(getattr(args, option), f"named by --{option}")
    table.require(weight, "named by --sample-weight")
    features = [name for name in table.data if name not in {*args.target, *args.ignore, *weight}]
    if not features:
        raise InputError(f"{table.path} has no columns to predict from besides {', '.join(args.target)}.")
    return features


def _warn_of_names(kinds: Mapping[str, str], part: Part) -> None:
    """Texts that hardly repeat, such as dates and names, tell rows apart and say nothing of new ones."""
    for name, kind in kinds.items():
        column = part.data.column(name).drop_null()
        if kind == "text" and len(column) >= FEW_ROWS and len(column.unique()) > MOSTLY * len(column):
            warnings.warn(
                f"Column {name!r} has a different text in almost every row, from which nothing can be learned for "
                "new ones. Leave it out with --ignore; turn dates into numbers.",
                KernelRidgeWarning,
                stacklevel=2,
            )


def _sample_weights(part: Part, name: str) -> Array:
    weights = part.numbers(name)
    bad = (~(weights >= 0)).nonzero()[0]
    if len(bad):
        raise InputError(f"Weight {name!r} of {part.table.path} is missing or negative in row {part.first + bad[0]}.")
    return weights


def _held_out_line(of: str, scores: Mapping[str, Any], folds: int) -> str:
    """Such as `RMSE 58.1 ± 3.2 (5 folds), coverage of 90 % 0.86`."""
    from .scores import TITLES

    first, second = [key for key in ("rmse", "accuracy", "coverage90", "log_loss") if key in scores]
    mean, error = scores[first]["mean"], scores[first]["standard_error"]
    # As many decimals as two digits of the error have.
    decimals = max(0, 1 - math.floor(math.log10(error))) if 0 < error < math.inf else 3
    main = f"{TITLES[first]}{of} {mean:.{decimals}f} ± {error:.{decimals}f} ({folds} folds)"
    return f"{main}, {TITLES[second]} {scores[second]['mean']:.2f}"

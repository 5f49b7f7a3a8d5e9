"""Arguments of scikit-learn's kind, read and checked."""

from __future__ import annotations

import math
import numbers
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, _num_samples, validate_data
from torch import Tensor

from ..errors import InputError
from ..kernels import Kernel
from ..tuning.scores import Loss
from .columns import Array, column, first_text, is_frame, names_strings, width
from .wanted import PROFILES, Wanted

FLOATS = (np.float64, np.float32)


def read_table(estimator: Any, X: Any, *, reset: bool) -> Any:
    """X as a float array, or as it is where some columns are categories; names and number of columns are checked."""
    if not _has_categories(estimator, X, reset=reset):
        try:
            return validate_data(estimator, X, dtype=FLOATS, ensure_all_finite="allow-nan", reset=reset)
        except ValueError:
            _refuse_text(X, reset=reset)
            raise
    if not is_frame(X):
        X = np.asarray(X, dtype=object)
        if X.ndim != 2:
            raise InputError(f"X must have shape (n_samples, n_features), got {X.shape}. Reshape your data.")
    validate_data(estimator, X, skip_check_array=True, reset=reset)
    if _num_samples(X) == 0 or width(X) == 0:
        raise InputError(
            f"X is empty: {_num_samples(X)} sample(s) and {width(X)} feature(s), while a minimum of 1 is required."
        )
    return X


def _refuse_text(X: Any, *, reset: bool) -> None:
    """An error of its own where numbers were expected and text came."""
    table: Any = X if is_frame(X) else np.asarray(X, dtype=object)
    if not is_frame(X) and table.ndim != 2:
        return
    found = {at: text for at in range(width(table)) if (text := first_text(column(table, at))) is not None}
    if not found:
        return
    at, text = next(iter(found.items()))
    if not reset:
        raise InputError(
            f"Column {at} of X holds the text {text!r}, but held numbers in the fit. "
            "Correct the value, or give NaN if it is missing."
        )
    named = [str(table.columns[one]) for one in found] if is_frame(X) else list(found)
    frame = "leave categorical_features at 'from_dtype'" if is_frame(X) else "pass a DataFrame (pandas or polars)"
    raise InputError(
        f"Column {named[0]!r} of X holds the text {text!r}, but is taken as numbers. "
        f"To use text as categories, {frame}, or name the columns: categorical_features={named!r}."
    )


def _has_categories(estimator: Any, X: Any, *, reset: bool) -> bool:
    if not reset:
        return any(kind.kind != "number" for kind in estimator._encoder.columns)
    wanted = estimator.categorical_features
    if isinstance(wanted, str):
        return is_frame(X) and any(names_strings(column(X, at)) for at in range(width(X)))
    return wanted is not None and np.asarray(wanted).size > 0


def read_weights(sample_weight: Any, count: int) -> Array:
    """One non-negative weight per row, not all zero; ones for `None`."""
    rows = np.empty((count, 1))
    weights: Array = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise InputError("sample_weight is zero for every row. Give at least one row a positive weight.")
    return weights


def tensor(points: Array, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.tensor(points, dtype=dtype)  # a copy: the caller's array may change, or be read-only


def wanted_of(estimator: Any, *, dense: bool, loss: Loss) -> Wanted:
    """The parameters of an estimator in the library's own terms."""
    neighbors = "auto" if dense else estimator.n_neighbors
    kernel, alpha, metric = estimator.kernel, estimator.alpha, estimator.metric
    if neighbors != "auto" and (not isinstance(neighbors, numbers.Integral) or isinstance(neighbors, bool) or neighbors < 1):
        raise InputError(f"n_neighbors must be 'auto' or an int of at least 1, got {neighbors!r}.")
    if isinstance(alpha, str) or not isinstance(alpha, numbers.Real) or isinstance(alpha, bool):
        if not (isinstance(alpha, str) and alpha == "auto"):
            raise InputError(f"alpha must be 'auto' or a non-negative number, got {alpha!r}.")
    elif not (0 <= float(alpha) < math.inf):
        raise InputError(f"alpha must be finite and not negative, got {alpha!r}. A typical value is 1e-2.")
    if not isinstance(kernel, Kernel) and not (isinstance(kernel, str) and kernel in ("auto", *PROFILES)):
        raise InputError(
            f"kernel must be 'auto', one of {', '.join(map(repr, PROFILES))}, or a torchkrr kernel, got {kernel!r}."
        )
    metrics = ("auto", "ard") if dense else ("auto", "ard", "linear")
    if metric is not None and metric not in metrics:
        raise InputError(f"metric must be None or one of {', '.join(map(repr, metrics))}, got {metric!r}.")
    return Wanted(
        num_neighbors=None if neighbors == "auto" else int(neighbors),
        ridge=None if alpha == "auto" else float(alpha),
        kernel=None if isinstance(kernel, str) and kernel == "auto" else kernel,
        # A kernel of the caller's own is used as it is, unless a metric is asked for.
        metric=None if metric == "auto" and isinstance(kernel, Kernel) else metric,
        dense=dense,
        loss=loss,
        seed=int(check_random_state(estimator.random_state).randint(np.iinfo(np.int32).max)),
        progress=bool(estimator.verbose),
    )

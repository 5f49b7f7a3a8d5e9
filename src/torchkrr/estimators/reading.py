"""What callers give, as arrays: tensors, half precision, sparse matrices, frames, and weights."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from sklearn.utils.validation import _check_sample_weight, validate_data
from torch import Tensor

from ..errors import InputError, KernelRidgeWarning
from .encoding import Array, column, first_text, holds_text, is_frame

# Of a sparse matrix that is made dense: from where a warning says so, and the most.
LARGE_BYTES, MOST_BYTES = 64 << 20, 4 << 30


def on_cpu(values: Any) -> Any:
    """A tensor as an array, and half precision as float32; anything else as it is."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = (values.float() if values.dtype in (torch.float16, torch.bfloat16) else values).numpy()
    return values.astype(np.float32) if isinstance(values, np.ndarray) and values.dtype == np.float16 else values


def densified(X: Any, *, warn: bool) -> Any:
    """A sparse matrix as an array, if it fits."""
    if not issparse(X):
        return X
    if len(X.shape) != 2:
        raise InputError(f"X must have shape (n_samples, n_features), got {X.shape}. Reshape your data.")
    X = X.astype(np.float32 if X.dtype.itemsize <= 4 and X.dtype.kind == "f" else np.float64, copy=False)
    size = math.prod(X.shape) * X.dtype.itemsize
    text = f"X is sparse, {X.shape[0]} x {X.shape[1]}: made dense it takes {size / 2**20:,.1f} MiB"
    if size > MOST_BYTES:
        raise InputError(
            f"{text}, more than {MOST_BYTES >> 20:,} MiB. Reduce its columns first, for example with TruncatedSVD."
        )
    if warn and size > LARGE_BYTES:
        warnings.warn(f"{text}.", KernelRidgeWarning, stacklevel=5)
    return X.toarray(order="C")


def read_table(estimator: Any, X: Any, *, reset: bool) -> Any:
    """X as a float array, or as it is where some columns are categories; names and number of columns are checked."""
    X = densified(on_cpu(X), warn=reset)
    requested = estimator.categorical_features
    if not reset:
        has_categories = any(learned.kind != "number" for learned in estimator.encoder_.columns)
    elif isinstance(requested, str):
        has_categories = is_frame(X) and any(holds_text(column(X, at)) for at in range(X.shape[1]))
    else:
        has_categories = requested is not None and np.size(requested) > 0
    if not has_categories:
        try:
            return validate_data(estimator, X, dtype=(np.float64, np.float32), ensure_all_finite="allow-nan", reset=reset)
        except ValueError:
            _refuse_text(X, reset=reset)
            raise
    if not is_frame(X):
        X = np.asarray(X, dtype=object)
        if X.ndim != 2:
            raise InputError(f"X must have shape (n_samples, n_features), got {X.shape}. Reshape your data.")
    validate_data(estimator, X, skip_check_array=True, reset=reset)
    if 0 in X.shape:
        raise InputError(
            f"X is empty: {X.shape[0]} sample(s) and {X.shape[1]} feature(s), while a minimum of 1 is required."
        )
    return X


def _refuse_text(X: Any, *, reset: bool) -> None:
    """An error of its own where numbers were expected and text came."""
    table: Any = X if is_frame(X) else np.asarray(X, dtype=object)
    if not is_frame(X) and table.ndim != 2:
        return
    texts = {at: text for at in range(table.shape[1]) if (text := first_text(column(table, at))) is not None}
    if not texts:
        return
    at, text = next(iter(texts.items()))
    if not reset:
        raise InputError(
            f"Column {at} of X holds the text {text!r}, but held numbers in the fit. "
            "Correct the value, or give NaN if it is missing."
        )
    names = [str(table.columns[one]) for one in texts] if is_frame(X) else list(texts)
    frame = "leave categorical_features at 'from_dtype'" if is_frame(X) else "pass a DataFrame (pandas or polars)"
    raise InputError(
        f"Column {names[0]!r} of X holds the text {text!r}, but is taken as numbers. "
        f"To use text as categories, {frame}, or name the columns: categorical_features={names!r}."
    )


def read_weights(sample_weight: Any, count: int) -> Array:
    """One non-negative weight per row, not all zero; ones for `None`."""
    rows = np.empty((count, 1))
    weights: Array = _check_sample_weight(sample_weight, rows, dtype=np.float64, ensure_non_negative=True)
    if not weights.any():
        raise InputError("sample_weight is zero for every row. Give at least one row a positive weight.")
    return weights

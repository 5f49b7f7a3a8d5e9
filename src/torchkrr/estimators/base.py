"""What the estimators share: rows in, a predictor out."""

from __future__ import annotations

import os
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from ..errors import FileError, InputError, KernelRidgeWarning
from ..tuning.scores import Loss
from .choose import choose
from .columns import Array, first_text
from .members import Member
from .predictor import Predictor, Unit
from .reading import read_table, read_weights, tensor, wanted_of
from .rows import Centers, Rows, different_points
from .state import Plain, Tensors, parameters_from, plain_parameters, predictor_from, predictor_state
from .storage import Stored, read_model, refuse_head, write_model
from .table import TableEncoder, categorical_columns, fit_encoder
from .threads import threads


class Explanation(NamedTuple):
    """Training rows behind each prediction and their weights, largest first: `(weights * y[indices]).sum(1)` is it."""

    indices: Array  # (Q, R) rows, in the order they were given
    weights: Array  # (Q, R) zero where fewer rows took part


class KernelRidgeBase(BaseEstimator):
    """Fitting, growing, shrinking and explaining; a subclass reads `y` and says what is predicted."""

    _dense = False
    _loss: Loss = "mse"
    _encoder: TableEncoder
    _predictor: Predictor

    def _fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Any:
        keep = bool(getattr(self, "warm_start", False)) and hasattr(self, "_predictor")
        wanted = wanted_of(self, dense=self._dense, loss=self._loss)
        with threads(self.n_jobs):
            table = read_table(self, X, reset=not keep)
            values = self._read_values(table, y, reset=not keep, classes=classes)
            weights = read_weights(sample_weight, len(values))
            if keep:
                encoded, unit = self._encoder.encode(table), Unit(self._predictor.offset, self._predictor.unit)
            else:
                categorical = categorical_columns(table, self.categorical_features, getattr(self, "feature_names_in_", None))
                self._encoder, encoded = fit_encoder(table, values, weights, categorical, seed=wanted.seed)
                self._dtype = torch.float32 if getattr(table, "dtype", None) == np.float32 else torch.float64
            rows = Rows(tensor(encoded, self._dtype), tensor(values), tensor(weights))
            centers = different_points(rows)
            if not keep:
                unit = self._unit(centers)
            members: tuple[Member, ...] = (
                self._predictor.members
                if keep
                else choose(centers._replace(values=(centers.values - unit.offset) / unit.unit), wanted)
            )
            scaled = rows._replace(values=(rows.values - unit.offset) / unit.unit)
            self._predictor = Predictor(scaled, members, unit.offset, unit.unit, wanted.seed)
            self._describe()
        self._warn_if_local()
        return self

    def _partial_fit(self, X: Any, y: Any, sample_weight: Any, classes: Any = None) -> Any:
        if not hasattr(self, "_predictor"):
            return self._fit(X, y, sample_weight, classes)
        table = read_table(self, X, reset=False)
        values = self._read_values(table, y, reset=False, classes=classes)
        weights = read_weights(sample_weight, len(values))
        points = tensor(self._encoder.encode(table), self._dtype)
        scaled = (tensor(values) - self._predictor.offset) / self._predictor.unit
        self._predictor.append(Rows(points, scaled, tensor(weights)))
        self._describe()
        self._warn_if_local()
        return self

    def forget(self, rows: Any) -> Any:
        """Drop training rows; predictions are exactly those without them from the next one on.

        Args:
            rows: their numbers, in the order in which rows were given; those after a forgotten one move up.
        """
        check_is_fitted(self)
        self._predictor.check_whole()
        which = np.atleast_1d(np.asarray(rows))
        count = len(self._predictor.rows.points)
        if which.dtype.kind not in "iu" or which.ndim != 1:
            raise InputError(f"rows must be row numbers, an int or a list of ints, got {rows!r}.")
        if len(which) and (which.min() < 0 or which.max() >= count):
            raise InputError(f"rows must lie between 0 and {count - 1}, got {which.min()} to {which.max()}.")
        self._predictor.forget(torch.from_numpy(which.astype(np.int64)))
        self._describe()
        return self

    def explain(self, X: Any, n_rows: int | None = None) -> Explanation:
        """The training rows behind each prediction, and the weight of each.

        Args:
            X: rows to explain.
            n_rows: how many training rows to name for each, those of the largest weight; `None` is all that count.

        Shape:
            - X: `(Q, D)`; indices, weights: `(Q, R)`
        """
        if n_rows is not None and n_rows < 1:
            raise InputError(f"n_rows must be at least 1 or None, got {n_rows}.")
        query = self._query(X)
        with threads(self.n_jobs):
            return Explanation(*self._predictor.explain(query, n_rows))

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
        """The nearest training rows in the metric of the kernel (of the one with the largest share).

        Args:
            X: rows whose neighbors to find; `None` is every training row, of which none is its own neighbor.
            n_neighbors: how many; `None` is as many as take part in a prediction.
            return_distance: give `(distances, indices)`, or `indices` alone.

        Shape:
            - X: `(Q, D)`; distances, indices: `(Q, M)`
        """
        check_is_fitted(self)
        self._predictor.check_whole()
        most = len(self._predictor.rows.points) - (X is None)
        count = min(self.n_neighbors_, most) if n_neighbors is None else n_neighbors
        if not 1 <= count <= most:
            raise InputError(f"n_neighbors must lie between 1 and the number of training rows ({most}), got {count}.")
        query = None if X is None else self._query(X)
        with threads(self.n_jobs):
            distances, indices = self._predictor.nearest_rows(query, count)
        return (distances.numpy(), indices.numpy()) if return_distance else indices.numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything that was given and fitted to one file, for `torchkrr.estimators.load`; no pickle is involved.

        The file is there complete or not at all. An attribute `notes_`, a dictionary that JSON can hold, goes with it.
        """
        tensors, plain = self._state()
        write_model(path, Stored(type(self).__name__, tensors, {**plain, "notes": getattr(self, "notes_", {})}))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Any:
        """The estimator of this class that `save` wrote to `path`; `torchkrr.estimators.load` reads any class."""
        return cls._from_stored(path, read_model(path))

    @classmethod
    def _from_stored(cls, path: str | os.PathLike[str], stored: Stored) -> Any:
        refuse_head(path, stored)
        if stored.kind != cls.__name__:
            raise FileError(f"{path} holds a {stored.kind}, not a {cls.__name__}. torchkrr.estimators.load reads either.")
        try:
            found = cls._from_state(stored.tensors, stored.plain)
            found.notes_ = dict(stored.plain["notes"])
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise FileError(f"{path} does not hold what a {cls.__name__} is made of: {error!r}.") from error
        return found

    def _query(self, X: Any) -> Tensor:
        check_is_fitted(self)
        return tensor(self._encoder.encode(read_table(self, X, reset=False)), self._dtype)

    def _describe(self) -> None:
        """Attributes that say what was chosen: of the member with the largest share."""
        first, neighbors = self._predictor.members[0], self._predictor.num_neighbors()
        self.kernel_, self.alpha_ = first.kernel, first.ridge
        self.n_neighbors_ = int((self._predictor.rows.weights > 0).sum()) if neighbors is None else neighbors
        self.n_samples_fit_ = len(self._predictor.rows.points)

    def _warn_if_local(self) -> None:
        """Where every row was asked for, but they are too many."""
        neighbors = self._predictor.num_neighbors()
        if self._dense and neighbors is not None:
            warnings.warn(
                f"{type(self).__name__} has {len(self._predictor.different().points)} different rows, too many for one "
                f"factorization: each prediction uses the {neighbors} nearest. LocalKernelRidgeRegressor chooses how many.",
                KernelRidgeWarning,
                stacklevel=4,
            )

    def _state(self) -> tuple[Tensors, Plain]:
        """Everything that was given and fitted, as tensors and plain values; `_from_state` is the inverse."""
        check_is_fitted(self)
        tensors, predictor = predictor_state(self._predictor)
        names = getattr(self, "feature_names_in_", None)
        return tensors, {
            "parameters": plain_parameters(self.get_params(deep=False)),
            "predictor": predictor,
            "encoder": self._encoder.state(),
            "dtype": str(self._dtype).removeprefix("torch."),
            "n_features_in": self.n_features_in_,
            "feature_names_in": None if names is None else [str(name) for name in names],
            **self._own_state(),
        }

    @classmethod
    def _from_state(cls, tensors: Tensors, plain: Plain) -> Any:
        found = cls(**parameters_from(plain["parameters"]))
        found._predictor = predictor_from(tensors, plain["predictor"])
        found._encoder = TableEncoder.from_state(plain["encoder"])
        found._dtype = {"float32": torch.float32, "float64": torch.float64}[plain["dtype"]]
        found.n_features_in_ = plain["n_features_in"]
        if plain["feature_names_in"] is not None:
            found.feature_names_in_ = np.array(plain["feature_names_in"], dtype=object)
        found._take_own_state(plain)
        found._describe()
        return found

    def _own_state(self) -> Plain:
        raise NotImplementedError

    def _take_own_state(self, plain: Plain) -> None:
        raise NotImplementedError

    def _unit(self, centers: Centers) -> Unit:
        raise NotImplementedError

    def _read_values(self, table: Any, y: Any, *, reset: bool, classes: Any) -> Array:
        raise NotImplementedError

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def read_targets(table: Any, y: Any) -> Array:
    """Numbers, `(n,)` or `(n, C)`, as float64."""
    if y is None:
        raise InputError("This estimator requires y to be passed, but the target y is None.")
    try:
        values: Array = check_array(y, ensure_2d=False, allow_nd=False, dtype=np.float64, input_name="y")
    except ValueError:
        text = first_text(y)
        if text is None:
            raise
        raise InputError(
            f"y must hold numbers for a regressor, got the text {text!r}. For classes use LocalKernelRidgeClassifier."
        ) from None
    check_consistent_length(table, values)
    return values

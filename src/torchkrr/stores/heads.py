"""Estimators whose training rows are in a store.

The rows hold what the prior left over of their values when they were left out of it. The prior itself, the calibration and
the leave-one-out predictions of a sample of the rows are kept beside them, as they were when the rows were moved.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import check_at_least_one
from ..core.least_squares import LinearFit
from ..core.options import Kind, SolveOptions
from ..errors import InputError, StoreError
from ..estimators import ESTIMATORS
from ..estimators.encoding import Array, Centers, Rows, Sample
from ..estimators.predictor import Member, Prediction, Predictor, dtypes_of, neighbors_of
from ..estimators.prior import FittedRidge, RidgePrior
from ..estimators.storage import restored, stored_estimator
from .base import Store, same_kernel
from .layer import stored_solve

HEAD = "head"  # the name of the note
START = "head."  # of the names of tensors that a file of an estimator does not have


class Frozen(NamedTuple):
    """What the predictor of a head knows of rows that it does not hold."""

    sample: Sample
    alone: Prediction
    rows: Prediction
    positive: Tensor  # (C,)
    group_shares: Tensor  # (n,)


def to_store(estimator: Any, store: Store, n_neighbors: int | None = None) -> None:
    """As the method of the estimators."""
    predictor = estimator.predictor_
    predictor.check_whole()
    if n_neighbors is not None:
        check_at_least_one("n_neighbors", n_neighbors)
    count, members = len(predictor.centers.points), [member for member in predictor.members if member.share]
    members = members or list(predictor.members[:1])  # the prior alone predicts
    if len(members) != 1:
        raise InputError(
            f"{len(members)} kernels predict together here, but the rows of a store are in the metric of one. Fit with "
            "fewer neighbors than rows, such as n_neighbors=100: then one kernel is chosen."
        )
    neighbors = n_neighbors or neighbors_of(members[0], count)
    if neighbors is None:
        raise InputError(
            "This estimator predicts from all rows, in one factorization. Say how many nearest rows each prediction is to "
            "use: to_store(store, n_neighbors=100), or fit with n_neighbors=100."
        )
    member = members[0]._replace(num_neighbors=int(neighbors))
    if not same_kernel(store.kernel, member.kernel):
        raise InputError("The kernel of the store is not that of the estimator. Open it with kernel=model.kernel_.")
    if len(store) > count or store.read_note(HEAD) is not None:
        raise StoreError(f"The table {store.table!r} holds other rows, or a head, already. Use a table of another name.")
    head, local = copy.copy(estimator), _with_members(predictor, member)
    head.predictor_ = local
    if members[0].num_neighbors != member.num_neighbors:
        head._calibrate()
    names = local.first_rows.numpy() if estimator.ids_ is None else estimator.ids_[local.first_rows.numpy()]
    weights = local.centers.weights
    weighted = not bool((weights == 1).all())
    points, values = local.left_over.points, local.left_over.values
    store.load(points, torch.cat((values, weights[:, None]), dim=1) if weighted else values, names)
    if len(store) != count:
        raise StoreError(f"The table {store.table!r} has {len(store)} rows, but the head {count}. Use one of another name.")
    head.predictor_ = Predictor(Rows(*(part[:0] for part in local.rows)), *_choices(local))
    head._ids, head._group_names = None, {}
    stored = stored_estimator(head)
    parts: dict[str, Any] = {**_frozen(local)._asdict()}
    if local.fitted_prior is not None:
        parts["fit"] = local.fitted_prior.fit
    stored.plain["store"] = {"count": count, "weighted": weighted, "named": estimator.ids_ is not None}
    tensors = {name: tensor.clone().contiguous() for name, tensor in _flat(START, parts)}
    store.write_note(HEAD, stored._replace(tensors={**stored.tensors, **tensors}))


def open_head(store: Store) -> Any:
    """The estimator that `to_store` has moved into a store; it predicts the same, from the rows that are there now.

    `partial_fit` of an estimator without ids adds rows to the store, of classes that are known; `store.remove` forgets some.

    Example:
        >>> import numpy as np, tempfile
        >>> from torchkrr.stores import LanceStore, open_head
        >>> X = np.linspace(0, 1, 200)[:, None]
        >>> model = torchkrr.LocalKernelRidgeRegressor(10, kernel="matern32", metric=None, alpha=1e-3).fit(X, X[:, 0] ** 2)
        >>> folder = tempfile.mkdtemp()
        >>> model.to_store(LanceStore(folder, kernel=model.kernel_))
        >>> head = open_head(LanceStore(folder))
        >>> bool(np.allclose(head.predict([[0.3]]), model.predict([[0.3]]), atol=1e-5))
        True
    """
    note = store.read_note(HEAD)
    if note is None:
        raise StoreError(f"The table {store.table!r} holds no head. Move one there: model.to_store(store).")
    kinds = {kind.__name__: kind for kind in ESTIMATORS}
    head = restored(kinds[note.kind], note.tensors, note.plain)
    tensors = {name.removeprefix(START): tensor for name, tensor in note.tensors.items() if name.startswith(START)}
    head.predictor_ = StoredPredictor(head.predictor_, store, tensors, head._dtype, **note.plain["store"])
    head._describe()
    return head


class StoredPredictor(Predictor):
    """A predictor whose rows are in a store."""

    def __init__(
        self,
        bare: Predictor,
        store: Store,
        tensors: dict[str, Tensor],
        dtype: torch.dtype,
        count: int,
        weighted: bool,
        named: bool,
    ) -> None:
        super().__init__(bare.rows, *_choices(bare))
        self.store, self.weighted, self.named, self.frozen = store, weighted, named, _thawed(tensors)
        empty = torch.empty(count, 0)
        self.centers = Centers(empty, empty, empty, torch.empty(0, dtype=torch.long), empty, empty)
        self.sample, self.positive, self.groups = self.frozen.sample, self.frozen.positive, None
        self.fitted_prior = None
        if isinstance(self.prior, RidgePrior):
            self.fitted_prior = FittedRidge.__new__(FittedRidge)  # solved, without the rows
            self.fitted_prior.prior, self.fitted_prior.fit = self.prior, LinearFit(tensors["fit.0"], tensors["fit.1"])
        self.fitted = [StoredMember(self.members[0], store, self, dtype)]  # type: ignore[list-item]

    def append(self, rows: Rows) -> Predictor:
        if self.named:
            raise InputError("The rows of this head have ids, which partial_fit does not pass on. Add rows by store.add.")
        values = rows.values - self.prior_scores(rows.points)
        if self.weighted:
            values = torch.cat((values, rows.weights[:, None]), dim=1)
        elif bool((rows.weights != 1).any()):
            raise InputError("The rows of this head all weigh the same. Leave out sample_weight.")
        self.store.add(rows.points, values)
        return self

    @property
    def num_rows(self) -> int:
        return len(self.store)

    @property
    def group_shares(self) -> Tensor:
        return self.frozen.group_shares

    def leave_out(self) -> tuple[Prediction, Prediction]:
        return self.frozen.alone, self.frozen.rows

    def num_neighbors(self) -> int | None:
        return self.members[0].num_neighbors

    def explain(self, query: Tensor, most: int | None) -> tuple[Array, Array]:
        """Ids of the store and weights, as of rows; a center that stands for several has the id of the first of them."""
        weights, _, ids = self.fitted[0].solve(query, "weights")  # type: ignore[union-attr]
        weights = weights * self.members[0].share
        order = weights.abs().argsort(dim=1, descending=True, stable=True)[:, :most].numpy()
        names = np.take_along_axis(np.asarray(ids), order, 1)
        return names, np.take_along_axis(weights.to(query.dtype).numpy(), order, 1)

    def check_whole(self) -> None:
        raise InputError(
            "The rows of this estimator are in a store, and its choices are kept as they are there. Forget rows by "
            "store.remove(ids); for anything else use the estimator that was moved."
        )


class StoredMember:
    """The nearest rows of each query, from a store."""

    def __init__(self, member: Member, store: Store, predictor: StoredPredictor, dtype: torch.dtype) -> None:
        _, self.dtype = dtypes_of(member, torch.empty(0, dtype=dtype))
        self.member, self.store, self.weighted = member, store, predictor.weighted
        self.options = SolveOptions(store.profile, member.ridge, predictor.trend)

    def mean(self, query: Tensor) -> Tensor:
        return self.solve(query, "mean")[0]

    def predict(self, query: Tensor) -> Prediction:
        mean, squared, _ = self.solve(query, "mean")
        return Prediction(mean, squared.clamp_min(0).double() + self.member.ridge)

    def solve(self, query: Tensor, kind: Kind) -> tuple[Tensor, Tensor, Any]:
        embedded, count = self.store.kernel.embed(query.to(self.dtype)), self.member.num_neighbors
        assert count is not None
        return stored_solve(self.store, embedded, count, self.options, kind, self.dtype, weighted=self.weighted)


def _choices(predictor: Predictor) -> tuple[Any, ...]:
    return predictor.members, predictor.offset, predictor.unit, predictor.seed, predictor.prior


def _with_members(predictor: Predictor, member: Member) -> Predictor:
    """The same with one member; what was computed from the rows is shared."""
    if predictor.members == (member,):
        return predictor
    local = Predictor(predictor.rows, (member,), *_choices(predictor)[1:])
    local.centers, local.fitted_prior, local.groups = predictor.centers, predictor.fitted_prior, predictor.groups
    return local


def _frozen(predictor: Predictor) -> Frozen:
    return Frozen(predictor.sample, *predictor.leave_out(), predictor.positive, predictor.group_shares)


def _flat(start: str, parts: Any) -> Iterable[tuple[str, Tensor]]:
    """Tensors of nested tuples, named by their places."""
    for name, part in parts.items() if isinstance(parts, dict) else enumerate(parts):
        if isinstance(part, Tensor):
            yield f"{start}{name}", part
        else:
            yield from _flat(f"{start}{name}.", part)


def _thawed(tensors: dict[str, Tensor]) -> Frozen:
    def of(name: str, width: int) -> list[Tensor]:
        return [tensors[f"{name}.{at}"] for at in range(width)]

    which, _, *rest = (tensors.get(f"sample.{at}") for at in range(len(Sample._fields)))
    sample = Sample(which, Centers(*of("sample.1", len(Centers._fields))), *rest)  # type: ignore[arg-type]
    alone, rows = (Prediction(*of(name, 2)) for name in ("alone", "rows"))
    return Frozen(sample, alone, rows, tensors["positive"], tensors["group_shares"])

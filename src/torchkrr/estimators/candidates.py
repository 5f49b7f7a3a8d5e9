"""Kernels to choose from, and the loss that tells which is better."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from .._chunking import map_in_order
from ..kernels import Exponential, Gaussian, Kernel, Matern32, Matern52
from ..transforms import Compose, Linear, SignedRoot, Standardize, Transform, UnitNorm
from ..tuning.calibration import SCREENED, doubt_of, slope_losses, smoothed, surprise
from ..tuning.leave_one_out import shuffled_rows
from ..tuning.scores import Loss
from ..tuning.select import scaled
from .encoding import Centers, Concatenate, RankTransform, Staircase
from .predictor import Member
from .prior import FittedRidge, Hat, choose_ridge

WIDE = 100  # columns: more are features of a network or a sentence, which count together
FITTED_ROWS = 4000  # that maps are fitted on
NARROW_FAMILIES = ("matern32", "gaussian", "plain gaussian", "laplacian")
WIDE_FAMILIES = {  # by how rows are brought to unit length
    "unit": ("unit exponential", "unit matern32", "plain matern32"),
    "root": ("root gaussian", "root matern32", "plain matern32"),
}
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of the root mean square distance
MAPPED_AT_ONCE = 8192
OWN = "own"  # the kernel of the caller

S = TypeVar("S")
T = TypeVar("T")
Metric = Literal["ard", "linear", "auto"] | None
Tried = dict[str, float]  # loss of left-out rows


class Request(NamedTuple):
    """What the caller fixed; `None` is to be chosen, except for the metric, where it is none."""

    num_neighbors: int | None
    ridge: float | None
    kernel: Kernel | str | None
    metric: Metric
    dense: bool  # every row takes part
    loss: Loss
    seed: int
    progress: bool
    prior: Any = None  # as given
    multilabel: bool = False
    workers: int = 1  # threads for several candidates at a time

    def ridges(self, otherwise: Sequence[float], around: float = 1.0) -> tuple[float, ...]:
        """Those to try: the one that was given, or `otherwise`, as factors of the one they lie `around`."""
        return tuple(factor * around for factor in otherwise) if self.ridge is None else (self.ridge,)

    def each(self, function: Callable[[S], T], items: Sequence[S], name: str) -> list[T]:
        """`function` of every item, several at a time, each on one thread: small matrices gain nothing from two."""
        # Three on two cores go at once: in turns, the third would keep one core alone.
        workers = len(items) if self.workers < len(items) < 2 * self.workers else self.workers
        found = map_in_order(torch.no_grad()(function), items, torch.device("cpu"), workers)
        return list(tqdm(found, name, len(items), disable=not self.progress))


class Family(NamedTuple):
    """A kernel up to its lengthscale."""

    name: str
    profile: Kernel
    transform: Transform | None
    factors: tuple[float, ...] = FACTORS

    @property
    def map_name(self) -> str:
        """The same for kernels on the same embedded points."""
        kind, _, profile = self.name.rpartition(" ")
        return profile if profile in ("laplacian", OWN) else kind

    @property
    def fixed(self) -> bool:
        """Whether the lengthscale is the caller's own."""
        return len(self.factors) == 1

    def kernel(self, log: Tensor, rotation: Tensor | None = None) -> Kernel:
        kernel = scaled(self.profile, log)
        maps = [*([] if self.transform is None else [self.transform]), *([] if rotation is None else [Linear(rotation)])]
        if maps:
            kernel.input_transform = maps[0] if len(maps) == 1 else Compose(*maps)
        return kernel

    def on_mapped(self, log: Tensor) -> Kernel:
        """The same for points that are mapped already; of a kernel of the caller's own its lengthscale is in the map."""
        kernel = scaled(self.profile, log - self.profile.log_lengthscale.detach().double())
        kernel.input_transform = None
        return kernel

    def mapped(self, points: Tensor, rotation: Tensor | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        parts = []
        for part in points.split(MAPPED_AT_ONCE):
            own = self.profile.embed(part.to(dtype)) if self.transform is None else self.transform(part.to(dtype))
            parts.append(own if rotation is None else own @ rotation.to(dtype).T)
        return torch.cat(parts)


class Candidate(NamedTuple):
    """A kernel and a ridge, with or without the prior, and what they predict for rows that are left out."""

    family: Family
    log: Tensor  # (1,): of the lengthscale
    ridge: float
    prior: float  # factor of the ridge of the prior; 0 without it
    scores: Tensor  # (n, C)
    loss: float


class Judge:
    """Calibrated log loss of left-out scores."""

    def __init__(self, targets: Tensor, weights: Tensor, multilabel: bool) -> None:
        self.targets = smoothed(targets.double(), doubt_of(weights), multilabel)
        self.weights, self.multilabel = weights, multilabel

    def losses(self, scores: Tensor, rows: Tensor) -> Tensor:
        """`(n, K, C)` to `(K,)`."""
        found = slope_losses(scores, self.targets[rows], self.weights[rows], SCREENED, multilabel=self.multilabel)
        return found.amin(1)

    def per_row(self, scores: Tensor, rows: Tensor) -> Tensor:
        """`(n, C)` to `(n,)`, at the one slope that is best for all."""
        targets, weights = self.targets[rows], self.weights[rows]
        found = slope_losses(scores.unsqueeze(1), targets, weights, SCREENED, multilabel=self.multilabel)[0]
        slope = SCREENED[int(found.argmin())]
        return surprise(slope * scores, targets, self.multilabel)


def families(points: Tensor, kernel: Kernel | str | None) -> list[Family]:
    """The kernels to try, their maps fitted; a kernel of the caller's own as it is."""
    if isinstance(kernel, Kernel):
        return [Family(OWN, kernel, None, (1.0,))]
    few = some_of(points)
    if kernel is not None:
        return [family_named(suited(kernel, few), few)]
    names = NARROW_FAMILIES if few.shape[1] <= WIDE else WIDE_FAMILIES[kind_of_wide(few)]
    return [family_named(name, few) for name in names]


def kind_of_wide(points: Tensor) -> str:
    """How rows of many columns come to unit length: of features that are never negative, a few are large in each row."""
    return "root" if bool((points >= 0).all()) else "unit"


def suited(kernel: str, points: Tensor) -> str:
    """The name of the family of a kernel for points of so many columns."""
    return kernel if points.shape[1] <= WIDE else f"{kind_of_wide(points)} {kernel}"


def of_kind(kind: str) -> Transform:
    return SignedRoot() if kind == "root" else UnitNorm()


def some_of(points: Tensor, seed: int = 0) -> Tensor:
    """Rows that maps are fitted on, float64."""
    return points[shuffled_rows(len(points), FITTED_ROWS, seed, points.device)].double()


def usual_map(few: Tensor) -> Transform:
    """How points are compared before anything is learned, fitted: at unit length if they have many columns."""
    return (of_kind(kind_of_wide(few)) if few.shape[1] > WIDE else Standardize()).fit(few)


PROFILES: dict[str, type[Kernel]] = {
    "exponential": Exponential,
    "matern32": Matern32,
    "matern52": Matern52,
    "gaussian": Gaussian,
    "laplacian": Gaussian,  # on a staircase
}


def family_named(name: str, points: Tensor) -> Family:
    """Narrow ones see each feature as it is and by its rank, "plain" ones as it is alone, others rows at unit length."""
    kind, _, profile = name.rpartition(" ")
    if profile == "laplacian":
        transform: Transform = Compose(Standardize(), Staircase())
    elif kind in WIDE_FAMILIES:
        transform = of_kind(kind)
    else:
        transform = Standardize() if kind == "plain" else Concatenate(Standardize(), RankTransform())
    return Family(name, PROFILES[profile](), transform.fit(points))


class Part(NamedTuple):
    """Some of the rows, as if there were no others."""

    rows: Tensor  # (n,) which
    points: Tensor  # (n, D)
    values: Tensor  # (n, C)
    weights: Tensor  # (n,)
    hats: dict[float, Hat]  # of the prior, fitted to these rows, for factors of its ridge

    def targets(self, use: float) -> Tensor:
        """What the kernel predicts, beside the prior or alone."""
        return self.hats[use].targets() if use else self.values

    def offset(self, use: float) -> Tensor:
        """What the prior, if it is used, predicts of each row without it."""
        return self.values - self.hats[use].left_out() if use else torch.zeros_like(self.values)


def part_of(
    centers: Centers,
    rows: Tensor,
    prior: FittedRidge | None,
    loss: Callable[[Tensor, Tensor], Tensor],
    priors: Sequence[float] = (1.0,),
) -> Part:
    """On few rows a prior that was fitted to all would leave nothing for a kernel to learn: it is fitted to them alone."""
    own, which = centers.some(rows), rows
    if prior is not None and len(rows) < len(centers.points):
        which = torch.arange(len(rows))
        prior = choose_ridge(
            prior.prior, own.points, own.values, own.weights, which, lambda found, some: loss(found, rows[some])
        )
    hats = {} if prior is None else {use: prior.scaled(use).hat(which) for use in priors if use}
    return Part(rows, own.points, own.values, own.weights, hats)


class ClassChoice(NamedTuple):
    members: tuple[Member, ...]
    prior: float  # as of a candidate
    tried: Tried


def tried_of(candidates: list[Candidate], prior: FittedRidge | None) -> Tried:
    """The best loss of each kernel, with and without the prior."""
    best: Tried = {}
    for candidate in candidates:
        name = candidate.family.name + (f" + {prior.prior.name}" if candidate.prior and prior is not None else "")
        best[name] = min(candidate.loss, best.get(name, float("inf")))
    return best


def left_over(values: Tensor, prior: FittedRidge | None, use: float) -> Tensor:
    """What the kernel predicts."""
    return values if not use or prior is None else prior.scaled(use).left_out()


def offset_of(values: Tensor, prior: FittedRidge | None, use: float, rows: Tensor) -> Tensor:
    """What the prior, if it is used, predicts of some rows without themselves, `(n, C)`."""
    return torch.zeros_like(values[rows]) if not use or prior is None else values[rows] - prior.scaled(use).errors(rows)

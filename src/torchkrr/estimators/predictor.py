r"""The ensemble behind a fitted estimator: its rows, and members with a kernel, a ridge and a number of neighbors each.

All members have a constant trend, so that the weights of each prediction sum to one. A member without a number of neighbors
uses every center: then one factorization, kept here, serves all queries.

Standard deviations and intervals come from leave-one-out residuals. As in `torchkrr.tuning.intervals`, but from a sample of
the rows that is kept: the factor $s$ at a query follows the residuals of the sampled rows nearest to it, drawn towards those
of all. An observation has the variance $s^2\epsilon^2 + \nu$ with the power function $\epsilon$. Its noise $\nu$ is
$s^2\lambda$ where every row is different and they are more than a few, or with a larger number for the ridge $\lambda$, if
the residuals are more likely then. Where rows are repeated their values tell it directly, and the more of them there are,
the less the ridge, chosen for the sake of the mean, counts. A few rows tell nothing about it: then it is drawn towards the
variance of the values.

A center that stands for several rows is left out with all of them. Leaving out one row of weight one only, the others, of
weight $w - 1$ and mean $m'$, are given back to what the other centers predict, a mean $\mu$ with squared power function $q$:

$$ \mu + g\,(m' - \mu), \qquad g = \frac{q}{q + \lambda/(w-1)}, \qquad \epsilon^2 = g\lambda/(w-1). $$
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_array
from scipy.stats import t as student
from torch import Tensor

from ..core.dense import DenseRegressor
from ..core.local import solve_local
from ..core.options import Kind, SolveOptions, Trend
from ..errors import InputError
from ..kernels import Kernel
from ..neighbors import ExactIndex, nearest
from ..tuning.select import scaled
from .encoding import Array, Centers, Groups, Rows, Sample, different_points, groups_of, sample_of
from .prior import FittedRidge, GroupedHat, Hat, ModelPrior, RidgePrior

MOST_DENSE = 6000  # different rows in one factorization: its time grows with their cube
DENSE_BUT_LOCAL = 400  # nearest rows in each prediction of a member for every row, where they are more than that
SOLVED_IN_SINGLE = 1e-3  # least ridge that is solved in float32
EXPLAINED_AT_ONCE = 256  # queries
EMBEDDED_AT_ONCE = 8192
NEARBY = 30
PRIOR = 10.0  # weight of all residuals in the factor at a query, in rows
PER_CENTER = 0.02  # what a center left out tells about the noise, in repeated rows: hardly anything but where to begin
NUGGETS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3)  # that are tried beside the ridge
NOTHING_KNOWN = 0.3  # weight of the variance of the values in the noise, divided by the number of centers
SMALLEST = 1e-30
FEWEST = 3  # centers of which one is left out: two say nothing about each other


class Member(NamedTuple):
    kernel: Kernel
    ridge: float
    num_neighbors: int | None  # None: every center
    share: float  # of what the kernels predict together
    single: bool = False  # neighbors are searched in float32 whatever the data


class Prediction(NamedTuple):
    mean: Tensor  # (Q, C)
    variance: Tensor  # (Q,) in units of s^2: of an observation, or of the mean of rows that a left-out center is


def combine(members: Sequence[Member], predictions: Sequence[Prediction]) -> Prediction:
    """The prediction of all members together; its variance is the mean of theirs."""
    pairs = list(zip(members, predictions, strict=True))
    mean = torch.stack([member.share * prediction.mean for member, prediction in pairs]).sum(0)
    return Prediction(mean, combine_variances(members, [prediction.variance for prediction in predictions]))


def combine_variances(members: Sequence[Member], variances: Sequence[Tensor]) -> Tensor:
    total = sum(member.share for member in members)
    shares = [member.share / total if total else 1 / len(members) for member in members]
    return torch.stack([share * variance for share, variance in zip(shares, variances, strict=True)]).sum(0)


def neighbors_of(member: Member, count: int) -> int | None:
    """How many of `count` centers take part in a prediction of a member; `None` for all of them, in one factorization."""
    if member.num_neighbors is None and count <= MOST_DENSE:
        return None
    return min(DENSE_BUT_LOCAL if member.num_neighbors is None else member.num_neighbors, count)


def dtypes_of(member: Member, points: Tensor) -> tuple[torch.dtype, torch.dtype]:
    """What neighbors are searched in, and what is solved in."""
    searched = torch.float32 if member.single else points.dtype
    # Below this ridge float32 resolves hardly any cell: each would be solved twice.
    return searched, torch.float64 if member.ridge < SOLVED_IN_SINGLE else searched


class DenseMember:
    """Every center takes part; in float64, whatever the dtype of the data. Those that are left out are solved `last`."""

    def __init__(self, member: Member, centers: Centers, last: Tensor, trend: Trend = "constant") -> None:
        others = torch.ones(len(centers.points), dtype=torch.bool)
        others[last] = False
        self.order = torch.cat((others.nonzero().squeeze(1), last))
        ordered = centers.some(self.order)
        self.dtype, self.ridge, self.ridges = centers.points.dtype, member.ridge, member.ridge / ordered.weights
        self.last, self.values = len(last), ordered.values
        self.regressor = DenseRegressor(ordered.points, ordered.values, SolveOptions(member.kernel, self.ridges, trend))

    def mean(self, query: Tensor) -> Tensor:
        return self.regressor.predict(query).to(self.dtype)

    def predict(self, query: Tensor) -> Prediction:
        mean, power_squared = self.regressor.predict_with_power(query)
        return Prediction(mean.to(self.dtype), power_squared.clamp_min(0) + self.ridge)

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        return self.order.expand(len(query), -1), self.regressor.weights(query).to(self.dtype)

    def leave_out(self, which: Tensor, groups: Groups | None = None, hat: Hat | GroupedHat | None = None) -> Prediction:
        """Predictions of the last centers, `which`, without them: without their whole group, and out of the prior's fit.

        `hat`, of all centers, is given where they are few: it corrects what the prior left over of the *other* centers.
        """
        count = len(self.order) if groups is not None else self.last
        inverse, values = self.regressor.inverse(count), self.values[-count:]
        places = self.order.argsort()
        several = [places[members] for members in groups.several] if groups is not None else ()
        residuals, diagonal = without_groups(inverse, self.regressor.coefficients[-count:], several)
        means = values - residuals if hat is None else hat.left_out() - hat.of_sum(inverse)
        # 1 / P_ii is the variance of the center itself, with its own ridge in it.
        variances = torch.maximum(1 / diagonal, self.ridges[-count:])
        return Prediction(means[-self.last :].to(self.dtype), variances[-self.last :])


def without_groups(inverse: Tensor, solved: Tensor, several: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Residuals `(n, C)` of rows without themselves and their groups, and the inverses of their variances `(n,)`.

    From $P$ `(n, n)` and $Py$; rows that stand alone in no group are left out alone.
    """
    diagonal = inverse.diagonal().clone()
    residuals = solved / diagonal.unsqueeze(1)
    for members in several:
        block = inverse[members][:, members]
        residuals[members] = torch.linalg.solve(block, solved[members])
        diagonal[members] = 1 / torch.linalg.inv(block).diagonal()
    return residuals, diagonal


class LocalMember:
    """The nearest centers of each query, searched anew for each."""

    def __init__(self, member: Member, centers: Centers, num_neighbors: int, trend: Trend = "constant") -> None:
        searched, self.dtype = dtypes_of(member, centers.points)
        self.num_neighbors, self.ridge, self.kernel = num_neighbors, member.ridge, member.kernel
        self.values = centers.values.to(self.dtype)
        equal = bool((centers.weights == 1).all())
        self.ridges = None if equal else member.ridge / centers.weights
        # The members see embedded points alone: all that is left of the kernel is its profile.
        profile = scaled(member.kernel, -member.kernel.log_lengthscale.detach())
        profile.input_transform = None
        self.options = SolveOptions(profile, member.ridge if self.ridges is None else self.ridges, trend)
        self.points = self.embed(centers.points)
        self.index = ExactIndex()
        if len(self.points):  # a rank among several may have none
            self.index.build(self.points.to(searched))

    def embed(self, points: Tensor) -> Tensor:
        parts = [self.kernel.embed(part.to(self.dtype)) for part in points.split(EMBEDDED_AT_ONCE)]
        return torch.cat(parts) if len(parts) != 1 else parts[0]

    def mean(self, query: Tensor) -> Tensor:
        return self.predict(query).mean

    def predict(self, query: Tensor) -> Prediction:
        mean, power_squared, _ = self.solve(self.embed(query), "mean")
        return Prediction(mean, power_squared + self.ridge)

    def weights(self, query: Tensor) -> tuple[Tensor, Tensor]:
        weights, _, indices = self.solve(self.embed(query), "weights")
        return indices, weights

    def leave_out(self, which: Tensor, groups: Groups | None = None, hat: Any = None) -> Prediction:
        """As of a dense member, but the other rows keep their residuals in the fit of the prior without themselves alone."""
        mean, power_squared, _ = self.solve(self.points[which], "mean", exclude=which, groups=groups)
        return Prediction(mean, power_squared + self.ridges_of(which))

    def ridges_of(self, which: Tensor | slice) -> Tensor | float:
        return self.ridge if self.ridges is None else self.ridges[which]

    def solve(
        self, embedded: Tensor, kind: Kind, exclude: Tensor | None = None, groups: Groups | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What `kind` asks for, the squared power function, and the neighbors."""
        most = len(self.points) - (0 if exclude is None else 1 if groups is None else groups.largest)
        count = min(self.num_neighbors, most)
        assert self.index.points is not None
        searched = embedded.to(self.index.points.dtype)
        if groups is None or exclude is None:
            indices = self.index.search(searched, count, exclude=exclude).indices
        else:
            indices = self.index.search(
                searched, min(count + groups.largest - 1, len(self.points) - 1), exclude=exclude
            ).indices
            own = groups.of_center[indices] == groups.of_center[exclude].unsqueeze(1)
            indices = indices.gather(1, own.to(torch.uint8).argsort(dim=1, stable=True)[:, :count])
        first, squared = solve_local(embedded, self.points, self.values, indices, self.options, kind)
        return first, squared.clamp_min(0).double(), indices


class Predictor:
    """Rows, prior, members, and the unit of the values; they are solved when something is asked.

    Values are kept less `offset` and divided by `unit`, so that nothing depends on where they lie. With a prior the members
    predict what it leaves over.
    """

    def __init__(
        self,
        rows: Rows,
        members: tuple[Member, ...],
        offset: Tensor,
        unit: Tensor,
        seed: int,
        prior: RidgePrior | ModelPrior | None = None,
    ) -> None:
        self.rows, self.members, self.offset, self.unit, self.seed, self.prior = rows, members, offset, unit, seed, prior

    def append(self, rows: Rows) -> Predictor:
        """A predictor with these rows too."""
        self.check_whole()
        return self._with_rows(Rows(*(torch.cat(pair) for pair in zip(self.rows, rows, strict=True))))

    def forget(self, which: Tensor) -> Predictor:
        """A predictor without these rows."""
        keep = torch.ones(len(self.rows.points), dtype=torch.bool)
        keep[which] = False
        if not bool((self.rows.weights[keep] > 0).any()):
            raise InputError("Forgetting these rows would leave none. Keep at least one row of positive weight.")
        return self._with_rows(Rows(*(tensor[keep] for tensor in self.rows)))

    def _with_rows(self, rows: Rows) -> Predictor:
        return Predictor(rows, self.members, self.offset, self.unit, self.seed, self.prior)

    def check_whole(self) -> None:
        """That every row is here, for whatever needs them all; a predictor that holds a part of them raises."""

    @cached_property
    def centers(self) -> Centers:
        """The different points among the rows."""
        return different_points(self.rows)

    @property
    def num_rows(self) -> int:
        """How many rows there are, of any weight."""
        return len(self.rows.points)

    @property
    def first_rows(self) -> Tensor:
        """The first row of each center, `(N,)`."""
        of_row = self.centers.of_row
        rows = torch.arange(len(of_row))[of_row >= 0]
        return torch.full((len(self.centers.points),), len(of_row)).scatter_reduce(0, of_row[rows], rows, "amin")

    @cached_property
    def positive(self) -> Tensor:
        """Which outputs some center has a positive value of, `(C,)`."""
        return self.centers.values.amax(0) > 0

    @cached_property
    def groups(self) -> Groups | None:
        """Centers that are left out together; `None` where each is alone."""
        return groups_of(self.rows, self.centers)

    @cached_property
    @torch.no_grad()
    def fitted_prior(self) -> FittedRidge | None:
        """The prior, fitted to the centers; `None` if there is none, or if it is a model that came fitted."""
        if not isinstance(self.prior, RidgePrior):
            return None
        return self.prior.fit(self.centers.points, self.centers.values, self.centers.weights)

    @cached_property
    @torch.no_grad()
    def left_over(self) -> Centers:
        """The centers, with what the prior leaves over of their values when they are left out of it."""
        if self.prior is None:
            return self.centers
        if self.fitted_prior is None:
            return self.centers._replace(values=self.centers.values - self.prior_scores(self.centers.points))
        return self.centers._replace(values=self.fitted_prior.left_out(self.groups))

    def prior_scores(self, query: Tensor) -> Tensor:
        """What the prior alone predicts, `(Q, C)` in float64, in the unit of the kept values; zero without one."""
        if self.fitted_prior is not None:
            return self.fitted_prior.predict(query)
        if isinstance(self.prior, ModelPrior):
            return (self.prior.scores(query) - self.offset) / self.unit
        return torch.zeros(len(query), len(self.offset), dtype=torch.float64)

    @property
    def trend(self) -> Trend:
        """Far from all rows a model of the caller's own stays what it was."""
        return None if isinstance(self.prior, ModelPrior) else "constant"

    @cached_property
    @torch.no_grad()
    def fitted(self) -> list[DenseMember | LocalMember]:
        """The members, solved on the centers."""
        counts = [neighbors_of(member, len(self.centers.points)) for member in self.members]
        return [
            DenseMember(member, self.left_over, self.sample.which, self.trend)
            if count is None
            else LocalMember(member, self.left_over, count, self.trend)
            for member, count in zip(self.members, counts, strict=True)
        ]

    @cached_property
    def sample(self) -> Sample:
        """Centers to leave out, and rows of them."""
        return sample_of(self.rows, self.centers, self.seed)

    @property
    def group_shares(self) -> Tensor:
        """How many groups each sampled center stands for, `(n,)`: rows of one group say no more than one."""
        if self.groups is None:
            return torch.ones(len(self.sample.which), dtype=torch.float64)
        sizes = self.groups.of_center.bincount().double()
        return 1 / sizes[self.groups.of_center[self.sample.which]]

    def num_neighbors(self) -> int | None:
        """How many rows take part in a prediction of the first member; `None` for all."""
        if self.members[0].num_neighbors is None:
            return neighbors_of(self.members[0], len(self.centers.points))
        return neighbors_of(self.members[0], int((self.rows.weights > 0).sum()))

    def in_units(self, means: Tensor) -> Tensor:
        """Means in the units of the values given, float64."""
        return means.double() * self.unit + self.offset

    @torch.no_grad()
    def predict(self, query: Tensor) -> Tensor:
        """`(Q, D)` to `(Q, C)`."""
        mean = self.prior_scores(query)
        for member, fitted in zip(self.members, self.fitted, strict=True):
            if member.share:
                mean = mean + member.share * fitted.mean(query)
        return self.in_units(mean).to(query.dtype)

    @torch.no_grad()
    def predict_with_variance(self, query: Tensor) -> Prediction:
        """In the unit of the kept values, float64."""
        mean, variance = combine(self.members, [fitted.predict(query) for fitted in self.fitted])
        return Prediction(self.prior_scores(query) + mean, variance)

    @torch.no_grad()
    def predict_with_std(self, query: Tensor) -> tuple[Tensor, Tensor]:
        """Predictions and their standard deviations `(Q, C)`, float64."""
        mean, variance = self.predict_with_variance(query)
        residuals = self.residuals
        near = nearest(self.members[0].kernel.embed(query), residuals.points, residuals.nearby)
        return self.in_units(mean), residuals.std(near, variance) * self.unit

    @torch.no_grad()
    def leave_out(self) -> tuple[Prediction, Prediction]:
        """What is predicted for sampled centers without them, and for sampled rows without one of their copies."""
        sample = self.sample
        if len(self.centers.points) > (1 if self.groups is None else self.groups.largest):
            prior, hat = self.prior_left_out
            alone = [
                fitted.leave_out(sample.which, self.groups, hat if isinstance(fitted, DenseMember) else None)
                for fitted in self.fitted
            ]
        else:  # nothing is known without it
            unknown = Prediction(sample.centers.values, torch.full_like(sample.centers.weights, math.inf))
            alone, prior = [unknown] * len(self.members), torch.zeros_like(sample.centers.values)
        whole = combine(self.members, alone)
        whole = whole._replace(mean=prior + whole.mean)
        return whole, _without_one(self.ridge, whole, sample)

    @cached_property
    @torch.no_grad()
    def prior_left_out(self) -> tuple[Tensor, Hat | GroupedHat | None]:
        """What the prior predicts for sampled centers without them; its hat matrix, if members use every center."""
        which, count = self.sample.which, len(self.centers.points)
        if self.fitted_prior is None:  # none, or one that no row was left out of
            return self.centers.values[which] - self.left_over.values[which], None
        hat: Hat | GroupedHat | None = None
        if len(which) == count and any(neighbors_of(member, count) is None for member in self.members):
            hat = self.fitted_prior.hat(which) if self.groups is None else self.fitted_prior.grouped_hat(self.groups)
        return self.centers.values[which] - self.fitted_prior.errors(which, self.groups), hat

    @property
    def ridge(self) -> float:
        """The mean of the members."""
        total = sum(member.share for member in self.members)
        return sum(member.share * member.ridge for member in self.members) / total if total else self.members[0].ridge

    @cached_property
    @torch.no_grad()
    def residuals(self) -> Residuals:
        """Of leave-one-out, over some of the centers."""
        sample, (alone, rows) = self.sample, self.leave_out()
        centers, count = sample.centers, len(self.centers.points)
        points = self.members[0].kernel.embed(centers.points)
        ridge = self.ridge
        if count < FEWEST:  # nothing to leave out: as uncertain as the spread of the values
            sizes, spreads, nearby = torch.ones_like(centers.values), torch.ones_like(centers.weights), len(points)
        else:
            sizes, spreads = (alone.mean.double() - centers.values).abs(), alone.variance.clamp_min(1e-12).sqrt()
            nearby = min(NEARBY, max(1, len(points) // 4))
        known = Residuals(
            points, sizes, spreads, centers.scatter, centers.freedom, ridge, ridge, nearby, sizes[:0], sizes[:0]
        )
        if count >= FEWEST:
            # Its own residual takes no part in the factor of a row.
            own = nearest(points, points, nearby, exclude=torch.arange(len(points)))
            known = known.with_likely_noise(own, centers.weights)
        scores, counts = [_row_scores(known, sample, rows)], [sample.counts]
        if count >= FEWEST:
            scores.append(sizes / known.std(own, spreads.square(), centers.weights).clamp_min(SMALLEST))
            counts.append(self.group_shares)
        ordered, order = torch.cat(scores).sort(0)
        return known._replace(scores=ordered, counts=torch.cat(counts)[order].cumsum(0))

    @torch.no_grad()
    def explain(self, query: Tensor, most: int | None) -> tuple[Array, Array]:
        """Rows and weights of each prediction, largest weight first, `(Q, R)` each; zeros where there are fewer."""
        used, count = (self.centers.of_row >= 0).numpy(), len(self.centers.points)
        of_row, rows = self.centers.of_row.numpy()[used], used.nonzero()[0]
        # Each center stands for its rows, in the shares of their weights.
        parts = self.rows.weights.numpy()[used] / self.centers.weights.numpy()[of_row]
        rows_of_center = csr_array((parts, (of_row, rows)), shape=(count, len(used)))
        largest: list[tuple[Array, Array]] = []
        for block in self.member_weights(query):
            total = sum(member.share * _sparse(*part, count) for member, part in zip(self.members, block, strict=True))
            behind = total @ rows_of_center
            behind.sort_indices()
            for start, end in zip(behind.indptr, behind.indptr[1:], strict=False):
                weights = behind.data[start:end]
                order = np.argsort(-np.abs(weights), kind="stable")[: int((weights != 0).sum())][:most]
                largest.append((behind.indices[start:end][order], weights[order]))
        width = max([1, *(len(indices) for indices, _ in largest)])
        shape = len(largest), width
        all_rows, all_weights = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=query.numpy().dtype)
        for at, (indices, weights) in enumerate(largest):
            all_rows[at] = indices[0] if len(indices) else 0  # the first row again, with no weight
            all_rows[at, : len(indices)], all_weights[at, : len(indices)] = indices, weights
        return all_rows, all_weights

    def member_weights(self, query: Tensor) -> Iterator[list[tuple[Tensor, Tensor]]]:
        """Centers and weights of each member, for some queries after others."""
        for part in query.split(EXPLAINED_AT_ONCE):
            yield [fitted.weights(part) for fitted in self.fitted]

    def __getstate__(self) -> dict[str, Any]:
        self.check_whole()
        return {name: getattr(self, name) for name in ("rows", "members", "offset", "unit", "seed", "prior")}


def _sparse(indices: Tensor, weights: Tensor, columns: int) -> Any:
    """Weights of centers `(q, M)`, each once, as a sparse matrix `(q, columns)`."""
    ends = np.arange(0, indices.numel() + 1, indices.shape[1])
    return csr_array((weights.double().flatten().numpy(), indices.flatten().numpy(), ends), shape=(len(indices), columns))


def _without_one(ridge: float, alone: Prediction, sample: Sample) -> Prediction:
    weights, values = sample.centers.weights[sample.of_row], sample.centers.values[sample.of_row]
    one = sample.weights.clamp_max(1.0)
    rest = weights - one
    mean = (weights.unsqueeze(1) * values - one.unsqueeze(1) * sample.values) / rest.unsqueeze(1)
    power = (alone.variance - ridge / sample.centers.weights).clamp_min(0)[sample.of_row]
    gain = (1 / (1 + ridge / rest / power)).nan_to_num(0.0)
    others = alone.mean.double()[sample.of_row]
    return Prediction(others + gain.unsqueeze(1) * (mean - others), gain * ridge / rest + ridge)


class Residuals(NamedTuple):
    points: Tensor  # (n, E) embedded, in the metric of the first member
    sizes: Tensor  # (n, C) |r|
    spreads: Tensor  # (n,) sqrt(v)
    scatter: Tensor  # (n, C) as of centers
    freedom: Tensor  # (n,)
    ridge: float  # the mean of the members
    nugget: float  # the noise, in units of $s^2$, where no rows are repeated
    nearby: int
    scores: Tensor  # (m, C) normalized residuals, sorted
    counts: Tensor  # (m, C) how many residuals there are up to each

    def with_likely_noise(self, own: Tensor, rows: Tensor) -> Residuals:
        """With the nugget, of the ridge and larger ones, under which the left-out residuals are most likely.

        A ridge is chosen for the sake of the mean. That none of so many rows is far off says no more than that such rows are
        rarer than one in their number: the surest counts as one with an error of the usual size with that probability.
        """
        choices = [self._replace(nugget=self.ridge + more) for more in (0.0, *NUGGETS)]
        stds = torch.stack([one.std(own, self.spreads.square(), rows) for one in choices]).clamp_min(SMALLEST)  # (K, n, C)
        usual, surest = self.sizes.square().mean(0).sqrt(), stds.amin(1)
        doubt = 1 / (len(self.sizes) + 2)
        seen = (stds.log() + 0.5 * (self.sizes / stds).square()).mean((1, 2))
        feared = (surest.log() + 0.5 * (usual / surest).square()).mean(1)
        return choices[int(((1 - doubt) * seen + doubt * feared).argmin())]

    def std(
        self, near: Tensor, variance: Tensor, rows: Tensor | float = 1.0, known: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        """Deviations `(Q, C)` of means of so many `rows` `(Q,)`, from their variances `(Q,)` in units of $s^2$.

        From the residuals `near` each `(Q, K)`, less the scatter and freedom `known`.
        """
        sizes = self.sizes[near].sum(1) + PRIOR * self.sizes.mean(0)
        spreads = self.spreads[near].sum(1) + PRIOR * self.spreads.mean()
        factor = (math.sqrt(math.pi / 2) * sizes / spreads.unsqueeze(1)).clamp_min(SMALLEST).square()  # s^2
        power = (variance - self.ridge / rows).clamp_min(0)
        noise = self._noise(near, self.nugget * factor, known)
        return (factor * power.unsqueeze(1) + noise / torch.as_tensor(rows).reshape(-1, 1)).sqrt()

    def _noise(self, near: Tensor, tied: Tensor, known: tuple[Tensor, Tensor] | None) -> Tensor:
        """A mean of `tied` `(Q, C)`, of what repeated rows tell, and of the variance of the values, which is one.

        On a logarithmic scale, since each of them may be off by far, weighted by how much each is known.
        """
        total, count = float(self.freedom.sum()), len(self.points)
        prior = min(PRIOR, total)
        freedom = self.freedom[near].sum(1, keepdim=True) + prior
        scatter = self.scatter[near].sum(1) + prior / max(total, 1.0) * self.scatter.sum(0)
        if known is not None:
            scatter, freedom = scatter - known[0], freedom - known[1]
        within = scatter.clamp_min(0) / freedom.clamp_min(SMALLEST)
        logs = freedom * within.clamp_min(SMALLEST**2).log() + PER_CENTER * count * tied.clamp_min(SMALLEST**2).log()
        return torch.exp(logs / (freedom + PER_CENTER * count + NOTHING_KNOWN / count))

    def quantile(self, coverage: float) -> Tensor:
        """How many standard deviations an interval reaches, `(C,)`.

        With too few residuals for the coverage it is that of Student's distribution, and no less than the largest of them.
        """
        known = float(self.counts[-1, 0]) if len(self.counts) else 0.0
        rank = math.ceil((known + 1) * coverage - 1e-9)
        if rank <= known:
            at = (self.counts < rank - 1e-9).sum(0, keepdim=True)
            return self.scores.gather(0, at.clamp_max(len(self.scores) - 1)).squeeze(0)
        reach = torch.full_like(self.sizes[0], float(student.ppf((1 + coverage) / 2, max(1.0, known))))
        return torch.maximum(reach, self.scores[-1]) if len(self.scores) else reach


def _row_scores(known: Residuals, sample: Sample, rows: Prediction) -> Tensor:
    """Of sampled rows, each left out of what the others of its center tell about the noise."""
    near = nearest(known.points, known.points, known.nearby)[sample.of_row]
    inside = (near == sample.of_row.unsqueeze(1)).any(1, keepdim=True).double()
    weights, one = sample.centers.weights[sample.of_row], sample.weights.clamp_max(1.0)
    apart = sample.values - sample.centers.values[sample.of_row]
    scatter = (one * weights / (weights - one)).unsqueeze(1) * apart.square()
    std = known.std(near, rows.variance, 1.0, (inside * scatter, inside * one.unsqueeze(1)))
    return (rows.mean - sample.values).abs() / std.clamp_min(SMALLEST)

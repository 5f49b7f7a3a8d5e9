r"""What a head predicts before its kernel looks at the nearest rows: $f(z) = p(z) + \mathcal P_k(x, y - p^{(-)}(x))(z)$.

$p^{(-)}(x_i)$ is what the prior predicts for row $i$ without row $i$, so that the kernel corrects errors that the prior
makes on new rows. A ridge regression has it in closed form, $y_i - e_i/(1-h_{ii})$ with the residuals $e$ and the hat matrix
$h$ of the fit, the leverage $h_{ii}$ taken to be at most one half: uncapped, the correction doubles as it goes to one. How
wrong the prior is about a row is told with the leverage as it is, or a prior that interpolates would seem to be right.

A row left out of the *sum* is left out of the residuals of the others too. Those are, with both rows out,

$$ r_j^{(-ij)} = \frac{(1-h_{ii})\,e_j + h_{ji}\,e_i}{(1-h_{ii})(1-h_{jj})-h_{ij}h_{ji}} . $$
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from .._chunking import ranges
from ..core.least_squares import MOST_LEVERAGE, RidgeSpectrum, inverse_root
from ..errors import InputError
from ..kernels import Kernel
from ..nn.prior import evaluation_mode
from ..transforms import Transform
from .encoding import Groups

# Ridges that are tried, in units of the mean eigenvalue.
RIDGES = {"linear": np.logspace(-4, 2, 13).tolist(), "coarse": np.logspace(-5, 1, 9).tolist()}
PREDICTED_AT_ONCE = 8192
PAIRS_AT_ONCE = 64  # rows with their neighbors
NEIGHBORS_AT_ONCE = 4096
NEARLY_ONE = 1 - 1e-9  # a leverage of one leaves nothing of a row


class Hat(NamedTuple):
    """Residuals of some rows in the fit of a prior, and what its hat matrix is made of."""

    residuals: Tensor  # (n, C): e
    roots: Tensor  # (n, K): h_ij = roots_i . roots_j weights_j, with the leverages capped
    weights: Tensor  # (n,)
    errors: Tensor  # (n, C): e_i / (1 - h_ii), the leverages as they are

    @property
    def leverages(self) -> Tensor:
        return self.weights * self.roots.square().sum(1)

    def left_out(self) -> Tensor:
        """Residuals `(n, C)` of each row in the fit without it: how wrong the prior is about it."""
        return self.errors

    def targets(self) -> Tensor:
        """The same with the leverages capped, `(n, C)`: what the kernel predicts."""
        return self.residuals / (1 - self.leverages).unsqueeze(1)

    def of_sum(self, inverse: Tensor) -> Tensor:
        """Residuals `(n, C)` of the sum of prior and kernel without each row, from $P$ of a dense kernel on these rows."""
        weights = -inverse / inverse.diagonal().unsqueeze(1)
        weights.fill_diagonal_(0)
        rest = 1 - self.leverages
        products = self.roots @ self.roots.T
        hat = products * self.weights  # (n, n): h_ij
        weights /= (torch.outer(rest, rest) - hat * hat.T).fill_diagonal_(1)  # with a leverage of one half it is zero there
        others = rest.unsqueeze(1) * (weights @ self.residuals) + (weights * hat.T).sum(1, keepdim=True) * self.residuals
        return self.left_out() - others


def capped(residuals: Tensor, roots: Tensor, weights: Tensor, most_leverage: float) -> Hat:
    leverages = weights * roots.square().sum(1)
    factor = (most_leverage / leverages.clamp_min(most_leverage)).sqrt()
    errors = residuals / (1 - leverages.clamp_max(NEARLY_ONE)).unsqueeze(1)
    return Hat(residuals, roots * factor.unsqueeze(1), weights, errors)


def together(residuals: Tensor, roots: Tensor, weights: Tensor, most_leverage: float) -> tuple[Tensor, Tensor]:
    """Of rows left out together: roots, the eigenvalues of their block capped, and residuals in the fit without them."""
    scale = weights.sqrt().unsqueeze(1)
    left, values, right = torch.linalg.svd(scale * roots, full_matrices=False)
    values = values.clamp_max(most_leverage**0.5).unsqueeze(1)
    more = left @ ((1 / (1 - values.square()) - 1) * (left.T @ (scale * residuals)))
    return left @ (values * right) / scale, residuals + more / scale


class Pairs(NamedTuple):
    """What a prior leaves over of the neighbors of some rows, in the fits without both rows of each pair."""

    rows: Tensor  # (n,)
    neighbors: Tensor  # (n, M)
    residuals: Tensor  # (N, C): e of all rows
    own: Tensor  # (n, M): factors of e_j
    back: Tensor  # (n, M): factors of e_i

    def weighted(self, weights: Tensor) -> Tensor:
        """Sums `(n, C)` with weights `(n, m)` of the first m neighbors."""
        weights, count = weights.double(), weights.shape[1]
        parts = []
        for part in torch.arange(len(weights)).split(PAIRS_AT_ONCE):
            others = self.residuals[self.neighbors[part, :count]]
            parts.append(torch.einsum("nm,nmc->nc", weights[part] * self.own[part, :count], others))
        back = (weights * self.back[:, :count]).sum(1, keepdim=True)
        return torch.cat(parts) + back * self.residuals[self.rows]


class GroupedHat:
    """The hat matrix of all rows, those of a group left out together."""

    def __init__(self, residuals: Tensor, roots: Tensor, weights: Tensor, groups: Groups) -> None:
        self.residuals, self.weights, self.groups = residuals, weights, groups
        alone = capped(residuals, roots, weights, MOST_LEVERAGE)
        self.roots, self.errors = alone.roots, alone.errors
        for rows in groups.several:
            own = residuals[rows], roots[rows], weights[rows]
            self.roots[rows], self.errors[rows] = together(*own, MOST_LEVERAGE)[0], together(*own, NEARLY_ONE)[1]
        sizes = sorted({len(rows) for rows in groups.several})
        self._stacks = [torch.stack([rows for rows in groups.several if len(rows) == size]) for size in sizes]

    def with_residuals(self, residuals: Tensor, errors: Tensor) -> GroupedHat:
        """The same of a fit to other values."""
        other = copy.copy(self)
        other.residuals, other.errors = residuals, errors
        return other

    def left_out(self) -> Tensor:
        """Residuals `(n, C)` of each row in the fit without its group: how wrong the prior is about it."""
        return self.errors

    def targets(self, without: Tensor) -> Tensor:
        """The same with the eigenvalues capped, in a fit without some rows: what the kernel predicts then."""
        roots, scaled = self.roots, self.roots * self.weights.unsqueeze(1)
        hat = roots[without] @ scaled[without].T
        change = torch.linalg.solve(torch.eye(len(hat), dtype=hat.dtype) - hat, roots @ scaled[without].T, left=False)
        residuals = self.residuals + change @ self.residuals[without]
        seen = roots + change @ roots[without]  # (n, K): the hat matrix of that fit is seen_j . scaled_k
        targets: Tensor = residuals / (1 - (seen * scaled).sum(1, keepdim=True))
        for rows in self._stacks:  # (m, s)
            blocks = torch.eye(rows.shape[1], dtype=roots.dtype) - seen[rows] @ scaled[rows].mT
            targets[rows] = torch.linalg.solve(blocks, residuals[rows])
        return targets

    def of_sum(self, inverse: Tensor) -> Tensor:
        """As of single rows, each without its group."""
        found, of_center = self.errors.clone(), self.groups.of_center
        for members in of_center.argsort(stable=True).split(of_center.bincount().tolist()):
            targets = self.targets(members)
            targets[members] = 0.0
            # Minus what the kernel predicts.
            found[members] += torch.linalg.solve(inverse[members][:, members], inverse[members] @ targets)
        return found


class RidgePrior(NamedTuple):
    """Ridge regression on features of the points. Fitted anew, exactly, when rows come or go."""

    name: str
    features: Transform
    ridge: float

    def fit(self, points: Tensor, values: Tensor, weights: Tensor) -> FittedRidge:
        return FittedRidge(self, spectrum_of(self.features, points, values, weights))


class FittedRidge:
    """A ridge prior, solved."""

    def __init__(self, prior: RidgePrior, spectrum: RidgeSpectrum) -> None:
        self.prior, self.spectrum = prior, spectrum
        self.fit = spectrum.solve(prior.ridge)
        self._scaled: dict[float, FittedRidge] = {}

    def scaled(self, factor: float) -> FittedRidge:
        """The same with a ridge so many times as large; what it computes once is kept."""
        if factor == 1:
            return self
        if factor not in self._scaled:
            self._scaled[factor] = FittedRidge(self.prior._replace(ridge=factor * self.prior.ridge), self.spectrum)
        return self._scaled[factor]

    def predict(self, query: Tensor) -> Tensor:
        """`(Q, D)` to `(Q, C)`, float64."""
        return torch.cat([self.fit.predict(self.prior.features(part)) for part in query.split(PREDICTED_AT_ONCE)])

    def hat(self, rows: Tensor) -> Hat:
        """Of some of the rows."""
        return self.hats(rows, (self.prior.ridge,))[0]

    def hats(self, rows: Tensor, ridges: tuple[float, ...], most_leverage: float = MOST_LEVERAGE) -> list[Hat]:
        """Of some of the rows, with each of these ridges."""
        projected, weights = self.spectrum.project(rows), self.spectrum.weights[rows]
        found = (self.spectrum.some_residuals(ridge, rows, projected) for ridge in ridges)
        return [capped(residuals, roots, weights, most_leverage) for residuals, roots in found]

    def grouped_hat(self, groups: Groups) -> GroupedHat:
        """Of all rows."""
        rows = torch.arange(len(self.spectrum.values))
        found = self.spectrum.some_residuals(self.prior.ridge, rows, self.spectrum.project(rows))
        return GroupedHat(*found, self.spectrum.weights, groups)

    def left_out(self, groups: Groups | None = None) -> Tensor:
        """Residuals `(N, C)` of every row in the fit without it, or without its group, leverages capped."""
        if groups is None:
            return self._left_out
        residuals = self._left_out.clone()
        for members in groups.several:
            residuals[members] = self._together(members, MOST_LEVERAGE)
        return residuals

    @property
    def _left_out(self) -> Tensor:
        residuals, leverages = self.spectrum.residuals(self.prior.ridge)
        return residuals / (1 - leverages.clamp_max(MOST_LEVERAGE)).unsqueeze(1)

    def pairs(self, rows: Tensor, neighbors: Tensor, factors: Sequence[float]) -> dict[float, Pairs]:
        """Of some rows and `(n, M)` neighbors of each, for each factor of the ridge."""
        ridges = [factor * self.prior.ridge for factor in factors]
        self.spectrum.residuals_of(ridges)
        centered = self.spectrum.centered(rows)
        solved = torch.cat([centered @ self.spectrum.inverse(ridge) for ridge in ridges])  # (P n, F)
        # Features are made once of each row that is a neighbor of several.
        others, place = neighbors.unique(return_inverse=True)
        products = torch.empty(len(factors), *neighbors.shape, dtype=torch.float64)
        for part in ranges(len(others), NEIGHBORS_AT_ONCE):
            found = (solved @ self.spectrum.centered(others[part]).T).unflatten(0, (len(factors), len(rows)))
            row, column = ((place >= part.start) & (place < part.stop)).nonzero(as_tuple=True)
            products[:, row, column] = found[:, row, place[row, column] - part.start]
        return {
            factor: self.scaled(factor)._pairs(rows, neighbors, products[at] + 1 / self.spectrum.total)
            for at, factor in enumerate(factors)
        }

    def _pairs(self, rows: Tensor, neighbors: Tensor, products: Tensor) -> Pairs:
        (residuals, leverages), weights = self.spectrum.residuals(self.prior.ridge), self.spectrum.weights
        caps = (MOST_LEVERAGE / leverages.clamp_min(MOST_LEVERAGE)).sqrt()
        rest = 1 - leverages.clamp_max(MOST_LEVERAGE)
        products = products * caps[rows].unsqueeze(1) * caps[neighbors]
        ahead, back = products * weights[neighbors], products * weights[rows].unsqueeze(1)  # h_ij, h_ji
        scale = rest[rows].unsqueeze(1) * rest[neighbors] - ahead * back
        return Pairs(rows, neighbors, residuals, rest[rows].unsqueeze(1) / scale, back / scale)

    def errors(self, rows: Tensor, groups: Groups | None = None) -> Tensor:
        """The same of some rows, with leverages as they are: how wrong the prior is about them, `(n, C)`."""
        found = self.hat(rows).left_out()
        for members in groups.several if groups is not None else ():
            place = torch.isin(rows, members)
            if bool(place.any()):
                order = torch.searchsorted(members, rows[place])
                found[place] = self._together(members, NEARLY_ONE)[order]
        return found

    def _together(self, rows: Tensor, most_leverage: float) -> Tensor:
        found = self.spectrum.some_residuals(self.prior.ridge, rows, self.spectrum.project(rows))
        return together(*found, self.spectrum.weights[rows], most_leverage)[1]


def spectrum_of(features: Transform, points: Tensor, values: Tensor, weights: Tensor) -> RidgeSpectrum:
    return RidgeSpectrum(lambda rows: features(points[rows]), values, weights)


@torch.no_grad()
def choose_ridge(
    prior: RidgePrior,
    points: Tensor,
    values: Tensor,
    weights: Tensor,
    sample: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
) -> FittedRidge:
    """The ridge with the least loss of left-out rows, among those of a `sample` `(n,)` of the rows.

    Leverages are what they are here: capped, a prior that interpolates would seem to predict every row that is left out.
    `loss` takes predictions `(n, K, C)` and row numbers, and gives `(K,)`.
    """
    fitted = prior.fit(points, values, weights)
    unit = max(float(fitted.spectrum.eigenvalues.sum() / fitted.spectrum.eigenvalues.count_nonzero().clamp_min(1)), 1e-12)
    candidates = tuple(ridge * unit for ridge in RIDGES[prior.name])
    own = values[sample]
    predictions = torch.stack([own - hat.left_out() for hat in fitted.hats(sample, candidates, NEARLY_ONE)], dim=1)
    best = candidates[int(loss(predictions, sample).argmin())]
    return FittedRidge(prior._replace(ridge=best), fitted.spectrum)


class KernelFeatures(Transform):
    r"""Features whose inner products are the kernel's on the span of a few points: $k(x, x^0)\,U S^{-1/2}$.

    Ridge regression on them is kernel ridge regression with these points, fitted to all rows (subset of regressors).
    """

    statistics = ("points", "root")

    def __init__(self, kernel: Kernel | None = None) -> None:
        super().__init__()
        self.kernel = kernel

    def _statistics_of(self, x: Tensor) -> tuple[Tensor, ...]:
        assert self.kernel is not None
        embedded = self.kernel.embed(x)
        return embedded, inverse_root(self.kernel(x, x))

    def _map(self, x: Tensor, *statistics: Tensor) -> Tensor:
        points, root = statistics
        assert self.kernel is not None
        distances = torch.cdist(self.kernel.embed(x), points)
        return self.kernel.profile(distances) @ root


class ModelPrior(NamedTuple):
    """A fitted model of the caller's own; what it predicts stays where no example is near."""

    model: Any
    classes: bool
    name: str = "model"

    def scores(self, query: Tensor) -> Tensor:
        """Logits of classes, or predicted numbers, `(Q, D)` to `(Q, C)`, float64."""
        model = self.model
        if isinstance(model, nn.Module):
            first = next((tensor for tensor in model.parameters() if tensor.is_floating_point()), query)
            with torch.no_grad(), evaluation_mode(model):
                found = torch.cat([model(part.to(first)) for part in query.split(PREDICTED_AT_ONCE)])
        else:
            found = torch.as_tensor(np.asarray(_numpy_scores(model, self.classes)(query.numpy())))
        if found.ndim == 1:
            found = found.unsqueeze(1)
        if self.classes and found.shape[1] == 1:  # of the second of two classes
            found = torch.cat((torch.zeros_like(found), found), dim=1)
        if found.ndim != 2 or len(found) != len(query) or not bool(found.isfinite().all()):
            raise InputError(
                f"The prior must give one row of finite numbers for each of {len(query)} rows, got the shape "
                f"{tuple(found.shape)}. Wrap it in a function that does."
            )
        return found.cpu().double()


def _numpy_scores(model: Any, classes: bool) -> Callable[[Any], Any]:
    if classes and hasattr(model, "decision_function"):
        return model.decision_function  # type: ignore[no-any-return]
    if classes and hasattr(model, "predict_proba"):
        return lambda rows: np.log(np.maximum(model.predict_proba(rows), 1e-12))
    if not classes and hasattr(model, "predict"):
        return model.predict  # type: ignore[no-any-return]
    if callable(model):
        return model  # type: ignore[no-any-return]
    raise InputError(
        f"prior must be 'auto', None, 'linear', 'coarse', or a fitted model: an nn.Module, a scikit-learn estimator (in "
        f"FrozenEstimator) or a function from rows to {'logits' if classes else 'numbers'}, got {type(model).__name__}."
    )

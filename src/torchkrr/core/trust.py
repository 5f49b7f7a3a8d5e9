r"""Which numbers can be trusted, and what happens to those that cannot.

Rounding turns the system matrix $A = K + \lambda I$ into $A + \delta A$ with entries of about $u A_{ij}$, $u$ the unit
roundoff. To first order a prediction $w^\top y$, $w = A^{-1}k$, $\alpha = A^{-1}y$, moves by $w^\top\delta A\,\alpha$.
The entries of $\delta A$ are independent in sign, so that $\|\delta A\,\alpha\|$ is about
$u\sqrt{\|A\|_\infty}\,\|\alpha\|$, and

$$ \text{mean:}\quad u\sqrt{\|A\|_\infty}\;\|w\|\,\|\alpha\| \le 10^{-3}\max|y| $$

for each output. The same argument serves what is computed besides the mean:

- the squared power function is one minus the prediction of $k$, whose $\alpha$ is $w$:
  $u\sqrt{\|A\|_\infty}\,\|w\|^2 \le 3\cdot10^{-4}$, an error of 0.017 at most in the power function;
- weights move by $A^{-1}\delta A\,w$, gradients by as much of themselves:
  $u\sqrt{\|A\|_\infty}\,\|A^{-1}\|\,\|w\| \le 10^{-2}\max|w|$ for weights;
- leave-one-out divides $\alpha_i$ by $P_{ii}$, $P = A^{-1}$. Both have errors, $u\sqrt{\|A\|_\infty}\|P_i\|\|\alpha\|$ and
  $u\sqrt{\|A\|_\infty}\|P_i\|^2$, so that with $r_i = \alpha_i/P_{ii}$ the role of $\|w\|$ is played by $\|P_i\|/P_{ii}$
  and that of $\|\alpha\|$ by $\|\alpha\| + |r_i|\,\|P_i\|$;
- the squared norm of the fitted function, $\alpha^\top K\alpha$, moves by $\alpha^\top\delta A\,\alpha$.

These decide only whether a float32 problem is solved again in float64: the same problem. Whether the ridge is raised, which
is another problem, must not depend on the values, or predictions, weights and power function would speak of different
systems. It is decided in float64 by

$$ \text{system:}\quad u\sqrt{\|A\|_\infty}\;\|w\|\,\sqrt M\,\|A^{-1}\| \le 10^{-2}, $$

the first rule for the worst values of size one. A float32 problem whose factor says nothing about how singular the matrix is
goes to float64 as well if the ridge is so small that the ridge might have to be raised there.

$\|A\|_\infty$ is the largest row sum of the kernel matrix. $\|A^{-1}\|$ is estimated from random probes $g$, which are
solved along with the other right-hand sides: $\|A^{-1}g\|^2 / g^\top A^{-1}g$ is a weighted mean of the eigenvalues of
$A^{-1}$ in which the largest dominate. Errors of distances are not in $\delta A$; close pairs are computed by difference.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import RidgeRaisedWarning, SolveError, TrendWarning

PROBES = 2  # as in cell.h
LADDER_FACTOR = 10.0
MIXER, WORD = 0x9E3779B97F4A7C15, 0xFFFFFFFFFFFFFFFF  # from the golden ratio; 64 bits


class Limits(NamedTuple):
    """The largest rounding error that is trusted, by what is computed; infinite where a rule does not apply."""

    mean: float = math.inf
    power: float = math.inf
    weights: float = math.inf
    system: float = math.inf
    doubt: float = math.inf  # of the rounding of the smallest eigenvalue, where the float64 system might be singular

    @property
    def any(self) -> bool:
        return any(limit < math.inf for limit in self)


NO_LIMITS = Limits()
TRUSTED = Limits(mean=1e-3, power=3e-4, weights=1e-2, system=1e-2, doubt=0.2)
GRADIENT = 2.0  # times the limit of weights: a gradient is a step to take, not a result


@functools.cache
def limits(dtype: torch.dtype, kind: str, *, differentiated: bool = False) -> Limits:
    """The rules for one kind of result in one dtype; `differentiated` results have gradients too."""
    if dtype == torch.float64:
        return Limits(system=TRUSTED.system)
    if kind == "coefficients":  # they serve queries not yet known, and values of any kind
        return Limits(weights=TRUSTED.weights, doubt=TRUSTED.doubt)
    weights = TRUSTED.weights if kind == "weights" else GRADIENT * TRUSTED.weights if differentiated else math.inf
    mean = TRUSTED.mean if kind in ("mean", "path", "leave_one_out", "norm") else math.inf
    power = TRUSTED.power if kind in ("mean", "path", "weights", "power") else math.inf
    return Limits(mean, power, weights, doubt=TRUSTED.doubt)


def roundoff(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


class Evidence(NamedTuple):
    """What a solve tells about its rounding; the fields broadcast against each other."""

    size: Tensor  # the root of the largest row sum of the kernel matrix
    norm: Tensor  # |w|
    spread: Tensor  # |w| / max |w|, between 1 and the root of the number of rows
    ridge: Tensor  # the smallest on the diagonal
    ratio: Tensor | None = None  # |alpha| / max |y|, of the worst output
    inverse: Tensor | None = None  # |A^-1|

    def in_units(self, unit: Tensor) -> Evidence:
        """For a kernel of this size, whose `size` is relative to it already: as if it were one."""
        ratio = None if self.ratio is None else self.ratio * unit
        inverse = None if self.inverse is None else self.inverse * unit
        return self._replace(ridge=self.ridge / unit, ratio=ratio, inverse=inverse)


def spread_of(norm: Tensor, weights: Tensor, dim: int) -> Tensor:
    """Of weights along a dimension, and their norm; one where all are zero."""
    largest = weights.detach().abs().amax(dim)
    return torch.where(largest > 0, norm / torch.where(largest > 0, largest, 1.0), 1.0)


def needs_inverse(limits: Limits) -> bool:
    return min(limits.weights, limits.system, limits.doubt) < math.inf


def judge(evidence: Evidence, rows: Tensor | int, limits: Limits) -> Tensor:
    """Whether the rules hold, for systems of so many rows. NaN counts as no."""
    size, norm, spread, ridge, ratio, inverse = evidence
    u, wide = roundoff(norm.dtype), roundoff(torch.float64)
    error = u * size * norm
    good = error.isfinite()
    if limits.power < math.inf:
        good = good & (error * norm <= limits.power)
    if limits.mean < math.inf and ratio is not None:
        good = good & (error * ratio <= limits.mean)
    if inverse is None:
        return good
    worst = torch.maximum(norm * torch.as_tensor(rows, dtype=norm.dtype, device=norm.device).sqrt(), spread)
    if limits.weights < math.inf:
        good = good & (u * size * spread * inverse <= limits.weights)
    if limits.system < math.inf:
        good = good & (u * size * worst * inverse <= limits.system)
    if limits.doubt < math.inf:
        # With this ridge a float64 system is resolved whatever its kernel matrix is: its inverse is bounded.
        settled = wide * size * worst <= TRUSTED.system * ridge
        good = good & (settled | (u * size * inverse <= limits.doubt))
    return good


def serves_any_query(size: Tensor, rows: int, inverse: Tensor) -> Tensor:
    r"""Whether float64 systems follow the rule of systems for queries not yet known, `(*,)` bool.

    From the `size` and $\|A^{-1}\|$. The norms of their weights are taken to be $\sqrt N$, as for local coefficients that
    are kept.
    """
    norm = torch.full_like(size, math.sqrt(rows))
    no_ridge = torch.zeros_like(norm)  # the rule of systems does not ask for it
    return judge(Evidence(size, norm, norm, no_ridge, inverse=inverse), rows, limits(torch.float64, "mean"))


@functools.lru_cache(maxsize=64)
def _numbers(rows: int) -> Tensor:
    mixed = [(number * MIXER) & WORD for number in range(1, rows * PROBES + 1)]
    mixed = [((n ^ (n >> 29)) * MIXER & WORD) >> 40 for n in mixed]  # 24 bits
    return ((torch.tensor(mixed, dtype=torch.float64) / (1 << 23) - 1) * math.sqrt(3)).view(rows, PROBES)


def probes(like: Tensor) -> Tensor:
    """Vectors of random numbers, the same in every call, for matrices `(*, M, M)`; `(M, PROBES)`.

    Uniform, of variance one. Not signs: two of them are often equal, and then blind to two rows that nearly are.
    """
    return _numbers(like.shape[-1]).to(like)


def inverse_norm(solved: Tensor, vectors: Tensor) -> Tensor:
    r"""The estimate of $\|A^{-1}\|$ from $A^{-1}G$ `(*, M, P)` and $G$ `(M, P)`; `(*,)`."""
    return (solved.square().sum(-2) / (solved * vectors).sum(-2)).amax(-1)


def size_of(gram: Tensor) -> Tensor:
    r"""$\sqrt{\|K\|_\infty}$ of kernel matrices `(*, M, M)`; `(*,)`."""
    return gram.detach().sum(-1).amax(-1).sqrt()


def ladder(dtype: torch.dtype, above: float) -> Iterator[float]:
    """Ridges to try: powers of ten from the precision of `dtype` up to one, those above the ridge asked for."""
    rung = torch.finfo(dtype).eps
    while rung < LADDER_FACTOR:
        if rung > above:
            yield rung
        rung *= LADDER_FACTOR


def solved_again(count: int) -> None:
    """Called with how many results are solved again in float64; for whoever wants to count them."""


def raise_ridge(solve: Callable[[float], Tensor], resolved: Tensor, ridge: Tensor) -> None:
    """Call `solve` with larger and larger ridges until everything is resolved, with one warning.

    Args:
        solve: solves with a ridge of at least its argument; returns what is resolved by now.
        resolved: what is resolved with the ridge asked for.
        ridge: that ridge, in float64.
    """
    count = int((~resolved).sum())
    for rung in ladder(torch.float64, float(ridge.detach().min())):
        resolved = solve(rung)
        if bool(resolved.all()):
            warnings.warn(
                f"{count} {'cell is' if count == 1 else 'cells are'} singular in float64 and solved with a larger ridge, at "
                f"most {rung:.1e}. Usual causes: repeated centers, or a lengthscale far above the size of the "
                'neighborhoods. Pass a larger ridge to choose it yourself, or on_singular="raise" for an error.',
                RidgeRaisedWarning,
                stacklevel=2,
            )
            return
    raise SolveError(
        f"{int((~resolved).sum())} cells cannot be solved with any ridge in float64: their distances overflow or are not "
        "numbers. Scale the features, for instance with input_transform=StandardMean().fit(centers)."
    )


def singular_error(what: str, size: str, ridge: Tensor, where: str = "") -> SolveError:
    largest = float(ridge.detach().max())
    return SolveError(
        f"{what} that cannot be solved in float64 (ridge={largest:.3g}, {size}). {where}\n"
        "Likely causes, most common first:\n"
        "  1. repeated centers: remove them, or keep one of each;\n"
        f"  2. the ridge is below what float64 resolves at this size: try ridge={max(1e-5, 100 * largest):.0e};\n"
        "  3. the lengthscale is far larger than the neighborhood, so all rows look alike.\n"
        'on_singular="warn" solves these cells with the smallest ridge that works.'
    )


def undetermined_tails(counts: list[int], on_singular: str) -> None:
    """Warn of neighborhoods that do not determine the polynomial of their trend, or raise; `counts` of them, maybe none."""
    if not counts:
        return
    count = max(counts)
    what = (
        f"{count} {'set of centers does' if count == 1 else 'sets of centers do'} not determine the polynomial of the "
        "trend, whose matrix of monomials does not have full column rank. Usual causes: fewer centers than monomials, or "
        "centers on a line or a plane."
    )
    if on_singular == "raise":
        raise SolveError(f"{what} Use more neighbors or a trend of a lower degree.")
    warnings.warn(
        f"{what} The polynomial of the smallest norm is taken. Use more neighbors, a trend of a lower degree, or "
        'on_singular="raise" for an error.',
        TrendWarning,
        stacklevel=2,
    )


def value_sizes(values: Tensor, trend: bool, scale: Tensor | None = None) -> Tensor:
    """The size of what is predicted, `(*, M, C)` to `(*, C)`: the largest value or, with a trend, half the range.

    `scale` `(C,)` is a size to count at least: that of the targets, where the values are what something else left over.
    """
    largest, smallest = values.amax(-2), values.amin(-2)
    sizes = torch.maximum(largest, -smallest)
    if trend:  # what is left of a constant after rounding is no range
        sizes = torch.maximum((largest - smallest) / 2, 16 * torch.finfo(sizes.dtype).eps * sizes)
    return sizes if scale is None else torch.maximum(sizes, scale.to(sizes))


def worst_ratio(lengths: Tensor, sizes: Tensor) -> Tensor:
    """The largest of the ratios over the outputs, `(*, C)` to `(*,)`; values that are all zero count for nothing."""
    tiny = torch.finfo(sizes.dtype).tiny
    return torch.where(lengths > 0, lengths / sizes.clamp_min(tiny), 0.0).amax(-1)

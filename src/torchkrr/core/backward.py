r"""The gradient of local solves, by hand.

Let $g$ arrive at the prediction $w^\top y$ and $\gamma$ at the squared power function. With $w = S u$ and
$\alpha = A^{-1} S y$ (projected if there is a trend) saved from the forward pass, and

$$ \beta = S\alpha g, \qquad \tilde\beta = \beta - \gamma w, $$

every first derivative follows without another factorization:

$$ \bar y = w g^\top,\quad \bar k = \tilde\beta - \gamma w,\quad
   \bar K = -\tfrac12\bigl(w\tilde\beta^\top + \tilde\beta w^\top\bigr),\quad \bar\lambda_i = -w_i\tilde\beta_i . $$

Distances then give, with $C_{ij} = 2\bar K_{ij}\,\varphi'(d_{ij})/d_{ij}$,
$\bar x_i = \sum_j C_{ij}(x_i - x_j) + \bar k_i\,\varphi'(d_i)/d_i\,(x_i - z)$, and the query gets minus the sum of the last
term.

With a trend, $A u + T\mu = p$ and $T^\top u = \pi$, $T = S P$, the same holds for the bordered system: with $\theta$ the
polynomial of $\alpha g$, $\bar T = -S\alpha g\,\mu^\top - u\,(\theta - 2\gamma\mu)^\top$ (here without the outer $S$), and
through the monomials it reaches the points. Those at the query are of offsets zero, so nothing comes through them.

The power function needs no solve of its own because $w$ minimizes it. Faded weights do not: there
$-2A^{-1}(I - S^2)u$ is one more column of $\alpha$, with $\gamma$ as its $g$, and the taper has a gradient of its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..distances import safe_sqrt
from ..kernels.base import profile_gradient
from . import tails
from .cells import (
    LocalProblem,
    Neighborhoods,
    Solution,
    adjoint,
    border_of,
    gather,
    outer_taper,
    pair_squared,
    recentered,
    smooth_taper,
    unit_of,
)
from .options import SolveOptions


class Saved(NamedTuple):
    """What the forward pass keeps for each query: vectors, never an M x M matrix."""

    inner: Tensor  # (q, M): u
    adjoint: Tensor  # (q, M, C): alpha, or (q, M, C + 1) with fade: one for the power function
    multiples: Tensor  # (q, p, C) or (q, p, C + 1): what the projection of a trend took off alpha; empty without
    gap: Tensor  # (q, p) with a trend: minus mu; empty without


class CellGradients(NamedTuple):
    query: Tensor  # (q, E)
    members: Tensor  # (q, M or M + 1, E), to be added to the rows of the centers
    values: Tensor  # (q, M, C), likewise for the values
    ridge: Tensor  # (q, M)
    profile: list[Tensor]


def save(solution: Solution, local_values: Tensor, resolved: Tensor) -> Saved:
    """What `gradients` will need; cells that are not resolved keep zeros."""
    system = solution.system
    columns = local_values if system.outer is None else system.outer.unsqueeze(-1) * local_values
    if system.taper is not None:
        lost = -2 * (1 - system.taper.square()) * solution.inner
        if system.unit is not None:
            lost = lost * system.unit.unsqueeze(-1)
        columns = torch.cat((columns, lost.unsqueeze(-1)), dim=-1)
    solved, multiples = adjoint(solution, columns)
    bad = ~resolved
    return Saved(
        solution.inner.masked_fill(bad[:, None], 0),
        solved.masked_fill(bad[:, None, None], 0),
        multiples.masked_fill(bad[:, None, None], 0),
        solution.gap.masked_fill(bad[:, None], 0),
    )


def gradients(
    problem: LocalProblem,
    saved: Saved,
    grad_mean: Tensor,
    grad_power: Tensor,
    options: SolveOptions,
    learned: list[Tensor],
) -> CellGradients:
    """What `grad_mean` `(q, C)` and `grad_power` `(q,)`, at the squared power function, are at the inputs."""
    hood, kernel = gather(problem, options), options.kernel
    local_values = problem.values[problem.members(options)]  # (q, M, C)
    outer = outer_taper(hood.taper, options)
    weights = saved.inner if outer is None else outer * saved.inner  # (q, M)
    gamma = grad_power.unsqueeze(-1)  # (q, 1)
    columns = grad_mean  # (q, C)
    if saved.adjoint.shape[-1] > columns.shape[-1]:
        columns = torch.cat((columns, gamma), dim=-1)
    inner_beta = (saved.adjoint @ columns.unsqueeze(-1)).squeeze(-1)  # (q, M)
    beta = inner_beta if hood.taper is None else hood.taper * inner_beta
    beta_tilde = beta - gamma * weights
    grad_cross = beta_tilde - gamma * weights  # (q, M)

    members, squared = recentered(hood)
    distance = pair_squared(members, squared).sqrt_()  # (q, M, M)
    both = torch.stack((weights, beta_tilde), dim=-1)  # (q, M, 2)
    grad_gram = both @ (-0.5 * both).flip(-1).mT  # (q, M, M)
    coefficients = kernel.slope_over_distance(distance).mul_(grad_gram).mul_(2)
    grad_members = torch.baddbmm(coefficients.sum(-1, keepdim=True) * members, coefficients, members, alpha=-1)
    member_distance = safe_sqrt(hood.member_squared)
    pull = (grad_cross * kernel.slope_over_distance(member_distance)).unsqueeze(-1) * hood.members  # (q, M, E)
    grad_border = None
    if options.trend is not None and (options.bordered or hood.taper is not None):
        multiple = (saved.multiples @ columns.unsqueeze(-1)).squeeze(-1) + 2 * gamma * saved.gap  # (q, p)
        grad_border = inner_beta.unsqueeze(-1) * saved.gap.unsqueeze(-2) - saved.inner.unsqueeze(-1) * multiple.unsqueeze(-2)
    if hood.taper is not None:
        # The gradient of s, from w = Su, p = Sk, t = S1 and A = S(K + Lambda)S + I - S^2.
        gram, cross = kernel.profile(distance), kernel.profile(member_distance)  # (q, M, M), (q, M)
        pair = torch.stack((weights, hood.taper * inner_beta), dim=-1)  # (q, M, 2)
        ridge = problem.ridge.expand_as(weights).unsqueeze(-1)
        weights_image, beta_image = (gram @ pair + ridge * pair).unbind(-1)  # (K + Lambda) w, (K + Lambda) S beta
        on_weights = (local_values @ grad_mean.unsqueeze(-1)).squeeze(-1) + 2 * gamma * (weights_image - cross)
        unit = unit_of(hood, options)
        level = 1 if unit is None else unit.unsqueeze(-1)
        grad_taper = on_weights * saved.inner + inner_beta * (cross - weights_image + 2 * level * hood.taper * saved.inner)
        grad_taper = grad_taper - saved.inner * beta_image
        if grad_border is not None:
            grad_taper = grad_taper + _against_border(hood, options, grad_border)
        pull = pad(pull, (0, 0, 0, 1)) + _through_taper(hood, grad_taper)
        if unit is not None:
            grad_unit = -(saved.inner * inner_beta * (1 - hood.taper.square())).sum(-1)
            pull[:, -1] = pull[:, -1] + _through_unit(hood, options, grad_unit)
        grad_members = pad(grad_members, (0, 0, 0, 1))
    if grad_border is not None and options.degree > 0:
        outer_grad = grad_border if outer is None else outer.unsqueeze(-1) * grad_border
        moved = _through_monomials(hood, options, outer_grad)
        pull = pull + (moved if hood.taper is None else pad(moved, (0, 0, 0, 1)))
    grad_offsets, grad_query = grad_members + pull, -pull.sum(1)
    if hood.scale is not None:
        grad_offsets, grad_query = _through_scale(hood, hood.scale, grad_offsets, grad_query)
    names = [name for name, tensor in kernel.profile_tensors().items() if tensor.requires_grad] if learned else []
    return CellGradients(
        query=grad_query,
        members=grad_offsets,
        values=weights.unsqueeze(-1) * grad_mean.unsqueeze(-2),
        ridge=-weights * beta_tilde,
        profile=profile_gradient(kernel, names, [distance, member_distance], [grad_gram, grad_cross]),
    )


def _through_scale(hood: Neighborhoods, scale: Tensor, grad_offsets: Tensor, grad_query: Tensor) -> tuple[Tensor, Tensor]:
    r"""For $o_j = p_j/r$, $r^2 = \tfrac1M\sum_j|p_j|^2$: $\bar p_j = (\bar o_j - (\sum_i\bar o_i\cdot o_i)\,o_j/M)/r$."""
    members = hood.members
    along = (grad_offsets * hood.offsets).sum((1, 2))  # (q,)
    shrink = (along / members.shape[1])[:, None, None] * members
    if hood.taper is not None:
        shrink = pad(shrink, (0, 0, 0, 1))  # the row that sets the fading radius is no member
    return (grad_offsets - shrink) / scale[:, None, None], (grad_query + shrink.sum(1)) / scale[:, None]


def _against_border(hood: Neighborhoods, options: SolveOptions, grad_border: Tensor) -> Tensor:
    """What a gradient `(q, M, p)` of $T = SP$ is for S, `(q, M)`."""
    if options.degree == 0:
        return grad_border.squeeze(-1)
    return (grad_border * border_of(hood, options).members).sum(-1)


def _through_monomials(hood: Neighborhoods, options: SolveOptions, grad_border: Tensor) -> Tensor:
    """Gradient of the offsets of the members `(q, M, E)`, given that of their monomials `(q, M, p)`."""
    members = hood.members.detach()
    frame = border_of(hood, options).frame
    with torch.enable_grad():
        leaf = members.requires_grad_()
        border = tails.monomials(frame.coordinates(leaf), options.degree)
        (grad_members,) = torch.autograd.grad(border, leaf, grad_border)
    return grad_members


def _through_unit(hood: Neighborhoods, options: SolveOptions, grad_unit: Tensor) -> Tensor:
    """Gradient of the offset that sets the radius, `(q, E)`, through the size of the kernel."""
    with torch.enable_grad():
        leaf = hood.offsets[:, -1].detach().requires_grad_()
        unit = options.kernel.unit(safe_sqrt(leaf.square().sum(-1)))
        (grad_offset,) = torch.autograd.grad(unit, leaf, grad_unit)
    return grad_offset


def _through_taper(hood: Neighborhoods, grad_taper: Tensor) -> Tensor:
    """Gradient of the offsets `(q, M + 1, E)` through the distances that shape the taper."""
    distance = safe_sqrt(hood.cross_squared)
    with torch.enable_grad():
        leaf = distance.detach().requires_grad_()
        (grad_distance,) = torch.autograd.grad(smooth_taper(leaf), leaf, grad_taper)
    apart = distance > 0
    return torch.where(apart, grad_distance / torch.where(apart, distance, 1.0), 0.0).unsqueeze(-1) * hood.offsets

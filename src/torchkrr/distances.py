"""Pairwise squared distances that are exact where it matters, and profiles of them, all differentiable twice.

The inner-product form is fast but loses digits between close points, and it is close points that decide
the conditioning of a Gram matrix and whether a regressor interpolates. So close pairs, and only those, are
computed again by difference: equal rows are at distance zero exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from ._chunking import chunk_bytes, collect, ranges, rows_per_chunk
from ._state import with_tensors
from ._tensors import has_tangent, is_transformed, needs_gradient

# Pairs with a squared distance below this fraction of |a|^2 + |b|^2 are computed by difference: the relative
# error of the others is then at most about 1 / CLOSE units in the last place.
CLOSE = 1e-2
FEW_FEATURES = 4
PARAMETRIZED_LENGTHSCALE = "parametrizations.log_lengthscale."  # see torch.nn.utils.parametrize


def squared_distances(a: Tensor, b: Tensor) -> Tensor:
    r"""Squared Euclidean distances, `(*, A, D)` and `(*, B, D)` to `(*, A, B)`.

    Differentiable twice in both arguments. Rows that are equal are at distance exactly zero.

    Example:
        >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([[3.0, 4.0]]))
        tensor([[25.],
                [ 0.]])
    """
    if not is_transformed(a, b):
        return _SquaredDistances.forward(a, b)
    return _SquaredDistances.apply(a, b)  # type: ignore[no-any-return]


def squared_distances_to(points: Tensor, others: Tensor, indices: Tensor) -> Tensor:
    """Squared distances of each of the points `(P, D)` to those of the `others` `(A, D)` that its row of indices names.

    By difference, and differentiable any number of times.

    Shape:
        - indices: `(P, K)`; output: `(P, K)`
    """

    def work(chunk: slice) -> tuple[Tensor, ...]:
        return ((others[indices[chunk]] - points[chunk].unsqueeze(1)).square().sum(-1),)

    if needs_gradient(points, others):
        return work(slice(None))[0]
    row_bytes = 2 * indices.shape[1] * points.shape[1] * points.element_size()
    return collect(work, ranges(len(points), rows_per_chunk(row_bytes, chunk_bytes(points.device))), points.device)[0]


def safe_sqrt(squared: Tensor) -> Tensor:
    """Square root whose derivatives at zero are zero instead of infinite."""
    # Selecting before and after keeps the unused branch finite, so that zero times infinity never appears.
    positive = squared > 0
    return torch.where(positive, torch.where(positive, squared, 1.0).sqrt(), 0.0)


class _SquaredDistances(torch.autograd.Function):
    r"""$s_{ij} = |a_i - b_j|^2$, so $\bar a_i = 2\sum_j \bar s_{ij}(a_i - b_j)$ and likewise for $b$.

    The backward is written in differentiable operations on the saved inputs: higher derivatives follow.
    """

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        if a.shape[-1] <= FEW_FEATURES:
            return _by_feature(a, b)
        shift = _middle(b)
        near_a, near_b = a - shift, b - shift
        scale = near_a.square().sum(-1).unsqueeze(-1) + near_b.square().sum(-1).unsqueeze(-2)  # (*, A, B)
        squared = torch.sub(scale, near_a @ near_b.mT, alpha=2)
        _recompute_close_pairs(squared, scale, a, b)  # the points as given: the shift has rounded the others
        return squared

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent_a: Tensor | None, tangent_b: Tensor | None) -> Tensor:
        a, b = ctx.saved_tensors
        shift = _middle(b)
        a, b = a - shift, b - shift
        parts = []
        if tangent_a is not None:
            parts.append((a * tangent_a).sum(-1).unsqueeze(-1) - tangent_a @ b.mT)
        if tangent_b is not None:
            parts.append((b * tangent_b).sum(-1).unsqueeze(-2) - a @ tangent_b.mT)
        return 2 * torch.stack(torch.broadcast_tensors(*parts)).sum(0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        shift = _middle(b.detach())
        a, b = a - shift, b - shift
        grad_a = grad_b = None
        if ctx.needs_input_grad[0]:
            grad_a = (2 * (grad.sum(-1, keepdim=True) * a - grad @ b)).sum_to_size(a.shape)
        if ctx.needs_input_grad[1]:
            grad_b = (2 * (grad.sum(-2).unsqueeze(-1) * b - grad.mT @ a)).sum_to_size(b.shape)
        return grad_a, grad_b

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        # One more leading dimension, in front of as many as the other has.
        rank = max(tensor.ndim - (dim is not None) for tensor, dim in zip((a, b), in_dims, strict=True))

        def batched(tensor: Tensor, dim: int | None) -> Tensor:
            if dim is None:
                return tensor
            tensor = tensor.movedim(dim, 0)
            return tensor.reshape(tensor.shape[0], *(1,) * (rank + 1 - tensor.ndim), *tensor.shape[1:])

        return _SquaredDistances.apply(batched(a, in_dims[0]), batched(b, in_dims[1])), 0


def _middle(points: Tensor) -> Tensor:
    return points.mean(dim=-2, keepdim=True) if points.shape[-2] else points.new_zeros(points.shape[-1])


def _by_feature(a: Tensor, b: Tensor) -> Tensor:
    squared = (a[..., 0].unsqueeze(-1) - b[..., 0].unsqueeze(-2)).square_()
    for feature in range(1, a.shape[-1]):
        squared += (a[..., feature].unsqueeze(-1) - b[..., feature].unsqueeze(-2)).square_()
    return squared


def _recompute_close_pairs(squared: Tensor, scale: Tensor, a: Tensor, b: Tensor) -> None:
    pairs = (squared < CLOSE * scale).nonzero()  # (P, leading + 2)
    if len(pairs) == 0:
        return
    leading = squared.shape[:-2]
    a, b = a.expand(*leading, -1, -1), b.expand(*leading, -1, -1)
    budget = chunk_bytes(squared.device)
    for chunk in ranges(len(pairs), rows_per_chunk(2 * a.shape[-1] * a.element_size(), budget)):
        *batch, row, column = pairs[chunk].unbind(-1)
        squared[(*batch, row, column)] = (a[(*batch, row)] - b[(*batch, column)]).square_().sum(-1)


class Profile(nn.Module):
    """The part of a kernel that is a function of distance."""

    def profile(self, distance: Tensor) -> Tensor:
        raise NotImplementedError

    def slope_over_distance(self, distance: Tensor) -> Tensor:
        raise NotImplementedError

    def of_squared(self, squared: Tensor) -> Tensor:
        r"""$\varphi(\sqrt s)$ with derivatives that are right at zero, to second order."""
        tensors = self.profile_tensors()
        if not is_transformed(squared, *tensors.values()):
            # In forward mode the infinite slope of the root at zero would meet a tangent of zero.
            return self.profile(safe_sqrt(squared) if has_tangent(squared) else squared.sqrt())
        return Radial.apply(squared, self, tuple(tensors), *tensors.values())  # type: ignore[no-any-return]

    def profile_tensors(self) -> dict[str, Tensor]:
        """The tensors that `profile` computes with, by name: all but the lengthscale and those of the input transform."""
        own = {**self._parameters, **self._buffers, "log_lengthscale": None}
        found = {name: tensor for name, tensor in own.items() if tensor is not None}
        for name, child in self._modules.items():
            if child is not None and name != "input_transform":
                found |= dict(child.named_parameters(name)) | dict(child.named_buffers(name))
        return {name: tensor for name, tensor in found.items() if not name.startswith(PARAMETRIZED_LENGTHSCALE)}

    def learned_in_profile(self) -> list[Tensor]:
        """Those of them that need a gradient now."""
        return [tensor for tensor in self.profile_tensors().values() if needs_gradient(tensor)]


class Radial(torch.autograd.Function):
    r"""$\varphi(\sqrt s)$, whose slope in $s$ is $\varphi'(d)/(2d)$: finite for smooth profiles, even at zero.

    The tensors of the profile are inputs, after their names: inside `torch.func` those of the kernel are not the ones to
    compute with.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(squared: Tensor, kernel: Profile, names: tuple[str, ...], *tensors: Tensor) -> Tensor:
        return with_profile(kernel, names, tensors).profile(squared.sqrt())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        squared, ctx.kernel, ctx.names, *tensors = inputs
        ctx.save_for_backward(squared, *tensors)
        ctx.save_for_forward(squared, *tensors)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor | None, _: Any, __: Any, *tangents: Tensor | None) -> Tensor:
        squared, *tensors = ctx.saved_tensors
        distance = safe_sqrt(squared)
        kernel = with_profile(ctx.kernel, ctx.names, tensors)
        result = torch.zeros_like(squared)
        if tangent is not None:
            result = result + tangent * kernel.slope_over_distance(distance) / 2
        moved = [(name, tensor, t) for name, tensor, t in zip(ctx.names, tensors, tangents, strict=True) if t is not None]
        if moved:
            names, points, directions = zip(*moved, strict=True)
            along = torch.func.jvp(lambda *new: with_profile(kernel, names, new).profile(distance), points, directions)[1]
            result = result + along
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        squared, *tensors = ctx.saved_tensors
        distance = safe_sqrt(squared)
        kernel = with_profile(ctx.kernel, ctx.names, tensors)
        needs_squared, _, _, *needs = ctx.needs_input_grad
        grad_squared = grad * kernel.slope_over_distance(distance) / 2 if needs_squared else None
        wanted = [name for name, need in zip(ctx.names, needs, strict=True) if need]
        found = dict(zip(wanted, profile_gradient(kernel, wanted, [distance], [grad]), strict=True))
        return grad_squared, None, None, *map(found.get, ctx.names)


def with_profile(kernel: Profile, names: Sequence[str], tensors: Sequence[Tensor]) -> Profile:
    """The kernel with other tensors in its profile, under names as in `profile_tensors`."""
    if not names:
        return kernel
    own = kernel.profile_tensors()
    return with_tensors(kernel, {id(own[name]): tensor for name, tensor in zip(names, tensors, strict=True)})


def profile_gradient(
    kernel: Profile, names: Sequence[str], distances: Sequence[Tensor], grads: Sequence[Tensor]
) -> list[Tensor]:
    """Gradient of the named tensors of `profile`, given the gradient arriving at its values.

    Through `profile` alone: the distances may have a graph of their own that leads to the same tensors.
    """
    if not names:
        return []
    own = kernel.profile_tensors()

    def values(*tensors: Tensor) -> tuple[Tensor, ...]:
        changed = with_profile(kernel, names, tensors)
        return tuple(changed.profile(distance) for distance in distances)

    _, pull = torch.func.vjp(values, *(own[name] for name in names))  # type: ignore[misc]
    return list(pull(tuple(grads)))

r"""Losses for training whatever comes before a kernel readout, in anybody's loop.

A kernel readout interpolates: asked for its own support it repeats the labels, so a loss on that is zero whatever the
features are. Here no query sees its own label. With features $x_i$, one-hot labels $y_i$ and the prediction
$m_i = \mathcal P_k(x_{-i}, y_{-i})(x_i)$ without row $i$, or $m_i = \mathcal P_k(\text{support})(x_i)$,

$$ \mathcal L = -\frac1B\sum_i \log\operatorname{softmax}(m_i / T)_{\text{label}_i} . $$

Without a kernel the features are divided by their root mean square distance in the batch, and the kernel is the exponential
one: the loss then depends on the arrangement of the features, not on their size.
"""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from ._checks import check_choice, check_index_range, check_points, check_positive, check_tensor
from .core.options import Trend, with_options_of
from .core.temperature import best_temperature
from .errors import InputTypeError, ShapeError
from .functional import kernel_ridge, leave_one_out, local_kernel_ridge
from .kernels import Exponential, Kernel
from .neighbors import nearest

Reduction = Literal["mean", "sum", "none"]


class LossOptions(TypedDict, total=False):
    """What both losses take."""

    num_classes: int | None
    kernel: Kernel | None
    ridge: float | Tensor
    trend: Trend
    temperature: float | Tensor | None
    num_neighbors: int | None
    reduction: Reduction


def _cross_entropy(
    support: Tensor,
    support_labels: Tensor,
    query: Tensor | None,
    labels: Tensor,
    num_classes: int | None = None,
    kernel: Kernel | None = None,
    ridge: float | Tensor = 1e-3,
    trend: Trend = "constant",
    temperature: float | Tensor | None = 0.1,
    num_neighbors: int | None = None,
    reduction: Reduction = "mean",
) -> Tensor:
    """The loss of queries with these labels; without queries each row of the support is left out in turn."""
    left_out = query is None
    if num_classes is None:
        num_classes = 1 + int(torch.maximum(support_labels.max(), labels.max()))
    if kernel is None:
        if len(support) < 2:
            raise ShapeError(f"support must have 2 rows to have a mean distance, got {len(support)}. Give a kernel.")
        unit = _mean_distance(support)
        support, query, kernel = support / unit, None if query is None else query / unit, Exponential()
    targets = _targets(support_labels, num_classes, support.dtype)
    if num_neighbors is not None:
        points, count = support if query is None else query, min(num_neighbors, len(support) - left_out)
        indices = nearest(points, support, count, kernel=kernel, exclude_self=left_out)
        means = local_kernel_ridge(points, support, targets, indices, kernel=kernel, ridge=ridge, trend=trend)
    elif query is None:
        means = leave_one_out(support, targets, kernel=kernel, ridge=ridge, trend=trend)
    else:
        means = kernel_ridge(query, support, targets, kernel=kernel, ridge=ridge, trend=trend)
    targets = _targets(labels, num_classes, means.dtype)
    check_choice("reduction", reduction, ("mean", "sum", "none"))
    if temperature is None:
        temperature = best_temperature(means, targets)
    elif not isinstance(temperature, Tensor):
        check_positive("temperature", temperature)
    return cross_entropy(means / temperature, labels, reduction=reduction)


@with_options_of(_cross_entropy)
def leave_one_out_cross_entropy(features: Tensor, labels: Tensor, **options: Unpack[LossOptions]) -> Tensor:
    r"""Cross-entropy of each row of a batch predicted from the others.

    Args:
        features: points of the batch; gradients reach them as queries and as centers.
        labels: class of each row.
        num_classes: how many there are; the largest label plus one if it is `None`.
        kernel: its lengthscale may be learned; `None` is `Exponential()` at unit mean distance, see above.
        ridge, trend: as in `torchkrr.functional.leave_one_out`.
        temperature: $T$, which may be a learned tensor; `None` takes the best for the batch, without a gradient.
        num_neighbors: predict from so many nearest rows, for batches of thousands; `None` is from all others.
        reduction: `"mean"`, `"sum"` or `"none"`.

    Shape:
        - features: `(B, D)`; labels: `(B,)`; output: `()`, or `(B,)` without reduction

    Equivalent to

        targets, choices = torch.nn.functional.one_hot(labels).to(features), {"ridge": ridge, "trend": "constant"}
        means = []
        for i in range(len(features)):
            rest = torch.arange(len(features)) != i
            means.append(torchkrr.functional.kernel_ridge(
                features[i : i + 1], features[rest], targets[rest], kernel=kernel, **choices
            ))
        result = torch.nn.functional.cross_entropy(torch.cat(means) / temperature, labels)

    Example:
        >>> features = torch.tensor([[0.0], [0.1], [5.0], [5.1]], requires_grad=True)
        >>> loss = leave_one_out_cross_entropy(features, torch.tensor([0, 0, 1, 1]))
        >>> bool(loss < 0.1)
        True
        >>> loss.backward()
    """
    _check_batch("features", features, "labels", labels)
    if len(features) < 2:
        raise ShapeError(f"features must have at least 2 rows, or nothing is left to predict from, got {len(features)}.")
    return _cross_entropy(features, labels, None, labels, **options)


@with_options_of(_cross_entropy)
def episodic_cross_entropy(
    support: Tensor, support_labels: Tensor, query: Tensor, query_labels: Tensor, **options: Unpack[LossOptions]
) -> Tensor:
    r"""Cross-entropy of one part of a batch predicted from another.

    Args:
        support, support_labels: what predictions are made from.
        query, query_labels: what is predicted. No row may be in both parts: it would see its own label.
        num_classes, kernel, ridge, trend, temperature, num_neighbors, reduction: as in `leave_one_out_cross_entropy`;
            without a kernel both parts are divided by the mean distance of the support.

    Shape:
        - support: `(B, D)`; support_labels: `(B,)`; query: `(Q, D)`; query_labels: `(Q,)`; output: `()` or `(Q,)`

    Equivalent to

        targets = torch.nn.functional.one_hot(support_labels).to(support)
        means = torchkrr.functional.kernel_ridge(query, support, targets, kernel=kernel, ridge=ridge, trend="constant")
        result = torch.nn.functional.cross_entropy(means / temperature, query_labels)

    Example:
        >>> support, labels = torch.tensor([[0.0], [1.0], [5.0], [6.0]]), torch.tensor([0, 0, 1, 1])
        >>> bool(episodic_cross_entropy(support, labels, torch.tensor([[0.5], [5.5]]), torch.tensor([0, 1])) < 0.1)
        True
    """
    _check_batch("support", support, "support_labels", support_labels)
    _check_batch("query", query, "query_labels", query_labels)
    return _cross_entropy(support, support_labels, query, query_labels, **options)


def _mean_distance(points: Tensor) -> Tensor:
    """Root mean square distance over all ordered pairs, with its gradient; one if all points are the same."""
    squared = 2 * points.var(0, correction=0).sum()
    return torch.where(squared > 0, squared, 1.0).sqrt()


def _targets(labels: Tensor, num_classes: int, dtype: torch.dtype) -> Tensor:
    check_index_range("labels", labels, num_classes, what="classes", then="Number the classes from 0.")
    return one_hot(labels, max(2, num_classes)).to(dtype)


def _check_batch(name: str, points: Tensor, labels_name: str, labels: Tensor) -> None:
    check_points(name, points)
    check_tensor(labels_name, labels)
    if labels.shape != points.shape[:1]:
        raise ShapeError(
            f"{labels_name} must have shape ({len(points)},), one class for each row of {name}, got {tuple(labels.shape)}."
        )
    if labels.dtype != torch.int64:
        raise InputTypeError(f"{labels_name} must be classes as torch.int64, got {labels.dtype}. Give labels.long().")


__all__ = ["Reduction", "episodic_cross_entropy", "leave_one_out_cross_entropy"]

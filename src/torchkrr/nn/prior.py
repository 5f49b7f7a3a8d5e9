"""Any module, corrected by local kernel ridge regression of what it leaves over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Unpack

import torch
from torch import Tensor, nn

from .._checks import check_index_range, check_index_tensor, check_positive, check_tensor
from ..core.options import LayerOptions, LocalOptions, with_options_of
from ..errors import InputError, ShapeError
from ..neighbors import NeighborIndex
from ..neighbors.base import Rows, kept_rows
from .local import LocalKernelRidge


class HeadOptions(LayerOptions, LocalOptions, total=False):
    """What `LocalKernelRidge` takes after centers and values."""

    num_neighbors: int
    index: NeighborIndex | Literal["auto"] | None
    keep_factors: int


class PriorExplanation(NamedTuple):
    """What made a prediction: `prior + (weights[..., None] * layer.head.values[indices]).sum(-2)` is it."""

    indices: Tensor  # (*, M) corrections, in the order they were appended, nearest first
    weights: Tensor  # (*, M)
    prior: Tensor  # (*, C) what the prior predicts


class Corrections(LocalKernelRidge):
    """The local layer of the residuals. It may have no centers, and then nobody calls it."""

    def _check_support(self, centers: Tensor, values: Tensor) -> None:
        if len(centers):
            super()._check_support(centers, values)

    def append(self, centers: Tensor, values: Tensor) -> None:
        if self.num_centers:
            super().append(centers, values)
            return
        self._refuse_learned("append")
        super()._check_support(centers, values)
        self._become(centers, values)

    def remove(self, indices: Rows) -> None:
        self._refuse_learned("remove")
        keep = kept_rows(indices, self.num_centers, self.centers.device, maybe_none=True)
        if bool(keep.any()):
            self._keep_rows(keep)
        else:
            self._become(self.centers[:0], self.values[:0])

    def _become(self, centers: Tensor, values: Tensor) -> None:
        with torch.inference_mode(False):
            self.centers, self.values = centers.detach().clone(), values.detach().clone()


class PriorKernelRidge(nn.Module):
    r"""A module plus local kernel ridge regression of its residuals: $f(z) = p(z) + \mathcal P_k(x, y - p(x))(z)$.

    It mends a model that is in use without training it. Far from all inputs that were appended the output is the prior's,
    up to rounding; without any it is the prior's to the bit, so removing all of them restores every output. `append` takes
    targets, `correct` labels. `head` is the kernel layer, with points as its `centers` and residuals as its `values`.

    In place of the last layer of a network, as `net.fc = PriorKernelRidge(net.fc, kernel=...)`, it costs no second pass, and
    its inputs are what this layer gets. Around a whole network, `features` says which points the kernel compares.

    The residuals are those of the prior in evaluation mode when they were appended. To train the prior and let its residuals
    follow, build the layer from `inputs` and `targets` in each step: gradients reach the prior through both terms.

    Args:
        prior: whatever maps inputs to outputs `(*, C)`.
        inputs, targets: the first ones to append; their graphs are kept. `None` starts without any, and needs a `kernel`.
        features: maps inputs to the points of the kernel, `(*, D)`; `None` takes the inputs themselves.

    Other arguments as in `LocalKernelRidge`. A trend would reach to all inputs, however far.

    Shape:
        - inputs: whatever the prior takes; output: `(*, C)`

    Example:
        >>> model = torch.nn.Linear(4, 3)
        >>> mended, rows = PriorKernelRidge(model, kernel=torchkrr.kernels.Exponential(0.5)), torch.randn(5, 4)
        >>> mended.correct(rows, torch.tensor([0, 1, 2, 0, 1]))
        >>> mended(rows).argmax(1)
        tensor([0, 1, 2, 0, 1])
        >>> mended.remove(torch.arange(5))
        >>> torch.equal(mended(rows), model(rows))
        True
    """

    @with_options_of(LocalKernelRidge.__init__)
    def __init__(
        self,
        prior: nn.Module,
        inputs: Any = None,
        targets: Tensor | None = None,
        *,
        features: Callable[[Any], Tensor] | None = None,
        **options: Unpack[HeadOptions],
    ) -> None:
        super().__init__()
        if (inputs is None) != (targets is None):
            raise InputError("inputs and targets belong together: give both, or neither to start without corrections.")
        self.prior, self.features = prior, features
        if targets is not None:
            points, outputs = self._evaluated(inputs)
            self.head = Corrections(points, self._residuals(points, outputs, targets), **options)
        elif options.get("kernel") is None or isinstance(options["kernel"], str):
            raise InputError(
                "Without inputs there is nothing to fit a kernel to. Give a kernel, such as torchkrr.kernels.default_kernel("
                "points) of some points that the layer will see, or inputs and targets."
            )
        else:
            self.head = Corrections(torch.empty(0, 0), torch.empty(0, 0), **options)

    def forward(self, inputs: Any) -> Tensor:
        outputs: Tensor = self.prior(inputs)
        if not self.head.num_centers:
            return outputs
        correction: Tensor = self.head(self._points(inputs))
        _check_alike("outputs of the prior", outputs, "corrections", correction)
        return outputs + correction

    def power_function(self, inputs: Any) -> Tensor:
        """The error indicator of the kernel part, `(*,)`: 0 at a correction, 1 far from all and without any."""
        points = self._points(inputs)
        return self.head.power_function(points) if self.head.num_centers else points.new_ones(points.shape[:-1])

    def explain(self, inputs: Any) -> PriorExplanation:
        """The corrections behind each prediction with their weights, and the share of the prior."""
        outputs, points = self.prior(inputs), self._points(inputs)
        if self.head.num_centers:
            return PriorExplanation(*self.head.explain(points), outputs)
        none = points.new_empty(*points.shape[:-1], 0)
        return PriorExplanation(none.long(), none, outputs)

    def append(self, inputs: Any, targets: Tensor) -> None:
        """Add inputs with what the output there is to be, exactly up to the ridge. Nothing is trained.

        Shape:
            - inputs: n of them; targets: `(n, C)`
        """
        with torch.no_grad():
            points, outputs = self._evaluated(inputs)
            self.head.append(points, self._residuals(points, outputs, targets))

    def correct(self, inputs: Any, labels: Tensor, margin: float = 1.0) -> None:
        """Add inputs with their classes: the score of the right one is lifted above the others by `margin`.

        Where the prior is right its scores stay as they are, and such inputs keep them near other corrections.

        Shape:
            - inputs: n of them; labels: `(n,)` int64
        """
        check_positive("margin", margin)
        with torch.no_grad():
            points, outputs = self._evaluated(inputs)
            _check_labels(labels, outputs)
            self.head.append(points, self._residuals(points, outputs, lifted(outputs, labels.long(), margin)))

    def remove(self, indices: Rows) -> None:
        """Undo the corrections with these numbers, or all of them; those after an undone one move up.

        Shape:
            - indices: as in `LocalKernelRidge.remove`
        """
        self.head.remove(indices)

    def _points(self, inputs: Any) -> Tensor:
        return inputs if self.features is None else self.features(inputs)

    def _evaluated(self, inputs: Any) -> tuple[Tensor, Tensor]:
        """Points and the outputs of the prior there, in evaluation mode."""
        with evaluation_mode(self):
            return self._points(inputs), self.prior(inputs)

    @staticmethod
    def _residuals(points: Tensor, outputs: Tensor, targets: Tensor) -> Tensor:
        check_tensor("targets", targets)
        _check_alike("targets", targets, "outputs of the prior", outputs)
        return (targets - outputs).to(points.dtype)


def lifted(scores: Tensor, labels: Tensor, margin: float) -> Tensor:
    """Scores `(n, C)` with the right class lifted above the others by `margin`, where it is not the largest.

    Example:
        >>> lifted(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1]), 0.5)
        tensor([[2.0000, 1.0000],
                [2.0000, 2.5000]])
    """
    largest, best = scores.max(dim=1)
    right = torch.where(best == labels, largest, largest + margin)
    return scores.scatter(1, labels.unsqueeze(1), right.unsqueeze(1))


def _check_labels(labels: Tensor, outputs: Tensor) -> None:
    if outputs.ndim != 2:
        raise ShapeError(f"correct needs scores of classes, (n, C), but the prior gives {tuple(outputs.shape)}. Use append.")
    check_index_tensor("labels", labels, outputs, (len(outputs),), f"({len(outputs)},), a class for each input")
    remedy = "Give the column of the right class in the prior's output."
    check_index_range("labels", labels, outputs.shape[1], what="classes", then=remedy)


def _check_alike(name: str, tensor: Tensor, other_name: str, other: Tensor) -> None:
    """One shape: adding `(n,)` to `(n, 1)` would give `(n, n)`."""
    if tensor.shape != other.shape:
        raise ShapeError(
            f"The {name} have shape {tuple(tensor.shape)}, the {other_name} {tuple(other.shape)}. Both must be (*, C): "
            "a row of outputs for each input, and one column if there is one output."
        )


@contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Without dropout, and with the statistics of normalizations as they are."""
    training = [part for part in module.modules() if part.training]
    module.eval()
    try:
        yield
    finally:
        for part in training:
            part.training = True

"""What `learn_metric` found, and how it got there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.options import Trend
from ..kernels import Kernel
from ..nn import LocalKernelRidge
from ..transforms import Compose, Linear
from .scores import Loss
from .selection import import_pyplot


@dataclass(frozen=True)
class Progressed:
    """One look at the rows set aside."""

    step: int
    seconds: float
    loss: float  # mean of the batches since the last look; not a number at the start
    held_out_loss: float
    ridge: float


@dataclass(frozen=True, eq=False)
class LearnedMetric:
    """A kernel with its learned metric, fixed, and the ridge that goes with it.

    Use it as it is with `layer`, or give `kernel` to `torchkrr.select`, which then chooses the number of neighbors, the
    ridge and a common factor of the lengthscale for it.
    """

    kernel: Kernel
    ridge: float
    trend: Trend
    loss: Loss
    score: float  # on the rows set aside
    temperature: float | None
    history: tuple[Progressed, ...]

    def layer(self, centers: Tensor, values: Tensor, num_neighbors: int = 100, **changes: Any) -> LocalKernelRidge:
        """A layer in the learned metric; keyword arguments of `LocalKernelRidge` change or add to it."""
        arguments = {"kernel": self.kernel, "ridge": self.ridge, "trend": self.trend, **changes}
        return LocalKernelRidge(centers, values, min(num_neighbors, len(centers)), **arguments)

    def plot(self) -> Any:
        """A matplotlib figure: the losses along the way, and the learned metric."""
        pyplot = import_pyplot()
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        steps = [point.step for point in self.history]
        left.plot(steps[1:], [point.loss for point in self.history[1:]], label="batches, leave-one-out")
        left.plot(steps, [point.held_out_loss for point in self.history], marker="o", markersize=3.5, label="rows set aside")
        left.set_xlabel("step")
        left.set_ylabel(self.loss.replace("_", " "))
        left.legend(frameon=False, fontsize=8)
        left.grid(alpha=0.3)
        self._plot_metric(figure, right)
        return figure

    def _plot_metric(self, figure: Any, axis: Any) -> None:
        lengthscale, weight = self.kernel.lengthscale.detach(), self._matrix()
        if weight is None or len(lengthscale) > 1:
            axis.bar(range(len(lengthscale)), (1 / lengthscale).tolist())
            axis.set_xlabel("feature")
            axis.set_ylabel("1 / lengthscale: how much it counts")
            return
        image = axis.imshow((weight.mT @ weight).tolist(), cmap="RdBu_r")
        axis.set_xlabel("feature")
        axis.set_ylabel("feature")
        axis.set_title("metric $W^T W$", fontsize=9)
        figure.colorbar(image, ax=axis)

    def _matrix(self) -> Tensor | None:
        transform = self.kernel.input_transform
        last = transform.transforms[-1] if isinstance(transform, Compose) else None
        return last.weight.detach() if isinstance(last, Linear) else None

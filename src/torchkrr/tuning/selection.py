"""What `select` found: the choice, and the table it was made from."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..core.options import Trend
from ..errors import MissingExtraError
from ..kernels import Kernel
from ..nn import LocalKernelRidge
from .scores import Loss

SHOWN_ROWS = 12


@dataclass(frozen=True)
class Trial:
    """One kernel with one ridge, at the number of neighbors that suits it best."""

    kernel: str
    lengthscale: float  # factor on the lengthscale of the kernel that was given
    ridge: float
    num_neighbors: int
    loss: float  # mean leave-one-out loss
    standard_error: float  # of that mean
    num_samples: int  # rows left out, one at a time
    curve: tuple[tuple[int, float], ...]  # (num_neighbors, loss)
    seconds: float


@dataclass(frozen=True, eq=False)
class Selection:
    """The choice with the least leave-one-out loss, and every trial: finalists first, then those of the first round.

    `layer(centers, values)` builds a `LocalKernelRidge` with it; `arguments` are the keyword arguments to do so oneself.
    """

    kernel: Kernel
    num_neighbors: int
    ridge: float
    trend: Trend
    loss: Loss
    score: float
    temperature: float | None  # with cross_entropy: probabilities are softmax(prediction / temperature)
    table: tuple[Trial, ...]

    @property
    def arguments(self) -> dict[str, Any]:
        return {"num_neighbors": self.num_neighbors, "kernel": self.kernel, "ridge": self.ridge, "trend": self.trend}

    def layer(self, centers: Tensor, values: Tensor, **changes: Any) -> LocalKernelRidge:
        """A layer with the choice; keyword arguments of `LocalKernelRidge` change or add to it."""
        fitting = {"num_neighbors": min(self.num_neighbors, len(centers))}
        return LocalKernelRidge(centers, values, **{**self.arguments, **fitting, **changes})

    def __str__(self) -> str:
        lines = [f"{'kernel':<20} {'lengthscale':>11} {'ridge':>8} {'neighbors':>9} {self.loss:>14} {'s.e.':>9} {'rows':>5}"]
        lines += [
            f"{t.kernel:<20} {t.lengthscale:>11.3g} {t.ridge:>8.1e} {t.num_neighbors:>9} {t.loss:>14.5g} "
            f"{t.standard_error:>9.2g} {t.num_samples:>5}"
            for t in self.table[:SHOWN_ROWS]
        ]
        more = len(self.table) - SHOWN_ROWS
        return "\n".join(lines + ([f"... and {more} more trials"] if more > 0 else []))

    def plot(self) -> Any:
        """A matplotlib figure: the loss against the number of neighbors, the lengthscale and the ridge, for each kernel."""
        pyplot = import_pyplot()
        figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), sharey=True, layout="constrained")
        final = max(trial.num_samples for trial in self.table)
        for number, name in enumerate(sorted({trial.kernel for trial in self.table})):
            trials = [trial for trial in self.table if trial.kernel == name]
            style = {"color": f"C{number}", "marker": "o", "markersize": 3.5, "linewidth": 1.4}
            best = next((trial for trial in trials if trial.num_samples == final), trials[0])
            axes[0].plot(*zip(*best.curve, strict=True), label=name, **style)
            for axis, field in ((axes[1], "lengthscale"), (axes[2], "ridge")):
                # The least loss over everything else; trials on fewer rows are another sample, so they are not mixed in.
                fewest = min(trial.num_samples for trial in trials)
                screened = [trial for trial in trials if trial.num_samples == fewest]
                points: dict[float, float] = {}
                for trial in screened:
                    where = getattr(trial, field)
                    points[where] = min(trial.loss, points.get(where, float("inf")))
                axis.plot(*zip(*sorted(points.items()), strict=True), **style)
        axes[0].scatter([self.num_neighbors], [self.score], s=90, facecolors="none", edgecolors="black", zorder=3)
        for axis, label in zip(axes, ("neighbors M", "lengthscale factor", "ridge"), strict=True):
            axis.set_xscale("log")
            axis.set_xlabel(label)
            axis.grid(alpha=0.3)
        if all(trial.loss > 0 for trial in self.table):
            axes[0].set_yscale("log")
        axes[0].set_ylabel(f"leave-one-out {self.loss.replace('_', ' ')}")
        axes[0].legend(frameon=False, fontsize=8)
        return figure


def import_pyplot() -> Any:
    try:
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise MissingExtraError('Plots need matplotlib, which is not installed: pip install "torchkrr[plot]".') from None

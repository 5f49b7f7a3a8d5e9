"""Learn the metric of a kernel by gradient descent on the leave-one-out loss."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from tqdm import tqdm

from .._checks import check_at_least_one, check_choice, check_integer, check_positive, check_ridge
from .._extras import import_extra
from .._state import register, register_setting, usable
from ..core.factor import eigh
from ..core.options import SolveOptions, Trend
from ..errors import InputError, RidgeRaisedWarning, ShapeError
from ..functional.left_out import check_data
from ..functional.local import solve_local
from ..kernels import Exponential, Kernel
from ..kernels.names import check_definite
from ..neighbors import nearest
from ..nn import LocalKernelRidge
from ..transforms import Compose, Linear, MeanDistance, Standardize, Transform
from .scores import Loss, check_loss, in_given_units, score, unit_of

Metric = Literal["ard", "linear"]
MOST_HELD_OUT = 1000
NEIGHBORS = 50
SMALLEST_RIDGE = 1e-8
FIRST_TEMPERATURE = 0.2


@dataclass(frozen=True)
class Progressed:
    """An evaluation on the held-out rows."""

    step: int
    seconds: float
    loss: float  # mean of the batches since the last evaluation; NaN at the start
    held_out_loss: float
    ridge: float


@dataclass(frozen=True, eq=False)
class LearnedMetric:
    """A kernel with its learned metric, no longer trainable, and the ridge learned with it.

    Build a layer with `layer`, or give `kernel` to `torchkrr.select`, which then chooses the number of neighbors, the
    ridge and a common factor of the lengthscale for it.
    """

    kernel: Kernel
    ridge: float
    trend: Trend
    loss: Loss
    score: float  # on the held-out rows
    temperature: float | None
    history: tuple[Progressed, ...]

    def layer(self, centers: Tensor, values: Tensor, num_neighbors: int = 100, **changes: Any) -> LocalKernelRidge:
        """A layer in the learned metric; keyword arguments of `LocalKernelRidge` change or add to it."""
        arguments = {"kernel": self.kernel, "ridge": self.ridge, "trend": self.trend, **changes}
        return LocalKernelRidge(centers, values, min(num_neighbors, len(centers)), **arguments)

    def plot(self) -> Any:
        """A matplotlib figure: the losses during training, and the learned metric."""
        pyplot = import_extra("matplotlib.pyplot", "A plot", extra="plot")
        figure, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
        steps = [point.step for point in self.history]
        left.plot(steps[1:], [point.loss for point in self.history[1:]], label="batches, leave-one-out")
        left.plot(steps, [point.held_out_loss for point in self.history], marker="o", markersize=3.5, label="held-out rows")
        left.set_xlabel("step")
        left.set_ylabel(self.loss.replace("_", " "))
        left.legend(frameon=False, fontsize=8)
        left.grid(alpha=0.3)
        right.set_xlabel("feature")
        lengthscale, transform = self.kernel.lengthscale.detach(), self.kernel.input_transform
        last = transform.transforms[-1] if isinstance(transform, Compose) else None
        if isinstance(last, Linear) and len(lengthscale) == 1:
            weight = last.weight.detach()
            image = right.imshow((weight.mT @ weight).tolist(), cmap="RdBu_r")
            right.set_ylabel("feature")
            right.set_title("metric $W^T W$", fontsize=9)
            figure.colorbar(image, ax=right)
        else:
            right.bar(range(len(lengthscale)), (1 / lengthscale).tolist())
            right.set_ylabel("1 / lengthscale: how much it counts")
        return figure


def learn_metric(
    centers: Tensor,
    values: Tensor,
    *,
    kernel: Kernel | None = None,
    metric: Metric = "ard",
    rank: int | None = None,
    num_neighbors: int | None = None,
    ridge: float = 1e-2,
    learn_ridge: bool = True,
    trend: Trend = "constant",
    loss: Loss = "mse",
    delta: float = 1.0,
    steps: int = 300,
    batch_size: int = 256,
    learning_rate: float = 0.05,
    refresh_every: int = 4,
    evaluate_every: int = 25,
    patience: int = 6,
    max_seconds: float | None = None,
    seed: int = 0,
    progress: bool = False,
) -> LearnedMetric:
    r"""Learn how much each feature counts, or a linear map of the features, by local leave-one-out.

    Each step leaves a batch of rows out, one at a time, predicts each from its nearest *other* rows in the metric as it
    stands, and follows the gradient of the loss with respect to the metric (and the ridge) with Adam. Held-out rows are
    predicted from the others every `evaluate_every` steps; the state that predicts them best is returned, and training
    stops after `patience` evaluations without an improvement. They take no part in the steps, neither as queries nor as
    neighbors.

    Args:
        centers, values: the data; for classification one-hot labels with `loss="cross_entropy"`.
        kernel: the initial kernel, which is copied. `None` is `Exponential` on standardized features at unit mean distance.
        metric: `"ard"` learns one lengthscale per feature, `"linear"` a matrix on the embedded features.
        rank: rows of that matrix; `None` is as many as there are features.
        num_neighbors: neighbors during training; `None` is 50, or all rows if they are fewer. Fewer than for prediction
            are enough, and much faster.
        ridge: initial value; from far below 1e-4 it hardly moves.
        learn_ridge: learn the ridge too; `False` keeps it.
        trend: `"constant"` or `None`.
        loss: `"mse"`, `"cross_entropy"`, `"log_score"` or `"huber"` (see `torchkrr.tuning.scores`).
        delta: where `huber` turns from square to linear, in the units of the values.
        steps, batch_size, learning_rate: of Adam; the rate falls to zero along a cosine.
        refresh_every: steps between two neighbor searches.
        evaluate_every, patience: steps between two evaluations, and evaluations without improvement before it stops.
        max_seconds: the same schedule in a shorter time; `None` is no limit.
        seed: of the batches and the held-out rows.
        progress: show a progress bar.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`

    Example:
        >>> x = torch.rand(300, 3)
        >>> y = torch.sin(6 * x[:, :1])  # the other two features are noise
        >>> learned = torchkrr.learn_metric(x, y, steps=60, num_neighbors=10)
        >>> bool(learned.kernel.lengthscale.argmin() == 0)
        True
    """
    check_data(centers, values)
    check_loss(loss, values)
    check_choice("metric", metric, ("ard", "linear"))
    check_choice("trend", trend, (None, "constant"))
    check_ridge(ridge)
    check_positive("delta", delta)
    check_positive("learning_rate", learning_rate)
    if max_seconds is not None:
        check_positive("max_seconds", max_seconds)
    counts = {"steps": steps, "batch_size": batch_size, "refresh_every": refresh_every}
    for name, count in {**counts, "evaluate_every": evaluate_every, "patience": patience}.items():
        check_at_least_one(name, count)
    if rank is not None and metric != "linear":
        raise InputError("rank belongs to metric='linear'. Leave it out, or choose that metric.")
    held_out = max(1, min(MOST_HELD_OUT, len(centers) // 10))
    others = len(centers) - held_out - 1
    if others < 1:
        raise ShapeError(f"centers has {len(centers)} rows, but learning needs at least 3: one is set aside, one left out.")
    num_neighbors = min(NEIGHBORS, others) if num_neighbors is None else num_neighbors
    check_integer("num_neighbors", num_neighbors)
    if not 1 <= num_neighbors <= others:
        raise InputError(
            f"num_neighbors must lie between 1 and {others}, got {num_neighbors}: of {len(centers)} rows, {held_out} "
            "are set aside and one is left out."
        )
    with torch.inference_mode(False), torch.enable_grad():
        # Tensors made in inference mode could not take part in a backward pass.
        centers, values = usable(centers.detach()), usable(values.detach())
        options = SolveOptions(_learnable(kernel, centers, metric, rank), float(ridge), trend)
        descent = _Descent(centers, values, options, num_neighbors, learn_ridge, loss, delta, held_out, seed)
        size = min(batch_size, others + 1)
        history = descent.run(
            descent.batches(steps, size, refresh_every),
            steps,
            learning_rate,
            evaluate_every,
            patience,
            max_seconds,
            progress,
        )
    best = min(point.held_out_loss for point in history)
    if not math.isfinite(best):
        raise InputError("No metric has a finite loss. Look at centers and values: they may be too large for their dtype.")
    return LearnedMetric(
        kernel=_fixed(descent.kernel),
        ridge=float(descent.ridge().detach()),
        trend=trend,
        loss=loss,
        score=best,
        temperature=float(descent.log_temperature.detach().exp()) if loss == "cross_entropy" else None,
        history=tuple(history),
    )


def _learnable(kernel: Kernel | None, centers: Tensor, metric: Metric, rank: int | None) -> Kernel:
    """A copy of the kernel whose metric, and what its profile already learned, are Parameters."""
    if kernel is None:
        kernel = Exponential(input_transform=Compose(Standardize(), MeanDistance()).fit(centers))
    check_definite(kernel)
    kernel = copy.deepcopy(kernel)
    with torch.no_grad():
        embedded = kernel.embed(centers)
    features = embedded.shape[1]
    logs = kernel.log_lengthscale.detach().double().expand(features).clone()
    del kernel.log_lengthscale
    if metric == "ard":
        register(kernel, "log_lengthscale", logs, learn=True)
        return kernel
    if rank is not None:
        check_integer("rank", rank)
        if not 1 <= rank <= features:
            raise InputError(f"rank must lie between 1 and the number of embedded features ({features}), got {rank}.")
    weight = torch.diag(torch.exp(-logs))
    if rank is not None and rank < features:
        # The directions in which the embedded centers vary most.
        centered = (embedded - embedded.mean(0)).to(weight.dtype)
        directions = eigh(centered.mT @ centered)[1].mT.flip(0)
        weight = directions[:rank] @ weight
    transforms = [] if kernel.input_transform is None else [kernel.input_transform]
    kernel.input_transform = Compose(*transforms, Linear(weight, learn=True).double())
    register_setting(kernel, "log_lengthscale", torch.zeros(1, device=centers.device), learn=False)
    return kernel


def _fixed(kernel: Kernel) -> Kernel:
    """The kernel with every Parameter turned into a buffer of the same name."""
    for module in kernel.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                delattr(module, name)
                setting = isinstance(module, Kernel | Transform)
                register(module, name, parameter.detach().double() if setting else parameter.detach(), learn=False)
    return kernel


class _Descent(nn.Module):
    """Training and held-out rows, and what is learned: the Parameters of `kernel`, the ridge and the temperature."""

    log_ridge: Tensor
    log_temperature: Tensor

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        options: SolveOptions,
        num_neighbors: int,
        learn_ridge: bool,
        loss: Loss,
        delta: float,
        held_out: int,
        seed: int,
    ) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(centers), generator=self.generator).to(centers.device)
        aside, train = order[:held_out], order[held_out:]
        self.unit = unit_of(values, loss)
        values = values / self.unit
        self.centers, self.values = centers[train], values[train]
        self.held_centers, self.held_values = centers[aside], values[aside]
        self.kernel, self.options, self.num_neighbors = options.kernel, options, num_neighbors
        self.loss, self.delta, self.learn_ridge = loss, delta / self.unit, learn_ridge
        register(self, "log_ridge", self._number(max(options.ridge, SMALLEST_RIDGE)).log(), learn=learn_ridge)
        register(self, "log_temperature", self._number(FIRST_TEMPERATURE).log(), learn=loss == "cross_entropy")

    def _number(self, value: float | Tensor) -> Tensor:
        return torch.as_tensor(value, dtype=torch.float64, device=self.centers.device)

    def ridge(self) -> Tensor:
        return self.log_ridge.exp() if self.learn_ridge else self._number(self.options.ridge)

    def batches(self, steps: int, size: int, refresh_every: int) -> Iterator[tuple[Tensor, Tensor]]:
        """The rows to leave out in each step and their neighbors; one search serves several steps."""
        for step in range(0, steps, refresh_every):
            count = min(refresh_every, steps - step)
            drawn = [torch.randperm(len(self.centers), generator=self.generator)[:size] for _ in range(count)]
            rows = torch.cat(drawn).to(self.centers.device)
            indices = nearest(self.centers[rows], self.centers, self.num_neighbors, kernel=self.kernel, exclude=rows)
            yield from reversed(list(zip(rows.split(size), indices.split(size), strict=True)))

    def run(
        self,
        batches: Iterator[tuple[Tensor, Tensor]],
        steps: int,
        learning_rate: float,
        evaluate_every: int,
        patience: int,
        max_seconds: float | None,
        progress: bool,
    ) -> list[Progressed]:
        """Train, restore the best state, and return all evaluations."""
        start = time.monotonic()
        optimizer = torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=learning_rate)
        losses: list[float] = []
        with warnings.catch_warnings(), tqdm(total=steps, desc="learning the metric", disable=not progress) as bar:
            warnings.simplefilter("ignore", RidgeRaisedWarning)  # of metrics in between; the final one warns when used
            history = [self._evaluate(0, math.nan, start)]
            best_state, best, since = copy.deepcopy(self.state_dict()), history[0].held_out_loss, 0
            for step, (rows, indices) in enumerate(batches, 1):
                share = min(1.0, max(step / steps, (time.monotonic() - start) / (max_seconds or math.inf)))
                optimizer.param_groups[0]["lr"] = learning_rate * 0.5 * (1 + math.cos(math.pi * share))
                losses.append(self._step(optimizer, rows, indices))
                bar.set_postfix_str(f"held-out {self.loss} {best:.4g}", refresh=False)
                bar.update()
                if step % evaluate_every and share < 1:
                    continue
                history.append(self._evaluate(step, sum(losses) / len(losses), start))
                losses = []
                since += 1
                if history[-1].held_out_loss < best:
                    best_state, best, since = copy.deepcopy(self.state_dict()), history[-1].held_out_loss, 0
                if since >= patience or share == 1:
                    break
        self.load_state_dict(best_state)
        return history

    def _step(self, optimizer: torch.optim.Optimizer, rows: Tensor, indices: Tensor) -> float:
        loss = self._loss(self.centers[rows], self.values[rows], indices)
        optimizer.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in self.parameters() if parameter.grad is not None]
        if all(bool(torch.isfinite(gradient).all()) for gradient in gradients):  # one bad batch must not spoil the metric
            optimizer.step()
        with torch.no_grad():
            self.log_ridge.clamp_(min=math.log(SMALLEST_RIDGE))
        return float(loss.detach())

    def _evaluate(self, step: int, train_loss: float, start: float) -> Progressed:
        with torch.no_grad():
            indices = nearest(self.held_centers, self.centers, self.num_neighbors, kernel=self.kernel)
            held_out = self._loss(self.held_centers, self.held_values, indices)
        losses = torch.tensor([train_loss, float(held_out)], dtype=torch.float64)
        train_loss, loss = in_given_units(losses, self.loss, self.unit).tolist()
        ridge = float(self.ridge().detach())
        return Progressed(step, time.monotonic() - start, train_loss, loss if math.isfinite(loss) else math.inf, ridge)

    def _loss(self, query: Tensor, targets: Tensor, indices: Tensor) -> Tensor:
        ridge = self.ridge()
        means, powers = solve_local(query, self.centers, self.values, indices, self.options.but(ridge=ridge))
        variances = powers.square() + ridge.to(powers.dtype)
        temperature = self.log_temperature.exp().to(means.dtype)
        return score(self.loss, means, variances, targets, delta=self.delta, temperature=temperature).mean()

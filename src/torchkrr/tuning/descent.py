"""Gradient descent on the leave-one-out loss of rows, with rows set aside to stop in time."""

from __future__ import annotations

import math
import time
import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from .._progress import Progress
from ..core.options import SolveOptions, Trend
from ..errors import RidgeRaisedWarning
from ..functional.local import solve_local
from ..kernels import Kernel
from ..neighbors import nearest
from .learned import Progressed
from .scores import Loss, in_given_units, score, unit_of

SMALLEST_RIDGE = 1e-8
FIRST_TEMPERATURE = 0.2


class Prediction(NamedTuple):
    """The prediction whose loss is lowered."""

    num_neighbors: int
    ridge: float
    learn_ridge: bool
    trend: Trend
    loss: Loss
    delta: float


class Schedule(NamedTuple):
    steps: int
    batch_size: int
    learning_rate: float
    refresh_every: int
    evaluate_every: int
    patience: int
    max_seconds: float | None

    def share(self, step: int, seconds: float) -> float:
        """How much of the descent is behind at this step and time, up to 1."""
        return min(1.0, max(step / self.steps, seconds / self.max_seconds if self.max_seconds else 0.0))


class Descent:
    """Holds the data split in two, and what is learned: the Parameters of `kernel`, the ridge and the temperature."""

    def __init__(
        self, centers: Tensor, values: Tensor, kernel: Kernel, wanted: Prediction, *, held_out: int, seed: int
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        order = torch.randperm(len(centers), generator=self.generator).to(centers.device)
        aside, train = order[:held_out], order[held_out:]
        self.unit = unit_of(values, wanted.loss)
        values = values / self.unit
        self.centers, self.values = centers[train], values[train]
        self.held_centers, self.held_values = centers[aside], values[aside]
        self.kernel, self.wanted = kernel, wanted._replace(delta=wanted.delta / self.unit)
        self.log_ridge = self._number(math.log(max(wanted.ridge, SMALLEST_RIDGE)), learn=wanted.learn_ridge)
        self.log_temperature = self._number(math.log(FIRST_TEMPERATURE), learn=wanted.loss == "cross_entropy")

    def _number(self, value: float, *, learn: bool) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.centers.device, requires_grad=learn)

    def ridge(self) -> Tensor:
        return self.log_ridge.exp() if self.wanted.learn_ridge else self._number(self.wanted.ridge, learn=False)

    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    def run(self, schedule: Schedule, *, progress: bool) -> list[Progressed]:
        learned = [*self.kernel.parameters(), self.log_ridge, self.log_temperature]
        optimizer = torch.optim.Adam([tensor for tensor in learned if tensor.requires_grad], lr=schedule.learning_rate)
        start = time.monotonic()
        batches: list[tuple[Tensor, Tensor]] = []
        recent: list[float] = []
        with warnings.catch_warnings(), Progress("learning the metric", schedule.steps, shown=progress) as bar:
            warnings.simplefilter("ignore", RidgeRaisedWarning)  # the metric on its way; the final one warns when used
            history = [self._look(0, math.nan, start)]
            best_state, best, since = self._state(), history[0].held_out_loss, 0
            for step in range(1, schedule.steps + 1):
                share = schedule.share(step, time.monotonic() - start)
                for group in optimizer.param_groups:
                    group["lr"] = schedule.learning_rate * 0.5 * (1 + math.cos(math.pi * share))
                if not batches:
                    batches = self._batches(min(schedule.refresh_every, schedule.steps - step + 1), schedule.batch_size)
                recent.append(self._step(optimizer, *batches.pop()))
                bar.advance(note=f"held-out {self.wanted.loss} {best:.4g}")
                if step % schedule.evaluate_every and share < 1:
                    continue
                history.append(self._look(step, sum(recent) / len(recent), start))
                recent = []
                if history[-1].held_out_loss < best:
                    best_state, best, since = self._state(), history[-1].held_out_loss, 0
                else:
                    since += 1
                if since >= schedule.patience or share == 1:
                    break
        self._restore(best_state)
        return history

    def _batches(self, count: int, size: int) -> list[tuple[Tensor, Tensor]]:
        """Rows to leave out and their neighbors, for the next `count` steps, by one search."""
        parts = [torch.randperm(len(self.centers), generator=self.generator)[:size] for _ in range(count)]
        rows = torch.cat(parts).to(self.centers.device)
        found = nearest(self.centers[rows], self.centers, self.wanted.num_neighbors, kernel=self.kernel, exclude=rows)
        return list(zip(rows.split(size), found.split(size), strict=True))

    def _step(self, optimizer: torch.optim.Optimizer, rows: Tensor, indices: Tensor) -> float:
        loss = self._loss(self.centers[rows], self.values[rows], indices)
        optimizer.zero_grad()
        loss.backward()
        found = [tensor.grad for group in optimizer.param_groups for tensor in group["params"] if tensor.grad is not None]
        if all(bool(torch.isfinite(gradient).all()) for gradient in found):  # one bad batch must not spoil the metric
            optimizer.step()
        with torch.no_grad():
            self.log_ridge.clamp_(min=math.log(SMALLEST_RIDGE))
        return float(loss.detach())

    def _look(self, step: int, train_loss: float, start: float) -> Progressed:
        with torch.no_grad():
            indices = nearest(self.held_centers, self.centers, self.wanted.num_neighbors, kernel=self.kernel)
            held_out = self._loss(self.held_centers, self.held_values, indices)
        losses = torch.tensor([train_loss, float(held_out)], dtype=torch.float64)
        train_loss, loss = in_given_units(losses, self.wanted.loss, self.unit).tolist()
        ridge = float(self.ridge().detach())
        return Progressed(step, time.monotonic() - start, train_loss, loss if math.isfinite(loss) else math.inf, ridge)

    def _loss(self, query: Tensor, targets: Tensor, indices: Tensor) -> Tensor:
        ridge = self.ridge()
        means, powers = solve_local(
            query,
            self.centers,
            self.values,
            indices,
            SolveOptions(self.kernel, ridge, self.wanted.trend),
        )
        variances = powers.square() + ridge.to(powers.dtype)
        temperature = self.temperature().to(means.dtype)
        return score(self.wanted.loss, means, variances, targets, delta=self.wanted.delta, temperature=temperature).mean()

    def _state(self) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        kernel = {name: tensor.detach().clone() for name, tensor in self.kernel.state_dict().items()}
        return kernel, self.log_ridge.detach().clone(), self.log_temperature.detach().clone()

    def _restore(self, state: tuple[dict[str, Tensor], Tensor, Tensor]) -> None:
        self.kernel.load_state_dict(state[0])
        with torch.no_grad():
            self.log_ridge.copy_(state[1])
            self.log_temperature.copy_(state[2])

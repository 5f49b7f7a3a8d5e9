"""Learn the metric of a kernel by gradient descent on the leave-one-out loss."""

from __future__ import annotations

import copy
import math
from typing import Literal

import torch
from torch import Tensor

from .._checks import check_at_least_one, check_choice, check_integer, check_positive, check_ridge
from .._state import register, register_setting, usable
from ..core.options import Trend
from ..errors import InputError, ShapeError
from ..kernels import Exponential, Kernel, check_kernel
from ..transforms import Compose, Linear, MeanDistance, Standardize, Transform
from .descent import Descent, Prediction, Schedule
from .learned import LearnedMetric
from .leave_one_out import check_data
from .scores import Loss, check_loss

Metric = Literal["ard", "linear"]
MOST_HELD_OUT = 1000
NEIGHBORS = 50


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
    stands, and follows the gradient of the loss with respect to the metric (and the ridge) with Adam. Rows set aside at the
    start are predicted from the others now and then; the state that predicts them best is returned, and learning stops
    when nothing has improved for a while. They take no part in the steps, neither as queries nor as neighbors.

    Args:
        centers, values: the data; for classification one-hot labels with `loss="cross_entropy"`.
        kernel: where to start from; it is copied. `None` is `Exponential` on standardized features at unit mean distance.
        metric: `"ard"` learns one lengthscale per feature, `"linear"` a matrix on the embedded features.
        rank: rows of that matrix; `None` is as many as there are features.
        num_neighbors: neighbors while learning; `None` is 50, or all there are. Fewer than for prediction are enough, and
            much faster.
        ridge: where to start from, or the ridge to keep. From far below 1e-4 it hardly moves.
        learn_ridge: learn it too.
        trend: `"constant"` or `None`.
        loss: `"mse"`, `"cross_entropy"`, `"log_score"` or `"huber"` (see `torchkrr.tuning.scores`).
        delta: where `huber` turns from square to linear, in the units of the values.
        steps, batch_size, learning_rate: of Adam; the rate falls to zero along a cosine.
        refresh_every: steps between two searches for neighbors, each for the batches of the next steps.
        evaluate_every, patience: steps between two looks at the rows set aside, and looks without progress before it stops.
        max_seconds: the same schedule in a shorter time; `None` is no limit.
        seed: of the batches and of the rows set aside.
        progress: show a line on standard error.

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
    for name, number in (("delta", delta), ("learning_rate", learning_rate)):
        check_positive(name, number)
    for name, count in (("steps", steps), ("batch_size", batch_size), ("refresh_every", refresh_every)):
        check_at_least_one(name, count)
    for name, count in (("evaluate_every", evaluate_every), ("patience", patience)):
        check_at_least_one(name, count)
    if max_seconds is not None:
        check_positive("max_seconds", max_seconds)
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

    wanted = Prediction(num_neighbors, float(ridge), learn_ridge, trend, loss, delta)
    schedule = Schedule(
        steps, min(batch_size, len(centers) - held_out), learning_rate, refresh_every, evaluate_every, patience, max_seconds
    )
    with torch.inference_mode(False), torch.enable_grad():
        # Tensors made in inference mode could not take part in a backward pass.
        centers, values = usable(centers.detach()), usable(values.detach())
        working = _prepared(kernel, centers, metric, rank)
        descent = Descent(centers, values, working, wanted, held_out=held_out, seed=seed)
        history = descent.run(schedule, progress=progress)
    score = min(point.held_out_loss for point in history)
    if not math.isfinite(score):
        raise InputError("No metric has a finite loss. Look at centers and values: they may be too large for their dtype.")
    return LearnedMetric(
        kernel=_fixed(working),
        ridge=float(descent.ridge().detach()),
        trend=trend,
        loss=loss,
        score=score,
        temperature=float(descent.temperature().detach()) if loss == "cross_entropy" else None,
        history=tuple(history),
    )


def _prepared(kernel: Kernel | None, centers: Tensor, metric: Metric, rank: int | None) -> Kernel:
    """A copy of the kernel whose metric, and what its profile already learned, are Parameters."""
    if kernel is None:
        transform = Compose(Standardize(), MeanDistance()).fit(centers)
        kernel = Exponential(input_transform=transform)
    check_kernel(kernel)
    working = copy.deepcopy(kernel)
    with torch.no_grad():
        embedded = working.embed(centers)
    features = embedded.shape[1]
    logs = working.log_lengthscale.detach().double().expand(features).clone()
    del working.log_lengthscale
    if metric == "ard":
        register(working, "log_lengthscale", logs, learn=True)
        return working
    if rank is not None:
        check_integer("rank", rank)
        if not 1 <= rank <= features:
            raise InputError(f"rank must lie between 1 and the number of embedded features ({features}), got {rank}.")
    weight = torch.diag(torch.exp(-logs))
    if rank is not None and rank < features:
        # The directions in which the embedded centers vary most.
        centered = (embedded - embedded.mean(0)).to(weight.dtype)
        directions = torch.linalg.eigh(centered.mT @ centered).eigenvectors.mT.flip(0)
        weight = directions[:rank] @ weight
    parts = [] if working.input_transform is None else [working.input_transform]
    working.input_transform = Compose(*parts, Linear(weight, learn=True).double())
    register_setting(working, "log_lengthscale", torch.zeros(1, device=centers.device), learn=False)
    return working


def _fixed(kernel: Kernel) -> Kernel:
    """The kernel with every Parameter turned into a buffer of the same name."""
    for module in kernel.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None:
                delattr(module, name)
                setting = isinstance(module, Kernel | Transform)
                register(module, name, parameter.detach().double() if setting else parameter.detach(), learn=False)
    return kernel

r"""What a network is trained under: a kernel readout in one of three honest ways, or a linear layer.

A kernel readout that predicts its own support repeats the labels, whatever the features are. So no row of a batch is
predicted from its own label: it is left out (`loo`), or it is a query and the support is the other part of the batch
(`split`), or the support is points and values of its own that are learned (`centers`).

The kernel is $k(a, b) = \exp(-|e(a) - e(b)|)$ with $e(x) = x / (|x|\,\ell)$;
$\ell$, the ridge and the temperature of the softmax may be learned.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from .._state import register
from ..functional import gromov_monge, kernel_ridge
from ..kernels import Exponential
from ..losses import episodic_cross_entropy, leave_one_out_cross_entropy
from ..nn import LocalKernelRidge
from ..transforms import UnitNorm
from .learn_config import Config


class LinearHead(nn.Module):
    """The network's own readout: a linear layer."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(num_features, num_classes)

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.linear(features), labels)

    def forward(self, query: Tensor) -> Tensor:
        """Logits `(Q, C)`."""
        logits: Tensor = self.linear(query)
        return logits


class KernelHead(nn.Module):
    """A kernel readout of features `(B, D)`, trained by one of the objectives."""

    log_temperature: Tensor
    log_ridge: Tensor

    def __init__(self, config: Config, num_classes: int) -> None:
        super().__init__()
        self.config, self.num_classes = config, num_classes
        self.kernel = Exponential(config.lengthscale, learn_lengthscale=config.learn_lengthscale, input_transform=UnitNorm())
        for name in ("temperature", "ridge"):
            start = torch.tensor(getattr(config, name), dtype=torch.float64).log()
            register(self, f"log_{name}", start, learn=getattr(config, f"learn_{name}"))

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    @property
    def ridge(self) -> Tensor:
        return self.log_ridge.exp()

    def loss(self, features: Tensor, labels: Tensor) -> Tensor:
        loss = self._loss(features, labels)
        return loss + self.config.gromov_monge * self._regularizer(features, labels) if self.config.gromov_monge else loss

    def _loss(self, features: Tensor, labels: Tensor) -> Tensor:
        common = {"num_classes": self.num_classes, "kernel": self.kernel, "ridge": self.ridge}
        temperature = self.temperature.to(features.dtype)
        if self.config.objective == "loo":
            return leave_one_out_cross_entropy(features, labels, temperature=temperature, **common)  # type: ignore[arg-type]
        cut = min(max(1, round(self.config.support_share * len(features))), len(features) - 1)
        return episodic_cross_entropy(
            features[:cut],
            labels[:cut],
            features[cut:],
            labels[cut:],
            temperature=temperature,
            **common,  # type: ignore[arg-type]
        )

    def _regularizer(self, features: Tensor, labels: Tensor) -> Tensor:
        """Distances between rows beside those between their labels, a mean over pairs."""
        return _gromov_monge(self.kernel.embed(features), one_hot(labels, self.num_classes).to(features.dtype))

    def readout(self, features: Tensor, labels: Tensor) -> LocalKernelRidge:
        """SK: predicts from the nearest of these rows, with the kernel as it is trained."""
        values = one_hot(labels, self.num_classes).to(features.dtype)
        count = min(self.config.num_neighbors, len(features))
        ridge = float(self.ridge.detach())
        return LocalKernelRidge(features, values, count, kernel=self.kernel, ridge=ridge, trend="constant")


class CentersHead(KernelHead):
    """Centers and values are Parameters; they start at features of training rows, and their labels."""

    centers: Tensor
    values: Tensor

    def __init__(self, config: Config, num_classes: int, features: Tensor, labels: Tensor) -> None:
        super().__init__(config, num_classes)
        register(self, "centers", features, learn=True)
        register(self, "values", one_hot(labels, num_classes).to(features.dtype), learn=True)

    def forward(self, query: Tensor) -> Tensor:
        """Predictions from the learned centers, `(Q, D)` to `(Q, C)`."""
        return kernel_ridge(query, self.centers, self.values, kernel=self.kernel, ridge=self.ridge, trend="constant")

    def _loss(self, features: Tensor, labels: Tensor) -> Tensor:
        means = self(features)
        return cross_entropy(means / self.temperature.to(means.dtype), labels)

    def _regularizer(self, features: Tensor, labels: Tensor) -> Tensor:
        """The paper's $GM(\\theta_x, \\theta_y)$, a mean over pairs of centers."""
        return _gromov_monge(self.kernel.embed(self.centers), self.values)


def _gromov_monge(x: Tensor, y: Tensor) -> Tensor:
    return gromov_monge(x, y) / len(x) ** 2

r"""What a network is trained under: a kernel readout in one of three honest ways, or a linear layer; and the optimizer.

A kernel readout that predicts its own support repeats the labels, whatever the features are. So no row of a batch is
predicted from its own label: it is left out (`loo`), or it is a query and the support is the other part of the batch
(`split`), or the support is points and values of its own that are learned (`centers`).

The kernel is $k(a, b) = \exp(-|e(a) - e(b)|)$ with $e(x) = x / (|x|\,\ell)$;
$\ell$, the ridge and the temperature of the softmax may be learned.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from torchkrr.functional import gromov_monge, kernel_ridge
from torchkrr.kernels import Exponential
from torchkrr.losses import episodic_cross_entropy, leave_one_out_cross_entropy
from torchkrr.nn import LocalKernelRidge
from torchkrr.transforms import UnitNorm

from .config import Config


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
            if getattr(config, f"learn_{name}"):
                self.register_parameter(f"log_{name}", nn.Parameter(start))
            else:
                self.register_buffer(f"log_{name}", start)

    @property
    def temperature(self) -> Tensor:
        return self.log_temperature.exp()

    @property
    def ridge(self) -> Tensor:
        return self.log_ridge.exp()

    def numbers(self) -> dict[str, float]:
        """What may be learned beside the network, as it is."""
        numbers = {"lengthscale": self.kernel.lengthscale, "ridge": self.ridge, "temperature": self.temperature}
        return {name: float(number.detach()) for name, number in numbers.items()}

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

    def __init__(self, config: Config, num_classes: int, features: Tensor, labels: Tensor) -> None:
        super().__init__(config, num_classes)
        self.centers = nn.Parameter(features.detach().clone())
        self.values = nn.Parameter(one_hot(labels, num_classes).to(features.dtype))

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


def make_optimizer(config: Config, backbone: nn.Module, head: nn.Module) -> torch.optim.Optimizer:
    """AdamW; lengthscale, ridge and temperature have a rate of their own and do not decay."""
    scalars = [p for p in head.parameters() if p.numel() == 1 and p.requires_grad]
    scalar_ids = set(map(id, scalars))
    layers = [p for p in (*backbone.parameters(), *head.parameters()) if p.requires_grad and id(p) not in scalar_ids]
    groups: list[dict[str, Any]] = [{"params": layers, "lr": config.learning_rate, "weight_decay": config.weight_decay}]
    if scalars:
        groups.append({"params": scalars, "lr": config.kernel_learning_rate, "weight_decay": 0.0})
    for group in groups:
        group["start"] = group["lr"]
    return torch.optim.AdamW(groups, fused=True)


def anneal(optimizer: torch.optim.Optimizer, share: float) -> None:
    """Cosine annealing, as in the paper: rates after this share of all steps, from what they started with to zero."""
    for group in optimizer.param_groups:
        group["lr"] = group["start"] * (1 + math.cos(math.pi * share)) / 2

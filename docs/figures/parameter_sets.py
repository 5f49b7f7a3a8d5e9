"""One regressor of six centers on noisy data: nothing learned, values learned, centers and values learned.

python docs/figures/parameter_sets.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import torch
from torch import Tensor

from style import BLUE, GRAY, INK, ORANGE, save
from torchkrr import kernels, nn

STEPS = 400
QUERY = torch.linspace(0, 1, 601)[:, None]
TITLES = {
    (False, False): "nothing learned: six of the data",
    (False, True): "values learned",
    (True, True): "centers and values learned",
}


def truth(x: Tensor) -> Tensor:
    return torch.tanh(25 * (x - 0.35)) - 0.6 * torch.sin(4 * x)


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    x = torch.rand(80, 1, generator=generator).sort(0).values
    return x, truth(x) + 0.2 * torch.randn(80, 1, generator=generator)


def fitted(x: Tensor, y: Tensor, *, learn_centers: bool, learn_values: bool) -> nn.KernelRidge:
    rows = torch.linspace(4, 75, 6).long()
    layer = nn.KernelRidge(
        x[rows], y[rows], kernel=kernels.Matern32(0.3), ridge=1e-4, learn_centers=learn_centers, learn_values=learn_values
    )
    if learn_values:
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.02)
        for _ in range(STEPS):
            loss = (layer(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return layer


def main() -> None:
    x, y = data()
    figure, row = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained", sharey=True)
    numbers = {}
    for axes, ((learn_centers, learn_values), title) in zip(row, TITLES.items(), strict=True):
        layer = fitted(x, y, learn_centers=learn_centers, learn_values=learn_values)
        with torch.no_grad():
            prediction, centers, values = layer(QUERY), layer.centers.detach(), layer.values.detach()
            error = float((prediction - truth(QUERY)).square().mean().sqrt())
        axes.plot(x, y, ".", color=GRAY, markersize=4, label="data")
        axes.plot(QUERY, truth(QUERY), color=INK, linewidth=1.2, linestyle="--", label="truth")
        axes.plot(QUERY, prediction, color=BLUE, label="prediction")
        axes.plot(centers, values, "o", color=ORANGE, markersize=7, markeredgecolor="white", label="centers and values")
        axes.set(xlim=(0, 1), title=title, xlabel=f"RMSE to the truth {error:.3f}")
        numbers[title] = error
    row[0].legend(loc="lower right")
    save(figure, "parameter_sets", numbers)


if __name__ == "__main__":
    main()

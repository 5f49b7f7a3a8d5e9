"""A prior and a kernel on what it leaves over: far from the rows, and as judged by rows that are left out.

python docs/figures/head.py
"""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer

from style import BLUE, GRAY, GREEN, INK, ORANGE, save
from torchkrr.estimators import LocalKernelRidgeClassifier, LocalKernelRidgeRegressor
from torchkrr.kernels import Gaussian


def main() -> None:
    generator = np.random.default_rng(0)
    x = generator.uniform(0, 0.6, size=(60, 1))
    y = 3 * x[:, 0] + np.sin(20 * x[:, 0]) + 0.15 * generator.normal(size=60)
    query = np.linspace(0, 1, 501)[:, None]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.9), layout="constrained")

    kernel = Gaussian(0.07)
    alone = LocalKernelRidgeRegressor(kernel=kernel, prior=None).fit(x, y)
    both = LocalKernelRidgeRegressor(kernel=kernel, prior="linear").fit(x, y)
    left.plot(query[:, 0], both.explain(query).prior[:, 0], color=GRAY, linestyle="--", label="the prior")
    left.plot(query[:, 0], alone.predict(query), color=ORANGE, label="kernel")
    left.plot(query[:, 0], both.predict(query), color=BLUE, label="prior + kernel")
    left.plot(x[:, 0], y, ".", color=INK, markersize=3.5, label="rows")
    left.set(xlim=(0, 1), xlabel="x", ylabel="y", title="far from the rows the prior is left")
    left.legend(loc="upper left")

    table = load_breast_cancer()
    tried = LocalKernelRidgeClassifier().fit(table.data, table.target).candidates_[::-1]
    names, losses = [name for name, _ in tried], [loss for _, loss in tried]
    colors = [
        BLUE if "+" in name else GREEN if name == "the mixture" else GRAY if "alone" in name else ORANGE for name in names
    ]
    right.barh(names, losses, color=colors)
    right.set(xlabel="calibrated log loss of left-out rows", title="candidates_ of 569 tumors, 30 columns")
    for at, loss in enumerate(losses):
        right.text(loss, at, f" {loss:.3f}", va="center", fontsize=9, color=INK)
    right.set_xlim(0, 1.12 * max(losses))
    far = np.array([[1.0]])
    numbers = {
        "at_one": {"kernel": float(alone.predict(far)[0]), "prior and kernel": float(both.predict(far)[0])},
        "candidates": dict(tried[::-1]),
    }
    save(figure, "head", numbers)


if __name__ == "__main__":
    main()

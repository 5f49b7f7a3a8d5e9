"""How good predictions are, from parts of a table one after another."""

from __future__ import annotations

import numpy as np

from .values import Array

BINS = 15
LEAST = 1e-15  # probability


class RegressionScores:
    """Of one target."""

    def __init__(self) -> None:
        self.rows = self.inside = 0.0
        self.squares = self.sizes = self.surprise = self.mean = self.spread = 0.0

    def add(self, y: Array, mean: Array, std: Array, lower: Array, upper: Array, weights: Array | None = None) -> None:
        """Rows, and how many rows each of them counts as: one if `weights` does not say."""
        errors, weights = y - mean, np.ones(len(y)) if weights is None else weights
        deviation, count = np.maximum(std, np.finfo(np.float64).tiny), float(weights.sum())
        self.squares += float((weights * np.square(errors)).sum())
        self.sizes += float((weights * np.abs(errors)).sum())
        self.surprise += float((weights * (np.log(deviation) + 0.5 * np.square(errors / deviation))).sum())
        self.inside += float((weights * ((lower <= y) & (y <= upper))).sum())
        # Mean and spread of the targets, part by part (Chan, Golub and LeVeque).
        own = float((weights * y).sum()) / count
        shift, total = own - self.mean, self.rows + count
        self.spread += float((weights * np.square(y - own)).sum()) + shift**2 * self.rows * count / total
        self.mean += shift * count / total
        self.rows = total

    def result(self) -> dict[str, float]:
        return {
            "rmse": float(np.sqrt(self.squares / self.rows)),
            "mae": self.sizes / self.rows,
            "r2": 1 - self.squares / self.spread if self.spread > 0 else float("nan"),
            "nll": self.surprise / self.rows + 0.5 * float(np.log(2 * np.pi)),
            "coverage90": self.inside / self.rows,
        }


class ClassificationScores:
    """Accuracy, log-loss, and the expected calibration error of the predicted class in 15 bins."""

    def __init__(self) -> None:
        self.rows = self.surprise = 0.0
        self.right, self.confidence = np.zeros(BINS), np.zeros(BINS)

    def add(self, codes: Array, probabilities: Array, weights: Array | None = None) -> None:
        """Classes as numbers `(n,)`, the probability of each class `(n, C)`, and how many rows each row counts as."""
        weights = np.ones(len(codes)) if weights is None else weights
        best = probabilities.argmax(1)
        confidence = probabilities.max(1)
        bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
        self.rows += float(weights.sum())
        self.surprise -= float((weights * np.log(np.maximum(probabilities[np.arange(len(codes)), codes], LEAST))).sum())
        self.right += np.bincount(bins, weights=weights * (best == codes), minlength=BINS)
        self.confidence += np.bincount(bins, weights=weights * confidence, minlength=BINS)

    def result(self) -> dict[str, float]:
        return {
            "accuracy": float(self.right.sum() / self.rows),
            "log_loss": self.surprise / self.rows,
            "calibration_error": float(np.abs(self.right - self.confidence).sum() / self.rows),
        }

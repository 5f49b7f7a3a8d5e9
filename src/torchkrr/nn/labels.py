"""Layers of classes: from labels, to probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from .._checks import check_at_least_one, check_index_range, check_index_tensor, check_points
from ..core.temperature import best_temperature, check_memberships
from ..kernels import Kernel
from .base import Fingerprint, SupportLayer

LEFT_OUT = 2000  # rows that the temperature is chosen on


class ClassLayer(SupportLayer):
    """Base of the layers that know their own leave-one-out, and so how sure they may be of a class."""

    temperature: Tensor | None  # of the scores, a number; `None` until it is asked for
    _temperature_fingerprint: Fingerprint | None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("temperature", None)
        self._temperature_fingerprint = None
        self.register_load_state_dict_post_hook(_mark_loaded)

    @classmethod
    def from_labels(
        cls, features: Tensor, labels: Tensor, num_classes: int | None = None, *args: Any, **options: Any
    ) -> Self:
        """A layer whose values are the labels, one-hot. Other arguments are those of the layer, after its values.

        Without `num_classes` there are as many as the largest label plus one.

        Shape:
            - features: `(N, D)`; labels: `(N,)` int64

        Example:
            >>> features, labels = torch.randn(50, 4), torch.arange(50) % 3
            >>> layer = torchkrr.nn.LocalKernelRidge.from_labels(features, labels, num_neighbors=20)
            >>> layer.predict_proba(features[:5]).shape
            torch.Size([5, 3])
        """
        check_points("features", features)
        check_index_tensor("labels", labels, features, (len(features),), f"({len(features)},), a class for each row")
        num_classes = int(labels.max()) + 1 if num_classes is None else num_classes
        check_at_least_one("num_classes", num_classes)
        check_index_range("labels", labels, num_classes, what="classes", then="Number the classes from 0.")
        return cls(features, one_hot(labels.long(), num_classes).to(features.dtype), *args, **options)

    def predict_proba(self, query: Tensor) -> Tensor:
        """Probabilities of the classes, `(*, D)` to `(*, C)`: the softmax of the scores over a temperature.

        The temperature is the best for the centers, each predicted from the others. It is found at the first call, and again
        after the layer has changed.
        """
        scores: Tensor = self(query)
        return torch.softmax(scores / self._current_temperature().to(scores), -1)

    def _current_temperature(self) -> Tensor:
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if self.temperature is None or not self._is_calibrated():
                remedy = f"Build the layer with {type(self).__name__}.from_labels(features, labels)."
                check_memberships(self.values, "predict_proba", remedy)
                order = torch.randperm(self.num_centers, generator=torch.Generator().manual_seed(0))
                rows = order[:LEFT_OUT].to(self.centers.device)
                means = self._left_out_means(rows)
                self.temperature = best_temperature(means.double(), self.values[rows].double())
                self._temperature_fingerprint = Fingerprint(*self._calibrated_to())
            return self.temperature

    def _left_out_means(self, rows: Tensor) -> Tensor:
        """Predictions of these centers, each from all others, `(n, C)`."""
        raise NotImplementedError

    def _calibrated_to(self) -> tuple[list[Tensor], Kernel, tuple[object, ...]]:
        own = (getattr(self, name, None) for name in ("num_neighbors", "fade", "normalize"))
        ridge = float(torch.as_tensor(self.ridge).detach())
        return [self.centers, self.values], self.kernel, (ridge, self.trend, *own)

    def _is_calibrated(self) -> bool:
        fingerprint = self._temperature_fingerprint
        return fingerprint is not None and fingerprint.matches(*self._calibrated_to())

    def _save_to_state_dict(self, *args: Any) -> None:
        if not self._is_calibrated():  # nobody should load it
            self.temperature = None
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        loaded = state_dict.get(prefix + "temperature")
        self.temperature = None if loaded is None else torch.empty_like(loaded)
        super()._load_from_state_dict(state_dict, prefix, *args)


def _mark_loaded(layer: ClassLayer, _: Any) -> None:
    """A temperature that was loaded is that of what was loaded with it."""
    layer._temperature_fingerprint = None if layer.temperature is None else Fingerprint(*layer._calibrated_to())

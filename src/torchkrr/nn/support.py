"""What the kernel layers share: centers and values, fixed or learned, under the same names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from .._checks import (
    check_alike,
    check_choice,
    check_finite,
    check_floating,
    check_nonempty,
    check_num_neighbors,
    check_points,
    check_ridge,
    check_same_features,
    check_same_rows,
    check_tensor,
    check_values,
)
from .._state import OwnLock, register, resize_buffers, without_graph
from .._tensors import working_dtype
from ..core.options import OnSingular, Trend
from ..errors import InputError, ShapeError
from ..kernels import Kernel, check_kernel, default_kernel
from ..neighbors.base import kept_rows


class SupportLayer(nn.Module):
    """Base of the layers that predict from centers and values.

    Fixed tensors are buffers, learned ones Parameters, under the same name, so a checkpoint made in one setting loads in the
    other. A checkpoint with another number of centers loads into fixed tensors.
    """

    centers: Tensor
    values: Tensor

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        *,
        kernel: Kernel | None,
        ridge: float | Tensor,
        trend: Trend,
        on_singular: OnSingular,
        learn_centers: bool,
        learn_values: bool,
    ) -> None:
        super().__init__()
        self._lock = OwnLock()  # around what a layer makes on its first call and keeps
        self._check_support(centers, values)
        check_ridge(ridge)
        check_choice("trend", trend, (None, "constant"))
        check_choice("on_singular", on_singular, ("warn", "raise"))
        if kernel is not None:
            check_kernel(kernel)
        register(self, "centers", centers, learn=learn_centers)
        register(self, "values", values, learn=learn_values)
        self.kernel = self._default_kernel(centers) if kernel is None else kernel
        self.ridge = ridge
        self.trend: Trend = trend
        self.on_singular: OnSingular = on_singular

    def _check_support(self, centers: Tensor, values: Tensor) -> None:
        check_points("centers", centers)
        check_values(values)
        check_alike(centers=centers, values=values)
        check_same_rows("centers", centers, "values", values)
        check_finite("centers", centers)
        check_finite("values", values)

    def _default_kernel(self, centers: Tensor) -> Kernel:
        return default_kernel(centers)

    @property
    def in_features(self) -> int:
        return self.centers.shape[1]

    @property
    def out_features(self) -> int:
        return self.values.shape[1]

    @property
    def num_centers(self) -> int:
        return self.centers.shape[0]

    def append(self, centers: Tensor, values: Tensor) -> None:
        """Add centers with their values; exact from the next call on. The kernel is not fitted again.

        Shape:
            - centers: `(n, D)`; values: `(n, C)`
        """
        self._refuse_learned("append")
        check_points("centers", centers)
        check_values(values)
        check_alike(centers=centers, values=values, present=self.centers)
        check_same_rows("centers", centers, "values", values)
        check_same_features("centers", centers, "the centers of the layer", self.centers)
        check_same_features("values", values, "the values of the layer", self.values)
        check_finite("centers", centers)
        check_finite("values", values)
        with torch.inference_mode(False):
            self.centers = torch.cat((self.centers, centers.detach()))
            self.values = torch.cat((self.values, values.detach()))

    def remove(self, indices: Tensor) -> None:
        """Forget the centers with these row numbers; the rows after a removed one move up.

        Shape:
            - indices: `(n,)` int64
        """
        self._refuse_learned("remove")
        check_tensor("indices", indices)
        self._drop(kept_rows(indices.to(self.centers.device), self.num_centers))

    def _drop(self, keep: Tensor) -> None:
        with torch.inference_mode(False):
            self.centers, self.values = self.centers[keep], self.values[keep]

    def _refuse_learned(self, verb: str) -> None:
        learned = self._learned()
        if learned:
            raise InputError(
                f"Cannot {verb}: {' and '.join(learned)} of this layer are learned, and an optimizer may hold them. "
                "Build a new layer from the changed tensors."
            )

    def _learned(self) -> list[str]:
        """Parameters, and what is computed from some others by `torch.nn.utils.parametrize`."""
        return [name for name in ("centers", "values") if name in self._parameters or is_parametrized(self, name)]

    def _choices(self) -> dict[str, Any]:
        """What the functions of `torchkrr.functional` are to be told."""
        return {"kernel": self.kernel, "ridge": self.ridge, "trend": self.trend, "on_singular": self.on_singular}

    def _embed(self, points: Tensor) -> Tensor:
        return self.kernel.embed(points.to(working_dtype(points.dtype)))

    def _flat(self, query: Tensor) -> Tensor:
        """Queries `(*, D)` as rows `(Q, D)`."""
        check_tensor("query", query)
        check_floating("query", query)
        if query.ndim == 0:
            raise ShapeError("query must have shape (*, features), got (). Give rows of features, in two dimensions.")
        if query.shape[-1] == 0:
            check_nonempty("query", query)
        check_same_features("query", query, "the centers of the layer", self.centers)
        return query.reshape(-1, query.shape[-1])

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        resize_buffers(self, ("centers", "values"), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __getstate__(self) -> dict[str, Any]:
        return without_graph(self)

    def extra_repr(self) -> str:
        learned = self._learned()
        shown = [
            f"in_features={self.in_features}",
            f"out_features={self.out_features}",
            f"num_centers={self.num_centers}",
            *self._shown(),
            f"ridge={float(torch.as_tensor(self.ridge).detach()):g}",
        ]
        shown += [f"trend={self.trend!r}"] if self.trend else []
        shown += [f"learned={learned}"] if learned else []
        return ", ".join(shown)

    def _shown(self) -> list[str]:
        return []

    def __setattr__(self, name: str, value: Any) -> None:
        # What torch.nn.utils.parametrize makes, before it puts anything in.
        super().__setattr__(name, _Parametrizations() if name == "parametrizations" and not value else value)


class _Parametrizations(nn.ModuleDict):
    """As torch's own, except that a part of it may be called `values`, like our tensor: there this is a method."""

    @property
    def values(self) -> nn.Module:
        raise AttributeError("values")  # so that `__getattr__` looks among the modules


def check_query(query: Tensor, centers: Tensor, num_neighbors: int) -> None:
    """What each call of a layer on neighbors looks at: centers may be fewer than when it was built."""
    check_num_neighbors(num_neighbors, len(centers))
    check_alike(query=query, centers=centers)
    check_finite("query", query)

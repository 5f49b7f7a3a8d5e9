"""Hierarchical kernel ridge regression, continuous everywhere, as a layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Unpack

import torch
from torch import Tensor

from .._checks import check_integer
from .._state import resize_buffers
from .._tensors import full_precision, uncompiled
from ..core.options import LayerOptions, SolveOptions, with_options_of
from ..errors import InputError
from ..functional.greedy import farthest_points
from ..functional.hierarchical import (
    Coarse,
    CoarsePart,
    check_both_parts,
    check_coarse,
    fit_coarse,
    has_derivatives,
    size_of_values,
)
from ..functional.left_out import LeftOut
from ..functional.ridge import cardinal_weights, kernel_ridge, power_function
from ..kernels import Kernel
from ..native import Backend
from ..neighbors import NeighborIndex
from .base import Fingerprint, SupportLayer
from .local import Explanation, LocalKernelRidge

COARSE = ("coarse_centers", "coarse_table")  # the buffers of the coarse part; empty while it is not fitted


class HierarchicalKernelRidge(LocalKernelRidge):
    r"""Kernel ridge regression on coarse points, plus the faded local one of what it leaves over. Nothing is trained.

    The paper's multiscale form, see `torchkrr.functional.hierarchical_kernel_ridge`. Continuous in the query, and with a
    small ridge it interpolates. The coarse part is fitted at the first call, to all rows, and again when kernel, centers or
    values change; while one of those is learned, in every call. `append` and `remove` keep it as it is, and the local
    part corrects what it leaves of the rows there are, until `refit`. It is part of the `state_dict`.

    `power_function` and `explain` speak of the local part: a prediction is
    `coarse_part(query) + (weights[..., None] * (values - coarse_part(centers))[indices]).sum(-2)`. With at most `num_coarse`
    centers the layer is dense kernel ridge regression, there is no local part, and all speak of that.

    Arguments as in `LocalKernelRidge`, and

    Args:
        num_coarse: coarse points, spread out by `functional.farthest_points`; copies of a point count once.
        coarse, coarse_ridge: as in `torchkrr.functional.hierarchical_kernel_ridge`.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; query: `(*, D)`; output: `(*, C)`

    Example:
        >>> layer = HierarchicalKernelRidge(torch.randn(500, 4), torch.randn(500, 1), num_neighbors=20, num_coarse=50)
        >>> layer(torch.randn(7, 4)).shape
        torch.Size([7, 1])
    """

    coarse_centers: Tensor  # (n, D)
    coarse_table: Tensor  # (n + 1, C), float64
    _coarse_fingerprint: Fingerprint | None
    _residuals: Tensor | None  # (N, C), in the working dtype
    _value_size: Tensor | None  # (C,)

    @with_options_of(SupportLayer.__init__)
    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        num_neighbors: int = 100,
        *,
        index: NeighborIndex | Literal["auto"] | None = None,
        num_coarse: int = 1000,
        coarse: Coarse = "least_squares",
        coarse_ridge: float | None = None,
        backend: Backend = "auto",
        **options: Unpack[LayerOptions],
    ) -> None:
        super().__init__(centers, values, num_neighbors, fade=True, index=index, backend=backend, **options)
        check_integer("num_coarse", num_coarse)
        if num_coarse < 1:
            raise InputError(f"num_coarse must be at least 1, got {num_coarse}. A typical value is 1000.")
        check_coarse(coarse, coarse_ridge)
        check_both_parts(self.kernel, self.trend)
        self.num_coarse, self.coarse, self.coarse_ridge = num_coarse, coarse, coarse_ridge
        for name in COARSE:
            self.register_buffer(name, None)
        self.refit()
        self.register_load_state_dict_post_hook(_loaded)

    def forward(self, query: Tensor) -> Tensor:
        mean = self._predict(self._flat(query), self.centers, self.values, True)
        return mean.reshape(*query.shape[:-1], self.out_features)

    def coarse_part(self, query: Tensor) -> Tensor:
        """The prediction of the coarse part alone, `(*, D)` to `(*, C)`."""
        mean = self._predict(self._flat(query), self.centers, self.values, False)
        return mean.reshape(*query.shape[:-1], self.out_features)

    def power_function(self, query: Tensor) -> Tensor:
        """The error indicator of the local part, `(*, D)` to `(*,)`: 0 at a center, 1 far from all."""
        if not self._is_dense:
            return super().power_function(query)
        return power_function(self._flat(query), self.centers, **self._solve_arguments()).reshape(query.shape[:-1])

    def explain(self, query: Tensor) -> Explanation:
        """The centers behind the local part, nearest first, and the weights of their residuals, `(*, D)` to `(*, M + 1)`.

        The last one sets the radius of the fading and has weight zero. See `HierarchicalKernelRidge` for the whole.
        """
        if not self._is_dense:
            return super().explain(query)
        weights = cardinal_weights(self._flat(query), self.centers, **self._solve_arguments())
        weights = weights.reshape(*query.shape[:-1], self.num_centers)
        return Explanation(torch.arange(self.num_centers, device=weights.device).expand(weights.shape), weights)

    def leave_one_out(self, rows: Tensor | None = None) -> LeftOut:
        raise InputError("The coarse part is fitted to all rows, and none can be left out of it. Use a LocalKernelRidge.")

    def refit(self) -> None:
        """Choose and fit the coarse part anew, to the rows there are, at the next call."""
        self.coarse_centers = self.centers.detach().new_empty(0, self.in_features)
        self.coarse_table = self.coarse_centers.new_empty(0, self.out_features, dtype=torch.float64)
        self._coarse_fingerprint = self._residuals = None

    def refresh(self) -> None:
        super().refresh()
        self._coarse_fingerprint = self._residuals = self._value_size = None

    def append(self, centers: Tensor, values: Tensor) -> None:
        keep, known = self._keeps_coarse(), self._residuals
        super().append(centers, values)
        if keep:
            if known is not None:
                with torch.inference_mode(False), torch.no_grad():
                    self._residuals = torch.cat((known, self._part().residuals(centers, values, self.kernel)))
            self._mark_fitted()

    def _keep_rows(self, keep: Tensor) -> None:
        keeps_coarse, known = self._keeps_coarse(), self._residuals
        super()._keep_rows(keep)
        if keeps_coarse:
            self._residuals = None if known is None else known[keep]
            self._mark_fitted()

    @property
    def _is_dense(self) -> bool:
        return self.num_centers <= self.num_coarse

    @uncompiled
    @full_precision
    def _predict(self, query: Tensor, centers: Tensor, values: Tensor, with_local: bool) -> Tensor:
        """The mean for rows `(Q, D)`, of both parts or of the coarse one."""
        if self._is_dense:
            return kernel_ridge(query, centers, values, **self._solve_arguments(), backend=self.backend)
        self._check_query(query, centers, values)
        part, residuals = self._current_coarse(centers, values)
        mean = part.predict(query, self.kernel)
        if with_local:
            mean = mean + self._solve(query.to(residuals.dtype), centers.to(residuals.dtype), residuals, "mean")[0]
        return mean.to(query.dtype)

    def _current_coarse(self, centers: Tensor, values: Tensor) -> tuple[CoarsePart, Tensor]:
        """The coarse part and the residuals `(N, C)` that it leaves."""
        if has_derivatives(centers, values, kernel=self.kernel):
            part = self._fit(centers, values)
            self._value_size = size_of_values(values)
            return part, part.residuals(centers, values, self.kernel)
        # Tensors made in inference mode could not take part in a later backward pass.
        with self._lock, torch.inference_mode(False), torch.no_grad():
            if not self._is_fitted():
                self.refit()
                self.coarse_centers, self.coarse_table = self._fit(centers, values)
                self._mark_fitted()
            if self._residuals is None:
                self._residuals = self._part().residuals(centers, values, self.kernel)
            if self._value_size is None:
                self._value_size = size_of_values(values)
            return self._part(), self._residuals

    def _part(self) -> CoarsePart:
        return CoarsePart(self.coarse_centers, self.coarse_table)

    def _fit(self, centers: Tensor, values: Tensor) -> CoarsePart:
        with torch.no_grad():
            embedded = self._embed(centers.detach()).detach()
        rows = farthest_points(embedded, self.num_coarse)
        rows = rows[: len(torch.unique(embedded[rows], dim=0))]  # copies come last
        options = SolveOptions(self.kernel, trend=self.trend, on_singular=self.on_singular)
        return fit_coarse(centers, values, rows, options, self.coarse, self.coarse_ridge)

    def _options(self, fade: bool) -> SolveOptions:
        return super()._options(fade).but(value_scale=self._value_size)

    def _fitted_to(self) -> tuple[list[Tensor], Kernel, tuple[object, ...]]:
        settings = self.num_coarse, self.coarse, self.coarse_ridge, self.trend, self.on_singular
        return [self.centers, self.values], self.kernel, settings

    def _is_fitted(self) -> bool:
        """Whether the coarse part is that of the layer as it is, up to `append` and `remove`."""
        return self._coarse_fingerprint is not None and self._coarse_fingerprint.matches(*self._fitted_to())

    def _keeps_coarse(self) -> bool:
        """Whether to keep the coarse part when rows come or go; with a learned kernel it is fitted in every call."""
        return self._is_fitted() and not any(tensor.requires_grad for tensor in self.kernel.parameters())

    def _mark_fitted(self) -> None:
        self._coarse_fingerprint, self._value_size = Fingerprint(*self._fitted_to()), None

    def _own_repr(self) -> list[str]:
        return [f"num_neighbors={self.num_neighbors}", f"num_coarse={self.num_coarse}", f"coarse={self.coarse!r}"]

    def _apply(self, fn: Any, recurse: bool = True) -> HierarchicalKernelRidge:
        fitted, exact = self._is_fitted(), self.coarse_table
        super()._apply(fn, recurse)
        if not exact.is_meta:
            self.coarse_table = exact.to(self.coarse_table.device)  # rounded, its terms would no longer cancel
        if fitted and not self.centers.is_meta:
            self._mark_fitted()
        return self

    def _save_to_state_dict(self, *args: Any) -> None:
        if not self._is_fitted():  # nobody should load it
            self.refit()
        super()._save_to_state_dict(*args)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        self.refit()
        resize_buffers(self, COARSE, state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)
        missing = args[2]  # checkpoints of 0.1.0 have no coarse part
        missing[:] = [name for name in missing if name.removeprefix(prefix) not in COARSE]

    def __getstate__(self) -> dict[str, Any]:
        caches = {"_coarse_fingerprint": None, "_residuals": None, "_value_size": None}
        return {**super().__getstate__(), **caches, "_was_fitted": self._is_fitted()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if self.__dict__.pop("_was_fitted"):
            self._mark_fitted()


def _loaded(layer: HierarchicalKernelRidge, _: Any) -> None:
    """A coarse part that was loaded is that of what was loaded with it."""
    if len(layer.coarse_centers) and not layer._is_dense:
        layer._mark_fitted()

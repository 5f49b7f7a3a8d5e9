"""What the continuous layers share: a layout of the centers and solved regressors, kept while nothing changed."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from .._checks import check_num_neighbors
from .._tensors import any_requires_grad
from ..core.expansion import Points
from ..core.options import OnSingular, Trend
from ..kernels import Kernel
from .contents import Contents, contents_of, tensors_of
from .support import SupportLayer

Layout = TypeVar("Layout")
Solved = TypeVar("Solved")


class KeepingLayer(SupportLayer, Generic[Layout, Solved]):
    """Base of the layers whose local regressors do not depend on the query.

    The layout (embedded centers, anchors, indexes) follows from centers and kernel; what is solved, from values, ridge and
    trend as well. Each is kept until, by content, one of those is not what it was. Several threads may predict at a time;
    whatever changes the layer, or learns its centers or kernel, has to be alone.
    """

    _known: Contents | None
    _laid_out: Layout | None
    _solved_for: Contents | None
    _solved: Solved | None

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        num_neighbors: int,
        *,
        kernel: Kernel | None,
        ridge: float | Tensor,
        trend: Trend,
        on_singular: OnSingular,
        learn_centers: bool,
        learn_values: bool,
    ) -> None:
        super().__init__(
            centers,
            values,
            kernel=kernel,
            ridge=ridge,
            trend=trend,
            on_singular=on_singular,
            learn_centers=learn_centers,
            learn_values=learn_values,
        )
        check_num_neighbors(num_neighbors, self.num_centers)
        self.num_neighbors = num_neighbors
        self._forget()

    def _lay_out(self, embedded: Tensor) -> Layout:
        """The layout for embedded centers `(N, E)`, which may have a graph."""
        raise NotImplementedError

    def _start(self, layout: Layout) -> Solved:
        """Nothing solved yet."""
        raise NotImplementedError

    def _settings(self) -> tuple[object, ...]:
        """What a layout depends on besides centers and kernel, compared by `==` or identity."""
        raise NotImplementedError

    def _layout(self) -> Layout:
        kernel_state = tensors_of(self.kernel)
        if any_requires_grad(self.centers, *kernel_state):
            # While centers or kernel are being learned there is no use in keeping anything.
            self._forget()
            return self._lay_out(self._embed(self.centers))
        with self._lock:
            known = self._known
            if known is None or not known.hold(self.centers, kernel_state, self.kernel, self._settings()):
                self._forget()
                # Tensors made in inference mode could not take part in a later backward pass.
                with torch.inference_mode(False), torch.no_grad():
                    self._laid_out = self._lay_out(self._embed(self.centers))
                self._known = contents_of(self.centers, kernel_state, self.kernel, self._settings())
            assert self._laid_out is not None
            return self._laid_out

    def _so_far(self, layout: Layout) -> Solved:
        """What has been solved for the layout, values, ridge and trend as they are now."""
        found = self.values, (self._ridge(),), self.kernel, (id(layout), self.trend, self.on_singular)
        with self._lock:
            if self._solved is None or self._solved_for is None or not self._solved_for.hold(*found):
                self._solved, self._solved_for = self._start(layout), contents_of(*found)
            return self._solved

    def _watched(self, query: Tensor) -> bool:
        """Whether a prediction has derivatives."""
        ridge = [self.ridge] if isinstance(self.ridge, Tensor) else []
        return any_requires_grad(query, self.centers, self.values, *ridge, *tensors_of(self.kernel))

    def _ridge(self) -> Tensor:
        return torch.as_tensor(self.ridge, dtype=torch.float64, device=self.centers.device).detach()

    def _points(self, embedded: Tensor) -> Points:
        return Points(self.centers.detach(), embedded)

    def _forget(self) -> None:
        self._known = self._laid_out = self._solved_for = self._solved = None

    def _apply(self, fn: Any, recurse: bool = True) -> KeepingLayer[Layout, Solved]:
        self._forget()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        nothing = dict.fromkeys(("_known", "_laid_out", "_solved_for", "_solved"))
        return {**super().__getstate__(), **nothing}

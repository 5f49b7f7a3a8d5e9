"""Dense kernel ridge regression as a layer."""

from __future__ import annotations

from typing import Unpack

from torch import Tensor

from .._checks import check_choice
from ..core.options import LayerOptions, with_options_of
from ..functional.ridge import cardinal_weights, kernel_ridge, leave_one_out, power_function
from ..native import Backend
from .base import SupportLayer
from .labels import ClassLayer


class KernelRidge(ClassLayer):
    r"""Kernel ridge regression on every center, $k(z, x)(k(x, x)+\lambda I)^{-1}y$.

    For a few thousand centers at most, and for learned centers and values inside a network. Beyond that,
    `LocalKernelRidge`.

    Arguments as in `torchkrr.functional.kernel_ridge`, and

    Args:
        kernel: a kernel or a name, as in `LocalKernelRidge`.
        learn_centers, learn_values: make them Parameters.

    Shape:
        - centers: `(N, D)`; values: `(N, C)`; query: `(*, D)`; output: `(*, C)`

    Example:
        >>> layer = KernelRidge(torch.randn(64, 8), torch.zeros(64, 4), learn_centers=True, learn_values=True)
        >>> layer(torch.randn(5, 8)).shape
        torch.Size([5, 4])
    """

    @with_options_of(SupportLayer.__init__)
    def __init__(
        self, centers: Tensor, values: Tensor, *, backend: Backend = "auto", **options: Unpack[LayerOptions]
    ) -> None:
        check_choice("backend", backend, ("auto", "fused", "torch"))
        super().__init__(centers, values, **options)
        self.backend: Backend = backend

    def forward(self, query: Tensor) -> Tensor:
        flat = isinstance(query, Tensor) and query.ndim == 2
        found = kernel_ridge(
            query if flat else self._flat(query),
            self.centers,
            self.values,
            backend=self.backend,
            **self._solve_arguments(),
        )
        return found if flat else found.reshape(*query.shape[:-1], self.out_features)

    def power_function(self, query: Tensor) -> Tensor:
        """The error indicator, `(*, D)` to `(*,)`."""
        return power_function(self._flat(query), self.centers, **self._solve_arguments()).reshape(query.shape[:-1])

    def cardinal_weights(self, query: Tensor) -> Tensor:
        """The weight of each center in each prediction, `(*, D)` to `(*, N)`."""
        rows = cardinal_weights(self._flat(query), self.centers, **self._solve_arguments())
        return rows.reshape(*query.shape[:-1], self.num_centers)

    def leave_one_out(self) -> Tensor:
        """The prediction at each center from all the others, `(N, C)`."""
        return leave_one_out(self.centers, self.values, **self._solve_arguments())

    def _left_out_means(self, rows: Tensor) -> Tensor:
        return self.leave_one_out()[rows]

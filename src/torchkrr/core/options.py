"""What kind of problem is solved, as one value that travels from the public functions to the solvers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from .._checks import check_choice, check_ridge
from .._tensors import State, state_of
from ..kernels import Kernel, check_kernel
from ..native import Backend

Trend = Literal["constant"] | None
Normalize = Literal["cell"] | None
OnSingular = Literal["warn", "raise"]
Kind = Literal["mean", "weights", "path", "coefficients"]


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Options of a local or dense problem, the same for every query of a call."""

    kernel: Kernel
    ridge: float | Tensor = (
        1e-9  # a number, a 0-d tensor, or one per center (N,); inside the core also one per neighbor (Q, M)
    )
    trend: Trend = None
    fade: bool = False
    normalize: Normalize = None
    on_singular: OnSingular = "warn"
    backend: Backend = "auto"

    def check(self, num_centers: int) -> SolveOptions:
        """Raise an error that names what is wrong, or return the options."""
        check_kernel(self.kernel)
        check_ridge(self.ridge, num_centers)
        check_choice("trend", self.trend, (None, "constant"))
        check_choice("normalize", self.normalize, (None, "cell"))
        check_choice("on_singular", self.on_singular, ("warn", "raise"))
        check_choice("backend", self.backend, ("auto", "fused", "torch"))
        return self

    def state(self, *tensors: Tensor) -> State:
        """What torch is doing with a problem of these tensors."""
        others = self.kernel.profile_tensors().values()
        ridge = [self.ridge] if isinstance(self.ridge, Tensor) else []
        return state_of(*tensors, *ridge, *others, self.kernel.log_lengthscale)

    def but(self, **changes: Any) -> SolveOptions:
        """A copy with some options changed."""
        return replace(self, **changes)

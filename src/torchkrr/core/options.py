"""What kind of problem is solved, as one value that travels from the public functions to the solvers."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, TypeVar

from torch import Tensor

from .._checks import Trend as Trend
from .._checks import (
    check_alike,
    check_broadcastable,
    check_choice,
    check_finite,
    check_points,
    check_ridge,
    check_same_features,
    check_same_rows,
    check_trend,
    degree_of,
)
from .._tensors import State, state_of
from ..kernels import Kernel
from ..kernels.names import check_kernel
from ..native import Backend
from .trust import NO_LIMITS, Limits

Normalize = Literal["cell"] | None
OnSingular = Literal["warn", "raise"]
Kind = Literal["mean", "weights", "path", "coefficients"]
Function = TypeVar("Function", bound=Callable[..., Any])
PLAIN_TRENDS = (None, "constant", 0)  # those that a positive definite kernel does not need `tails` for


class DenseOptions(TypedDict, total=False):
    """What the functions that solve take after the kernel."""

    ridge: float | Tensor
    trend: Trend
    on_singular: OnSingular


class BackendOptions(DenseOptions, total=False):
    """What those with a compiled solver take as well."""

    backend: Backend


class LocalOptions(BackendOptions, total=False):
    """What the local ones take as well."""

    fade: bool
    normalize: Normalize


class LayerOptions(DenseOptions, total=False):
    """What all layers take."""

    kernel: Kernel | str | None
    learn_centers: bool
    learn_values: bool


def with_options_of(owner: Callable[..., Any]) -> Callable[[Function], Function]:
    """For a function that takes, as `**options: Unpack[...]`, the optional arguments of `owner`.

    They show in `help` with their defaults, and an argument that is none of them is an error.
    """
    shared = [each for each in inspect.signature(owner).parameters.values() if each.default is not each.empty]

    def decorate(function: Function) -> Function:
        own = list(inspect.signature(function).parameters.values())[:-1]
        options = [each.replace(kind=each.KEYWORD_ONLY) for each in shared]
        signature = inspect.Signature([*own, *options], return_annotation=function.__annotations__["return"])
        names = frozenset(signature.parameters)

        @functools.wraps(function)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            for name in kwargs:
                if name not in names:
                    raise TypeError(f"{function.__name__}() got an unexpected keyword argument {name!r}")
            return function(*args, **kwargs)

        wrapped.__signature__ = signature  # type: ignore[attr-defined]
        return wrapped  # type: ignore[return-value]

    return decorate


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """Options of a local or dense problem, the same for every query of a call.

    The ridge is a number, a 0-d tensor, or one per center `(N,)`; inside the core also one per neighbor `(Q, M)`.
    """

    kernel: Kernel
    ridge: float | Tensor = 1e-9
    trend: Trend = None
    fade: bool = False
    normalize: Normalize = None
    on_singular: OnSingular = "warn"
    backend: Backend = "auto"
    # Set inside the core.
    on_undetermined: OnSingular | None = None  # what happens where the trend is not determined; None: `on_singular`
    undetermined: Any = None  # a list that gets an entry where float64 finds cells that do not determine their trend
    precision: float = 0.0  # relative rounding of the points as they were given
    kind: Kind = "mean"
    differentiated: bool = False  # whether a backward pass may follow
    limits: Limits = NO_LIMITS  # what counts as resolved
    value_scale: Tensor | None = None  # (C,): the size of what is predicted, where that is more than the values
    least_norm: float = 0.0  # norms of weights are taken to be at least this
    cache: Any = None  # a `compiled.FactorCache`, used by the fused solver for one ridge and no gradient
    log_scale: Tensor | None = None  # what the fused solver divides points by, as logarithms; without, they are embedded
    plain_steps: bool = False  # only steps that autograd and torch.func can follow

    @property
    def degree(self) -> int:
        """Of the trend: -1 for none."""
        return degree_of(self.trend)

    @property
    def if_undetermined(self) -> OnSingular:
        """What happens where the centers do not determine the trend."""
        return self.on_undetermined or self.on_singular

    @property
    def bordered(self) -> bool:
        """Whether the trend is one for `tails`: anything but a constant on a positive definite kernel."""
        return self.kernel.order > 0 or self.trend not in PLAIN_TRENDS

    def check(self, num_centers: int) -> SolveOptions:
        """Raise an error that names what is wrong, or return the options."""
        check_kernel(self.kernel)
        check_ridge(self.ridge, num_centers)
        check_trend(self.trend, self.kernel)
        check_choice("normalize", self.normalize, (None, "cell"))
        check_choice("on_singular", self.on_singular, ("warn", "raise"))
        check_choice("backend", self.backend, ("auto", "fused", "torch"))
        return self

    def check_problem(self, query: Any, centers: Any, values: Any, *, batched: bool = False) -> Tensor:
        """As `check`, with the tensors of a problem; returns the values, without columns if none are given."""
        check_points("centers", centers, batched=batched)
        if query is not centers:
            check_points("query", query, batched=batched, maybe_empty=True)
        values = centers[..., :0] if values is None else values
        check_alike(query=query, centers=centers, values=values)
        check_same_features("query", query, "centers", centers)
        check_same_rows("centers", centers, "values", values)
        check_broadcastable(query=query, centers=centers, values=values)
        check_finite("centers" if query is centers else "query", query)
        self.check(centers.shape[-2])
        return values  # type: ignore[no-any-return]

    def state(self, *tensors: Tensor) -> State:
        """What torch is doing with a problem of these tensors."""
        others = self.kernel.profile_tensors().values()
        ridge = [self.ridge] if isinstance(self.ridge, Tensor) else []
        return state_of(*tensors, *ridge, *others, self.kernel.log_lengthscale)

    def but(self, **changes: Any) -> SolveOptions:
        """A copy with some options changed."""
        return replace(self, **changes)

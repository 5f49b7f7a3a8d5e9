"""What kind of problem is solved, as one value that travels from the public functions to the solvers."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypedDict, TypeVar

from torch import Tensor

from .._checks import (
    check_alike,
    check_broadcastable,
    check_choice,
    check_finite,
    check_points,
    check_ridge,
    check_same_features,
    check_same_rows,
)
from .._tensors import State, state_of
from ..errors import InputError
from ..kernels import Kernel
from ..kernels.names import check_kernel
from ..native import Backend
from .trust import NO_LIMITS, Limits

Trend = Literal["constant", "linear"] | int | None
Normalize = Literal["cell"] | None
OnSingular = Literal["warn", "raise"]
Kind = Literal["mean", "weights", "path", "coefficients"]
Function = TypeVar("Function", bound=Callable[..., Any])
DEGREES = {"constant": 0, "linear": 1}  # of the trends with names


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


def degree_of(trend: Trend) -> int:
    """The degree of a trend that has been checked, -1 for none."""
    if trend is None:
        return -1
    return DEGREES[trend] if isinstance(trend, str) else trend


def check_trend(trend: Any, kernel: Kernel | None = None) -> None:
    """None, a name or a degree; one that the kernel, if given, can do with."""
    named = trend is None or (isinstance(trend, str) and trend in DEGREES)
    if not named and (isinstance(trend, bool) or not isinstance(trend, numbers.Integral) or trend < 0):
        names = ", ".join(map(repr, (None, *DEGREES)))
        raise InputError(f"trend must be one of {names}, or the degree of a polynomial (0, 1, 2, ...), got {trend!r}.")
    if kernel is not None and kernel.order > degree_of(trend) + 1:
        needed = kernel.order - 1
        name = {degree: repr(name) for name, degree in DEGREES.items()}.get(needed, str(needed))
        raise InputError(
            f"{type(kernel).__name__} is conditionally positive definite of order {kernel.order}: it needs a trend of "
            f"degree {needed} or more, got trend={trend!r}. Use trend={name}."
        )


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
        return self.trend is not None and (self.kernel.order > 0 or degree_of(self.trend) > 0)

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

"""Base classes of the kernel layers: centers and values, fixed or learned, and caches of what was computed from them.

A cache holds while its fingerprint does. A tensor counts as unchanged if it is the same object at the same address with the
same version counter, and a sample of its rows has the same numbers. So a call costs nothing that grows with the number of
centers. Version counters miss edits through `.data` and numpy, and what DDP broadcasts; the sample sees those that touch
many rows. After one that it misses, call `refresh()`.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, TypeVar, Unpack

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from .._checks import (
    check_alike,
    check_at_least_one,
    check_choice,
    check_finite,
    check_floating,
    check_nonempty,
    check_points,
    check_ridge,
    check_same_features,
    check_same_rows,
    check_tensor,
    check_trend,
    check_values,
)
from .._state import OwnLock, register, resize_buffers, without_graph
from .._tensors import State, any_requires_grad, state_of, working_dtype
from ..core.expansion import Points
from ..core.options import LayerOptions, OnSingular, Trend
from ..errors import InputError, ShapeError
from ..kernels import Kernel, default_kernel
from ..kernels.names import check_kernel
from ..neighbors.base import Rows, evenly_spaced_rows, kept_rows

SAMPLE_ROWS = 64
SMALL = 1 << 12  # tensors of at most so many numbers are compared as a whole
ALONE = 1 << 15  # numbers that torch reads on one thread; to wake others takes longer than the whole sample
PLAIN = (int, float, str, tuple)
MODULE_ATTRIBUTES = frozenset(vars(nn.Module()))  # every module has them, and no kernel computes with them

Layout = TypeVar("Layout")
Solutions = TypeVar("Solutions")


class _TensorMark(NamedTuple):
    """What tells whether a tensor is the one it was, with the same numbers."""

    reference: Callable[[], Tensor | None] | None  # None after a copy or pickle: then the sample alone decides
    address: int
    version: int
    shape: torch.Size
    rows: Tensor | None  # of the sample; None if it is the whole tensor
    sample: Tensor

    @staticmethod
    def of(tensor: Tensor) -> _TensorMark:
        rows = None
        if tensor.numel() > SMALL and len(tensor) > SAMPLE_ROWS:
            rows = evenly_spaced_rows(len(tensor), SAMPLE_ROWS, tensor.device)
        with torch.inference_mode(False), torch.no_grad():
            sample = tensor.detach().clone() if rows is None else tensor.detach().index_select(0, rows)
        return _TensorMark(weakref.ref(tensor), tensor.data_ptr(), _version(tensor), tensor.shape, rows, sample)

    def matches(self, tensor: Tensor) -> bool:
        if self.reference is not None and (
            self.reference() is not tensor or self.address != tensor.data_ptr() or self.version != _version(tensor)
        ):
            return False
        sample = self.sample
        if (tensor.shape, tensor.dtype, tensor.device) != (self.shape, sample.dtype, sample.device):
            return False
        if self.rows is None:
            return torch.equal(tensor.detach(), sample)
        size = max(1, ALONE // sample[0].numel())
        parts = zip(self.rows.split(size), sample.split(size), strict=True)
        return all(torch.equal(tensor.detach().index_select(0, rows), part) for rows, part in parts)


class Fingerprint:
    """What a cached result was computed from: tensors, a module (kernel or network) with its own, and settings.

    Settings are compared by identity, and by `==` if they are no tensors.
    """

    def __init__(self, tensors: Sequence[Tensor], module: nn.Module, settings: tuple[object, ...] = ()) -> None:
        self._modules = _modules(module)
        self._settings = (*settings, *_plain_attributes(self._modules))
        self._marks = tuple(map(_TensorMark.of, (*tensors, *_tensors(self._modules))))

    def matches(self, tensors: Sequence[Tensor], module: nn.Module, settings: tuple[object, ...] = ()) -> bool:
        """Whether a fingerprint of these arguments would be this one."""
        modules = _modules(module)
        return (
            _all(operator.is_, modules, self._modules)
            and _all(_same, (*settings, *_plain_attributes(modules)), self._settings)
            and _all(_TensorMark.matches, self._marks, (*tensors, *_tensors(modules)))
        )

    def __getstate__(self) -> dict[str, Any]:
        marks = tuple(mark._replace(reference=None) for mark in self._marks)
        return {**self.__dict__, "_marks": marks}


def _all(same: Callable[[Any, Any], bool], one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(same, one, other))


def _same(a: object, b: object) -> bool:
    return a is b or (not isinstance(a, Tensor) and a == b)


def _version(tensor: Tensor) -> int:
    return -1 if tensor.is_inference() else tensor._version  # tensors made in inference mode have no counter


def _tensors(modules: tuple[nn.Module, ...]) -> list[Tensor]:
    groups = (group for module in modules for group in (module._parameters, module._buffers))
    return [tensor for group in groups for tensor in group.values() if tensor is not None]


def _modules(module: nn.Module) -> tuple[nn.Module, ...]:
    """As `module.modules()`, which takes longer than a small problem."""
    visited: dict[nn.Module, None] = {}

    def visit(module: nn.Module) -> None:
        visited[module] = None
        for child in module._modules.values():
            if child is not None and child not in visited:
                visit(child)

    visit(module)
    return tuple(visited)


def _plain_attributes(modules: tuple[nn.Module, ...]) -> list[tuple[str, object]]:
    """Numbers and names that a kernel or transform has beside its tensors."""
    return [
        (name, value)
        for module in modules
        for name, value in vars(module).items()
        if name not in MODULE_ATTRIBUTES and isinstance(value, PLAIN)
    ]


class SupportLayer(nn.Module):
    """Base of the layers that predict from centers and values.

    Fixed tensors are buffers, learned ones Parameters, under the same name, so a checkpoint made in one setting loads in the
    other. A checkpoint with another number of centers loads into fixed tensors.
    """

    centers: Tensor
    values: Tensor
    num_neighbors: int  # as asked for; dense layers have none
    ridge: float | Tensor
    trend: Trend
    on_singular: OnSingular

    def __init__(
        self,
        centers: Tensor,
        values: Tensor,
        kernel: Kernel | str | None = None,
        ridge: float | Tensor = 1e-9,
        trend: Trend = None,
        on_singular: OnSingular = "warn",
        learn_centers: bool = False,
        learn_values: bool = False,
    ) -> None:
        super().__init__()
        self._lock = OwnLock()  # around what a layer makes on its first call and caches
        self._check_support(centers, values)
        check_ridge(ridge)
        check_trend(trend)
        check_choice("on_singular", on_singular, ("warn", "raise"))
        kernel = "exponential" if kernel is None else kernel
        if not isinstance(kernel, str):
            check_kernel(kernel)
        register(self, "centers", centers, learn=learn_centers)
        register(self, "values", values, learn=learn_values)
        self.kernel = self._kernel_named(kernel, centers) if isinstance(kernel, str) else kernel
        check_trend(trend, self.kernel)
        self.ridge, self.trend, self.on_singular = ridge, trend, on_singular

    def _check_support(self, centers: Tensor, values: Tensor) -> None:
        check_points("centers", centers)
        check_values(values)
        check_alike(centers=centers, values=values)
        check_same_rows("centers", centers, "values", values)
        check_finite("centers", centers)
        check_finite("values", values)

    def _kernel_named(self, name: str, centers: Tensor) -> Kernel:
        return default_kernel(centers, name)

    @property
    def in_features(self) -> int:
        return self.centers.shape[1]

    @property
    def out_features(self) -> int:
        return self.values.shape[1]

    @property
    def num_centers(self) -> int:
        return self.centers.shape[0]

    @property
    def num_used(self) -> int:
        """The neighbors that a call uses: `num_neighbors`, or all centers while there are fewer."""
        return min(self.num_neighbors, self.num_centers)

    def append(self, centers: Tensor, values: Tensor) -> None:
        """Add centers with their values; exact from the next call on. The kernel is not fitted again.

        Shape:
            - centers: `(n, D)`; values: `(n, C)`
        """
        self._refuse_learned("append")
        SupportLayer._check_support(self, centers, values)  # not that of a sharded layer, which asks every rank
        check_alike(centers=centers, present=self.centers)
        check_same_features("centers", centers, "the centers of the layer", self.centers)
        check_same_features("values", values, "the values of the layer", self.values)
        with torch.inference_mode(False):
            self.centers = torch.cat((self.centers, centers.detach()))
            self.values = torch.cat((self.values, values.detach()))

    def remove(self, indices: Rows) -> None:
        """Forget the centers with these row numbers; the rows after a removed one move up.

        Shape:
            - indices: a number, a list of numbers, `(n,)` int64, or a mask `(N,)`
        """
        self._refuse_learned("remove")
        self._keep_rows(kept_rows(indices, self.num_centers, self.centers.device))

    def refresh(self) -> None:
        """Compute anew, at the next call, all that the layer has cached.

        Needed only after an edit of a few rows through `.data` or numpy, which torch does not count.
        """

    def _keep_rows(self, keep: Tensor) -> None:
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

    def _solve_arguments(self) -> dict[str, Any]:
        return {"kernel": self.kernel, "ridge": self.ridge, "trend": self.trend, "on_singular": self.on_singular}

    def _kernel_tensors(self) -> list[Tensor]:
        """Parameters and buffers of the kernel: all that its embedding and profile compute with."""
        return _tensors(_modules(self.kernel))

    def _unchanged(self, fingerprint: Fingerprint | None, *settings: object) -> bool:
        """Whether the fingerprint is that of centers, kernel and settings as they are."""
        return fingerprint is not None and fingerprint.matches([self.centers], self.kernel, settings)

    def _is_learning(self) -> bool:
        """Whether the embedded centers have a gradient now: then there is no use in a cache."""
        return any_requires_grad(self.centers, *self._kernel_tensors())

    def _embed(self, points: Tensor) -> Tensor:
        return self.kernel.embed(points.to(working_dtype(points.dtype)))

    def _flat(self, query: Tensor) -> Tensor:
        """Queries `(*, D)` as rows `(Q, D)`."""
        features = self.centers.shape[1]
        if not isinstance(query, Tensor) or not query.is_floating_point() or query.shape[-1:] != (features,):
            check_tensor("query", query)
            check_floating("query", query)
            if query.ndim == 0:
                raise ShapeError("query must have shape (*, features), got (). Give rows of features, in two dimensions.")
            if query.shape[-1] == 0:
                check_nonempty("query", query)
            check_same_features("query", query, "the centers of the layer", self.centers)
        return query.reshape(-1, features)

    def _check_query(self, query: Tensor, centers: Tensor, values: Tensor | None = None) -> State:
        """The checks of each call, and what torch is doing."""
        ridge = [self.ridge] if isinstance(self.ridge, Tensor) else []
        tensors = [query, centers, *([] if values is None else [values]), *ridge, *self._kernel_tensors()]
        check_at_least_one("num_neighbors", self.num_neighbors)
        if values is None:
            check_alike(query=query, centers=centers)
        else:
            check_alike(query=query, centers=centers, values=values)
            check_same_rows("centers", centers, "values", values)
        check_finite("query", query)
        return state_of(*tensors)

    def _load_from_state_dict(self, state_dict: Mapping[str, Any], prefix: str, *args: Any) -> None:
        resize_buffers(self, ("centers", "values"), state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def _apply(self, fn: Any, recurse: bool = True) -> SupportLayer:
        self.refresh()
        return super()._apply(fn, recurse)  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return without_graph(self)

    def extra_repr(self) -> str:
        words = [f"{name}={getattr(self, name)}" for name in ("in_features", "out_features", "num_centers")]
        words += [*self._own_repr(), f"ridge={float(torch.as_tensor(self.ridge).detach()):g}"]
        words += [f"trend={self.trend!r}"] if self.trend is not None else []
        words += [f"learned={self._learned()}"] if self._learned() else []
        return ", ".join(words)

    def _own_repr(self) -> list[str]:
        return []

    def __setattr__(self, name: str, value: Any) -> None:
        # What torch.nn.utils.parametrize makes, before it puts anything in.
        super().__setattr__(name, _Parametrizations() if name == "parametrizations" and not value else value)


class _Parametrizations(nn.ModuleDict):
    """As torch's own, except that a part of it may be called `values`, like our tensor: there this is a method."""

    @property
    def values(self) -> nn.Module:
        raise AttributeError("values")  # so that `__getattr__` looks among the modules


class CachedLayer(SupportLayer, Generic[Layout, Solutions]):
    """Base of the layers whose local regressors do not depend on the query.

    The layout (embedded centers, anchors, indexes) follows from centers and kernel; solutions, from values, ridge and trend
    as well. Each is cached until one of those changes. Several threads may predict at a time; whatever changes the layer,
    or learns its centers or kernel, has to be alone.
    """

    def __init__(self, centers: Tensor, values: Tensor, num_neighbors: int, **options: Unpack[LayerOptions]) -> None:
        super().__init__(centers, values, **options)
        check_at_least_one("num_neighbors", num_neighbors)
        self.num_neighbors = num_neighbors
        self.refresh()

    def refresh(self) -> None:
        self._layout: Layout | None = None
        self._solutions: Solutions | None = None
        self._layout_fingerprint: Fingerprint | None = None
        self._solutions_fingerprint: Fingerprint | None = None

    def _make_layout(self, embedded: Tensor) -> Layout:
        """The layout for embedded centers `(N, E)`, which may have a graph."""
        raise NotImplementedError

    def _no_solutions(self, layout: Layout) -> Solutions:
        raise NotImplementedError

    def _settings(self) -> tuple[object, ...]:
        """What a layout depends on besides centers and kernel, compared by `==` or identity."""
        raise NotImplementedError

    def _current_layout(self) -> Layout:
        if self._is_learning():
            self.refresh()
            return self._make_layout(self._embed(self.centers))
        with self._lock:
            layout = self._layout
            if layout is None or not self._unchanged(self._layout_fingerprint, *self._settings()):
                self.refresh()
                # Tensors made in inference mode could not take part in a later backward pass.
                with torch.inference_mode(False), torch.no_grad():
                    self._layout = layout = self._make_layout(self._embed(self.centers))
                self._layout_fingerprint = Fingerprint([self.centers], self.kernel, self._settings())
            return layout

    def _current_solutions(self, layout: Layout) -> Solutions:
        """What has been solved for the layout, values, ridge and trend as they are now."""
        settings = float(self._ridge()), id(layout), self.trend, self.on_singular
        with self._lock:
            solutions, fingerprint = self._solutions, self._solutions_fingerprint
            if solutions is None or fingerprint is None or not fingerprint.matches([self.values], self.kernel, settings):
                self._solutions = solutions = self._no_solutions(layout)
                self._solutions_fingerprint = Fingerprint([self.values], self.kernel, settings)
            return solutions

    def _needs_derivatives(self, query: Tensor) -> bool:
        ridge = [self.ridge] if isinstance(self.ridge, Tensor) else []
        return any_requires_grad(query, self.centers, self.values, *ridge, *self._kernel_tensors())

    def _ridge(self) -> Tensor:
        return torch.as_tensor(self.ridge, dtype=torch.float64, device=self.centers.device).detach()

    def _points(self, embedded: Tensor) -> Points:
        return Points(self.centers.detach(), embedded)

    def __getstate__(self) -> dict[str, Any]:
        caches = ("_layout", "_layout_fingerprint", "_solutions", "_solutions_fingerprint")
        return {**super().__getstate__(), **dict.fromkeys(caches)}

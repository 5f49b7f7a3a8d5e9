r"""scipy's `RBFInterpolator` on the kernels, trends and solvers of this library.

Coordinates are shifted to the middle of the data sites and divided by half of their extent $s$. A kernel that a scale only
multiplies, $\varphi(\epsilon s r) = (\epsilon s)^k\varphi(r)$ up to polynomials, then has lengthscale one and the smoothing
$\lambda/(\epsilon s)^k$; any other has the lengthscale $1/(\epsilon s)$.
"""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._checks import check_choice
from .._tensors import any_requires_grad, as_double, full_precision
from ..core import dense, traced
from ..core.options import OnSingular, SolveOptions, Trend
from ..distances import safe_sqrt
from ..errors import InputError, SolveError
from ..functional.local import solve_local
from ..kernels import Kernel
from ..neighbors import ExactIndex, NeighborIndex, StreamedIndex, TreeIndex, nearest
from ..neighbors.auto import memory_size
from ..nn import LocalKernelRidge
from ..storage import Stored, index_from_plan, index_plan, read_model, whole, write_model
from ..transforms import Standardize
from . import arguments
from .indefinite import interpolate_indefinite

TREE_FEATURES, TREE_POINTS = 8, 2000  # up to so many coordinates, and from so many sites, a k-d tree is quicker
STREAMED_SHARE = 0.5  # of the memory: a mapped file of more is read block by block
SETTINGS = ("neighbors", "kernel", "degree", "fade", "on_singular")


class SingularError(SolveError, np.linalg.LinAlgError):
    """The data do not determine the interpolant: what scipy raises as a LinAlgError, and the message says why."""


class RBFInterpolator:
    r"""Interpolate scattered data by radial basis functions, with scipy's arguments; differentiable, and many times faster.

    $$ f(x) = k(x, y)\,a + p(x)\,b, \qquad (k(y, y) + \lambda I)\,a + p(y)\,b = d, \qquad p(y)^\top a = 0, $$

    with $p$ all monomials up to `degree`. With `neighbors` each prediction has its own such system, of the nearest data
    sites.

    Arrays in, arrays out, in float64. Tensors in, tensors out, in their dtype and with gradients, first and second, in `x`,
    `y`, `d`, `smoothing` and `epsilon`: while one of the last four requires a gradient each call solves anew.

    Equivalent to

        import scipy.interpolate

        result = scipy.interpolate.RBFInterpolator(y, d, neighbors, smoothing, kernel, epsilon, degree)(x)

    Args:
        y: data sites.
        d: data values, real or complex; any trailing dimensions.
        neighbors: of each query, that it is interpolated from; `None` is all data sites. At most so many as there are.
        smoothing: $\lambda$, a number or one for each data site; zero interpolates.
        kernel: `"thin_plate_spline"`, `"linear"`, `"cubic"`, `"quintic"`, `"multiquadric"`, `"inverse_multiquadric"`,
            `"inverse_quadratic"` or `"gaussian"`.
        epsilon: $\epsilon$, what distances are multiplied by: one over a lengthscale. The first four kernels do without.
        degree: of the polynomial, -1 for none; `None` is the least that the kernel needs, and at least 0.
        fade: let the influence of a neighbor fall to zero before it is one no longer, so that the interpolant with
            `neighbors` is continuous.
        index: how neighbors are found, see `torchkrr.neighbors`; `None` is exact: a k-d tree in few dimensions, otherwise
            all are compared, and data sites in a mapped file that is large for the memory are read block by block.
        on_singular: `"warn"` solves what is singular in float64 with the smallest smoothing that resolves it, and a
            `RidgeRaisedWarning`; `"raise"` raises `SingularError`.

    Shape:
        - y: `(N, D)`; d: `(N, ...)`; smoothing: `()` or `(N,)`
        - call: `(Q, D)` to `(Q, ...)`

    Example:
        >>> y = torch.rand(200, 2)
        >>> f = RBFInterpolator(y, y.sum(1), neighbors=20)
        >>> x = torch.rand(5, 2)
        >>> bool(torch.allclose(f(x), x.sum(1), atol=1e-4))  # the default reproduces linear functions
        True
    """

    def __init__(
        self,
        y: Any,
        d: Any,
        neighbors: float | None = None,
        smoothing: Any = 0.0,
        kernel: str = "thin_plate_spline",
        epsilon: Any = None,
        degree: int | None = None,
        *,
        fade: bool = False,
        index: NeighborIndex | None = None,
        on_singular: OnSingular = "warn",
    ) -> None:
        self._data = arguments.read_data(y, d)
        count, features = self._data.y.shape
        self.smoothing = arguments.read_smoothing(smoothing, self._data.y)
        self.kernel = arguments.read_kernel(kernel)
        self.epsilon = arguments.read_epsilon(epsilon, self.kernel)
        self.degree = arguments.read_degree(degree, self.kernel)
        self.neighbors = arguments.read_neighbors(neighbors, count)
        self.fade = fade
        check_choice("on_singular", on_singular, ("warn", "raise"))
        self.on_singular: OnSingular = on_singular
        arguments.check_enough(count if self.neighbors is None else self.neighbors, features, self.degree)
        self._is_local = self.neighbors is not None and self.neighbors < count
        self._is_indefinite = arguments.KERNELS[self.kernel].order > self.degree + 1
        if fade and self._is_indefinite:
            raise InputError("`fade` needs a polynomial of the degree that the kernel needs. Leave `degree` at its default.")
        clash = None if self._is_mapped() else arguments.conflict(self._data, self.smoothing)
        if clash is not None:
            first, second = clash
            raise SingularError(
                f"Rows {first} and {second} of `y` are one place, {self._data.y[first].tolist()}, with different values in "
                "`d` and no smoothing: nothing interpolates both. Keep one of them, or their mean, or give `smoothing`."
            )
        low, high = self._data.y.detach().amin(0).double(), self._data.y.detach().amax(0).double()
        extent = float((high / 2 - low / 2).amax())
        self._extent = extent if extent > 0 else 1.0
        self._middle = high / 2 + low / 2
        self._index = index
        self._layer: _Local | None = None
        self._regressor: dense.DenseRegressor | None = None
        self._make_layer()
        if not (self._is_local or self._is_indefinite or self._learns()):
            with _singular_errors():
                self._dense_regressor()  # what is wrong shows now

    @property
    def y(self) -> Any:
        """The data sites `(N, D)`."""
        return self._given(self._data.y)

    @property
    def d(self) -> Any:
        """The data values `(N, ...)`."""
        return self._result(self._data.d, self._data.is_torch)

    def __call__(self, x: Any, *, return_std: bool = False) -> Any:
        r"""The interpolant at `x`.

        Args:
            x: places.
            return_std: give the standard deviation of the interpolant as well: the power function times the scale of the
                data, $\hat\sigma^2 = d^\top a/(N - p)$ as in kriging; with `neighbors`, of each neighborhood.

        Shape:
            - x: `(Q, D)`; output: `(Q, ...)`, or two of them
        """
        query, as_tensor = arguments.read_queries(x, self._data), self._data.is_torch or isinstance(x, Tensor)
        with _singular_errors():
            mean = self._predict(query)
            if not return_std:
                return self._result(mean, as_tensor)
            deviation = self._deviation(query)
        return self._result(mean, as_tensor), self._result(deviation, as_tensor, is_complex=False)

    def derivative(self, x: Any) -> Any:
        """The gradient of the interpolant at `x`; with `neighbors`, while the neighbors stay the same.

        Shape:
            - x: `(Q, D)`; output: `(Q, ..., D)`

        Example:
            >>> y = torch.rand(50, 2)
            >>> slope = RBFInterpolator(y, y[:, 0] - 3 * y[:, 1]).derivative(torch.rand(4, 2))
            >>> bool(torch.allclose(slope, torch.tensor([1.0, -3.0]), atol=1e-3))
            True
        """
        given, as_tensor = arguments.read_queries(x, self._data), self._data.is_torch or isinstance(x, Tensor)
        watched = any_requires_grad(given) or self._learns()
        with torch.enable_grad(), _singular_errors():
            query = given if given.requires_grad else given.detach().clone().requires_grad_()
            mean = self._predict(query)
            slopes = [
                torch.autograd.grad(column.sum(), query, create_graph=watched, retain_graph=True)[0]
                for column in mean.unbind(1)
            ]
        stacked = torch.stack(slopes, 1) if slopes else query.new_empty(len(query), 0, query.shape[1])  # (Q, C, D)
        features = (query.shape[1],)
        if self._data.is_complex:
            parts = stacked.reshape(len(query), -1, 2, *features).movedim(2, -1).contiguous()
            stacked = torch.view_as_complex(parts)
        found = stacked.reshape(len(query), *self._data.shape, *features)
        return found if as_tensor else found.detach().numpy()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the interpolant to one file, as `torchkrr.save` does."""
        plain = {name: getattr(self, name) for name in SETTINGS}
        tensors = {"y": self._data.y.detach(), "d": self._data.d.detach()}
        numbers = {"epsilon": self.epsilon, "smoothing": self.smoothing}
        tensors |= {name: torch.as_tensor(value, dtype=torch.float64).detach() for name, value in numbers.items()}
        plain |= {"shape": list(self._data.shape), "is_complex": self._data.is_complex, "is_torch": self._data.is_torch}
        plain["index"] = index_plan(self._index)
        if self._regressor is not None:
            tensors["coefficients"] = self._regressor.coefficients
        content = {name: tensor.cpu().clone().contiguous() for name, tensor in tensors.items()}
        write_model(path, Stored(type(self).__name__, content, plain))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> RBFInterpolator:
        """The interpolant in a file."""
        stored = read_model(path)
        with whole(path, stored):
            return _from_stored(cls, stored)

    def __repr__(self) -> str:
        count, features = self._data.y.shape
        near = "" if self.neighbors is None else f", neighbors={self.neighbors}"
        kind = f"kernel={self.kernel!r}, degree={self.degree}{near}"
        return f"RBFInterpolator({count} data sites in {features} dimensions, {kind})"

    def __getstate__(self) -> dict[str, Any]:
        state = dict(self.__dict__)
        state["_data"] = self._data._replace(y=self._data.y.detach(), d=self._data.d.detach())
        for name in ("epsilon", "smoothing"):
            if isinstance(state[name], Tensor):
                state[name] = state[name].detach()
        return state | {"_layer": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_layer()

    def _make_layer(self) -> None:
        if self._is_local and not self._is_indefinite:
            self._layer = _Local(self, self._data, self._index or self._default_index())

    def _default_index(self) -> NeighborIndex:
        if self._is_mapped():
            return StreamedIndex()
        count, features = self._data.y.shape
        in_memory = self._data.y.device.type == "cpu"
        return TreeIndex() if features <= TREE_FEATURES and count >= TREE_POINTS and in_memory else ExactIndex()

    def _current_layer(self) -> LocalKernelRidge | None:
        if self._layer is not None and self._learns():
            self._layer.use(*self.problem())
        return self._layer

    def _learns(self) -> bool:
        """Whether something but the query has a gradient now."""
        tensors = [value for value in (self.epsilon, self.smoothing) if isinstance(value, Tensor)]
        return any_requires_grad(self._data.y, self._data.d, *tensors)

    def _is_mapped(self) -> bool:
        """Whether the data sites are those of a file, and too many to be copied."""
        return (
            self.neighbors is not None
            and self._data.y.numel() * self._data.y.element_size() > STREAMED_SHARE * memory_size()
        )

    def problem(self) -> tuple[Kernel, Tensor]:
        """The kernel on scaled coordinates, and the ridge, `()` or `(N,)` in float64."""
        data, kind = self._data, arguments.KERNELS[self.kernel]
        scale = as_double(self.epsilon, data.y.device).reshape(()) * self._extent
        ridge = as_double(self.smoothing, data.y.device)
        places = Standardize()
        places.set_statistics(self._middle, torch.full_like(self._middle, self._extent))
        if self.kernel in arguments.POWERS and not self._is_indefinite:
            return kind(input_transform=places), ridge / scale ** arguments.POWERS[self.kernel]
        lengthscale = 1 / (scale * math.sqrt(2)) if self.kernel == "gaussian" else 1 / scale
        return kind(lengthscale if lengthscale.requires_grad else float(lengthscale), input_transform=places), ridge

    @property
    def trend(self) -> Trend:
        """The polynomial, as the rest of the library calls it."""
        return None if self.degree < 0 else self.degree

    def _options(self) -> SolveOptions:
        kernel, ridge = self.problem()
        return SolveOptions(kernel, ridge, self.trend, on_singular=self.on_singular, on_undetermined="raise")

    @full_precision
    def _predict(self, query: Tensor) -> Tensor:
        """`(Q, C)`."""
        data = self._data
        if self._is_indefinite:
            kernel, ridge = self.problem()
            choices: dict[str, Any] = {"kernel": kernel, "ridge": ridge.expand(len(data.y)), "degree": self.degree}
            rows = nearest(query, data.y, self.neighbors or 1, kernel=kernel) if self._is_local else None
            return interpolate_indefinite(query, data.y, data.d, indices=rows, **choices).to(query.dtype)
        layer = self._current_layer()
        if layer is not None:
            found: Tensor = layer(query)
            return found
        if self._learns():
            return self._solve_dense("mean", query)
        return self._dense_regressor().evaluate(query).to(query.dtype)

    def _solve_dense(self, kind: dense.DenseKind, query: Tensor) -> Tensor:
        """With derivatives in everything."""
        options, (y, d) = self._options(), self._data[:2]
        state = options.state(query, y, d)
        if state == "plain":
            return dense.solve_dense(kind, query, y, d, options).to(query.dtype)
        solve = traced.symbolic_dense if state == "symbolic" else traced.transformed_dense
        return solve(kind, query, y, d, options).to(query.dtype)

    def _dense_regressor(self) -> dense.DenseRegressor:
        """All data sites, solved once."""
        if self._regressor is None:
            self._regressor = dense.DenseRegressor(self._data.y, self._data.d, self._options())
            self._regressor.forget_factor()
        return self._regressor

    @full_precision
    def _deviation(self, query: Tensor) -> Tensor:
        """Standard deviations, `(Q, C)`; those of complex data are of both parts together."""
        if self._is_indefinite:
            raise InputError(
                "`return_std` needs a polynomial of the degree that the kernel needs. Leave `degree` at its default."
            )
        data, options = self._data, self._options()
        layer = self._current_layer()
        if layer is None:
            rows, at = torch.arange(len(data.y), device=query.device).unsqueeze(0), data.y[:1]
            squared = self._solve_dense("power", query)
        else:
            rows, at = layer.neighbors(query), query
            squared = layer.power_function(query).square()
        table, _ = solve_local(at, data.y, data.d, rows, options, "coefficients")
        scale = (table[:, : rows.shape[1]] * data.d[rows]).sum(1)  # (Q or 1, C)
        scale = scale.clamp_min(0) / max(1, rows.shape[1] - (table.shape[1] - rows.shape[1]))
        if data.is_complex:
            scale = scale.reshape(len(scale), -1, 2).sum(-1)
        return safe_sqrt(squared.clamp_min(0).unsqueeze(1) * scale)

    def _given(self, tensor: Tensor) -> Any:
        return tensor if self._data.is_torch else tensor.numpy()

    def _result(self, found: Tensor, as_tensor: bool, *, is_complex: bool | None = None) -> Any:
        """Columns `(n, C)` in the shape of the values, as an array where no tensor was given."""
        if self._data.is_complex if is_complex is None else is_complex:
            found = torch.view_as_complex(found.reshape(len(found), found.shape[1] // 2, 2).contiguous())
        found = found.reshape(len(found), *self._data.shape)
        return found if as_tensor else found.detach().numpy()


class _Local(LocalKernelRidge):
    """The layer that interpolates from neighbors, with the smoothing of each data site."""

    def __init__(self, owner: RBFInterpolator, data: arguments.Data, index: NeighborIndex) -> None:
        kernel, self.site_ridge = owner.problem()
        assert owner.neighbors is not None
        choices: dict[str, Any] = {"trend": owner.trend, "fade": owner.fade, "on_singular": owner.on_singular}
        super().__init__(data.y, data.d, owner.neighbors, kernel=kernel, index=index, **choices)

    def _options(self, fade: bool) -> SolveOptions:
        return super()._options(fade).but(ridge=self.site_ridge, on_undetermined="raise")

    def use(self, kernel: Kernel, ridge: Tensor) -> None:
        """Another kernel and ridge: those whose graph is that of this call."""
        self.kernel, self.site_ridge = kernel, ridge


@contextlib.contextmanager
def _singular_errors() -> Iterator[None]:
    """What scipy's users catch."""
    try:
        yield
    except SingularError:
        raise
    except SolveError as error:
        raise SingularError(str(error)) from error


def _from_stored(kind: type[RBFInterpolator], stored: Stored) -> RBFInterpolator:
    plain, tensors = dict(stored.plain), stored.tensors
    d, shape = tensors["d"], plain.pop("shape")
    if plain.pop("is_complex"):
        d = torch.view_as_complex(d.reshape(len(d), -1, 2))
    sites: Any = tensors["y"]
    values: Any = d.reshape(len(d), *shape)
    if not plain.pop("is_torch"):
        sites, values = sites.numpy(), values.numpy()
    index = plain.pop("index")
    choices = plain | {"epsilon": tensors["epsilon"], "smoothing": tensors["smoothing"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they were given when it was made
        found = kind(sites, values, index=index_from_plan(index), **choices)
    if found._regressor is not None and "coefficients" in tensors:
        found._regressor.coefficients = tensors["coefficients"]
    return found

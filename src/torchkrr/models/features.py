"""Read features of any network by layer name, and pool them to vectors that a kernel can compare."""

from __future__ import annotations

import contextlib
import difflib
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypedDict, TypeVar, Unpack, overload

import torch
from torch import Tensor, nn

from .._checks import check_at_least_one, check_choice, check_floating, check_integer, check_tensor
from ..errors import InputError, InputTypeError, ShapeError

T = TypeVar("T")
Pooling = Literal["mean", "max", "class_token", "flatten"] | None
POOLINGS = ("mean", "max", "class_token", "flatten", None)
MOST_FEATURES = 4096
COPIES = 4  # entries of each column of the random projection
SHOWN = 12  # names in an error


class PoolingOptions(TypedDict, total=False):
    """The options of `pool` that depend on the network."""

    num_prefix_tokens: int
    channels_last: bool
    most: int


@contextlib.contextmanager
def tap(model: nn.Module, *layers: str) -> Iterator[dict[str, Tensor]]:
    """Record the outputs of named layers in a dictionary, in each forward pass inside the block.

    Of a layer that is called several times the last output is recorded; of a tuple, the first tensor. Outputs are copies
    with their graph, since a network may overwrite its own (`ReLU(inplace=True)`). The hooks are removed after the block,
    also after an error.

    Args:
        model: any `nn.Module`.
        layers: names as in `model.named_modules()`, such as `"layer4"` or `"blocks.3.mlp"`; `""` is the model itself.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> with tap(network, "0", "1") as features:
        ...     _ = network(torch.randn(3, 4))
        >>> features["1"].shape
        torch.Size([3, 8])
    """
    outputs: dict[str, Tensor] = {}

    def read(name: str, output: Any) -> None:
        outputs[name] = _first_tensor(name, output).clone()

    with _hooked(model, layers, read):
        yield outputs


@overload
def features_at(
    model: nn.Module, layers: str, x: Any, *, pooling: Pooling = None, **options: Unpack[PoolingOptions]
) -> Tensor: ...


@overload
def features_at(
    model: nn.Module, layers: Sequence[str], x: Any, *, pooling: Pooling = None, **options: Unpack[PoolingOptions]
) -> dict[str, Tensor]: ...


def features_at(
    model: nn.Module, layers: str | Sequence[str], x: Any, *, pooling: Pooling = None, **options: Unpack[PoolingOptions]
) -> Tensor | dict[str, Tensor]:
    """Return the outputs of named layers for one input, pooled to vectors if `pooling` is given.

    A layer that is called several times in one pass is an error: its name does not say which output is meant.

    Args:
        model: any `nn.Module`; it is called in its current mode, on its device.
        layers: one name, or several.
        x: input of the model.
        pooling: `how` of `pool`.
        options: `num_prefix_tokens`, `channels_last` and `most` of `pool`.

    Returns:
        The features for one name, a dictionary of them for several.

    Equivalent to

        with tap(model, *layers) as features:
            model(x)
        result = {name: pool(features[name], pooling) for name in layers}

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
        >>> features_at(network, "1", torch.randn(2, 3, 9, 9), pooling="mean").shape
        torch.Size([2, 8])
    """
    check_choice("pooling", pooling, POOLINGS)
    names = [layers] if isinstance(layers, str) else list(layers)
    outputs = _read(model, names, x, torch.clone, stop=False)
    features = {name: pool(outputs[name], pooling, **options) for name in names}
    return features[layers] if isinstance(layers, str) else features


class _Features(nn.Module):
    """Base class of `Tapped` and `Depths`: a network and how its outputs become vectors."""

    def __init__(self, network: nn.Module, layers: Sequence[str], pooling: Pooling, options: PoolingOptions) -> None:
        super().__init__()
        for name in layers:
            named_layer(network, name)
        self.network = network
        self.pooling: Pooling = pooling
        self.num_prefix_tokens = options.get("num_prefix_tokens", 0)
        self.channels_last = options.get("channels_last", False)
        self.most = options.get("most", MOST_FEATURES)

    def _pool(self, output: Tensor) -> Tensor:
        tokens, last = self.num_prefix_tokens, self.channels_last
        return pool(output, self.pooling, num_prefix_tokens=tokens, channels_last=last, most=self.most)


class Tapped(_Features):
    """A backbone: a network up to one of its layers, whose output is pooled to vectors.

    The layers after it are not computed. The module holds the whole network, so its weights load under their own names
    below `network.`.

    Args:
        network: any `nn.Module`.
        layer: the last one computed, named as in `tap`. If it is called several times, its first output counts.
        pooling: `how` of `pool`.
        options: `num_prefix_tokens`, `channels_last` and `most` of `pool`.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
        >>> Tapped(network, "0")(torch.randn(2, 3, 9, 9)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self, network: nn.Module, layer: str = "", pooling: Pooling = "mean", **options: Unpack[PoolingOptions]
    ) -> None:
        check_choice("pooling", pooling, POOLINGS)
        super().__init__(network, [layer], pooling, options)
        self.layer = layer

    def forward(self, x: Any) -> Tensor:
        if not self.layer:
            return self._pool(_first_tensor("", self.network(x)))
        return self._pool(_read(self.network, [self.layer], x, lambda output: output)[self.layer])

    def extra_repr(self) -> str:
        return f"layer={self.layer!r}, pooling={self.pooling!r}"


class Depths(_Features):
    """Features of several depths: the outputs of several layers, pooled and concatenated.

    The layers after the last one are not computed. Unlike stages (`cut_stages`), layers may lie anywhere, also inside a
    block with a skip connection; where they end stages, the vectors are the pooled outputs of the stages.

    Args:
        network: any `nn.Module`.
        layers: names as in `tap`, in the order they are called, each of them once in a pass.
        pooling: `how` of `pool`.
        options: `num_prefix_tokens`, `channels_last` and `most` of `pool`.

    Shape:
        - input: whatever the network takes; output: `(B, sum of the sizes of the vectors)`

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 5, 3))
        >>> depths = Depths(network, ["0", "2"])
        >>> x = torch.randn(2, 3, 9, 9)
        >>> depths(x).shape, [vector.shape[1] for vector in depths.vectors(x)]
        (torch.Size([2, 13]), [8, 5])
    """

    def __init__(
        self, network: nn.Module, layers: Sequence[str], pooling: Pooling = "mean", **options: Unpack[PoolingOptions]
    ) -> None:
        if isinstance(layers, str) or not all(isinstance(name, str) for name in layers):
            raise InputTypeError(f"layers must be a sequence of names of layers, got {layers!r}.")
        if not layers or len(set(layers)) < len(layers):
            raise InputError(f"layers must be at least one name, and all different, got {list(layers)}.")
        check_choice("pooling", pooling, POOLINGS[:-1])
        super().__init__(network, layers, pooling, options)
        self.layers = tuple(layers)

    def forward(self, x: Any) -> Tensor:
        return torch.cat(self.vectors(x), dim=1)

    def vectors(self, x: Any) -> list[Tensor]:
        """One tensor `(B, D)` for each layer."""
        return self.vectors_and_shapes(x)[0]

    def vectors_and_shapes(self, x: Any) -> tuple[list[Tensor], list[tuple[int, ...]]]:
        """`vectors` and `shapes` from one forward pass."""
        results = _read(self.network, self.layers, x, lambda output: (self._copied_vectors(output), tuple(output.shape[1:])))
        return [vectors for vectors, _ in results.values()], [shape for _, shape in results.values()]

    def shapes(self, x: Any) -> list[tuple[int, ...]]:
        """The shape of each layer's output for a single input, before pooling."""
        return self.vectors_and_shapes(x)[1]

    def _copied_vectors(self, output: Tensor) -> Tensor:
        vectors = self._pool(output)
        return vectors.clone() if vectors.data_ptr() == output.data_ptr() else vectors

    def extra_repr(self) -> str:
        return f"layers={self.layers}, pooling={self.pooling!r}"


def pool(
    features: Tensor,
    how: Pooling = "mean",
    *,
    num_prefix_tokens: int = 0,
    channels_last: bool = False,
    most: int = MOST_FEATURES,
    seed: int = 0,
) -> Tensor:
    r"""Pool the output of a layer to vectors: maps `(B, C, H, W)`, tokens `(B, T, C)`, or vectors already.

    Args:
        features: output of a layer for B inputs.
        how: `"mean"` or `"max"` over places or tokens; `"class_token"`, the first token; `"flatten"`, every number, and
            beyond `most` of them a random projection to `most`, which keeps distances to about `1 / sqrt(most)`; `None`
            does nothing. Vectors `(B, D)` are returned unchanged by every choice, except for the projection.
        num_prefix_tokens: leading tokens (class and register tokens) that mean and max leave out.
        channels_last: maps are `(B, H, W, C)`, as those of Swin transformers.
        most: upper limit of the features that `"flatten"` returns.
        seed: of the random projection, which is the same on every machine.

    Shape:
        - features: `(B, C, H, W)`, `(B, T, C)` or `(B, D)`; output: `(B, D)`

    Equivalent to

        result = features.mean(dim=(2, 3))  # "mean" of maps

    Example:
        >>> pool(torch.randn(2, 64, 7, 7)).shape, pool(torch.randn(2, 197, 768), "class_token").shape
        (torch.Size([2, 64]), torch.Size([2, 768]))
        >>> pool(torch.randn(2, 64, 56, 56), "flatten").shape
        torch.Size([2, 4096])
    """
    check_tensor("features", features)
    check_floating("features", features)
    check_choice("how", how, POOLINGS)
    check_at_least_one("most", most)
    check_integer("num_prefix_tokens", num_prefix_tokens)
    if how is None:
        return features
    if features.ndim not in (2, 3, 4):
        raise ShapeError(
            "Pooling takes maps (B, C, H, W), tokens (B, T, C) or vectors (B, D), "
            f"got a tensor of shape {tuple(features.shape)}. Tap another layer, or pass pooling=None and reduce it yourself."
        )
    if how == "flatten":
        return _projected(features.flatten(1), most, seed)
    if features.ndim == 2:
        return features
    if how == "class_token":
        if features.ndim != 3:
            raise ShapeError(
                f"A class token is the first of tokens (B, T, C), but this layer gives maps {tuple(features.shape)}. "
                'Use pooling="mean" or "max".'
            )
        return features[:, 0]
    if features.ndim == 3:
        if not 0 <= num_prefix_tokens < features.shape[1]:
            raise InputError(
                f"num_prefix_tokens must lie between 0 and {features.shape[1] - 1}, there are {features.shape[1]} tokens, "
                f"got {num_prefix_tokens}."
            )
        places = features[:, num_prefix_tokens:]
        return places.mean(1) if how == "mean" else places.amax(1)
    over = (1, 2) if channels_last else (2, 3)
    return features.mean(over) if how == "mean" else features.amax(over)


def _projected(vectors: Tensor, most: int, seed: int) -> Tensor:
    """A sparse Johnson-Lindenstrauss map: each feature goes, with random signs, to a few random places.

    Its memory is linear in the number of features; a dense one for early maps would fill gigabytes.
    """
    size = vectors.shape[1]
    if size <= most:
        return vectors
    places, signs = _projection(size, most, seed)
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    result = wide.new_zeros(len(vectors), most)
    for place, sign in zip(places, signs, strict=True):
        result = result.index_add(1, place.to(wide.device), wide * sign.to(wide))
    return (result / math.sqrt(COPIES)).to(vectors.dtype)


@functools.lru_cache(maxsize=8)
def _projection(size: int, most: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    with torch.inference_mode(False):
        places = torch.randint(most, (COPIES, size), generator=generator)
        signs = torch.randint(2, (COPIES, size), generator=generator, dtype=torch.int8) * 2 - 1
    return places, signs


class _EndOfPassError(BaseException):
    """Ends a forward pass early. Not an Exception: a network may catch those."""


def _read(
    model: nn.Module, layers: Sequence[str], x: Any, take: Callable[[Tensor], T], *, stop: bool = True
) -> dict[str, T]:
    """`take` of the output of each layer, before later layers can overwrite it, by one forward pass.

    Each layer is called once. To `stop` at the last of them, they are named in the order they are called.
    """
    results: dict[str, T] = {}
    end = _EndOfPassError()

    def read(name: str, output: Any) -> None:
        if name in results:
            raise InputError(
                f"The layer {name!r} is called several times in one pass, so its name does not say which output is meant. "
                "Name the block around it, or the layer after it."
            )
        results[name] = take(_first_tensor(name, output))
        if stop and name == layers[-1]:
            raise end

    with _hooked(model, layers, read):
        try:
            model(x)
        except _EndOfPassError as error:
            if error is not end:  # of another network around this one
                raise
    if stop and layers[-1] in results:
        for name, called in itertools.zip_longest(layers, results):
            if name != called:
                raise InputError(
                    f"The layer {name!r} is not called where it was named, before {layers[-1]!r}: the order of calls was "
                    f"{', '.join(results)}. Name layers in the order they are called."
                )
    for name in layers:
        if name not in results:
            raise InputError(
                f"The layer {name!r} was not called in the forward pass. Some layers only hold others, or are called by "
                "another method than forward: tap one inside it, or after it."
            )
    return results


@contextlib.contextmanager
def _hooked(model: nn.Module, layers: Sequence[str], read: Callable[[str, Any], None]) -> Iterator[None]:
    """Inside the block, `read(name, output)` is called for each output of the named layers."""
    modules = {name: named_layer(model, name) for name in layers}
    with contextlib.ExitStack() as handles:
        for name, module in modules.items():

            def hook(_module: nn.Module, _inputs: Any, output: Any, name: str = name) -> None:
                read(name, output)

            handles.callback(module.register_forward_hook(hook).remove)
        yield


def named_layer(model: nn.Module, name: str) -> nn.Module:
    """The layer of this name; an unknown one is an error that lists names close to it."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"The model must be an nn.Module, got {type(model).__name__}.")
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        names = [other for other in modules if other]
        near = difflib.get_close_matches(name, names, 5, cutoff=0.5)
        top = [name for name in names if "." not in name] or names
        more = f" and {len(top) - SHOWN} more" if len(top) > SHOWN else ""
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Its layers: {', '.join(top[:SHOWN])}{more}."
        raise InputError(f"{type(model).__name__} has no layer {name!r}. {hint} All: dict(model.named_modules()).")
    return modules[name]


def _first_tensor(name: str, output: Any) -> Tensor:
    """The output of a layer, or the first of several."""
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(first, torch.Tensor):
        raise InputTypeError(
            f"The layer {name!r} gives {type(output).__name__}, not a tensor. Tap a layer inside it, which gives a tensor."
        )
    return first


@contextlib.contextmanager
def in_mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put the whole model in one mode inside the block; each module then returns to its own, also after an error."""
    before = {module: module.training for module in model.modules()}
    try:
        model.train(training)
        yield
    finally:
        for module, mode in before.items():
            module.training = mode

"""Features of any network, by the name of a layer."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, overload

import torch
from torch import Tensor, nn

from .._checks import check_choice
from ..errors import InputError, InputTypeError
from .pooling import MOST_FEATURES, POOLINGS, Pooling, pool

SHOWN = 12  # names in an error


@contextlib.contextmanager
def tap(model: nn.Module, *layers: str) -> Iterator[dict[str, Tensor]]:
    """Inside the block, each forward pass leaves the outputs of the named layers in the dictionary.

    A layer that is called several times leaves its last output; of a tuple the first tensor counts. Outputs are copies with
    their graph, since a network may overwrite its own (`ReLU(inplace=True)`). The hooks are gone after the block, also after
    an error.

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
    found: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> None:
        found[name] = first_tensor(name, output).clone()

    with hooked(model, layers, keep):
        yield found


@overload
def features_at(
    model: nn.Module,
    layers: str,
    x: Any,
    *,
    pooling: Pooling = None,
    num_prefix_tokens: int = 0,
    channels_last: bool = False,
    most: int = MOST_FEATURES,
) -> Tensor: ...


@overload
def features_at(
    model: nn.Module,
    layers: Sequence[str],
    x: Any,
    *,
    pooling: Pooling = None,
    num_prefix_tokens: int = 0,
    channels_last: bool = False,
    most: int = MOST_FEATURES,
) -> dict[str, Tensor]: ...


def features_at(
    model: nn.Module,
    layers: str | Sequence[str],
    x: Any,
    *,
    pooling: Pooling = None,
    num_prefix_tokens: int = 0,
    channels_last: bool = False,
    most: int = MOST_FEATURES,
) -> Tensor | dict[str, Tensor]:
    """The outputs of named layers for one input, pooled to vectors if asked for.

    A layer that is called several times in one pass is an error: its name does not say which output is meant.

    Args:
        model: any `nn.Module`; it is called as it is, in the mode and on the device it is in.
        layers: one name, or several.
        x: input of the model.
        pooling, num_prefix_tokens, channels_last, most: see `pool`.

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
    outputs: dict[str, Tensor] = {}

    def keep(name: str, output: Any) -> None:
        check_called_once(name, outputs)
        outputs[name] = first_tensor(name, output).clone()

    with hooked(model, names, keep):
        model(x)
    check_reached(names, outputs)
    choices: dict[str, Any] = {"num_prefix_tokens": num_prefix_tokens, "channels_last": channels_last, "most": most}
    found = {name: pool(outputs[name], pooling, **choices) for name in names}
    return found[layers] if isinstance(layers, str) else found


class Tapped(nn.Module):
    """A network that ends at one of its layers, and gives vectors: a backbone.

    The layers after it are not computed. It holds the whole network, so its weights load under their own names below
    `network.`.

    Args:
        network: any `nn.Module`.
        layer: where it ends, as in `tap`. A layer that is called several times gives its first output.
        pooling, num_prefix_tokens, channels_last, most: see `pool`.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten())
        >>> Tapped(network, "0")(torch.randn(2, 3, 9, 9)).shape
        torch.Size([2, 8])
    """

    def __init__(
        self,
        network: nn.Module,
        layer: str = "",
        pooling: Pooling = "mean",
        *,
        num_prefix_tokens: int = 0,
        channels_last: bool = False,
        most: int = MOST_FEATURES,
    ) -> None:
        super().__init__()
        check_choice("pooling", pooling, POOLINGS)
        named_layer(network, layer)
        self.network = network
        self.layer = layer
        self.pooling: Pooling = pooling
        self.num_prefix_tokens = num_prefix_tokens
        self.channels_last = channels_last
        self.most = most

    def forward(self, x: Any) -> Tensor:
        return pool(
            self._output(x),
            self.pooling,
            num_prefix_tokens=self.num_prefix_tokens,
            channels_last=self.channels_last,
            most=self.most,
        )

    def _output(self, x: Any) -> Tensor:
        if not self.layer:
            return first_tensor("", self.network(x))
        found: dict[str, Tensor] = {}

        def take(name: str, output: Any) -> bool:
            found[name] = first_tensor(name, output)
            return True

        run_until(self.network, x, [self.layer], take)
        check_reached([self.layer], found)
        return found[self.layer]

    def extra_repr(self) -> str:
        return f"layer={self.layer!r}, pooling={self.pooling!r}"


class ReachedError(BaseException):
    """Ends a forward pass early. Not an Exception: a network may catch those."""


def run_until(model: nn.Module, x: Any, layers: Sequence[str], seen: Callable[[str, Any], bool]) -> None:
    """A forward pass that shows outputs of the named layers to `seen(name, output)`, and ends where that returns True."""
    done = ReachedError()

    def look(name: str, output: Any) -> None:
        if seen(name, output):
            raise done

    with hooked(model, layers, look):
        try:
            model(x)
        except ReachedError as reached:
            if reached is not done:  # of another network around this one
                raise


@contextlib.contextmanager
def hooked(model: nn.Module, layers: Sequence[str], seen: Any) -> Iterator[None]:
    """Inside the block, `seen(name, output)` is called for each output of the named layers."""
    modules = {name: named_layer(model, name) for name in layers}
    with contextlib.ExitStack() as handles:
        for name, module in modules.items():

            def hook(_module: nn.Module, _inputs: Any, output: Any, name: str = name) -> None:
                seen(name, output)

            handles.callback(module.register_forward_hook(hook).remove)
        yield


def named_layer(model: nn.Module, name: str) -> nn.Module:
    """The layer of this name; an unknown one is an error that lists names close to it."""
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"The model must be an nn.Module, got {type(model).__name__}.")
    modules: dict[str, nn.Module] = dict(model.named_modules(remove_duplicate=False))
    if name not in modules:
        names = [known for known in modules if known]
        near = difflib.get_close_matches(name, names, 5, cutoff=0.5)
        hint = f"Did you mean {' or '.join(map(repr, near))}?" if near else f"Its layers: {_listed(names)}."
        raise InputError(f"{type(model).__name__} has no layer {name!r}. {hint} All: dict(model.named_modules()).")
    return modules[name]


def _listed(names: list[str]) -> str:
    top = [name for name in names if "." not in name] or names
    return ", ".join(top[:SHOWN]) + (f" and {len(top) - SHOWN} more" if len(top) > SHOWN else "")


def first_tensor(name: str, output: Any) -> Tensor:
    """The output of a layer, or the first of several."""
    first = output[0] if isinstance(output, (tuple, list)) and output else output
    if not isinstance(first, torch.Tensor):
        raise InputTypeError(
            f"The layer {name!r} gives {type(output).__name__}, not a tensor. Tap a layer inside it, which gives a tensor."
        )
    return first


def check_reached(names: Sequence[str], found: Container[str]) -> None:
    """A layer that left nothing is an error."""
    for name in names:
        if name not in found:
            raise InputError(
                f"The layer {name!r} was not called in the forward pass. Some layers only hold others, or are called by "
                "another method than forward: tap one inside it, or after it."
            )


def check_called_once(name: str, found: Container[str]) -> None:
    """A layer that left something in this pass already is an error."""
    if name in found:
        raise InputError(
            f"The layer {name!r} is called several times in one pass, so its name does not say which output is meant. "
            "Name the block around it, or the layer after it."
        )

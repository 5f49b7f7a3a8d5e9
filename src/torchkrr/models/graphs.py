"""The forward pass of a network as a graph, divided into pieces that follow each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import fx, nn

from ..errors import InputError
from .modes import in_mode

SHOWN = 3  # values in an error


def as_pieces(model: nn.Module, layers: Sequence[str]) -> list[nn.Module]:
    """Modules that follow each other: one that ends with each of the layers, and one for what is left.

    They hold the layers of the model itself, under their names. Layers are called in the order given, each once, and nothing
    but a layer's output passes the cut behind it; otherwise there are no such pieces, which is an error.

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
        >>> first, rest = as_pieces(network, ["0"])
        >>> x = torch.randn(3, 4)
        >>> torch.equal(rest(first(x)), network(x))
        True
    """
    graph = _traced(model, layers)
    ends = [_call(model, graph, name) for name in layers]
    order = {node: place for place, node in enumerate(graph.nodes)}
    for (first, before), (second, after) in pairwise(zip(layers, ends, strict=True)):
        if order[after] <= order[before]:
            raise InputError(f"The layer {second!r} is not called after {first!r}. Name them in the order of their calls.")
    for name, end in zip(layers, ends, strict=True):
        _check_cut(model, order, name, end)
    return [_piece(model, order, begin, end) for begin, end in pairwise([None, *ends, None])]


class _Tracer(fx.Tracer):
    """Follows the forward methods of the modules around the layers; other modules are one node each."""

    def __init__(self, opened: set[nn.Module]) -> None:
        super().__init__()
        self.opened = opened

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m not in self.opened

    def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> tuple[Any, list[Any]]:
        """One input; other arguments keep their defaults."""
        return root_fn, [self.root, self.create_proxy("placeholder", "x", (), {})]


def _traced(model: nn.Module, layers: Sequence[str]) -> fx.Graph:
    """What the model does with its input. Its own code, outside of layers, must do the same in both modes."""
    inside = {name.rsplit(".", depth)[0] for name in layers for depth in range(1, name.count(".") + 1)}
    opened = {model.get_submodule(name) for name in inside}
    graphs = {}
    for training in (True, False):
        with in_mode(model, training):
            try:
                graphs[training] = _Tracer(opened).trace(model)
            # Whatever code does with a symbol that it expects to be a tensor.
            except Exception as error:
                reason = " ".join(str(error).split())[:200]
                raise InputError(
                    f"{type(model).__name__} cannot be cut at {', '.join(layers)}: its code around these layers cannot be "
                    f"followed without an input ({type(error).__name__}: {reason}). Cut it at layers further out, or "
                    "read features with torchkrr.models.tap."
                ) from error
    if _text(graphs[True]) != _text(graphs[False]):
        raise InputError(
            f"{type(model).__name__} does something else in training mode outside of its layers, such as "
            "F.dropout(x, training=self.training). Make that a layer (nn.Dropout), which knows its mode."
        )
    return graphs[model.training]


def _text(graph: fx.Graph) -> str:
    return "\n".join(f"{node.op} {node.target} {node.args} {node.kwargs}" for node in graph.nodes)


def _call(model: nn.Module, graph: fx.Graph, name: str) -> fx.Node:
    layer = model.get_submodule(name)
    every: list[fx.Node] = [node for node in graph.nodes if node.op == "call_module"]
    calls = [node for node in every if model.get_submodule(str(node.target)) is layer]
    if len(calls) != 1:
        problem = "called several times" if calls else "not called"
        raise InputError(
            f"The layer {name!r} is {problem} in a forward pass of {type(model).__name__}, so there is no one place behind "
            "it. Name the layer around it, or the one after it."
        )
    return calls[0]


def _check_cut(model: nn.Module, order: dict[fx.Node, int], name: str, end: fx.Node) -> None:
    passing = [
        node
        for node, place in order.items()
        if place < order[end] and node.op != "get_attr" and any(order[user] > order[end] for user in node.users)
    ]
    if passing:
        values = ", ".join(str(node) for node in passing[:SHOWN])
        raise InputError(
            f"{type(model).__name__} cannot be cut behind {name!r}: what was computed before ({values}) is used after it as "
            "well, as by a skip connection. Name a layer at the end of such a block, or the block itself."
        )


def _piece(model: nn.Module, order: dict[fx.Node, int], begin: fx.Node | None, end: fx.Node | None) -> nn.Module:
    """What is computed after the node `begin`, up to the node `end`; `None` is the input, and the output."""
    graph = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}

    def copied(node: fx.Node) -> fx.Node:
        if node not in known:  # a parameter that was read in an earlier piece
            known[node] = graph.node_copy(node)
        return known[node]

    after = -1 if begin is None else order[begin]
    until = len(order) - 1 if end is None else order[end]
    if begin is not None:
        known[begin] = graph.placeholder("x")
    for node, place in order.items():
        if after < place <= until and node.op != "get_attr":
            known[node] = graph.node_copy(node, copied)
    if end is not None:
        graph.output(known[end])
    return fx.GraphModule(model, graph, "Head" if end is None else "Stage")

"""Cut a network into consecutive stages, to read or train what lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from torch import Tensor, fx, nn

from .._checks import check_count
from ..errors import InputError, InputTypeError
from .features import in_mode, named_layer

NUM_STAGES = 5
SHOWN = 3  # values in an error


class Staged(nn.Module):
    """A network as consecutive stages and a head; made by `cut_stages`.

    Every layer is the network's own, not a copy, and keeps its name inside its stage: training the stages trains the
    network.

    Attributes:
        stages: `nn.ModuleList` of the stages, the first takes the network's input.
        head: what follows the last stage; it gives the network's output.
        layers: the name of the last layer of each stage.
    """

    def __init__(self, stages: Sequence[nn.Module], head: nn.Module, layers: Sequence[str]) -> None:
        super().__init__()
        self.stages = nn.ModuleList(stages)
        self.head = head
        self.layers = tuple(layers)

    def __len__(self) -> int:
        return len(self.stages)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return self.head(x)  # type: ignore[no-any-return]

    def outputs(self, x: Tensor) -> list[Tensor]:
        """The output of each stage, with its graph, from one pass; the head is not computed."""
        outputs = []
        for stage in self.stages:
            x = stage(x)
            outputs.append(x.clone())  # the next stage may overwrite it (`ReLU(inplace=True)`)
        return outputs

    def without(self, num_discarded: int) -> nn.Sequential:
        """The network without its head and without its `num_discarded` top stages, at the most all but one.

        Example:
            >>> layers = [torch.nn.Linear(4, 4) for _ in range(6)]
            >>> staged = cut_stages(torch.nn.Sequential(*layers), ["0", "1", "2", "3", "4"])
            >>> x = torch.randn(2, 4)
            >>> torch.equal(staged.without(3)(x), layers[1](layers[0](x)))
            True
        """
        check_count("num_discarded", num_discarded, len(self) - 1, least=0, what="the number of stages less one")
        return nn.Sequential(*list(self.stages)[: len(self) - num_discarded])

    def extra_repr(self) -> str:
        return f"layers={self.layers}"


def cut_stages(model: nn.Module, layers: Sequence[str] | None = None) -> Staged:
    """Cut a network after each of the named layers; what follows the last of them is the head.

    The forward methods around the named layers are followed symbolically (`torch.fx`), all other modules are taken as they
    are. So a cut is right for every input and in training mode, or it is an error: where a layer is not called, or called
    twice, where another value passes by the cut (a skip connection), and where the way depends on the values of a tensor.

    Args:
        model: any `nn.Module` with one input.
        layers: names as in `model.named_modules()`, in the order they are called. `None` is five stages of a network known
            here: VGG (to each max pooling), ResNet (the stem, four layers), EfficientNet of timm (by resolution, `conv_head`
            with the last), vision transformers of torchvision and timm (12 layers as 3, 3, 2, 2, 2, tokens and positions
            with the first, the last norm with the last).

    Equivalent to

        result = staged.head(staged.stages[4](... staged.stages[0](x)))  # equals model(x)

    Example:
        >>> network = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> staged = cut_stages(network, ["0", "1"])
        >>> x = torch.randn(3, 4)
        >>> torch.equal(staged(x), network(x)), [tuple(output.shape) for output in staged.outputs(x)]
        (True, [(3, 8), (3, 8)])
    """
    if not isinstance(model, nn.Module):
        raise InputTypeError(f"The model must be an nn.Module, got {type(model).__name__}.")
    if isinstance(layers, str) or (layers is not None and not all(isinstance(name, str) for name in layers)):
        raise InputTypeError(f"layers must be a sequence of names of layers, got {layers!r}.")
    names = known_layers(model) if layers is None else tuple(layers)
    if not names:
        raise InputError(
            f"Where to cut {type(model).__name__} is not known here. Give layers=[...], the names of the last layer of each "
            "stage, as in model.named_modules()."
        )
    for name in names:
        if not name:
            raise InputError("The network itself ('') is not a layer to cut at: name layers inside it.")
        named_layer(model, name)
    *stages, head = _pieces(model, [_innermost(model, name, names) for name in names])
    staged = Staged(stages, head, names)
    staged.training = model.training
    return staged


def known_layers(model: nn.Module) -> tuple[str, ...] | None:
    """Layers to cut a known network at, `None` for others. It is recognized by its children, not by its class."""
    children = dict(model.named_children())
    if isinstance(children.get("features"), nn.Sequential):
        pools = [name for name, layer in children["features"].named_children() if isinstance(layer, nn.MaxPool2d)]
        if len(pools) == NUM_STAGES:
            return tuple(f"features.{name}" for name in pools)
    if {"conv_proj", "encoder", "heads"} <= children.keys() and "layers" in dict(children["encoder"].named_children()):
        return _evenly(_children(model, "encoder.layers"), "encoder.ln")
    if {"patch_embed", "blocks", "norm"} <= children.keys():
        return _evenly(_children(model, "blocks"), "norm")
    if {"conv_stem", "blocks", "conv_head", "bn2"} <= children.keys():
        blocks = _children(model, "blocks")
        # Seven groups work at five resolutions: strides 2, 4, 8, 16, 16, 32, 32.
        return (blocks[0], blocks[1], blocks[2], blocks[4], "bn2") if len(blocks) == 7 else _evenly(blocks, "bn2")
    if {"maxpool", "layer1", "layer2", "layer3", "layer4"} <= children.keys():
        return ("maxpool", "layer1", "layer2", "layer3", "layer4")
    return None


def _children(model: nn.Module, name: str) -> list[str]:
    return [f"{name}.{child}" for child, _ in model.get_submodule(name).named_children()]


def _evenly(blocks: list[str], last: str) -> tuple[str, ...] | None:
    """The last of each of five groups of blocks, the longer groups first; `last`, which follows them, ends the fifth."""
    if len(blocks) < NUM_STAGES:
        return None
    size, longer = divmod(len(blocks), NUM_STAGES)
    ends = [(number + 1) * size + min(number + 1, longer) for number in range(NUM_STAGES - 1)]
    return (*(blocks[end - 1] for end in ends), last)


def _innermost(model: nn.Module, name: str, names: tuple[str, ...]) -> str:
    """A sequence that is itself cut ends with its last layer."""
    while any(other.startswith(f"{name}.") for other in names):
        layer = model.get_submodule(name)
        if not isinstance(layer, nn.Sequential) or not len(layer):
            inside = next(other for other in names if other.startswith(f"{name}."))
            raise InputError(f"The layer {inside!r} is inside {name!r}. Name the last layer inside {name!r} instead of it.")
        name = f"{name}.{list(layer.named_children())[-1][0]}"
    return name


def _pieces(model: nn.Module, layers: Sequence[str]) -> list[nn.Module]:
    """Modules that follow each other: one that ends with each of the layers, and one for what is left.

    They hold the layers of the model itself, under their names. Layers are called in the order given, each once, and nothing
    but a layer's output passes the cut behind it; otherwise there are no such pieces, which is an error.
    """
    graph, kind = _traced(model, layers), type(model).__name__
    order = {node: place for place, node in enumerate(graph.nodes)}
    ends: list[fx.Node] = []
    for place, name in enumerate(layers):
        layer = model.get_submodule(name)
        calls = [node for node in order if node.op == "call_module" and model.get_submodule(str(node.target)) is layer]
        if len(calls) != 1:
            raise InputError(
                f"The layer {name!r} is {'called several times' if calls else 'not called'} in a forward pass of {kind}, so "
                "there is no one place behind it. Name the layer around it, or the one after it."
            )
        if ends and order[calls[0]] <= order[ends[-1]]:
            raise InputError(
                f"The layer {name!r} is not called after {layers[place - 1]!r}. Name them in the order of their calls."
            )
        ends += calls
    for name, end in zip(layers, ends, strict=True):
        before = [node for node, place in order.items() if place < order[end] and node.op != "get_attr"]
        passing = [str(node) for node in before if any(order[user] > order[end] for user in node.users)]
        if passing:
            raise InputError(
                f"{kind} cannot be cut behind {name!r}: what was computed before ({', '.join(passing[:SHOWN])}) is used "
                "after it as well, as by a skip connection. Name a layer at the end of such a block, or the block itself."
            )
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
    opened = {model.get_submodule(name.rsplit(".", depth)[0]) for name in layers for depth in range(1, name.count(".") + 1)}
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
    if str(graphs[True]) != str(graphs[False]):
        raise InputError(
            f"{type(model).__name__} does something else in training mode outside of its layers, such as "
            "F.dropout(x, training=self.training). Make that a layer (nn.Dropout), which knows its mode."
        )
    return graphs[model.training]


def _piece(model: nn.Module, order: dict[fx.Node, int], begin: fx.Node | None, end: fx.Node | None) -> nn.Module:
    """What is computed after the node `begin`, up to the node `end`; `None` is the input, and the output."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {} if begin is None else {begin: graph.placeholder("x")}

    def copied(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter that was read in an earlier piece
            copies[node] = graph.node_copy(node)
        return copies[node]

    after = -1 if begin is None else order[begin]
    until = len(order) - 1 if end is None else order[end]
    for node, place in order.items():
        if after < place <= until and node.op != "get_attr":
            copies[node] = graph.node_copy(node, copied)
    if end is not None:
        graph.output(copies[end])
    return fx.GraphModule(model, graph, "Head" if end is None else "Stage")

"""A network cut into stages that follow each other, so that what lies between them can be read, or trained."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from .._checks import check_count
from ..errors import InputError, InputTypeError
from .graphs import as_pieces
from .taps import named_layer

NUM_STAGES = 5


class Staged(nn.Module):
    """Stages and a head that, one after the other, are the network they were cut from.

    Every layer is the network's own, not a copy, and keeps its name inside its stage: training the stages trains the
    network. Made by `cut_stages`.

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
        """What the network gives."""
        for stage in self.stages:
            x = stage(x)
        output: Tensor = self.head(x)
        return output

    def outputs(self, x: Tensor) -> list[Tensor]:
        """What each stage gives, with its graph, from one pass; the head is not computed."""
        found = []
        for stage in self.stages:
            x = stage(x)
            found.append(x.clone())  # the next stage may overwrite it (`ReLU(inplace=True)`)
        return found

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
    *stages, head = as_pieces(model, [_innermost(model, name, names) for name in names])
    staged = Staged(stages, head, names)
    staged.training = model.training
    return staged


def known_layers(model: nn.Module) -> tuple[str, ...] | None:
    """The names to cut a known network at, `None` for others. Known by its parts, whatever its class is called."""
    parts = dict(model.named_children())
    if isinstance(parts.get("features"), nn.Sequential):
        pools = [name for name, layer in parts["features"].named_children() if isinstance(layer, nn.MaxPool2d)]
        if len(pools) == NUM_STAGES:
            return tuple(f"features.{name}" for name in pools)
    if {"conv_proj", "encoder", "heads"} <= parts.keys() and "layers" in dict(parts["encoder"].named_children()):
        return _evenly(_children(model, "encoder.layers"), "encoder.ln")
    if {"patch_embed", "blocks", "norm"} <= parts.keys():
        return _evenly(_children(model, "blocks"), "norm")
    if {"conv_stem", "blocks", "conv_head", "bn2"} <= parts.keys():
        blocks = _children(model, "blocks")
        # Seven groups work at five resolutions: strides 2, 4, 8, 16, 16, 32, 32.
        return (blocks[0], blocks[1], blocks[2], blocks[4], "bn2") if len(blocks) == 7 else _evenly(blocks, "bn2")
    if {"maxpool", "layer1", "layer2", "layer3", "layer4"} <= parts.keys():
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

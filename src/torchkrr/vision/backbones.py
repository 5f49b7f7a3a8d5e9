"""Frozen networks that turn images into feature vectors: bundled, of torchvision and timm, or your own."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib.util
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from .._checks import check_choice
from .._extras import import_extra, import_torchvision
from .._state import weights_hash
from ..errors import FileError, InputError, MissingExtraError
from ..models.features import POOLINGS, Depths, Pooling, Tapped, features_at
from .images import INTERPOLATIONS, Array, Preparation
from .weights import load_weights

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
IDENTITY_SIZE = 32
VERSION = 1  # of how features are computed; a change makes every cache stale
DIGIT_SIZE = 8  # pixels of an edge, as those of scikit-learn's digits
DIGIT_LAYERS = ("stem", "middle.0", "middle", "top.0", "top")  # five depths
DIGIT_WEIGHTS = pathlib.Path(__file__).parent / "data" / "digits.safetensors"
UNINITIALIZED = ("googlenet", "inception_v3")  # torchvision initializes these two slowly, with a warning
T = TypeVar("T")


class Backbone(NamedTuple):
    """A network in eval mode that gives one feature vector per image.

    Attributes:
        name: as given to `open_backbone`.
        model: `(B, 3, H, W)` to `(B, num_features)`.
        prepare: images `(H, W, 3)` in uint8 to the input of `model`.
        fingerprint: a hash of everything the features depend on.
        num_features: the size of a feature vector.
        text: a description for reports.
    """

    name: str
    model: nn.Module
    prepare: Callable[[list[Array]], Tensor]
    fingerprint: str
    num_features: int
    text: str


class DigitNetwork(nn.Module):
    """Three stages of convolutions on gray images of 8 x 8 pixels; the three channels of its input are averaged.

    Example:
        >>> DigitNetwork().eval()(torch.zeros(2, 3, 8, 8)).shape
        torch.Size([2, 128])
    """

    def __init__(self, num_features: int = 128) -> None:
        super().__init__()

        def block(channels_in: int, channels_out: int) -> nn.Sequential:
            convolution = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(channels_out), nn.ReLU())

        self.stem = block(1, 32)
        self.middle = nn.Sequential(block(32, 48), nn.MaxPool2d(2))
        self.top = nn.Sequential(block(48, 64), block(64, num_features))

    def forward(self, x: Tensor) -> Tensor:
        maps: Tensor = self.top(self.middle(self.stem(x.mean(1, keepdim=True))))
        return maps.mean((2, 3))


def open_backbone(
    name: str,
    *,
    weights: str | None = None,
    size: int | None = None,
    layer: str | None = None,
    pooling: Pooling = "mean",
    random_weights: bool = False,
) -> Backbone:
    """A pretrained network by its name.

    Args:
        name: `"digits"`, a small network for digits that comes with the package; a name of torchvision or timm, with its
            own pretrained weights (`timm/NAME` insists on timm's); `"identity"`, the pixels themselves.
        weights: a local file instead (.safetensors, .pth, .th). It must fit the network, with or without its classifier, or
            one part of it, such as `features` of a VGG, which is then the backbone.
        size: edge of the images in pixels; `None` is what the network was trained with (`"identity"`: 32).
        layer: take the output of this layer; `None` is what goes into the classifier.
        pooling: of maps and tokens to vectors, see `torchkrr.models.pool`.
        random_weights: an untrained network, always with the same random weights.

    Example:
        >>> backbone = open_backbone("identity", size=8)
        >>> backbone.num_features, backbone.text
        (192, 'identity: the pixels, 8 px bicubic, 192 features')
    """
    if name == "identity":
        if weights is not None or layer is not None:
            raise InputError("The backbone identity has neither weights nor layers: its features are the pixels.")
        prepare = Preparation(IDENTITY_SIZE if size is None else size, (0.0,) * 3, (1.0,) * 3, "bicubic")
        return _backbone(name, nn.Flatten(), prepare, "the pixels", None, "flatten", most=3 * prepare.size**2)
    return _backbone(name, *open_network(name, weights=weights, size=size, random_weights=random_weights), layer, pooling)


def wrap_backbone(
    network: nn.Module,
    *,
    name: str,
    size: int,
    mean: Sequence[float] = IMAGENET_MEAN,
    std: Sequence[float] = IMAGENET_STD,
    interpolation: str = "bicubic",
    layer: str | None = None,
    pooling: Pooling = "mean",
) -> Backbone:
    """A backbone from a network of your own, `(B, 3, size, size)` in; it is put into eval mode.

    Example:
        >>> wrap_backbone(torch.nn.Conv2d(3, 5, 3), name="mine", size=9).num_features
        5
    """
    return _backbone(name, network, Preparation(size, mean, std, interpolation), "a network of yours", layer, pooling)


def open_network(
    name: str, *, weights: str | None = None, size: int | None = None, random_weights: bool = False
) -> tuple[nn.Module, Preparation, str]:
    """A pretrained network without its classifier, the preparation of its images, and a description of its origin.

    Args:
        name, weights, size, random_weights: as in `open_backbone`, without `"identity"`.
    """
    if weights is not None and random_weights:
        raise InputError("Either weights from a file or random ones: give one of the two.")
    if name == "digits":
        if size not in (None, DIGIT_SIZE):
            raise InputError(f"The backbone digits takes images of {DIGIT_SIZE} px, got size={size}.")
        network: nn.Module = _seeded(0, DigitNetwork)
        if not random_weights:
            network = load_weights(network, DIGIT_WEIGHTS if weights is None else weights)
        prepare, source = Preparation(DIGIT_SIZE, (0.0,) * 3, (1.0,) * 3, "bilinear"), "part of torchkrr"
    else:
        network, prepare, source = library_network(name, weights=weights, size=size, random_weights=random_weights)
    if weights is not None:
        return network, prepare, f"{source}, weights {pathlib.Path(weights).name}"
    return network, prepare, f"{source}, {'random weights' if random_weights else 'its pretrained weights'}"


def library_network(
    name: str, *, weights: str | None, size: int | None, random_weights: bool, seed: int = 0
) -> tuple[nn.Module, Preparation, str]:
    """A network of torchvision or, if that has none of the name, of timm; `torchvision/NAME` and `timm/NAME` insist.

    Returns the network without its classifier, the preparation of its images, and the name of the library. `seed` is that
    of random weights.
    """
    source, _, rest = name.rpartition("/") if name.startswith(("torchvision/", "timm/")) else ("", "", name)
    names = _library_names()
    if source in ("", "torchvision") and rest in names.get("torchvision", ()):
        return *_from_torchvision(rest, weights, size, random_weights, seed), "torchvision"
    if source in ("", "timm") and (
        rest in names.get("timm", ())
        # On the hub, or with a tag (`resnet18.a1_in1k`).
        or rest.startswith(("hf-hub:", "hf_hub:"))
        or import_extra("timm", "This backbone", extra="vision").is_model(rest)
    ):
        return *_from_timm(rest, weights, size, random_weights, seed), "timm"
    near = difflib.get_close_matches(rest, sorted({"digits", "identity"}.union(*names.values())), 5, cutoff=0.6)
    hint = f"Did you mean {', '.join(near)}?" if near else "Names: torchvision.models.list_models(), timm.list_models()."
    raise InputError(f"There is no backbone {name!r} in {' or '.join(names)}. {hint}")


def in_eval_mode(network: nn.Module) -> nn.Module:
    """The network as features are computed with it: in eval mode, with channels last in memory."""
    used: nn.Module = network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return used


def trial(name: str, prepare: Preparation, features: Callable[[Tensor], T]) -> T:
    """`features` of a blank image; an error that names the size where a network cannot take images of it."""
    blank = prepare([np.full((prepare.size, prepare.size, 3), 128, dtype=np.uint8)])
    with torch.inference_mode():
        try:
            return features(blank)
        except InputError:
            raise
        # Networks that take one size only say so in their own ways.
        except (RuntimeError, AssertionError, ValueError, TypeError) as error:
            raise InputError(f"{name} cannot take images of {prepare.size} px: {error}. Try another size.") from error


def prefix_tokens(network: nn.Module) -> int:
    """The number of class and register tokens before the tokens of patches."""
    return int(getattr(network, "num_prefix_tokens", 1 if hasattr(network, "class_token") else 0))


def has_channels_last(network: nn.Module) -> bool:
    """Whether its maps are `(B, H, W, C)`."""
    return str(getattr(network, "output_fmt", "")).endswith("NHWC") or type(network).__name__ == "SwinTransformer"


def backbone_fingerprint(model: Tapped | Depths, prepare: Preparation) -> str:
    """A hash of architecture, weights, preparation and all settings."""
    architecture = re.sub(r" at 0x[0-9a-f]+", "", str(model))
    where = model.layer if isinstance(model, Tapped) else model.layers
    settings = (where, model.pooling, model.num_prefix_tokens, model.channels_last, model.most)
    parts = [str(VERSION), architecture, weights_hash(model), repr(prepare), repr(settings)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _backbone(
    name: str, network: nn.Module, prepare: Preparation, origin: str, layer: str | None, pooling: Pooling, **settings: int
) -> Backbone:
    check_choice("pooling", pooling, POOLINGS[:-1])
    layer, network = layer or "", in_eval_mode(network)
    raw = trial(name, prepare, lambda blank: features_at(network, layer, blank))
    if raw.ndim == 2 and pooling not in ("mean", "flatten"):
        raise InputError(
            f"{name} gives vectors {'at its end' if not layer else f'at {layer!r}'}, so there is nothing to pool by "
            f"{pooling!r}. Name a layer that gives maps or tokens."
        )
    model = Tapped(
        network,
        layer,
        pooling,
        num_prefix_tokens=prefix_tokens(network) if raw.ndim == 3 else 0,
        channels_last=has_channels_last(network),
        **settings,
    ).eval()
    num_features = trial(name, prepare, model).shape[1]
    what = "" if raw.ndim == 2 and not layer else f", {pooling} of {layer or 'the last maps'} {tuple(raw.shape[1:])}"
    text = f"{name}: {origin}, {prepare.describe()}{what}, {num_features} features"
    return Backbone(name, model, prepare, backbone_fingerprint(model, prepare), num_features, text)


def _library_names() -> dict[str, list[str]]:
    names: dict[str, list[str]] = {}
    if importlib.util.find_spec("torchvision"):
        models = import_torchvision("torchvision.models")
        names["torchvision"] = models.list_models(module=models)
    if importlib.util.find_spec("timm"):
        import_torchvision()  # which timm imports
        names["timm"] = import_extra("timm", "This backbone", extra="vision").list_models()
    if not names:
        raise MissingExtraError('Backbones by name need torchvision or timm: pip install "torchkrr[vision]".')
    return names


def _from_torchvision(
    name: str, weights: str | None, size: int | None, random_weights: bool, seed: int
) -> tuple[nn.Module, Preparation]:
    models = import_torchvision("torchvision.models")
    pretrained = models.get_model_weights(name).DEFAULT
    if weights is None and not random_weights:
        with _download_errors(name):
            network = models.get_model(name, weights=pretrained)
    else:
        options = {"init_weights": False} if name in UNINITIALIZED else {}
        network = _seeded(seed, models.get_model, name, weights=None, **options)
    linear = [module_name for module_name, module in network.named_modules() if isinstance(module, nn.Linear)]
    head = linear[-1] if linear else None
    if head is not None:  # the classifier
        parent, _, child = head.rpartition(".")
        setattr(network.get_submodule(parent), child, nn.Identity())
    if weights is not None:
        network = load_weights(network, weights, head=head)
    usual = pretrained.transforms()
    return network, _preparation(size, usual.crop_size[0], usual.mean, usual.std, str(usual.interpolation.value))


def _from_timm(
    name: str, weights: str | None, size: int | None, random_weights: bool, seed: int
) -> tuple[nn.Module, Preparation]:
    timm = import_extra("timm", "This backbone", extra="vision")
    usual = timm.get_pretrained_cfg(name)
    options: dict[str, Any] = {"num_classes": 0}
    if size is not None and usual is not None and usual.fixed_input_size:
        options["img_size"] = size  # positions are interpolated
    if weights is None and not random_weights:
        with _download_errors(name):
            network = timm.create_model(name, pretrained=True, **options)
    else:
        network = _seeded(seed, timm.create_model, name, pretrained=False, **options)
    config = import_extra("timm.data", "This backbone", extra="vision").resolve_data_config({}, model=network)
    if weights is not None:
        network = load_weights(network, weights, head=network.pretrained_cfg.get("classifier"))
    return network, _preparation(size, config["input_size"][-1], config["mean"], config["std"], config["interpolation"])


def _preparation(size: int | None, usual: int, mean: Any, std: Any, mode: str) -> Preparation:
    return Preparation(usual if size is None else size, mean, std, mode if mode in INTERPOLATIONS else "bicubic")


def _seeded(seed: int, make: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The same random weights for a seed in every run; the caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*args, **options)


@contextlib.contextmanager
def _download_errors(name: str) -> Iterator[None]:
    """Whatever a download raises becomes one error that says what else can be done."""
    try:
        yield
    except MissingExtraError:
        raise
    except Exception as error:
        raise FileError(
            f"The pretrained weights of {name} cannot be downloaded: {' '.join(str(error).split())[:300]}. "
            "Give a local file (--weights FILE), or try again with a network."
        ) from error

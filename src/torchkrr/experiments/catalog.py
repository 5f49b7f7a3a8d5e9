"""Networks of torchvision and timm by name, without their classifiers."""

from __future__ import annotations

import difflib
import importlib.util
from typing import Any, NamedTuple

import torch
from torch import nn

from ..errors import FileError, InputError, MissingExtraError
from ._torchvision import torchvision_module
from .extras import needed
from .preparing import MODES, Preparation, preparation
from .weight_files import load_weights

OWN_INITIALIZATION = ("googlenet", "inception_v3")  # which these two do by default, slowly and with a warning


class Network(NamedTuple):
    """A network that gives features, how it wants its pictures, and where it is from."""

    module: nn.Module
    prepare: Preparation
    source: str  # "torchvision" or "timm"


def library_network(name: str, *, weights: str | None, size: int | None, random_weights: bool, seed: int = 0) -> Network:
    """A network of torchvision or, if that has none of the name, of timm; `torchvision/NAME` and `timm/NAME` insist.

    `seed` is that of random weights.
    """
    source, _, rest = name.rpartition("/") if name.startswith(("torchvision/", "timm/")) else ("", "", name)
    known = {library: rest in names for library, names in _names().items()}
    if source in ("", "torchvision") and known.get("torchvision"):
        return _from_torchvision(rest, weights, size, random_weights, seed)
    if source in ("", "timm") and (known.get("timm") or _timm_knows(rest)):
        return _from_timm(rest, weights, size, random_weights, seed)
    every = sorted({"digits", "identity"}.union(*_names().values()))
    near = difflib.get_close_matches(rest, every, 5, cutoff=0.6)
    hint = f"Did you mean {', '.join(near)}?" if near else "Names: torchvision.models.list_models(), timm.list_models()."
    raise InputError(f"There is no backbone {name!r} in {' or '.join(known)}. {hint}")


def _names() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    if importlib.util.find_spec("torchvision"):
        models = torchvision_module("torchvision.models")
        found["torchvision"] = models.list_models(module=models)
    if importlib.util.find_spec("timm"):
        torchvision_module()  # which timm imports
        found["timm"] = needed("timm", "This backbone").list_models()
    if not found:
        raise MissingExtraError('Backbones by name need torchvision or timm: pip install "torchkrr[vision]".')
    return found


def _timm_knows(name: str) -> bool:
    """Names with a tag (`resnet18.a1_in1k`), or on the hub (`hf-hub:...`)."""
    return name.startswith(("hf-hub:", "hf_hub:")) or bool(needed("timm", "This backbone").is_model(name))


def _from_torchvision(name: str, weights: str | None, size: int | None, random_weights: bool, seed: int) -> Network:
    models = torchvision_module("torchvision.models")
    choices: dict[str, Any] = {"init_weights": False} if name in OWN_INITIALIZATION else {}
    best = models.get_model_weights(name).DEFAULT
    if weights is None and not random_weights:
        with _explained(name):
            network = models.get_model(name, weights=best)
    else:
        network = _seeded(seed, models.get_model, name, weights=None, **choices)
    head = _cut_classifier(network)
    if weights is not None:
        network = load_weights(network, weights, head=head)
    usual = best.transforms()
    mode = str(usual.interpolation.value)
    return Network(network, _preparation(size, usual.crop_size[0], usual.mean, usual.std, mode), "torchvision")


def _from_timm(name: str, weights: str | None, size: int | None, random_weights: bool, seed: int) -> Network:
    timm = needed("timm", "This backbone")
    usual = timm.get_pretrained_cfg(name)
    choices: dict[str, Any] = {"num_classes": 0}
    if size is not None and usual is not None and usual.fixed_input_size:
        choices["img_size"] = size  # positions are interpolated
    if weights is None and not random_weights:
        with _explained(name):
            network = timm.create_model(name, pretrained=True, **choices)
    else:
        network = _seeded(seed, timm.create_model, name, pretrained=False, **choices)
    config = needed("timm.data", "This backbone").resolve_data_config({}, model=network)
    if weights is not None:
        network = load_weights(network, weights, head=network.pretrained_cfg.get("classifier"))
    prepare = _preparation(size, config["input_size"][-1], config["mean"], config["std"], config["interpolation"])
    return Network(network, prepare, "timm")


def _preparation(size: int | None, usual: int, mean: Any, std: Any, mode: str) -> Preparation:
    return preparation(usual if size is None else size, mean, std, mode if mode in MODES else "bicubic")


def _seeded(seed: int, make: Any, *args: Any, **choices: Any) -> Any:
    """The same random weights in every run of a seed; the caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make(*args, **choices)


def _cut_classifier(network: nn.Module) -> str | None:
    """Put nothing in the place of the last linear layer; returns its name."""
    names = [name for name, module in network.named_modules() if isinstance(module, nn.Linear)]
    if not names:
        return None
    parent, _, child = names[-1].rpartition(".")
    setattr(network.get_submodule(parent), child, nn.Identity())
    return str(names[-1])


class _explained:
    """Whatever a download runs into ends in one message that says what else can be done."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, MissingExtraError):
            raise FileError(
                f"The pretrained weights of {self.name} cannot be had: {' '.join(str(error).split())[:300]}. "
                "Give a local file (--weights FILE), or try again with a network."
            ) from error

"""Peers that may not be installed: each is imported where it is used, and its absence has a text of its own."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import sys
from types import ModuleType, SimpleNamespace

ADVICE = "not installed: pip install -r benchmarks/requirements.txt"
PEERS = {"scipy": "scipy", "sklearn": "scikit-learn", "faiss": "faiss-cpu", "gpytorch": "gpytorch", "MuyGPyS": "muygpys"}


class NotInstalledError(Exception):
    """Carries what the tables say of a peer that is not there."""


def require(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise NotInstalledError(ADVICE) from error


def versions() -> dict[str, str]:
    """Of every peer, or what to do about it."""
    return {package: _version(module, package) for module, package in PEERS.items()}


def _version(module: str, package: str) -> str:
    try:
        require(module)
    except NotInstalledError as error:
        return str(error)
    return importlib.metadata.version(package)


@functools.cache
def muygpys(backend: str, bits: int = 32) -> SimpleNamespace:
    """MuyGPyS with "torch" or "numpy", in float32 or float64.

    It chooses once, when it is imported; copies of it, kept out of `sys.modules`, can be measured in turns.
    """
    _forget_muygpys()
    config = require("MuyGPyS").config
    config.update("muygpys_backend", backend)
    config.update("muygpys_ftype", str(bits))
    parts = ("gp", "gp.kernels", "gp.deformation", "gp.hyperparameter", "gp.noise", "neighbors")
    modules = {part.rpartition(".")[2]: require(f"MuyGPyS.{part}") for part in parts}
    _forget_muygpys()
    return SimpleNamespace(**modules)


def _forget_muygpys() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "MuyGPyS" and sys.modules[name] is not None]:
        del sys.modules[name]

"""Differentiable kernel ridge regression for PyTorch: a lazy head that needs no training.

Namespaces: `functional` (the mathematics), `nn` (the same as layers), `kernels`, `transforms`,
`neighbors`, `tuning` (what is chosen from the data), `losses`, `models` (networks that end in a kernel),
`estimators` (scikit-learn's vocabulary), `vision` (images to features), `distributed` (centers spread over processes),
`errors`.
"""

import importlib
from typing import TYPE_CHECKING

from . import errors, functional, kernels, losses, models, neighbors, nn, transforms, tuning
from .core.compiled import backend_report
from .tuning import calibrate, learn_metric, select, tune

if TYPE_CHECKING:
    from .vision.probing import probe as probe

__all__ = [
    "__version__",
    "backend_report",
    "calibrate",
    "errors",
    "functional",
    "kernels",
    "learn_metric",
    "losses",
    "models",
    "neighbors",
    "nn",
    "select",
    "transforms",
    "tune",
    "tuning",
]
__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    """Imported when it is first asked for: what is optional, or slow to import."""
    if name in ("distributed", "estimators", "vision"):
        return importlib.import_module(f".{name}", __name__)
    if name == "probe":
        return importlib.import_module(".vision.probing", __name__).probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

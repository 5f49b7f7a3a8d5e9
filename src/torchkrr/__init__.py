"""Differentiable kernel ridge regression for PyTorch: a lazy head that needs no training.

Namespaces: `functional` (the mathematics), `nn` (the same as layers), `kernels`, `transforms`, `neighbors`, `tuning` (what
is chosen from the data), `losses`, `models` (networks that end in a kernel), `estimators` (scikit-learn's vocabulary),
`interpolate` (scipy's `RBFInterpolator`), `vision` (images to features), `text` (sentences to embeddings), `quality` (label
errors, outliers, duplicates, what to label next), `distributed` (centers spread over processes), `stores` (rows in a
database), `errors`.
"""

import importlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from . import distributed as distributed
    from . import errors, functional, kernels, losses, models, neighbors, nn, transforms, tuning
    from . import estimators as estimators
    from . import interpolate as interpolate
    from . import quality as quality
    from . import stores as stores
    from . import text as text
    from . import vision as vision
    from .core.compiled import backend_report
    from .estimators import LocalKernelRidgeClassifier as LocalKernelRidgeClassifier
    from .estimators import LocalKernelRidgeRegressor as LocalKernelRidgeRegressor
    from .quality import audit as audit
    from .quality import suggest as suggest
    from .storage import load, save
    from .tuning import calibrate, learn_metric, tune
    from .tuning.select import select as select
    from .vision.probing import probe as probe

__all__ = [
    "__version__",
    "backend_report",
    "calibrate",
    "errors",
    "functional",
    "kernels",
    "learn_metric",
    "load",
    "losses",
    "models",
    "neighbors",
    "nn",
    "save",
    "select",
    "transforms",
    "tune",
    "tuning",
]
__version__ = "0.2.0"

_MODULES_OF_NAMES = {
    **dict.fromkeys(("calibrate", "learn_metric", "select", "tune"), "tuning"),
    "backend_report": "core.compiled",
    "probe": "vision.probing",
    **dict.fromkeys(("LocalKernelRidgeClassifier", "LocalKernelRidgeRegressor"), "estimators"),
    **dict.fromkeys(("audit", "suggest"), "quality"),
    **dict.fromkeys(("load", "save"), "storage"),
}


def __getattr__(name: str) -> object:
    """Import a name on first use, so that the command line and its help start without torch."""
    if name in _MODULES_OF_NAMES:
        value = getattr(importlib.import_module(f".{_MODULES_OF_NAMES[name]}", __name__), name)
    elif name in __all__ or name in ("distributed", "estimators", "interpolate", "quality", "stores", "text", "vision"):
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


# Exported models name the operators of search and solver, so `import torch, torchkrr` registers them.
if "torch" in sys.modules:
    for _module in (".neighbors", ".core.traced"):
        importlib.import_module(_module, __name__)

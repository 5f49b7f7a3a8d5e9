"""torchvision, also where its compiled part and torch do not fit together."""

from __future__ import annotations

import sys
from types import ModuleType

import torch

from .extras import needed

# Box operators that torchvision describes to torch when it is imported, although its compiled part, which declares them,
# could not be loaded: a CUDA build beside a CPU build of torch. No classifier uses them.
MISSING = "operator torchvision::"
SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared: list[torch.library.Library] = []  # a declaration lasts as long as its library object


def torchvision_module(name: str = "torchvision", what: str = "This backbone") -> ModuleType:
    """`torchvision`, or a part of it, which `what` needs. Two operators that its import may want are declared if missing."""
    try:
        needed("torchvision", what)
    except RuntimeError as error:
        if MISSING not in str(error) or _declared:
            raise
        library = torch.library.Library("torchvision", "DEF")
        for schema in SCHEMAS:
            library.define(schema)
        _declared.append(library)
        for half_imported in [module for module in sys.modules if module.split(".")[0] == "torchvision"]:
            del sys.modules[half_imported]
        needed("torchvision", what)
    return needed(name, what)

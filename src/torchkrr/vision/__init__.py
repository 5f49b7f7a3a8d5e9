"""Images to features: backbones, data sets, cached features, readouts on them, and probing."""

from typing import TYPE_CHECKING

from .backbones import Backbone, DigitNetwork, open_backbone, open_network, wrap_backbone
from .datasets import Split, open_dataset
from .features import Extraction, extract
from .images import FeatureSet, ImageArray, ImageFiles, Images, ImageSubset, Preparation, read_image
from .weights import load_weights, read_weights

if TYPE_CHECKING:
    from .probing import ProbeResult, probe

__all__ = [
    "Backbone",
    "DigitNetwork",
    "Extraction",
    "FeatureSet",
    "ImageArray",
    "ImageFiles",
    "ImageSubset",
    "Images",
    "Preparation",
    "ProbeResult",
    "Split",
    "extract",
    "load_weights",
    "open_backbone",
    "open_dataset",
    "open_network",
    "probe",
    "read_image",
    "read_weights",
    "wrap_backbone",
]


def __getattr__(name: str) -> object:
    """Probing needs scikit-learn, which the rest does not."""
    if name not in ("ProbeResult", "probe"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import probing

    return getattr(probing, name)

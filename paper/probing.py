"""Readouts at five depths of two frozen networks, the paper's section 4.2, by `torchkrr probe`.

python -m paper.probing --weights FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .options import run_torchkrr

READOUTS = "sk,linear,knn"
NETWORK = "tf_efficientnet_lite0"
SETTINGS = {
    "probe-vgg16": {
        "dataset": "cifar10",
        "backbone": "vgg16",
        "weights": "vgg16_features.imagenet.fp16.safetensors",
        "size": "64",
        "train-limit": "10000",
        "readouts": READOUTS,
    },
    "probe-lite0": {
        "dataset": "cifar10",
        "backbone": NETWORK,
        "weights": f"{NETWORK}.imagenet.safetensors",
        "size": "96",
        "readouts": READOUTS,
    },
}
SMOKE = {
    "probe-smoke": {"dataset": "digits", "backbone": "digits", "sizes": "60", "seeds": "1", "readouts": "sk,knn"},
}


def main(argv: Sequence[str] | None = None) -> int:
    return run_torchkrr("probe", SETTINGS, SMOKE, argv)


if __name__ == "__main__":
    sys.exit(main())

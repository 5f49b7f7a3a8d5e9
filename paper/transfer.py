"""Readouts of a frozen network against the number of labels, the paper's section 4.1, by `torchkrr transfer`.

python -m paper.transfer --weights FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from torchkrr.vision.readouts import READOUTS

from .options import run_torchkrr

NETWORK = "tf_efficientnet_lite0"
SETTINGS = {
    "transfer-cifar10": {
        "dataset": "cifar10",
        "backbone": NETWORK,
        "weights": f"{NETWORK}.imagenet.safetensors",
        "size": "160",
        "budgets": "100,300,1000,3000,10000,all",
        "readouts": ",".join(READOUTS),
    }
}
SMOKE = {"transfer-smoke": {"dataset": "digits", "backbone": "digits", "budgets": "30", "seeds": "1", "readouts": "sk,knn"}}


def main(argv: Sequence[str] | None = None) -> int:
    return run_torchkrr("transfer", "python -m paper.transfer", SETTINGS, SMOKE, argv)


if __name__ == "__main__":
    sys.exit(main())

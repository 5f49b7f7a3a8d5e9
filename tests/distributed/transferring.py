"""Transfer runs in each process: python -m tests.distributed.transferring FOLDER.

With a second argument, the second process dies at its third batch of features.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

from tests.distributed.commands import run

from torchkrr.vision import features

DIES_AT = 3
compute, computed = features._features, []


def dying(*arguments):
    computed.append(compute(*arguments))
    if len(computed) == DIES_AT and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
    return computed[-1]


if __name__ == "__main__":
    if len(sys.argv) > 2:
        features._features = dying
    run(pathlib.Path(sys.argv[1]))

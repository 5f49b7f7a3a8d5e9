"""The command `torchkrr`, whose second process dies after two parts when it is started for the first time.

Each process writes which parts it predicted, in which of its lives.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys
import time

from torchkrr import cli
from torchkrr.cli import predict

LIFE = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
LOG = pathlib.Path(os.environ.get("PREDICTED", ""))
predict_together = predict._predict_together


def counted(team, data, piece, predicted):
    with LOG.open("a") as file:
        file.write(f"{LIFE} {team.comm.rank} {data.length(piece)}\n")
    if LIFE == "0" and team.comm.rank == 1 and calls("0 1") == 3:
        while calls("0 0") < 3:  # until the first process has written the second part
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return predict_together(team, data, piece, predicted)


def calls(start: str) -> int:
    return sum(line.startswith(f"{start} ") for line in LOG.read_text().splitlines())


if __name__ == "__main__":
    predict._predict_together = counted
    sys.exit(cli.main())

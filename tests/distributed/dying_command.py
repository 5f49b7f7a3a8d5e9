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
from torchkrr.commands.ranks import Ranks

LIFE = os.environ.get("TORCHELASTIC_RESTART_COUNT", "")
LOG = pathlib.Path(os.environ.get("PREDICTED", ""))
predicted = Ranks.predicted


def counted(self, part, read, predict):
    with LOG.open("a") as file:
        file.write(f"{LIFE} {self.comm.rank} {part.num_rows}\n")
    if LIFE == "0" and self.comm.rank == 1 and calls("0 1") == 3:
        while calls("0 0") < 3:  # until the first process has written the second part
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return predicted(self, part, read, predict)


def calls(start: str) -> int:
    return sum(line.startswith(f"{start} ") for line in LOG.read_text().splitlines())


if __name__ == "__main__":
    Ranks.predicted = counted
    sys.exit(cli.main())

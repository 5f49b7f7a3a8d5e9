"""The command `torchkrr`, whose second process dies after two parts when it is started for the first time.

Each process writes which parts it predicted, in which of its lives.
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

from torchkrr import cli
from torchkrr.commands.ranks import Ranks

LIFE = os.environ["TORCHELASTIC_RESTART_COUNT"]
predicted = Ranks.predicted


def counted(self, part, read, predict):
    log = pathlib.Path(os.environ["PREDICTED"])
    with log.open("a") as file:
        file.write(f"{LIFE} {self.wire.rank} {part.num_rows}\n")
    mine = sum(line.startswith(f"{LIFE} 1 ") for line in log.read_text().splitlines())
    if LIFE == "0" and self.wire.rank == 1 and mine == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return predicted(self, part, read, predict)


if __name__ == "__main__":
    Ranks.predicted = counted
    sys.exit(cli.main())

"""Commands one after another in each process that torchrun has started: python -m tests.distributed.commands FOLDER."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pathlib
import sys

from torchkrr.cli import main


def run(folder: pathlib.Path) -> None:
    for name, arguments in json.loads((folder / "launches.json").read_text()).items():
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(arguments)
        found = {"code": code, "out": out.getvalue(), "err": err.getvalue()}
        (folder / f"{name}-{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    run(pathlib.Path(sys.argv[1]))

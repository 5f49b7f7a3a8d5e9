"""The launches that tests of this folder share, also when several processes run the tests."""

from __future__ import annotations

import json
import os
import pathlib
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed
from tests.distributed.launching import launch

# Programs for torchrun, not modules to look for examples in.
collect_ignore = ["commands.py", "dying_command.py", "failing.py", "fully_sharded.py", "transferring.py"]


@pytest.fixture(scope="session")
def checked(tmp_path_factory):
    """What every rank found in every check."""
    return once(tmp_path_factory, "checks", launch)


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[pathlib.Path], Any]) -> Any:
    """`make(folder)`, by whichever test process comes first; the others wait for what it found."""
    if not torch.distributed.is_available():
        pytest.skip("torch was built without distributed")
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder, result = shared / name, shared / f"{name}.json"
    try:
        folder.mkdir()
    except FileExistsError:
        for _ in range(2500):
            if result.exists():
                break
            time.sleep(0.1)
        return json.loads(result.read_text())
    try:
        found = make(folder)
    except BaseException as error:
        found = {"failed": repr(error)}
        raise
    finally:
        partial = shared / f"{name}.partial"
        partial.write_text(json.dumps(found))
        partial.rename(result)
    return found

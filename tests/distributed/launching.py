"""Four processes, started once, that run every check on their first one, two, three and four ranks."""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Callable

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing
from tests.distributed.checks import CHECKS, DTYPES
from tests.distributed.problems import TOLERANCE, World

SIZES = (1, 2, 3, 4)
Results = dict[str, dict[str, float | bool | str]]  # of "check, dtype, size, rank"


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def torchrun(*arguments: object, **environment: str) -> dict[str, int | str]:
    """What two processes that torchrun starts return and say."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *map(str, arguments)]
    everything = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **environment}
    done = subprocess.run(command, env=everything, capture_output=True, timeout=270, check=False)
    # Not as text, which would make a line of every step of a progress bar.
    return {"code": done.returncode, "out": done.stdout.decode(), "err": done.stderr.decode()}


def run_checks(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("error")
    limit = datetime.timedelta(seconds=1500)  # the last rank waits for its turn while others check without it
    address = f"tcp://127.0.0.1:{port}"
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=max(SIZES), timeout=limit)
    results: Results = {}
    groups = {size: dist.new_group(list(range(size)), timeout=limit) for size in SIZES}
    for size, group in groups.items():
        if rank >= size:
            continue
        for name, (check, dtypes) in CHECKS.items():
            for dtype in dtypes:
                place = pathlib.Path(folder) / f"{name}-{dtype}-{size}".replace(" ", "-")
                start = time.monotonic()
                try:
                    found = check(World(group, rank, size, str(place)), DTYPES[dtype])
                except Exception:
                    found = {"finished": traceback.format_exc()}
                    print(found["finished"], flush=True)
                results[f"{name}, {dtype}, {size}, {rank}"] = found
                print(rank, size, name, dtype, f"{time.monotonic() - start:.2f} s", flush=True)
    pathlib.Path(folder, f"rank{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def launch(folder: pathlib.Path) -> Results:
    torch.multiprocessing.spawn(run_checks, (free_port(), str(folder)), nprocs=max(SIZES))
    results: Results = {}
    for rank in range(max(SIZES)):
        results |= json.loads((folder / f"rank{rank}.json").read_text())
    return results


def on_every_rank(*names: str) -> Callable[..., None]:
    """A test: each rank, in each dtype of these checks and for each number of ranks, finds what one process does."""
    cases = [(name, dtype) for name in names for dtype in CHECKS[name][1]]

    @pytest.mark.timeout(280)
    @pytest.mark.parametrize("size", SIZES)
    @pytest.mark.parametrize(("name", "dtype"), cases)
    def test(checked: Results, name: str, dtype: str, size: int) -> None:
        for rank in range(size):
            found = checked[f"{name}, {dtype}, {size}, {rank}"]
            assert found
            for what, value in found.items():
                assert not isinstance(value, str), f"rank {rank}: {value}"
                good = value if isinstance(value, bool) else value <= TOLERANCE[DTYPES[dtype]]
                assert good, f"rank {rank} of {size}, {what}: {value}"

    return test

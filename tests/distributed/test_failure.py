"""A rank that hangs or dies stops the others, which say so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.distributed.conftest import once
from tests.distributed.failing import SECONDS
from tests.distributed.launching import free_port


def run_three(folder):
    together = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "OMP_NUM_THREADS": "1"}
    environment = {**os.environ, **together, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "tests.distributed.failing"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    running = [subprocess.Popen(command, env={**environment, "RANK": str(rank)}, **pipes) for rank in range(3)]
    try:
        printed = [process.communicate(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    found = [json.loads(out) if out else {} for out, _ in printed]
    return {"codes": [process.returncode for process in running], "found": found, "errors": [text for _, text in printed]}


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return once(tmp_path_factory, "failing", run_three)


@pytest.mark.timeout(280)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_hangs_is_given_up_after_the_timeout(three, rank):
    message, seconds = three["found"][rank]["hangs"]
    assert f"Rank {rank} of 3 could not agree on sizes with the others" in message
    assert 0.5 * SECONDS < seconds < 4 * SECONDS


@pytest.mark.timeout(280)
@pytest.mark.parametrize("rank", [0, 2])
def test_others_wait_longer_than_the_timeout_for_a_rank_that_works(three, rank):
    assert three["found"][rank]["works"], three["errors"]


@pytest.mark.timeout(280)
@pytest.mark.parametrize("rank", [0, 2])
def test_a_rank_that_dies_is_noticed_long_before_the_timeout(three, rank):
    assert three["codes"] == [0, -signal.SIGKILL, 0], three["errors"]
    message, seconds = three["found"][rank]["dies"]
    assert f"Rank {rank} of 3 could not agree on sizes with the others" in message
    assert "One of them died" in message
    assert seconds < 60

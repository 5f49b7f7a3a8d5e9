"""The reinforcement learning examples run."""

import pathlib
import subprocess
import sys

import pytest

EXAMPLES = pathlib.Path(__file__).parents[1] / "examples"


def output(*command):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cleanrl_style():
    found = output(EXAMPLES / "cleanrl_style_dqn.py", "--kernel", "--steps", "400", "--learning-starts", "200")
    assert "with kernels: " in found


def test_stable_baselines3():
    pytest.importorskip("stable_baselines3")
    found = output(EXAMPLES / "stable_baselines3_kernel.py", "--steps", "1100", "--evaluation-games", "1")
    assert "layers: reward" in found
    assert "with kernels: reward" in found

"""The examples run."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

import torchkrr
from torchkrr import stores

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


@pytest.mark.skipif("LONG_EXAMPLES" not in os.environ, reason="a minute each: make examples")
@pytest.mark.parametrize("place", ["model", "store"])
def test_ray(tmp_path, place):
    """Two workers, each of which has predicted something; the rows keep their names."""
    pytest.importorskip("ray", reason="ray is not installed")
    pytest.importorskip("lancedb", reason="lancedb is not installed")
    rng, folder = np.random.default_rng(0), tmp_path / "in"
    rows = pd.DataFrame(rng.normal(size=(8_000, 5)), columns=list("abcde")).assign(id=range(8_000))
    labels = np.where(rows["a"] * rows["b"] > 0, "same", "other")
    model = torchkrr.LocalKernelRidgeClassifier(20, kernel="matern32", alpha=0.1, metric=None, prior="linear")
    model.fit(rows.loc[:499, list("abcde")], labels[:500])
    model.save(tmp_path / "model.krr")
    with stores.open_store(f"{tmp_path / 'lance'}#head", kernel=model.kernel_) as store:
        model.to_store(store)
    folder.mkdir()
    for at in range(16):
        rows[at * 500 : (at + 1) * 500].to_parquet(folder / f"{at}.parquet")
    named = ("--model", tmp_path / "model.krr") if place == "model" else ("--store", f"{tmp_path / 'lance'}#head")
    told = output(EXAMPLES / "ray_predict.py", "--data", folder, "--out", tmp_path / "out", "--batch-rows", 1000, *named)
    assert "8000 rows predicted by 2 workers" in told
    found = pd.read_parquet(tmp_path / "out").sort_values("id")
    assert found["id"].tolist() == list(range(8_000))
    assert found["worker"].nunique() == 2
    assert (found["prediction"].to_numpy() == model.predict(rows[list("abcde")])).mean() > 0.999

"""The comparison of audits, on data of its own: every method finds injected errors, and the page says what was measured."""

import json
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits

from benchmarks import audit, harness


@pytest.fixture
def data(tmp_path):
    """Digits instead of pictures, words and tables."""
    x, y = load_digits(return_X_y=True)
    x, y = x[:500], y[:500]
    torch.save({"x": torch.from_numpy(x), "y": torch.from_numpy(y)}, tmp_path / "cifar.pt")
    np.savez(tmp_path / "human.npz", **{kind: audit.uniform(y, 0.1) for kind in audit.HUMAN})
    np.save(tmp_path / "banking77_train_x.npy", x)
    np.save(tmp_path / "banking77_train_y.npy", y.astype(str))
    for name in audit.TABLES:
        (tmp_path / name).mkdir()
        pd.DataFrame(x[:, 10:20]).assign(target=y).to_csv(tmp_path / name / "data.csv.gz", index=False)
    for name in audit.NUMBERS:
        (tmp_path / name).mkdir()
        grid = np.random.default_rng(0).uniform(size=(200, 3))
        np.savetxt(tmp_path / name / "data.csv.gz", np.column_stack((grid, grid.sum(1))), delimiter=",")
    return tmp_path


def test_all_problems_are_run_and_reported(data, monkeypatch, capsys):
    places = {"features": "cifar.pt", "human": "human.npz", "text": ".", "tables": ".", "numbers": "."}
    words = [word for name, place in places.items() for word in (f"--{name}", str(data / place))]
    methods = f"{audit.OURS},{audit.VOTE}"  # cleanlab is not among the development tools
    monkeypatch.setattr(sys, "argv", ["audit", *words, "--methods", methods, "--out", str(data)])
    audit.main()
    page = (data / "audit.md").read_text()
    assert capsys.readouterr().out.endswith(page + "\n")
    found = {one["data"]: one for one in map(json.loads, (data / "audit.jsonl").read_text().splitlines()[1:])}
    assert len(found) == 12
    assert all(one["auroc"] > 0.7 for one in found.values())
    assert "CIFAR-10N, worst" in page
    assert "an audit of 50,000 rows in at most 40 s" in page


def test_injected_errors_are_what_they_say():
    y = np.arange(10).repeat(300)
    for given, share in ((audit.uniform(y, 0.2), 0.2), (audit.confused(y, 0.3), 0.15)):
        assert abs((given != y).mean() - share) < 0.03
    assert set(map(tuple, np.stack((y, audit.confused(y, 0.3)))[:, audit.confused(y, 0.3) != y].T.tolist())) == set(
        audit.CONFUSED.items()
    )
    rows = np.eye(10)[y] + 5 * (y[:, None] // 2 == np.arange(5)).astype(float).repeat(2, 1)
    moved = audit.to_nearest(rows, y, 1.0)
    assert (moved // 2 == y // 2).all()
    assert (moved != y).all()


def test_a_method_that_is_not_installed_is_named(monkeypatch):
    def missing(problem, numbers):
        raise audit.NotInstalledError("not here")

    monkeypatch.setitem(audit.METHODS, audit.CLEANLAB, missing)
    problem = audit.Problem(np.eye(4), np.arange(4), np.array([True, False, False, False]))
    assert audit.run("x", False, lambda: problem, audit.CLEANLAB)["missing"] == "not here"
    assert isinstance(harness.environment()["commit"], str)

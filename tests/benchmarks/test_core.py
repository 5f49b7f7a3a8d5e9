"""The benchmark of the core, in tiny sizes: every number of the table is there."""

import json
import subprocess

import pytest

from benchmarks import core, harness


def test_quick_cases_and_their_table(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(core, "SOLVES", {"local solve, D=8": (8, 300, 20, 30), core.FEW: (160, 60, 30, 40)})
    monkeypatch.setattr(core, "PRODUCT", 64)
    monkeypatch.setattr(core, "growth", lambda queries, centers: {"seconds": {"search": 1.0}, "queries": 1, "centers": 2})
    core.main(["--quick", "--out", str(tmp_path)])
    assert capsys.readouterr().out.endswith((tmp_path / "core.md").read_text() + "\n")
    records = {found["case"]: found for found in map(json.loads, (tmp_path / "core.jsonl").read_text().splitlines())}
    found = records["local solve, D=8"]
    operations = 20**2 * 8 + 20**3 / 3
    assert found["gflops"] == pytest.approx(1e-3 * operations / found["forward_us"]["torchkrr"])
    assert found["of_product"] == pytest.approx(found["gflops"] / found["product_gflops"])
    assert max(found["rmse_against_float64"].values()) < 1e-2
    text = (tmp_path / "core.md").read_text()
    assert f"{found['gflops']:.0f} GFLOP/s" in text
    assert "search 1000 ms" in text


def test_instructions_per_cycle_or_none(monkeypatch):
    found = harness.instructions_per_cycle(lambda: sum(range(1000)), seconds=0.2)
    assert found is None or 0.05 < found < 10

    def missing(*_, **__):
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", missing)
    assert harness.instructions_per_cycle(lambda: None) is None

"""The comparison of corrections, on a ResNet-20 with random weights and a few pictures of noise; and its example."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest
import torch

from benchmarks import harness, mending, mending_report

FEW, CORRECTED = 60, 20
METHODS = {name: settings[:1] for name, settings in mending.METHODS.items()}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mending")
    torch.manual_seed(0)
    network = sys.modules["mend_resnet"].ResNet20()
    torch.save(
        {"state_dict": {f"module.{name}": each for name, each in network.state_dict().items()}}, folder / "weights.th"
    )
    rng = np.random.default_rng(0)
    arrays = {}
    for part in ("train", "test"):
        arrays[f"x_{part}"] = rng.integers(0, 256, (FEW, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = np.arange(FEW) % 10
    np.savez(folder / "pictures.npz", **arrays)
    return mending.Source(folder / "weights.th", str(folder / "pictures.npz"))


@pytest.fixture(autouse=True)
def _few(monkeypatch):
    for name, value in {"CORRECTED": CORRECTED, "PINNED": FEW, "SEEDS": range(2), "METHODS": METHODS}.items():
        monkeypatch.setattr(mending, name, value)


def test_records_table_and_figure(source, tmp_path):
    records = harness.record(tmp_path / "mending.jsonl", mending.cases(source))
    assert len(records) == 1 + 2 * (len(METHODS) + 1)
    text = mending_report.report("python -m benchmarks.mending", records)
    scores = 2 * FEW * 10
    assert f"All corrections undone, 0 of {scores:,} scores" in text
    for method in METHODS:
        assert f"| {method} | " in text
    means = {method: own for (method, _), own in mending_report.grouped(records).items()}
    assert {record["success"] for record in means["no correction"]} == {0.0}
    for method in ("kernel, margin 1", "kernel, margin 100, pinned", "codebook"):
        assert {record["success"] for record in means[method]} == {100.0}
    mending_report.draw(records, tmp_path / "mending.png")
    assert (tmp_path / "mending.png").stat().st_size > 10_000


def test_the_seeds_draw_other_mistakes(source):
    first, again, second = (mending.draw(source, seed) for seed in (0, 0, 1))
    assert len(first.chosen) == CORRECTED
    assert torch.equal(first.chosen, again.chosen)
    assert not torch.equal(first.chosen, second.chosen)
    assert (first.all.last(first.points).argmax(1) != first.labels).all()


def test_a_codebook_answers_within_its_radius_alone(source):
    problem = mending.draw(source, 0)
    predict = mending.by_codebook(problem, 1e-6)
    assert torch.equal(predict(problem.points).argmax(1), problem.labels)
    far = problem.points + 1
    assert torch.equal(predict(far), problem.all.last(far))


def test_training_stops_where_the_held_out_loss_is_least(source):
    rate, steps = mending.choose_training(source, 0, True)
    assert rate in mending.RATES
    assert 1 <= steps <= mending.MOST_STEPS
    problem = mending.draw(source, 0)
    before = mending.loss_of(problem.all.last, [(problem.points, problem.labels)])
    layer, said = mending.by_training(source, 0, 1.0, False)
    assert mending.loss_of(layer, [(problem.points, problem.labels)]) < before
    assert said["steps"] >= 1


def test_the_example_mends_and_undoes(source):
    example = pathlib.Path(mending.__file__).parents[1] / "examples" / "mend_resnet.py"
    command = [example, "--weights", source.weights, "--data", source.data, "--corrections", 5, "--lengthscales", 0.001]
    done = subprocess.run(
        list(map(str, [sys.executable, *command])), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "5 of 5 corrected pictures are right" in done.stdout
    assert f"undone: 0 of {FEW * 10} scores differ" in done.stdout

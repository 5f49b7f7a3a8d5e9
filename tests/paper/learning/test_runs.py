"""Records of runs, their keys, and models opened again."""

import dataclasses

import pytest
import torch
from paper.checkpoints import Job
from paper.learning.data import data_fingerprint, open_images
from paper.learning.report import READINGS
from paper.learning.runs import readings, reopen, run_key, run_one
from tests.paper.tiny import LEARNING

from torchkrr.errors import FileError


@pytest.fixture(scope="module")
def digits():
    return open_images("digits")


def test_a_record_says_what_was_measured_and_the_model_can_be_opened_again(tmp_path, digits):
    config = dataclasses.replace(LEARNING, objective="centers", num_centers=20, num_neighbors=30)
    key = run_key(config, data_fingerprint(digits))
    record = run_one(Job(config, key, tmp_path))
    assert list(record["readings"]) == ["sk", "sk-fit", "centers", "sk-paper"]
    assert set(record["readings"]) <= set(READINGS)
    assert (record["samples"], record["num_fit"], record["num_test"], record["steps"]) == (60, 54, 359, 4)
    assert record["parameters"] == {"backbone": 928, "head": 20 * 32 + 20 * 10 + 3}
    path = next((tmp_path / "models").iterdir())
    with pytest.raises(FileError, match="another run: dataset was"):
        reopen(path, digits._replace(train=digits.test))
    run = reopen(path, digits)
    assert readings(run) == record["readings"]
    # The accuracy, once more by hand: SK on all 60 rows with the trained kernel.
    backbone, prepare = run.cut.backbone.eval(), run.cut.prepare
    with torch.no_grad():
        centers, query = (
            backbone(prepare(pictures.read(rows)))
            for pictures, rows in ((digits.train, run.rows.all.tolist()), (digits.test, range(359)))
        )
        found = run.head.readout(centers, digits.train.labels[run.rows.all])(query).argmax(1)
    assert record["accuracy"] == pytest.approx(float((found == digits.test.labels).double().mean()), abs=0.003)


def test_keys_depend_on_settings_and_data_and_not_on_how_runs_are_looked_at():
    key = run_key(LEARNING, "data")
    assert key == run_key(dataclasses.replace(LEARNING, checkpoint_every=9, tensorboard=True, keep_model=False), "data")
    assert len({key, run_key(LEARNING, "other"), run_key(dataclasses.replace(LEARNING, ridge=0.5), "data")}) == 3


def test_keys_depend_on_what_is_in_a_file_of_weights_and_not_on_its_place(tmp_path):
    for name, contents in (("a", b"1"), ("b", b"2"), ("c", b"1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "w.pth").write_bytes(contents)
    one, other, copy = (
        run_key(dataclasses.replace(LEARNING, weights=str(tmp_path / name / "w.pth")), "data") for name in ("a", "b", "c")
    )
    assert one == copy != other


def test_epochs_are_reported_as_they_come(tmp_path):
    said = []
    key = "0" * 32
    run_one(Job(dataclasses.replace(LEARNING, epochs=2), key, tmp_path), lambda steps, note: said.append((steps, note)))
    assert [steps for steps, _ in said] == [1, 1, 0]
    assert "epoch 1, loss " in said[0][1]

"""Tables, differences by seed, and pages."""

import dataclasses
import json
import pathlib

import pytest
from paper.learning.config import Config
from paper.learning.report import accuracy_table, differences, markdown, page, summarize, who_wins
from tests.paper.tiny import LEARNING


def made_up(head, discard, seed, accuracy):
    shown = {"sk": {"accuracy": accuracy}} if head == "kernel" else {"linear": {"accuracy": accuracy}}
    return {
        "head": head,
        "discard": discard,
        "seed": seed,
        "accuracy": accuracy,
        "readings": shown,
        "steps": 10,
        "dataset": "<data>",
        "network": "vgg-small",
        "samples": 100,
        "num_fit": 90,
        "num_test": 50,
        "size": 32,
        "config": dataclasses.asdict(dataclasses.replace(LEARNING, head=head)),
        "parameters": {"backbone": 1000, "head": 2},
        "num_features": 32,
        "epochs": {"accuracy": [0.1, 0.2]},
        "seconds": {"train": 1.0, "step": 0.1},
        "versions": {"torch": "2"},
    }


RECORDS = [
    made_up(head, discard, seed, accuracy)
    for head, accuracies in (("kernel", (0.5, 0.6, 0.3, 0.4)), ("linear", (0.45, 0.67, 0.4, 0.6)))
    for (discard, seed), accuracy in zip(((0, 0), (0, 1), (1, 0), (1, 1)), accuracies, strict=True)
]


def test_the_table_has_means_ranges_and_paired_differences():
    cells = summarize(RECORDS)
    assert differences(cells, "loo")[0] == pytest.approx([0.05, -0.07])
    rows = accuracy_table(cells).rows
    assert rows[1] == ["kernel, leave-one-out", "55.0 (50.0 to 60.0)", "35.0 (30.0 to 40.0)"]
    assert rows[2] == ["linear head", "56.0 (45.0 to 67.0)", "50.0 (40.0 to 60.0)"]
    assert rows[3][1] == "-1.0 (-7.0 to +5.0)"
    assert rows[3][2] == "-15.0 (-20.0 to -10.0)"
    assert "has the larger mean at 0 of 2 depths" in who_wins(
        summarize(RECORDS[:2] + RECORDS[4:6] + RECORDS[2:4] + RECORDS[6:])
    )


def test_pages_have_the_numbers_and_need_no_other_file():
    text, shown = markdown(RECORDS, "command"), page(RECORDS, "command")
    for found in (text, shown):
        assert "55.0 (50.0 to 60.0)" in found
        assert "10 of them held out" in found
    assert "&lt;data&gt;" in shown
    assert 'src="http' not in shown
    assert "$" not in shown.replace("$schema", "").split("</style>")[1].split("base64")[0]


def test_recorded_runs_can_be_read():
    """Records in the documentation are what this version can read."""
    folder = pathlib.Path(__file__).parents[3] / "docs" / "results"
    for path in sorted(folder.glob("learn-*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        assert all(len(record["epochs"]["loss"]) <= Config(**record["config"]).epochs for record in records)
        assert "| test accuracy" in markdown(records, "command")

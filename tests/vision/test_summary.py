"""Cells are means over seeds, and the table shows them."""

import statistics

import pytest

from torchkrr.vision.summary import summarize, text_table

ACCURACIES = (0.8, 0.9, 0.85)


def record(readout, budget, seed, accuracy, log_loss=None):
    seconds = {"features": 9.0, "fit": 1.0 + seed, "predict": 0.5}
    return {
        "readout": readout,
        "title": readout.upper(),
        "budget": budget,
        "seed": seed,
        "num_features": 64,
        "accuracy": accuracy,
        "log_loss": log_loss,
        "seconds": seconds,
    }


RECORDS = [
    *(record("sk", 100, seed, accuracy) for seed, accuracy in enumerate(ACCURACIES)),
    *(record("knn", 100, seed, accuracy, 0.3) for seed, accuracy in enumerate(ACCURACIES)),
    record("sk", 500, 0, 0.95),
]


def test_a_cell_is_the_mean_over_seeds():
    first, last, other = summarize(RECORDS)
    assert (first.readout, first.budget, last.budget, other.readout) == ("sk", 100, 500, "knn")
    assert first.accuracy == pytest.approx(statistics.mean(ACCURACIES))
    assert first.standard_error == pytest.approx(statistics.stdev(ACCURACIES) / 3**0.5)
    assert (first.lowest, first.highest, first.num_seeds) == (0.8, 0.9, 3)
    assert (first.fit, first.predict, first.seconds) == (2.0, 0.5, 2.5)
    assert (first.log_loss, other.log_loss) == (None, pytest.approx(0.3))
    assert last.standard_error is None


def test_the_table_has_a_column_for_each_budget_and_gaps_where_nothing_was_run():
    lines = text_table(summarize(RECORDS)).splitlines()
    assert lines[0].split("  ")[0] == "accuracy in %"
    assert "100 labels" in lines[0]
    assert "500 labels" in lines[0]
    assert lines[1].split() == ["SK", "85.0", "±", "2.9", "95.0", "1.00", "s", "0.50", "s"]
    assert lines[2].split() == ["KNN", "85.0", "±", "2.9", "2.00", "s", "0.50", "s"]

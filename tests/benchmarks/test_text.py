"""The comparison on sentences, on sentences of its own and words instead of an encoder."""

import json
import pathlib
import re
import sys

import numpy as np
import pandas
import pytest
from tests import encoders

from benchmarks import harness, text
from torchkrr import text as product

TOPICS = {
    "card": "card lost arrive stolen post",
    "rate": "rate exchange euro dollar convert",
    "pin": "pin code change forgot block",
}


@pytest.fixture
def encoder(monkeypatch):
    monkeypatch.setattr(product, "import_library", lambda: encoders)
    return product.open_encoder("owner/words")


@pytest.fixture
def folder(tmp_path):
    rng = np.random.default_rng(0)
    for name in text.TITLES:
        (tmp_path / name).mkdir()
        for part, count in (("train", 60), ("test", 45)):
            labels = [list(TOPICS)[at % (3 if name == "banking77" else 2)] for at in range(count)]
            sentences = [" ".join(["how", *rng.choice(TOPICS[label].split(), 3), "my"]) for label in labels]
            pandas.DataFrame({"text": sentences, "label": labels}).to_csv(tmp_path / name / f"{part}.csv.gz", index=False)
    return tmp_path


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_records_and_tables(folder, encoder, monkeypatch):
    monkeypatch.setattr(text, "SEEDS", 2)
    monkeypatch.setattr(text, "PER_CLASS", 8)
    cases = list(text.cases(folder, folder / "cache", encoder, ["banking77", "sst2"], list(text.METHODS)))
    records = harness.record(folder / "text.jsonl", cases)
    assert len(records) == 1 + 4 + 2 * (2 + 1) * len(text.METHODS)
    scored = [record for record in records if "accuracy" in record]
    assert min(record["accuracy"] for record in scored if record["labels"] == "all") > 0.9
    assert {record["method"] for record in scored if "log_loss" not in record} == {"linear SVM"}
    page = text.report(records)
    assert "## banking77, 77 intents: 8 per class (24), 45 test sentences" in page
    assert "## SST-2, two sentiments: all (60), 45 test sentences" in page
    seconds = sum(record["seconds"] for record in records if "sentences" in record)
    assert f"to embed 210 sentences with owner/words took {seconds:.0f} s" in page
    (last,) = (record for record in scored if record["case"] == f"sst2, all, seed 0, {text.OURS}")
    measured = 100 * last["accuracy"]
    assert f"| SST-2, two sentiments, all: accuracy at least 82.0 % | {measured:.1f} % |" in page


def test_the_guide_shows_the_recorded_table():
    root = pathlib.Path(text.__file__).parents[1]
    records = list(map(json.loads, (root / "benchmarks" / "results" / "text.jsonl").read_text().splitlines()))
    page = text.report(records)
    assert (root / "benchmarks" / "results" / "text.md").read_text() == page
    table = re.search(r"## Accuracy in percent\n\n(.*?)\n\n", page, flags=re.DOTALL)[1]
    assert table in (root / "docs" / "guides" / "text.md").read_text()


def test_embeddings_are_computed_once_for_an_encoder(folder, encoder, monkeypatch):
    first = text.embedded(folder, folder / "cache", encoder, "sst2", "test")
    assert text.embedded(folder, folder / "cache", encoder, "sst2", "test") == first
    split = np.load(folder / "cache" / "sst2_test_x.npy"), np.load(folder / "cache" / "sst2_test_y.npy")
    sentences = pandas.read_csv(folder / "sst2" / "test.csv.gz")
    np.testing.assert_array_equal(split[0], encoder.encode(sentences["text"]).numpy())
    assert split[1].tolist() == sentences["label"].tolist()
    other = product.open_encoder("owner/other words")
    assert text.embedded(folder, folder / "cache", other, "sst2", "test")["fingerprint"] != first["fingerprint"]


def test_a_draw_has_as_many_of_each_class():
    labels = np.array(["a"] * 50 + ["b"] * 20 + ["c"] * 5)
    rows = text.drawn(labels, 5, seed=0)
    assert np.unique(labels[rows], return_counts=True)[1].tolist() == [5, 5, 5]
    assert len(set(rows)) == 15
    assert text.drawn(labels, 5, seed=1).tolist() != rows.tolist()
    assert text.drawn(labels, None, seed=1).tolist() == list(range(75))


def test_the_command_needs_data_and_an_encoder(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["text", "--data", "folder"])
    with pytest.raises(SystemExit):
        text.main()
    assert "--encoder" in capsys.readouterr().err

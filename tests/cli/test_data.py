"""Text is encoded and read as the other kinds are; names, groups and missing values are those of the table."""

import json
import os

import numpy as np
import pandas as pd
import pytest
import torch
from tests.cli.running import FAST, GOOD, evaluated, fails, read, works

from torchkrr import estimators, text
from torchkrr.text import TextEncoder

SUBJECTS = ["card", "transfer", "loan"]
STARTS = ("where is my", "I lost my", "help with my", "why is there a", "send me another", "close this")
SENTENCES = [f"{start} {subject}" for subject in SUBJECTS for start in STARTS]


class Words:
    """In the place of a sentence encoder's model: counts of letters."""

    def __init__(self, letters):
        self.letters, self.max_seq_length = letters, 1000

    def encode(self, sentences, **options):
        return torch.tensor([[float(sentence.count(letter)) for letter in self.letters] for sentence in sentences])


@pytest.fixture(autouse=True)
def encoders(monkeypatch):
    """Encoders of the names `letters` and `vowels`."""
    known = {"letters": "abcdefghijklmnopqrstuvwxyz", "vowels": "aeiou"}

    def open_encoder(name):
        return TextEncoder(name, Words(known[name]), f"of {name}", len(known[name]))

    monkeypatch.setattr(text, "open_encoder", open_encoder)


@pytest.fixture
def sentences(tmp_path):
    """A table of sentences, and a model of it."""
    labels = [sentence.split()[-1] for sentence in SENTENCES]
    frame = pd.DataFrame({"key": [f"s{at}" for at in range(len(labels))], "text": SENTENCES, "label": labels})
    frame.to_csv(tmp_path / "train.csv", index=False)
    more = ["--text", "text", "--encoder", "letters", "--id", "key"]
    works("fit", tmp_path / "train.csv", "--target", "label", *more, "--out", tmp_path / "m.krr", *FAST)
    return tmp_path


def test_the_model_is_that_of_the_embeddings(sentences, capsys):
    model = estimators.load(sentences / "m.krr")
    embeddings = text.open_encoder("letters").encode(SENTENCES).numpy()
    labels = read(sentences / "train.csv")["label"].to_numpy(dtype=object)
    given = {"kernel": "matern32", "metric": None, "alpha": 0.01, "categorical_features": None}
    direct = estimators.LocalKernelRidgeClassifier(20, **given).fit(embeddings, labels)
    wanted = ["--proba", "--explain", 1, "--id", "key", "--out", sentences / "o.csv"]
    works("predict", sentences / "train.csv", sentences / "m.krr", *wanted)
    found = read(sentences / "o.csv")
    expected = direct.predict_proba(embeddings)
    np.testing.assert_allclose(found[[f"probability_{name}" for name in direct.classes_]], expected, rtol=1e-5, atol=1e-7)
    reasons = direct.explain(embeddings, n_rows=1)
    assert found["because_1"].tolist() == found["key"].to_numpy()[reasons.indices[:, 0]].tolist()
    assert found["because_1_label"].tolist() == labels[reasons.indices[:, 0]].tolist()
    assert model.notes_["input"] == {
        "kind": "text", "id": "key", "column": "text", "encoder": "letters", "fingerprint": "of letters",
    }  # fmt: skip
    capsys.readouterr()
    assert evaluated(capsys, sentences / "train.csv", sentences / "m.krr")["targets"]["label"]["accuracy"] > 0.9


def test_sentences_are_added_and_removed(sentences, capsys):
    (sentences / "more.csv").write_text("key,text,label\nz1,zzz,sleep\nz2,zzzz,sleep\n")
    words = ["--add", sentences / "more.csv", "--remove", "s1?", "--out", sentences / "m2.krr"]
    works("update", sentences / "m.krr", *words, "--json")
    found = json.loads(capsys.readouterr().out)
    assert (found["added"], found["removed"], found["classes"]["sleep"]) == (2, 8, 2)
    (sentences / "new.csv").write_text("text\nzzz\n")
    works("predict", sentences / "new.csv", sentences / "m2.krr", "--out", sentences / "o.csv", "--quiet")
    assert read(sentences / "o.csv")["prediction"].tolist() == ["sleep"]


def test_an_encoder_of_another_fingerprint_is_refused(sentences, capsys):
    error = fails(capsys, "predict", sentences / "train.csv", sentences / "m.krr", "--encoder", "vowels", "--quiet")
    assert "The encoder vowels is not the one that the model was fitted with" in error


def test_text_that_cannot_be_read(sentences, tmp_path, capsys, monkeypatch):
    out = ("--out", tmp_path / "n.krr", *FAST)
    fit = ("fit", sentences / "train.csv", "--target", "label")
    error = fails(capsys, *fit, "--text", "txt", "--encoder", "letters", *out)
    assert "has no column 'txt', named by --text. Did you mean 'text'?" in error
    assert "needs a sentence encoder" in fails(capsys, *fit, "--text", "text", *out)
    (tmp_path / "other.csv").write_text("sentence\nhello\n")
    error = fails(capsys, "predict", tmp_path / "other.csv", sentences / "m.krr", "--out", tmp_path / "o.csv", "--quiet")
    assert "has no column 'text', the text that the model was fitted to" in error
    (tmp_path / "gap.csv").write_text('text,label\na,x\n"",y\n')
    gap = ("fit", tmp_path / "gap.csv", "--target", "label", "--text", "text", "--encoder", "letters")
    assert "The text 'text' of" in (error := fails(capsys, *gap, *out))
    assert "is missing in row 2" in error
    monkeypatch.undo()
    assert "The encoder './nowhere' is not there" in fails(capsys, *fit, "--text", "text", "--encoder", "./nowhere", *out)
    assert sorted(os.listdir(tmp_path)) == ["gap.csv", "m.krr", "other.csv", "train.csv"]


def test_names_of_rows_are_all_there_and_different(tmp_path, capsys):
    wanted = ("--target", "y", "--id", "name", "--out", tmp_path / "m.krr", *FAST)
    lines = [f"{line},{'name' if at == 0 else f'r{at}'}" for at, line in enumerate(GOOD.splitlines())]
    for row, name, message in ((5, "r3", "names two rows 'r3'"), (7, "", "The name of row 7 of")):
        changed = [*lines[:row], f"{lines[row].rsplit(',', 1)[0]},{name}", *lines[row + 1 :]]
        (tmp_path / "t.csv").write_text("\n".join(changed) + "\n")
        assert message in fails(capsys, "fit", tmp_path / "t.csv", *wanted)
    assert os.listdir(tmp_path) == ["t.csv"]


def test_names_and_groups_are_no_features(models, tmp_path):
    frame = read(models / "wine_train.csv").assign(bottle=lambda f: [f"b{at}" for at in range(len(f))], cellar="c")
    frame.to_parquet(tmp_path / "t.parquet")
    wanted = ["--target", "target", "--id", "bottle", "--groups", "cellar", "--out", tmp_path / "m.krr", *FAST]
    works("fit", tmp_path / "t.parquet", *wanted)
    model = estimators.load(tmp_path / "m.krr")
    assert not {"bottle", "cellar", "target"} & set(model.feature_names_in_)
    assert model.ids_.tolist() == frame["bottle"].tolist()
    assert model.predictor_.rows.groups.tolist() == [0] * len(frame)


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_missing_values_are_counted(models, tmp_path, capsys, kind):
    table = models / f"mixed_train.{kind}"
    wanted = ["--target", "price", "--ignore", "key", "--out", tmp_path / "m.krr", *FAST[:-1], "--json"]
    works("fit", table, *wanted)
    expected = int(read(table)[["size", "color"]].isna().sum().sum())
    assert json.loads(capsys.readouterr().out)["missing"] == expected > 10
    works("predict", table, tmp_path / "m.krr", "--out", tmp_path / "o.csv", "--chunk-rows", 7, "--json")
    assert json.loads(capsys.readouterr().out)["missing"] == expected
    assert evaluated(capsys, table, tmp_path / "m.krr")["missing"] == expected

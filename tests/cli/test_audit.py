"""`torchkrr audit` on each kind of data: planted errors are printed, written and cleaned; the input stays as it is."""

import csv
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_digits, load_sample_images, load_wine
from tests.cli.running import fails, works

from torchkrr.errors import KernelRidgeWarning

WRONG = (2, 31, 53, 87, 108, 144)
NAMES = ("barolo", "grignolino", "barbera")


def audited(capsys, *arguments):
    works("audit", *arguments, "--json")
    return json.loads(capsys.readouterr().out)


@pytest.fixture(scope="module")
def wine(tmp_path_factory):
    """A table with six wrong labels, and what is right."""
    frame = load_wine(as_frame=True).frame
    right = frame["target"].map(dict(enumerate(NAMES)))
    frame["target"] = right
    for row in WRONG:
        frame.loc[row, "target"] = NAMES[(NAMES.index(right[row]) + 1) % 3]
    path = tmp_path_factory.mktemp("wine") / "wine.csv"
    frame.to_csv(path, index=False)
    return path, right


def test_a_table(wine, tmp_path, capsys):
    path, right = wine
    before = path.read_bytes()
    out = tmp_path / "found"
    result = audited(capsys, path, "--target", "target", "--out", out, "--clean", tmp_path / "clean.csv")
    assert {int(one["row"].removeprefix("row ")) - 1 for one in result["worst"][:6]} == set(WRONG)
    assert result["issues"] == 6
    with open(out / "audit.csv", newline="") as file:
        assert {int(row["id"]) - 1 for row in csv.DictReader(file) if row["is_label_issue"] == "True"} == set(WRONG)
    page = (out / "report.html").read_text()
    assert "Audit of wine.csv" in page
    assert "alcohol 13" in page
    cleaned = pd.read_csv(tmp_path / "clean.csv")
    assert len(cleaned) == 172
    assert (cleaned["target"].to_numpy() == right.drop(list(WRONG)).to_numpy()).all()
    audited(capsys, path, "--target", "target", "--out", out, "--clean", tmp_path / "c.parquet", "--fix", "correct")
    corrected = pd.read_parquet(tmp_path / "c.parquet")
    assert (corrected["target"] == right).mean() > 0.99
    assert list(corrected) == list(cleaned)
    assert path.read_bytes() == before


def test_what_people_read(wine, tmp_path, capsys):
    from torchkrr.cli import main

    assert main(["audit", str(wine[0]), "--target", "target", "--out", str(tmp_path / "found")]) == 0
    text = capsys.readouterr().out
    assert "6 labels of 178 are likely wrong" in text
    assert "row 32: grignolino, rather barolo" in text or "rather" in text
    assert "because of row" in text
    assert text.rstrip().splitlines()[-1].startswith("next")


def test_numbers(tmp_path, capsys):
    rng = np.random.default_rng(0)
    x = rng.uniform(-2, 2, size=(300, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": np.sin(2 * x[:, 0]) + x[:, 1] + 0.05 * rng.normal(size=300)})
    frame.loc[[7, 70], "y"] += 3
    frame.to_csv(tmp_path / "t.csv", index=False)
    result = audited(capsys, tmp_path / "t.csv", "--target", "y", "--out", tmp_path / "out")
    assert result["task"] == "regression"
    assert {one["row"] for one in result["worst"][:2]} == {"row 8", "row 71"}


def test_features_with_ids(tmp_path, capsys):
    x, y = load_digits(return_X_y=True)
    y = y[:400].copy()
    wrong = np.arange(5, 400, 50)
    y[wrong] = (y[wrong] + 3) % 10
    np.savez(tmp_path / "f.npz", features=x[:400], labels=y, ids=np.array([f"n{at}" for at in range(400)]))
    result = audited(
        capsys, tmp_path / "f.npz", "--out", tmp_path / "out", "--clean", tmp_path / "c.csv", "--fix", "correct"
    )
    assert len({f"n{row}" for row in wrong} & {one["row"] for one in result["worst"]}) >= 7
    cleaned = pd.read_csv(tmp_path / "c.csv")
    assert list(cleaned) == ["id", "label"]
    assert (cleaned["label"][wrong] == load_digits().target[wrong]).mean() > 0.8


def test_pictures_with_planted_copies(tmp_path, capsys):
    from PIL import Image

    rng = np.random.default_rng(0)
    for name, photo in zip(("china", "flower"), load_sample_images().images, strict=True):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for at in range(70):
            top, left = rng.integers(photo.shape[0] - 96), rng.integers(photo.shape[1] - 96)
            crop = Image.fromarray(photo[top : top + 96, left : left + 96])
            crop.save(tmp_path / "pictures" / name / f"{at}.png")
    first, second = (tmp_path / "pictures" / "china" / f"{at}.png" for at in (0, 1))
    (tmp_path / "pictures" / "flower" / "copy.png").write_bytes(first.read_bytes())  # with another label
    Image.open(second).save(tmp_path / "pictures" / "china" / "compressed.jpg", quality=75)
    Image.open(second).resize((160, 160)).save(tmp_path / "pictures" / "china" / "large.png")
    (tmp_path / "pictures" / "flower" / "broken.jpg").write_bytes(b"no picture")
    out = tmp_path / "out"
    with pytest.warns(KernelRidgeWarning, match=r"1 of 144 pictures cannot be read and are left out: flower/broken.jpg"):
        result = audited(capsys, tmp_path / "pictures", "--backbone", "identity", "--out", out)
    assert (result["rows"], result["skipped"]) == (143, 1)
    with open(out / "audit.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    copies = {row["id"] for row in rows if row["is_near_duplicate_issue"] == "True"}
    assert {"china/0.png", "flower/copy.png", "china/1.png", "china/compressed.jpg", "china/large.png"} <= copies
    assert {row["id"] for row in rows if json.loads(row["near_duplicate_sets"])} == copies
    page = (out / "report.html").read_text()
    assert page.count("data:image/") > 20
    assert page.index("different labels") < page.index("one label")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--target", "nothing"], "no column 'nothing'"),
        ([], "--target"),
        (["--target", "target,hue"], "one target"),
        (["--target", "target", "--clean", "c.txt"], "must end in"),
        (["--target", "target", "--rate", "2"], None),
    ],
)
def test_bad_input_writes_nothing(wine, tmp_path, capsys, monkeypatch, words, expected):
    monkeypatch.chdir(tmp_path)
    if expected is None:
        with pytest.raises(SystemExit):
            fails(capsys, "audit", wine[0], *words)
    else:
        assert expected in fails(capsys, "audit", wine[0], *words)
    assert list(tmp_path.iterdir()) == []


def test_the_data_are_never_the_result(wine, capsys):
    assert "would take its place" in fails(capsys, "audit", wine[0], "--target", "target", "--clean", wine[0])

"""The benchmark of searches, in tiny sizes: every case runs, and what is missing is named."""

import json

import pytest
import torch

from benchmarks import harness, search, search_million, search_report


@pytest.fixture
def features(tmp_path):
    path = tmp_path / "features.pt"
    torch.save({"x": torch.randn(600, 40).relu(), "xt": torch.randn(50, 40).relu()}, path)
    return path


@pytest.fixture
def _tiny(monkeypatch):
    sizes = {
        "QUERIES": 20,
        "CENTERS": 500,
        "WIDTHS": (24, 40),
        "NEIGHBORS": 10,
        "EXACT": [(20, 300, 8)],
        "KINDS": ("gaussian",),
    }
    for name, size in sizes.items():
        monkeypatch.setattr(search, name, size)
    for name, size in {"COUNT": 3000, "WIDTH": 16, "QUERIES": 20, "NEIGHBORS": 10, "BLOCK": 1000}.items():
        monkeypatch.setattr(search_million, name, size)
    monkeypatch.setattr(search_million, "METHODS", {"exact": (0,), "lists": (4, 64), "graph": (16,), "mapped": (0,)})

    def small(module, *words):
        if module == "search":
            return {"build": 1.0, "predict": 1.0, "megabytes": 1.0, "recall": 1.0, "rmse": 1.0, "choice": "exact"}
        return json.loads(json.dumps(search_million.run(words[0], words[1], 3000)))

    monkeypatch.setattr(search, "in_own_process", small)
    monkeypatch.setattr(search, "approximate", lambda *_: {"build": 1.0, "efforts": []})


@pytest.mark.usefixtures("_tiny")
def test_records_and_tables(features, tmp_path):
    records = harness.record(tmp_path / "search.jsonl", search.cases(features))
    by_case = {record["case"]: record for record in records}
    assert not any("missing" in record for record in records)
    assert by_case["compared, real, D=40"]["recall"] == {"torchkrr": 1.0, "product and selection": 1.0, "faiss": 1.0}
    assert by_case["spectrum, lists"]["efforts"][1]["recall"] == 1.0
    assert by_case["spectrum, mapped"]["efforts"][0]["recall"] == 1.0
    assert set(by_case["stages, real, N=500, D=40"]["milliseconds"]) >= {"whole call", "search", "gather and solve"}
    page = search_report.summarize(records)
    assert "| real, D=40 |" in page
    assert "## Ten and a hundred million points, on paper" in page
    (line,) = (line for line in page.splitlines() if line.startswith("| exact, in memory |") and "GB" in line)
    exact = by_case["spectrum, exact"]
    milliseconds = 1e3 * exact["efforts"][0]["seconds"]["together"] / 20 * 10_000_000 / 3000
    assert f"| {milliseconds:,.0f} ms, " in line


@pytest.mark.usefixtures("_tiny")
def test_without_features_the_cases_that_need_them_are_named(tmp_path):
    records = harness.record(tmp_path / "search.jsonl", search.cases(None))
    assert sum("missing" in record for record in records) == 2 + 1 + 4
    page = search_report.summarize(records)
    assert "Missing: real, D=24 (give features of CIFAR-10 with --features)." in page

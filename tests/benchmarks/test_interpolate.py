"""The benchmark of the interpolator, in tiny sizes: every number of the table is there."""

import json

import pytest

from benchmarks import interpolate


def test_quick_cases_and_their_table(tmp_path):
    interpolate.main(["--quick", "--out", str(tmp_path)])
    records = [json.loads(line) for line in (tmp_path / "interpolate.jsonl").read_text().splitlines()]
    assert [record["case"] for record in records[1:]] == [case.name for case in interpolate.QUICK]
    text = (tmp_path / "interpolate.md").read_text()
    for record in records[1:]:
        found = record["methods"]
        assert found.keys() == set(interpolate.METHODS)
        assert found["torchkrr, float64"]["largest_difference_from_scipy"] < 1e-6
        assert found["torchkrr, float32"]["largest_difference_from_scipy"] < 1e-2
        errors = [method["rmse"] for method in found.values()]
        assert max(errors) < 0.05
        assert max(errors) == pytest.approx(min(errors), rel=0.01)
        assert f"{found['scipy']['seconds']:.2f}" in text


def test_scipy_is_left_out_where_it_would_take_too_long(monkeypatch, tmp_path):
    monkeypatch.setattr(interpolate, "MOST_FOR_SCIPY", 100)
    record = interpolate.measure(interpolate.Case(300, 2, 20, 50), str(tmp_path))
    assert record["methods"].keys() == set(interpolate.METHODS[1:])
    table = interpolate.report("command", [{}, {"case": "few", **record}])
    assert table.count("| few |") == 2

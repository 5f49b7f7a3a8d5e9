"""Records survive whatever stops a run, and are found by what they were made from."""

import json

import pytest

import torchkrr
from torchkrr.errors import FileError
from torchkrr.experiments.records import Records, fingerprint, read_records, versions


def test_what_was_added_is_found_again(tmp_path):
    path = tmp_path / "records.jsonl"
    Records(path).add({"key": "a", "accuracy": 0.1})
    records = Records(path)
    records.add({"key": "b", "accuracy": 0.2})
    assert records.get("a") == {"key": "a", "accuracy": 0.1}
    assert records.get("c") is None
    assert [record["key"] for record in read_records(path)] == ["a", "b"]


@pytest.mark.parametrize("torn", ['{"key": "b", "accu', '{"key": "b"}', "\x00\x00"])
def test_a_line_without_its_end_is_dropped(tmp_path, torn):
    path = tmp_path / "records.jsonl"
    path.write_text('{"key": "a"}\n' + torn)
    records = Records(path)
    assert records.get("b") is None
    records.add({"key": "c"})
    assert path.read_text() == '{"key": "a"}\n{"key": "c"}\n'


@pytest.mark.parametrize("line", ["nonsense", '{"accuracy": 1}', "[1]", '{"key": 3}'])
def test_a_broken_line_in_between_is_an_error_that_names_it(tmp_path, line):
    path = tmp_path / "records.jsonl"
    path.write_text(f'{{"key": "a"}}\n{line}\n{{"key": "b"}}\n')
    with pytest.raises(FileError, match=r"Line 2 of .*records\.jsonl is not a record"):
        Records(path)


def test_no_record_holds_what_json_cannot(tmp_path):
    with pytest.raises(ValueError, match="not JSON compliant"):
        Records(tmp_path / "records.jsonl").add({"key": "a", "accuracy": float("nan")})
    assert not (tmp_path / "records.jsonl").exists()


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(FileError, match="Cannot write to"):
        Records(tmp_path / "nowhere" / "records.jsonl").add({"key": "a"})


def test_fingerprints_follow_the_contents():
    one = {"budget": 100, "settings": {"ridge": 1e-9}}
    assert fingerprint(one) == fingerprint(json.loads(json.dumps(one)))
    assert fingerprint(one) != fingerprint({**one, "budget": 101})


def test_versions_are_those_installed():
    assert versions()["torchkrr"] == torchkrr.__version__
    assert {"python", "torch", "numpy"} <= set(versions())

"""Records survive whatever stops a run; tables print in three ways; jobs run in processes of their own."""

import json
import time

import pytest
from tqdm import tqdm

import torchkrr
from torchkrr import runs
from torchkrr.errors import FileError, KernelRidgeError
from torchkrr.runs import Records, Table, fingerprint, make_folder, read_records, versions


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


def test_a_table_marks_what_is_best_in_html_and_escapes_the_rest():
    table = Table([["name", "a"], ["x < y", "1"], ["z", "2"]], best={(2, 1)})
    assert table.html().count("<tr>") == 3
    assert "<tr><td>x &lt; y</td><td>1</td></tr>" in table.html()
    assert "<tr><td>z</td><td class=best>2</td></tr>" in table.html()
    assert table.text().splitlines() == ["name   a", "x < y  1", "z      2"]


def test_a_folder_for_results_is_made_or_the_error_names_it(tmp_path):
    assert make_folder(tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match=r"Cannot make the folder .*Name another with --out"):
        make_folder(tmp_path / "file" / "inside")


LONGEST = 40.0  # seconds


def work(job, report):
    """Make a file; talk all the time until it is there; or wait until somebody talks, and end, well or not."""
    kind, folder = job
    until = time.monotonic() + LONGEST
    if kind == "talk":
        (folder / "talking").touch()
        while not (folder / "made").exists() and time.monotonic() < until:
            report(1, "still here")
            time.sleep(0.0005)
    elif kind == "make":
        (folder / "made").touch()
    else:
        while not (folder / "talking").exists() and time.monotonic() < until:
            time.sleep(0.01)
        if kind == "fail":
            raise KernelRidgeError("it failed")
    return kind, (folder / "made").exists()


def results(kinds, folder):
    found = []
    with tqdm(total=len(kinds), disable=True) as bar:
        runs.run_jobs(work, [(kind, folder) for kind in kinds], bar, processes=2, finished=found.append)
    return found


def test_one_that_talks_all_the_time_does_not_keep_the_next_from_beginning(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "POLL_SECONDS", 3.0)  # a silence that does not come by chance
    assert sorted(results(["talk", "wait", "make"], tmp_path)) == [("make", True), ("talk", True), ("wait", False)]


def test_the_error_of_one_is_told_while_another_talks(tmp_path):
    with pytest.raises(KernelRidgeError, match="it failed"):
        results(["talk", "fail"], tmp_path)

"""What the diagnosis of an installation finds."""

from torchkrr import _extras, diagnosis


def test_packages_that_cannot_be_imported_are_named(monkeypatch, tmp_path):
    (tmp_path / "sad_one.py").write_text("raise RuntimeError('no such operator')")
    (tmp_path / "the_end.py").write_text("import os; print('bye'); os._exit(3)")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = diagnosis.import_errors(["json", "sad-one", "the-end"])
    assert found == {"sad-one": "RuntimeError: no such operator", "the-end": "Python ended with code 3"}


def test_an_older_package_than_needed_is_a_problem():
    old = _extras.Requirement("torch", "2.13", "2.4.1")
    assert "torch>=2.13 is needed" in diagnosis.outdated([old])[0]
    assert diagnosis.outdated([old._replace(installed="2.13.0+cpu"), _extras.Requirement("numpy", "2.0", "10.1")]) == []

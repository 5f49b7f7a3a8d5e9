"""The doctor says what is here, and notices what is broken."""

import json

import pytest
import torch

import torchkrr
from torchkrr import _extras, diagnosis
from torchkrr import native as native
from torchkrr.cli import main


@pytest.fixture
def without_imports(monkeypatch):
    """The slow part of it left out."""
    monkeypatch.setattr(diagnosis, "import_errors", lambda distributions: {})


def test_a_sound_installation(capsys):
    assert main(["doctor", "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert err == ""
    assert found["problems"] == []
    assert found["torchkrr"] == torchkrr.__version__
    assert found["packages"]["torch"] == torch.__version__
    assert found["backend"]["threads"] == torch.get_num_threads()
    assert found["backend"]["library"] == torchkrr.backend_report().library
    assert list(found["extras"]) == list(_extras.ADDS)
    assert all(extra["complete"] for extra in found["extras"].values()), found["extras"]
    assert found["cache"]["bytes"] >= 0


def test_a_missing_package_says_what_its_extra_would_add(monkeypatch, capsys, without_imports):
    version = _extras.installed_version
    there = {"faiss-cpu": None, "pandas": "1.5.3"}
    monkeypatch.setattr(_extras, "installed_version", lambda name: there[name] if name in there else version(name))
    assert main(["doctor"]) == 0
    lines = {line.split()[1]: line for line in capsys.readouterr().out.splitlines() if line.startswith("extra")}
    assert lines["ot"].split()[2:] == ["complete"]
    assert "not there (needs faiss-cpu>=1.11); adds approximate search" in lines["faiss"]
    assert lines["faiss"].endswith('pip install "torchkrr[faiss]"')
    assert "needs pandas>=2.2" in lines["cli"]


def test_a_compiled_solver_that_cannot_be_loaded(monkeypatch, tmp_path, capsys, without_imports):
    (tmp_path / "fused_baseline.some.so").write_bytes(b"nonsense")
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    native.library.cache_clear()
    try:
        assert main(["doctor", "--quiet"]) == 1
    finally:
        native.library.cache_clear()
    out, err = capsys.readouterr()
    assert out == ""
    assert "The compiled solver (fused_baseline.some.so) cannot be loaded" in err


def test_no_compiled_solver_is_no_problem(monkeypatch, tmp_path, capsys, without_imports):
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    native.library.cache_clear()
    try:
        assert main(["doctor"]) == 0
    finally:
        native.library.cache_clear()
    assert "solver    torch: it was not compiled" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        (torch.linalg, "solve", "torch.linalg.solve gives wrong solutions of batches"),
        (torch, "cholesky_solve", "torch.cholesky_solve gives wrong solutions of batches"),
    ],
)
def test_wrong_solutions_are_noticed(module, name, message, monkeypatch, capsys, without_imports):
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *given: right(*given) * (1 + 1e-6))
    assert main(["doctor", "--quiet"]) == 1
    assert message in capsys.readouterr().err

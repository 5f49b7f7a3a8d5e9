"""What `torchkrr transfer` and `torchkrr probe` look for before they begin."""

import sys

import pytest

from torchkrr.cli import main


@pytest.mark.parametrize("package", ["sklearn", "safetensors", "matplotlib"])
@pytest.mark.parametrize("command", ["transfer", "probe"])
def test_one_extra_is_named_for_all_that_a_run_needs(package, command, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    assert main([command, "--dataset", "digits", "--out", str(tmp_path)]) == 1
    assert (
        f'torchkrr {command} needs {package}, which is not installed: pip install "torchkrr[demo]"'
        in capsys.readouterr().err
    )
    assert main([command, "--dataset", "cifar10", "--out", str(tmp_path)]) == 1
    assert '"torchkrr[vision]"' in capsys.readouterr().err

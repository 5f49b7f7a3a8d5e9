"""What `torchkrr transfer` and `torchkrr probe` look for before they begin."""

import sys

import pytest
from tests.cli.running import fails
from tests.vision.labeled import write_features

from torchkrr.cli import main
from torchkrr.errors import KernelRidgeWarning


@pytest.mark.parametrize("package", ["sklearn", "safetensors", "matplotlib"])
@pytest.mark.parametrize("command", ["transfer", "probe"])
def test_one_extra_is_named_for_all_that_a_run_needs(package, command, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    assert main([command, "digits", "--out", str(tmp_path)]) == 1
    assert (
        f'torchkrr {command} needs {package}, which is not installed: pip install "torchkrr[demo]"'
        in capsys.readouterr().err
    )
    assert main([command, "cifar10", "--out", str(tmp_path)]) == 1
    assert '"torchkrr[vision]"' in capsys.readouterr().err


@pytest.mark.parametrize("command", ["transfer", "probe"])
def test_the_former_option_for_the_data_warns_and_names_the_new_place(command, capsys, tmp_path):
    data = write_features(tmp_path / "some digits.npz", 100)
    asked = [command, "--dataset", str(data), "--readouts", "knn", "--seeds", "1", "--out", str(tmp_path / "out")]
    with pytest.warns(KernelRidgeWarning, match=rf"comes first now: torchkrr {command} '.*some digits\.npz'"):
        code = main([*asked, "--quiet"])
    # The file was read; a probe needs pictures.
    assert (code, "has features. Give pictures" in capsys.readouterr().err) == (
        (0, False) if command == "transfer" else (1, True)
    )
    assert "The data is given twice" in fails(capsys, *asked, "digits")

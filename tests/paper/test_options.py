"""Options of the experiments, which both commands refuse in the same way, and packages that they miss before they train."""

import sys

import pytest
from paper.lander.__main__ import main as lander
from paper.learning.__main__ import main as learning


@pytest.mark.parametrize(
    ("main", "arguments", "message"),
    [
        (lander, ["--speed", "3"], "unrecognized arguments: --speed"),
        (lander, ["--seed", "3"], "unrecognized arguments: --seed"),
        (lander, ["--hidden", "many"], "argument --hidden: invalid int value: 'many'"),
        (lander, ["--episodes", "0"], "episodes must be at least 1, got 0"),
        (lander, ["--parts", "none"], "argument --parts: invalid choice: 'none'"),
        (lander, ["--time-limit", "nan"], "must be a number that is not negative"),
        (lander, ["--study", "--variants", "best"], "must be among dqn, dqk, first-only"),
        (learning, ["--depths", "0,5"], "must be among 0, 1, 2, 3, 4"),
        (learning, ["--samples", "3"], "at least 8, or all"),
        (learning, ["--heads", "forest"], "must be among kernel, linear"),
        (learning, ["--objective", "leaky"], "invalid choice"),
        (learning, ["--seeds", "0"], "whole number"),
        (learning, ["--speed", "3"], "unrecognized arguments: --speed"),
        (learning, ["--ridge", "0"], "ridge must be positive, got 0.0"),
    ],
)
def test_wrong_options_are_usage_errors(main, arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("main", "arguments", "package", "extra"),
    [
        (lander, [], "gymnasium", "rl"),
        (lander, [], "matplotlib", "rl"),
        (learning, [], "matplotlib", "vision"),
        (learning, ["--dataset", "digits"], "matplotlib", "demo"),
        (learning, ["--tensorboard"], "tensorboard", "tensorboard"),
    ],
)
def test_a_package_is_missed_before_anything_is_trained(main, arguments, package, extra, monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    assert main([*arguments, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr().err
    assert f"needs {package}, which is not installed" in said
    assert f'"torchkrr[{extra}]"' in said
    assert not (tmp_path / "out").exists()

"""Files of weights: read without running code, compared with the network by name and shape."""

import pathlib

import pytest
import torch

from torchkrr.errors import FileError
from torchkrr.vision.backbones import DigitNetwork, open_backbone
from torchkrr.vision.weights import load_weights, read_weights


def test_weights_that_do_not_fit_are_an_error_that_says_how(tmp_path):
    state = DigitNetwork().state_dict()
    name = next(iter(state))
    torch.save({key: tensor for key, tensor in state.items() if key != name}, tmp_path / "missing.pth")
    with pytest.raises(FileError, match=f"1 are missing \\({name}\\)"):
        open_backbone("digits", weights=str(tmp_path / "missing.pth"))
    torch.save({**state, "extra": torch.zeros(2)}, tmp_path / "foreign.pth")
    with pytest.raises(FileError, match=r"1 do not belong to it \(extra\)"):
        open_backbone("digits", weights=str(tmp_path / "foreign.pth"))
    torch.save({**state, name: torch.zeros(2, 2)}, tmp_path / "shape.pth")
    with pytest.raises(FileError, match=r"1 have another shape \(stem.0.weight \(2, 2\) instead of \(32, 1, 3, 3\)\)"):
        open_backbone("digits", weights=str(tmp_path / "shape.pth"))


def test_old_files_without_the_counters_of_batch_norm_load(tmp_path):
    state = DigitNetwork().state_dict()
    torch.save({key: tensor for key, tensor in state.items() if "num_batches" not in key}, tmp_path / "old.pth")
    loaded = load_weights(DigitNetwork(), tmp_path / "old.pth").state_dict()
    assert all(torch.equal(loaded[key], state[key]) for key in state)


@pytest.mark.parametrize(
    ("name", "contents", "words"),
    [
        ("gone.pth", None, "are not there"),
        ("a.txt", b"x", r"must end in \.safetensors"),
        ("a.pth", b"no weights", "cannot be read as a file of weights"),
        ("a.safetensors", b"no weights at all", "is no safetensors file, or is damaged"),
        ("list.pth", [torch.zeros(1)], "holds no state_dict"),
        ("empty.pth", {}, "holds no state_dict"),
    ],
)
def test_files_that_are_no_weights_are_errors(tmp_path, name, contents, words):
    path = tmp_path / name
    if isinstance(contents, bytes):
        path.write_bytes(contents)
    elif contents is not None:
        torch.save(contents, path)
    with pytest.raises(FileError, match=words):
        read_weights(path)


def test_a_pickle_that_runs_code_is_not_opened(tmp_path):
    class Harm:
        def __reduce__(self):
            return (pathlib.Path.touch, (tmp_path / "harmed",))

    torch.save({"weight": Harm()}, tmp_path / "harm.pth")
    with pytest.raises(FileError, match="cannot be read as a file of weights"):
        read_weights(tmp_path / "harm.pth")
    assert not (tmp_path / "harmed").exists()

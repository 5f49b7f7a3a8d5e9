"""Files from which an interrupted run goes on: written whole or not at all, and read only by the run they belong to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import torch

from .._files import replacing
from ..errors import FileError

VERSION = 2


def write_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any], command: str) -> None:
    """Plain values and tensors, marked with the command that writes them and the version of the layout."""
    with replacing(path) as temporary:
        torch.save({"version": VERSION, "command": command, **state}, temporary)


def read_checkpoint(path: str | os.PathLike[str], command: str) -> dict[str, Any]:
    """What `write_checkpoint` was given, or an error that says what is wrong with the file; `command` writes such files."""
    try:
        state = torch.load(path, weights_only=True)
    except FileNotFoundError:
        raise FileError(f"There is no checkpoint at {path}. `torchkrr {command}` writes them into its folder.") from None
    except OSError as error:
        raise FileError(f"{path} cannot be read: {error.strerror or error}.") from None
    except Exception:  # whatever the unpickler stumbles over; its own advice is to trust the file
        raise FileError(
            f"{path} is not a checkpoint of `torchkrr {command}`, or is damaged. Expected a file ending in .pt, which the "
            "command wrote into its folder."
        ) from None
    if not isinstance(state, dict) or (state.get("version"), state.get("command")) != (VERSION, command):
        raise FileError(f"{path} is not a checkpoint of this version of `torchkrr {command}`.")
    return state


def check_same_run(path: str | os.PathLike[str], found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Settings in a checkpoint must be those of the run that is to go on from it."""
    changed = [name for name in wanted if found.get(name) != wanted[name]]
    if changed:
        different = "; ".join(f"{name} was {found.get(name)!r} and is {wanted[name]!r}" for name in changed)
        raise FileError(f"{path} is a checkpoint of another run: {different}. Choose another folder, or remove it.")

"""Folders for results."""

from __future__ import annotations

import os
import pathlib

from ..errors import FileError


def made_folder(path: str | os.PathLike[str]) -> pathlib.Path:
    """The folder, made if it is not there."""
    folder = pathlib.Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror or error}. Name another with --out.") from error
    return folder

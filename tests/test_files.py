"""A file is replaced as a whole or not at all."""

from __future__ import annotations

import os
import stat

import pytest

from torchkrr._files import replacing, writable
from torchkrr.errors import FileError


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_after_an_error_the_old_file_is_there_and_no_other(tmp_path, error):
    path = tmp_path / "model"
    path.write_text("old")

    def write() -> None:
        with replacing(path) as temporary:
            temporary.write_text("half")
            raise error

    with pytest.raises(error):
        write()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["model"]


def test_the_mode_of_what_is_replaced_and_links_stay(tmp_path):
    path, link = tmp_path / "model", tmp_path / "link"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    with replacing(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", 0o640)


def test_places_where_no_file_can_be_are_refused(tmp_path):
    read = tmp_path / "data"
    read.write_text("1")
    for path, words in (
        (tmp_path / "none" / "file", "does not exist"),
        (tmp_path, "is a folder"),
        (read, "would take its place"),
        ("/dev/null", "device or a pipe"),
    ):
        with pytest.raises(FileError, match=words):
            writable(path, reads=[None, read])

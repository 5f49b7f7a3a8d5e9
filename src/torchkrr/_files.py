"""Atomic writes: a file is replaced as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import pathlib
import secrets
import stat
from collections.abc import Iterable, Iterator

from .errors import FileError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[pathlib.Path]:
    """A temporary file beside `path` to write into; it takes the place of `path` at the end, or is removed after an error.

    An interrupt counts as an error. What was at `path` before stays until the new file is complete and on the disk.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with replacing(path) as temporary:
        ...     _ = temporary.write_text("done")
        >>> path.read_text()
        'done'
    """
    target = writable(path)
    temporary = target.with_name(f".{target.name[:100]}.{secrets.token_hex(6)}.partial")
    try:
        with open(temporary, "xb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
    except OSError as error:
        raise FileError(f"Cannot write into the folder {target.parent}: {error.strerror or error}.") from error
    try:
        yield temporary
        # As what it replaces, or as any new file, whoever wrote it.
        os.chmod(temporary, stat.S_IMODE(target.stat().st_mode) if target.exists() else mode)
        with open(temporary, "rb") as written:
            os.fsync(written.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # So that the new name survives a power failure too; not every system lets a folder be opened.
    with contextlib.suppress(OSError):
        handle = os.open(target.parent, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def first_bytes(path: str | os.PathLike[str], count: int, *, kind: str, remedy: str = "") -> bytes:
    """The start of a file, which is not empty; `kind` and `remedy` begin and end the errors."""
    try:
        with open(path, "rb") as file:
            start = file.read(count)
    except OSError as error:
        raise FileError(f"The {kind} {path} cannot be read: {error.strerror or error}.{remedy}") from error
    if not start:
        raise FileError(f"{path} is empty.{remedy}")
    return start


def writable(path: str | os.PathLike[str], *, reads: Iterable[str | os.PathLike[str] | None] = ()) -> pathlib.Path:
    """The file that `path` stands for, links followed, if one can be there; else an error, before any work is done.

    Files that the same work `reads`, `None` left out, are not to be replaced by what comes out of it.
    """
    target = pathlib.Path(os.path.realpath(path))
    for source in reads:
        if source is not None and target.exists() and os.path.exists(source) and os.path.samefile(target, source):
            raise FileError(f"{path} is read, and the result would take its place. Name another file to write.")
    if not target.parent.is_dir():
        raise FileError(f"The folder {target.parent} for the file {target.name} does not exist. Create it first.")
    if target.is_dir():
        raise FileError(f"{path} is a folder. Name a file, such as {pathlib.Path(path) / 'result'}.")
    if target.exists() and not target.is_file():
        raise FileError(f"{path} is a device or a pipe, which cannot be replaced. Name an ordinary file.")
    return target

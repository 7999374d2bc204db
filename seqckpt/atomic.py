"""Files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

__all__ = ["FolderTakenError", "new_file", "new_folder", "write_text"]

_SUFFIX = ".partial"
_ABANDONED_SECONDS = 3600.0  # of no change: whoever made it was killed


class FolderTakenError(Exception):
    """Somebody else has put something where a new folder was to appear."""


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that takes the place of `path` when the block ends well, and leaves nothing otherwise.

    Readers see the old file or the whole new one, also after a power cut (fsync before the rename).
    """
    partial = _name_partial(path)
    file = _open_new(partial, path)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
    _flush_folder(path.parent)


def _open_new(partial: Path, path: Path) -> BinaryIO:
    try:
        return open(partial, "w+b")
    except OSError as error:  # of the file that was asked for: nobody knows the other name
        raise OSError(error.errno, error.strerror, str(path)) from error


def write_text(path: Path, text: str) -> None:
    """Write a text file, UTF-8, whole or not at all."""
    with new_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Make a folder to fill that becomes `path` when the block ends well, and leaves nothing otherwise.

    `path` must not exist, or be an empty folder: nothing is ever replaced. Raises FolderTakenError at the end
    where somebody else has put something there meanwhile.
    """
    partial = _name_partial(path)
    partial.mkdir()
    try:
        yield partial
        try:
            os.rename(partial, path)
        except OSError as error:
            if path.exists():
                raise FolderTakenError(f"{path} was made by somebody else meanwhile") from error
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _name_partial(path: Path) -> Path:
    """Return an unused name beside `path`, and remove what killed processes left there of the same."""
    path.parent.mkdir(parents=True, exist_ok=True)
    for abandoned in path.parent.glob(f".{_escape(path.name)}.*{_SUFFIX}"):
        with contextlib.suppress(OSError):
            if time.time() - _last_change(abandoned) > _ABANDONED_SECONDS:
                shutil.rmtree(abandoned) if abandoned.is_dir() else abandoned.unlink()
    return path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_SUFFIX}")


def _flush_folder(folder: Path) -> None:
    """Bring the renaming itself to disk; Windows cannot open folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _escape(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "[]?*" else letter for letter in name)


def _last_change(path: Path) -> float:
    return max(part.stat().st_mtime for part in [path, *path.rglob("*")])

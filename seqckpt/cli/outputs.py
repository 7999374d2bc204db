"""Folders that commands write to, examined before the work is done whose results go there."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from seqckpt.errors import UsageError

__all__ = ["check_folder", "choose_folder", "made_folder"]


def choose_folder(values: Mapping[str, str], default: Path) -> Path:
    """Return the folder that output= names, or the default. Raises UsageError where nothing can be written there."""
    folder = Path(values["output"]).expanduser() if "output" in values else default
    check_folder(folder)
    return folder


def check_folder(folder: Path) -> None:
    """Raise UsageError where a folder is a file, cannot be made, or may not be written in; nothing is made."""
    there = next(path for path in [folder, *folder.absolute().parents] if path.exists())
    if not there.is_dir():
        given = f"output={folder}" if there == folder else f"output={folder}: {there}"
        raise UsageError(f"{given} is a file; expected a folder, which is made where it is absent")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UsageError(f"output={folder}: {there} may not be written in; name another folder with output=")


@contextlib.contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """Make a folder; afterwards it is removed again where it was made here and nothing is in it, and so its parents.

    Raises UsageError where it is a file, cannot be made, or no file can be written in it.
    """
    check_folder(folder)
    new = [path for path in [folder, *folder.absolute().parents] if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise UsageError(
                f"output={folder}: {error.strerror}; name another folder, one that can be written in, with output="
            ) from None
        yield
    finally:
        for path in new:
            with contextlib.suppress(OSError):  # not there, or not empty
                path.rmdir()

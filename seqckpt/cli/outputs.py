"""Folders that commands write to, examined before the work is done whose results go there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from seqckpt.errors import UsageError

__all__ = ["check_folder", "choose_folder"]


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

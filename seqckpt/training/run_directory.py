"""The folder of a run: runs/<name>/ under the current directory, made when training can begin, never overwritten."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from seqckpt.errors import UsageError

__all__ = ["choose_run_path", "open_run_directory"]


def choose_run_path(name: str | None, config_name: str, *, parent: Path = Path("runs")) -> Path:
    """Return where a run will write: `parent/name`, or `parent/<config name>-<date and time>` where there is no name.

    Nothing is made yet. Raises UsageError for a name that is taken, or that is no name of a folder.
    """
    if name is None:
        stem = f"{config_name}-{datetime.now():%Y%m%d-%H%M%S}"
        path, number = parent / stem, 1
        while path.exists():  # two runs begun in one second
            number += 1
            path = parent / f"{stem}-{number}"
        return path
    if not name or name in (".", "..") or any(character in name for character in '/\\:*?"<>|\0'):
        raise UsageError(f"run={name!r} cannot name a folder: expected a plain name, such as run=first_try")
    if len(name.encode()) > 200:
        raise UsageError(f"run={name[:20]}...: a name of {len(name.encode())} bytes; expected at most 200")
    if (parent / name).exists():
        raise UsageError(f"the run {parent / name} exists already: choose another name, or move that folder away")
    return parent / name


@contextmanager
def open_run_directory(path: Path) -> Iterator[Path]:
    """Make the folder of a run; if the block fails before a snapshot was saved, take it away again."""
    parent_is_new = not path.parent.exists()
    try:
        path.mkdir(parents=True)
    except OSError as error:
        raise UsageError(f"the run's folder {path} cannot be made: {error}") from error
    try:
        yield path
    except BaseException:
        if not any(path.glob("*.pt")):
            shutil.rmtree(path, ignore_errors=True)
            if parent_is_new and not any(path.parent.iterdir()):
                path.parent.rmdir()
        raise

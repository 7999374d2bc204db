"""Files and folders that appear whole or not at all.

What is being written has a hidden name, "partial", beside its place. Note 1. The writer holds a lock on it, which the
system lifts when the process ends, however it ends. So whoever can take the lock knows that the writer is dead, and may
remove what it left, at once; where there are no locks, what has not changed for an hour is taken for left behind.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, TypeVar

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from seqckpt.errors import is_out_of_room

__all__ = ["FolderTakenError", "new_file", "new_folder", "remove_abandoned", "write_text"]

T = TypeVar("T")

_SUFFIX = ".partial"
_ABANDONED_SECONDS = 3600.0  # of no change, where there are no locks: whoever made it was killed


class FolderTakenError(Exception):
    """Somebody else has put something where a new folder was to appear."""


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file to write that takes the place of `path` when the block ends well, and leaves nothing otherwise.

    Readers see the old file or the whole new one, also after a power cut (fsync before the rename).
    """
    with _partial(path, lambda partial: open(partial, "x+b")) as (partial, file):
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            if error.filename is None and is_out_of_room(error):
                raise OSError(error.errno, error.strerror, str(path)) from error
            raise
        finally:
            partial.unlink(missing_ok=True)
    _flush_folder(path.parent)


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
    with _partial(path, Path.mkdir) as (partial, _):
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


def remove_abandoned(folder: Path, names: str = "*") -> None:
    """Remove the partial files and folders in `folder` whose writers are dead; see Note 1.

    `names` is a pattern for what was to be written, such as "*.frames". What cannot be removed stays.
    """
    for partial in folder.glob(f".{names}.*{_SUFFIX}"):
        with contextlib.suppress(OSError), _abandoned(partial) as is_abandoned:
            if is_abandoned:
                shutil.rmtree(partial) if partial.is_dir() else partial.unlink()


@contextlib.contextmanager
def _partial(path: Path, make: Callable[[Path], T]) -> Iterator[tuple[Path, T]]:
    """Make a partial file or folder for `path`, locked within this context; see Note 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path.parent, _escape(path.name))
    while True:
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}{_SUFFIX}")
        try:
            made = make(partial)
        except OSError as error:  # of the file that was asked for: nobody knows the other name
            raise OSError(error.errno, error.strerror, str(path)) from error
        with _locked(partial) as is_ours:
            if is_ours:
                yield partial, made
                return
        if isinstance(made, io.IOBase):  # in the moment before it was locked somebody took it for abandoned
            made.close()


@contextlib.contextmanager
def _locked(partial: Path) -> Iterator[bool]:
    """Hold the lock on what was just made; False where somebody else has it, or has removed the file."""
    if fcntl is None:
        yield True
        return
    try:
        descriptor = os.open(partial, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield _take_lock(descriptor) is not False and partial.exists()
    finally:
        os.close(descriptor)


def _take_lock(descriptor: int) -> bool | None:
    """Lock an open file or folder until it is closed; False where another holds it, None where there are no locks."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return None
    return True


@contextlib.contextmanager
def _abandoned(partial: Path) -> Iterator[bool]:
    """Say whether who wrote `partial` is dead; nobody else removes it within this context."""
    if fcntl is None:
        yield _is_old(partial)
        return
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        taken = _take_lock(descriptor)
        yield _is_old(partial) if taken is None else taken
    finally:
        os.close(descriptor)


def _is_old(partial: Path) -> bool:
    return time.time() - max(part.stat().st_mtime for part in [partial, *partial.rglob("*")]) > _ABANDONED_SECONDS


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

"""The folder of a run: runs/<name>/ under the current directory, never overwritten, open in one process alone.

Note 1. Whoever opens a folder makes it and takes the lock on it; what is in it counts only from then on. What was seen
before may be stale: another process may have begun, and ended, the run in between.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from seqckpt.atomic import FolderTakenError, remove_abandoned
from seqckpt.errors import TrainingError, UsageError, explain_refusal
from seqckpt.training.run_names import find_misnomer, is_plain_name
from seqckpt.training.snapshot import LAST, PREVIOUS, remove_left_snapshots

__all__ = [
    "RUNS",
    "choose_run_path",
    "find_resumable",
    "find_run",
    "has_snapshot",
    "is_unbegun",
    "open_run_directory",
    "remove_unbegun",
    "taken_error",
    "writing_into",
]

RUNS = Path("runs")
_PATIENCE_SECONDS = 15.0


def find_run(name: str | Path, *, parent: Path = RUNS, key: str = "run") -> Path:
    """Return the folder of a run: a path, or a name under `parent`.

    Raises UsageError where neither is a run's; `key` is what the user gave it by.
    """
    for folder in (Path(name).expanduser(), parent / name):
        if (folder / "config.yaml").is_file():
            return folder
    if Path(name).expanduser().is_dir():
        raise UsageError(f"{key}={name}: this folder holds no config.yaml, so it is not a run's")
    known = sorted(path.parent.name for path in parent.glob("*/config.yaml"))
    near = difflib.get_close_matches(str(name), known, n=1)
    listed = f"did you mean {near[0]}?" if near else f"those in {parent} are: {', '.join(known) or '(none)'}"
    raise UsageError(f"{key}={name}: there is no such run; expected a folder, or a name under {parent}; {listed}")


def find_resumable(name: str | None, config_name: str, *, parent: Path = RUNS) -> Path | None:
    """Return the run to go on with where nobody says which, or None where there is none.

    That is `parent/name`, or without a name the last one of this configuration that was given no name and has not come
    to its end.
    """
    if name is not None:
        folders = [parent / name] if is_plain_name(name) else []
    else:
        own = _list_unnamed(config_name, parent)
        begun = [path for path in own if not (path / "summary.json").exists()]
        folders = sorted(begun, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in folders if has_snapshot(path)), None)


def has_snapshot(folder: Path) -> bool:
    """Say whether a run can go on from what is in its folder."""
    return any((folder / file).is_file() for file in (LAST, PREVIOUS))


def choose_run_path(
    name: str | None, config_name: str, *, parent: Path = RUNS, may_be_begun: bool = False, may_be_empty: bool = False
) -> Path:
    """Return where a run will write: `parent/name`, or `parent/<config name>-<date and time>` where there is no name.

    Nothing is made yet. Raises UsageError for a name that is no name of a folder, or that is taken; with `may_be_begun`
    a run that ended before its first snapshot may have it, and with either an empty folder.
    """
    if name is None:
        stem = f"{config_name}-{datetime.now():%Y%m%d-%H%M%S}"
        path, number = parent / stem, 1
        while path.exists():  # two runs begun in one second
            number += 1
            path = parent / f"{stem}-{number}"
        return path
    is_begun = may_be_begun and is_plain_name(name) and (parent / name / "config.yaml").exists()
    if not is_begun and (problem := find_misnomer(name)):
        raise UsageError(
            f"run={name[:40]!r} cannot name a folder: {problem}; expected a plain name, such as run=first_try"
        )
    is_open = (may_be_begun or may_be_empty) and is_unbegun(parent / name)
    if (parent / name).exists() and not (is_open or is_begun):
        raise taken_error(parent / name)
    return parent / name


def is_unbegun(path: Path) -> bool:
    """Say whether a run's folder is absent or empty, but for what a killed process had begun to write."""
    if path.exists() and not path.is_dir():
        return False
    return not path.exists() or all(re.fullmatch(r"\..*\.partial", entry.name) for entry in path.iterdir())


@contextmanager
def open_run_directory(path: Path, *, may_exist: bool = False, must_be_made: bool = False) -> Iterator[Path]:
    """Open the folder of a run for this process alone, made where it is absent; see Note 1.

    What dead processes left half-written in it is removed. If the block fails before a snapshot was saved in a folder
    that was unbegun, it is taken away again. Raises UsageError where another process has it open, where it cannot be
    made, or where something is in it; with `may_exist` a run may be. With `must_be_made` FolderTakenError where the
    folder is there already.
    """
    parent_is_new = not path.parent.exists()
    with _only_process(path, must_be_made=must_be_made) as is_new:
        was_unbegun = is_unbegun(path)
        if not may_exist and not was_unbegun:
            raise taken_error(path)
        for folder in [path, *(entry for entry in path.iterdir() if entry.is_dir())]:
            remove_abandoned(folder)
        remove_left_snapshots(path)
        try:
            yield path
        except BaseException:
            if was_unbegun and not any(path.glob("*.pt")):
                _clear(path, itself=is_new)
                if parent_is_new and not any(path.parent.iterdir()):
                    path.parent.rmdir()
            raise


def taken_error(path: Path) -> UsageError:
    """Return what to say of a name that a run, or something else, has already."""
    goes_on = "go on with it by resume=auto, or " if has_snapshot(path) else ""
    return UsageError(f"the run {path} exists already: {goes_on}choose another name, or move that folder away")


def remove_unbegun(config_name: str, *, parent: Path = RUNS) -> None:
    """Remove the empty folders of runs without a name whose processes were killed before they began to train."""
    for path in _list_unnamed(config_name, parent):
        with suppress(OSError, UsageError):
            if fcntl is not None and is_unbegun(path):
                with _only_process(path, patience_seconds=0.0):
                    if is_unbegun(path):
                        _clear(path, itself=True)


def _list_unnamed(config_name: str, parent: Path) -> list[Path]:
    unnamed = re.compile(re.escape(config_name) + r"-\d{8}-\d{6}(-\d+)?")  # as choose_run_path names them
    return [path for path in parent.glob("*") if unnamed.fullmatch(path.name)]


def _clear(path: Path, *, itself: bool) -> None:
    """Remove what is in a folder, and the folder `itself` where this process made it."""
    for entry in path.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            with suppress(OSError):
                entry.unlink()
    if itself:
        with suppress(OSError):
            path.rmdir()


@contextmanager
def _only_process(folder: Path, *, patience_seconds: float | None = None, must_be_made: bool = False) -> Iterator[bool]:
    """Make a folder if it is absent, and hold it against other processes; yield whether it was made.

    As far as system and file system can; whatever ends this process frees the folder. Waits for some seconds, as worker
    processes outlive a run that was killed by a little.
    """
    deadline = time.monotonic() + (_PATIENCE_SECONDS if patience_seconds is None else patience_seconds)
    while True:
        is_new = _make(folder)
        if must_be_made and not is_new:
            raise FolderTakenError(f"{folder} was made by somebody else meanwhile")
        if fcntl is None:
            yield is_new
            return
        try:
            place = os.open(folder, os.O_RDONLY)
        except FileNotFoundError:  # who had it failed, and took it away
            continue
        except OSError as error:
            raise UsageError(f"the run's folder {folder} cannot be opened: {explain_refusal(error)}") from error
        try:
            _wait_for_lock(place, folder, deadline)
            if _is_still(place, folder):
                yield is_new
                return
        finally:
            os.close(place)


def _make(folder: Path) -> bool:
    """Make a folder; False where it is there."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        if folder.is_dir():
            return False
        raise UsageError(f"the run's folder {folder} cannot be made: {explain_refusal(error)}") from error
    return True


def _wait_for_lock(place: int, folder: Path, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            raise UsageError(
                f"another process is training the run {folder}: wait until it ends, or stop it, or choose another "
                "name, such as run=second"
            ) from error
        except OSError:  # a file system without locks
            pass
        return


def _is_still(place: int, folder: Path) -> bool:
    """Say whether the folder that was locked is the one that bears the name; it may have been removed meanwhile."""
    try:
        return os.path.samestat(os.fstat(place), os.stat(folder))
    except FileNotFoundError:
        return False


@contextmanager
def writing_into(folder: Path, what: str) -> Iterator[None]:
    """Within this context `what` is written into a run's folder; where that fails, TrainingError says what to do.

    A full disk, a quota, a folder that is read-only by now: what was saved before is whole.
    """
    try:
        yield
    except OSError as error:
        again = f", and begin again with run={folder.name} resume=auto" if any(folder.glob("*.pt")) else ""
        go_on = f", and go on with resume={folder}" if has_snapshot(folder) else again
        raise TrainingError(
            f"{what} cannot be written into {folder}: {explain_refusal(error)}. The snapshots saved before are whole: "
            f"make room{go_on}"
        ) from error

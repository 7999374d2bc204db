"""The folder of a run: runs/<name>/ under the current directory, made when training can begin, never overwritten."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

from seqckpt.errors import TrainingError, UsageError
from seqckpt.training.snapshot import LAST, PREVIOUS

__all__ = ["RUNS", "choose_run_path", "find_resumable", "find_run", "open_run_directory", "writing_into"]

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
        folders = [parent / name]
    else:
        unnamed = re.compile(re.escape(config_name) + r"-\d{8}-\d{6}(-\d+)?")  # as choose_run_path names them
        own = [path for path in parent.glob("*") if unnamed.fullmatch(path.name)]
        begun = [path for path in own if not (path / "summary.json").exists()]
        folders = sorted(begun, key=lambda path: path.stat().st_mtime, reverse=True)
    return next((path for path in folders if any((path / file).is_file() for file in (LAST, PREVIOUS))), None)


def choose_run_path(name: str | None, config_name: str, *, parent: Path = RUNS, may_be_begun: bool = False) -> Path:
    """Return where a run will write: `parent/name`, or `parent/<config name>-<date and time>` where there is no name.

    Nothing is made yet. Raises UsageError for a name that is no name of a folder, or that is taken; with `may_be_begun`
    a run that ended before its first snapshot may have it.
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
    if (parent / name).exists() and not (may_be_begun and (parent / name / "config.yaml").exists()):
        begun = any((parent / name / file).is_file() for file in (LAST, PREVIOUS))
        goes_on = "go on with it by resume=auto, or " if begun else ""
        raise UsageError(
            f"the run {parent / name} exists already: {goes_on}choose another name, or move that folder away"
        )
    return parent / name


@contextmanager
def open_run_directory(path: Path, *, may_exist: bool = False) -> Iterator[Path]:
    """Make the folder of a run; if the block fails before a snapshot was saved, take it away again.

    With `may_exist` the folder may be there already; UsageError where another process has it open.
    """
    parent_is_new = not path.parent.exists()
    try:
        path.mkdir(parents=True, exist_ok=may_exist)
    except OSError as error:
        raise UsageError(f"the run's folder {path} cannot be made: {error}") from error
    with _only_process(path):
        try:
            yield path
        except BaseException:
            if not any(path.glob("*.pt")):
                shutil.rmtree(path, ignore_errors=True)
                if parent_is_new and not any(path.parent.iterdir()):
                    path.parent.rmdir()
            raise


@contextmanager
def _only_process(folder: Path) -> Iterator[None]:
    """Hold a folder against other processes, as far as system and file system can; whatever ends this one frees it.

    Waits for some seconds, as worker processes outlive a run that was killed by a little.
    """
    if fcntl is None:
        yield
        return
    place = os.open(folder, os.O_RDONLY)
    try:
        deadline = time.monotonic() + _PATIENCE_SECONDS
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
            break
        yield
    finally:
        os.close(place)


@contextmanager
def writing_into(folder: Path, what: str) -> Iterator[None]:
    """Within this context `what` is written into a run's folder; where that fails, TrainingError says what to do.

    A full disk, a quota, a folder that is read-only by now: what was saved before is whole.
    """
    try:
        yield
    except OSError as error:
        go_on = f", and go on with resume={folder}" if any(folder.glob("*.pt")) else ""
        raise TrainingError(
            f"{what} cannot be written into {folder}: {error.strerror or error}. The snapshots saved before are whole: "
            f"make room{go_on}"
        ) from error

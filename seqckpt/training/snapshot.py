"""Snapshots: the saved state of a training run, whole or not there.

A file is written beside its place, flushed to disk and renamed over the old one (atomic.py), so that whatever happens
in between, a good file bears the name. Of last.pt the one before is kept as previous.pt, should the last be damaged
later on. What a snapshot holds is plain data and tensors, which `weights_only=True` loads. It is held against its
checksums when it was written and when it is loaded, and its form is checked then; whatever is wrong is a SnapshotError.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch
from torch import Tensor, nn

from seqckpt.atomic import new_file
from seqckpt.errors import SnapshotError, explain_refusal
from seqckpt.training.checksums import find_damage
from seqckpt.training.snapshot_form import find_misfit

__all__ = [
    "BEST",
    "LAST",
    "PREVIOUS",
    "RUN_KEYS",
    "belonging",
    "forget_lost_best",
    "load_last",
    "load_snapshot",
    "load_weights",
    "remove_left_snapshots",
    "save_last",
    "save_snapshot",
]

BEST, LAST, PREVIOUS = "best.pt", "last.pt", "previous.pt"
RUN_KEYS = ("model", "optimiser", "scaler", "carried", "progress", "random_states")  # what a run goes on from

_UPCOMING = f".{LAST}.upcoming"  # for the moment in which last.pt becomes previous.pt
_DAMAGED = {LAST: "damaged.pt", BEST: "damaged_best.pt"}

_log = logging.getLogger(__name__)


def save_snapshot(path: Path, state: Mapping[str, Any]) -> None:
    """Save tensors, numbers, texts, lists and dicts at `path`; the file there before stays whole if that fails.

    What was written is read again and held against its checksums: 0.15 s for 500 MB, whose writing takes 0.7 to 1.9 s
    (two cores of a shared machine). Raises OSError where it cannot be written.
    """
    with new_file(path) as file:
        with _checksums_written():
            _save(dict(state), file)
        file.flush()
        if problem := find_damage(file):
            raise OSError(errno.EIO, f"what was written reads otherwise ({problem})", str(path))
        file.seek(0, os.SEEK_END)


def _save(state: Mapping[str, Any], file: BinaryIO) -> None:
    """Save with torch, but raise what went wrong: torch puts a RuntimeError of its own in its place."""
    noting = _Noting(file)
    try:
        torch.save(state, cast(BinaryIO, noting))  # it writes and flushes, which is all that torch asks for
    except Exception as error:
        cause: BaseException | None = noting.error or error
        while cause is not None and not isinstance(cause, OSError | KeyboardInterrupt):
            cause = cause.__context__
        if cause is None or cause is error:
            raise
        raise cause from None


class _Noting:
    """A file that notes the first thing that keeps it from being written: a full disk, or a signal that stops a run."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: BaseException | None = None

    def write(self, data: Any) -> int:
        try:
            return self._file.write(data)
        except BaseException as error:
            self.error = self.error or error
            raise

    def flush(self) -> None:
        self._file.flush()


@contextmanager
def _checksums_written() -> Iterator[None]:
    """Let torch write checksums, whatever the program around has chosen."""
    chosen = torch.serialization.get_crc32_options()
    torch.serialization.set_crc32_options(True)
    try:
        yield
    finally:
        torch.serialization.set_crc32_options(chosen)


def save_last(folder: Path, state: Mapping[str, Any]) -> None:
    """Save last.pt in a run's folder; when it is written, and not before, the one before becomes previous.pt.

    Takes the room of three snapshots for a moment. Killed at any moment, last.pt or previous.pt is whole.
    """
    upcoming = folder / _UPCOMING
    save_snapshot(upcoming, state)
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / PREVIOUS)
    os.replace(upcoming, folder / LAST)


def remove_left_snapshots(folder: Path) -> None:
    """Remove the snapshot that a killed process had written and not yet named: previous.pt leads there once more."""
    with suppress(OSError):
        (folder / _UPCOMING).unlink(missing_ok=True)


def _put_aside(path: Path) -> None:
    """Rename a damaged snapshot, so that it never takes the place of a good one."""
    with suppress(OSError):
        os.replace(path, path.with_name(_DAMAGED[path.name]))


def load_last(folder: Path, *, device: torch.device | str = "cpu", keys: Sequence[str] = RUN_KEYS) -> dict[str, Any]:
    """Load last.pt of a run's folder; where it is damaged, foreign or missing, previous.pt, with a warning.

    The damaged file is put aside as damaged.pt, so that it never takes the place of a good one. Raises SnapshotError,
    with what is wrong with each, where neither can be loaded.
    """
    try:
        return load_snapshot(folder / LAST, device=device, keys=keys)
    except SnapshotError as error:
        problem = error
    try:
        state = load_snapshot(folder / PREVIOUS, device=device, keys=keys)
    except SnapshotError as error:
        raise SnapshotError(f"{problem}; and {error}") from error
    _put_aside(folder / LAST)
    _log.warning("%s; the one before is taken, %s", problem, folder / PREVIOUS)
    return state


def forget_lost_best(folder: Path, state: dict[str, Any], *, put_aside: bool = False) -> str:
    """Where best.pt is not of the best epoch that a run's state knows, let later epochs alone be compared.

    With `put_aside` a damaged one is renamed to damaged_best.pt. Returns what to say then; "" where all is well.
    Otherwise the run would miss the file when it has come to its end.
    """
    progress = state["progress"]
    if progress["best_epoch"] is None:
        return ""
    try:
        found = load_snapshot(folder / BEST, keys=("progress",))["progress"].get("best_epoch")
        problem = f"{folder / BEST} is of epoch {found}"
    except (SnapshotError, AttributeError) as error:
        found, problem = None, str(error) if isinstance(error, SnapshotError) else f"{folder / BEST} is no snapshot"
        if put_aside:
            _put_aside(folder / BEST)
    if found == progress["best_epoch"]:
        return ""
    state["progress"] = {**progress, "best_epoch": None, "best_accuracy": None}
    return f"{problem}; the best epoch so far was {progress['best_epoch']}: now the best of those to come is kept"


def load_snapshot(path: Path, *, device: torch.device | str = "cpu", keys: Sequence[str] = ()) -> dict[str, Any]:
    """Load what `save_snapshot` saved, by `weights_only=True`, with at least these keys.

    Raises SnapshotError, which names the file, where it is missing, cannot be read, differs from its checksums, or
    holds something else; with all of RUN_KEYS among the keys each part is looked at, too.
    """
    try:
        with open(path, "rb") as file:
            problem = find_damage(file)
            state: Any = None if problem else torch.load(file, map_location=device, weights_only=True)
    except (FileNotFoundError, IsADirectoryError):
        raise SnapshotError(f"there is no snapshot {path}") from None
    except OSError as error:
        raise SnapshotError(f"the snapshot {path} cannot be read: {explain_refusal(error)}") from error
    except (MemoryError, torch.OutOfMemoryError):
        raise  # which says nothing about the file
    except Exception as error:  # torch raises a dozen kinds for a file that is not its own
        problem = "more than tensors and plain data, or no snapshot at all"
        if isinstance(error, RuntimeError):
            problem = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise SnapshotError(f"the snapshot {path} is damaged or was not made by this program ({problem})") from error
    if problem:
        raise SnapshotError(f"the snapshot {path} is damaged or was not made by this program ({problem})")
    if misfit := find_misfit(state, keys, parts=set(RUN_KEYS) <= set(keys)):
        raise SnapshotError(f"{path} is no snapshot of a run: {misfit}; expected what a run saved")
    return state


def load_weights(model: nn.Module, state: Mapping[str, Tensor], path: Path) -> None:
    """Give a model the weights of a snapshot; raise SnapshotError, with the keys that differ, where it is another's."""
    own = model.state_dict()
    missing = [key for key in own if key not in state]
    unknown = [key for key in state if key not in own]
    other = [
        f"{key} {tuple(state[key].shape)}, here {tuple(own[key].shape)}"
        for key in own
        if key in state and own[key].shape != state[key].shape
    ]
    kinds = {"not in the snapshot": missing, "not in the model": unknown, "of another shape": other}
    if problems := [f"{kind}: {_shorten(keys)}" for kind, keys in kinds.items() if keys]:
        raise SnapshotError(f"the snapshot {path} is that of another model: " + "; ".join(problems))
    model.load_state_dict(dict(state))


@contextmanager
def belonging(path: Path) -> Iterator[None]:
    """Turn what goes wrong while parts of a snapshot are taken up into a SnapshotError that names the file."""
    try:
        yield
    except (LookupError, ValueError, TypeError, AttributeError, RuntimeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        reason = str(error).strip().partition("\n")[0]
        raise SnapshotError(
            f"the snapshot {path} does not belong to this run ({type(error).__name__}: {reason})"
        ) from error


def _shorten(keys: list[str], most: int = 5) -> str:
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + rest

"""Snapshots: the saved state of a training run, whole or not there.

A file is written beside its place, flushed to disk and renamed over the old one (atomic.py), so that whatever happens
in between, a good file bears the name. Of last.pt the one before is kept as previous.pt, should the last be damaged
later on. What a snapshot holds is plain data and tensors, which `weights_only=True` loads.
"""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.atomic import new_file
from seqckpt.errors import SnapshotError

__all__ = [
    "BEST",
    "LAST",
    "PREVIOUS",
    "RUN_KEYS",
    "forget_lost_best",
    "load_last",
    "load_snapshot",
    "load_weights",
    "save_last",
    "save_snapshot",
]

BEST, LAST, PREVIOUS = "best.pt", "last.pt", "previous.pt"
RUN_KEYS = ("model", "optimiser", "scaler", "carried", "progress", "random_states")  # what a run goes on from

_log = logging.getLogger(__name__)


def save_snapshot(path: Path, state: Mapping[str, Any]) -> None:
    """Save tensors, numbers, texts, lists and dicts at `path`; the file there before stays whole if that fails."""
    with new_file(path) as file:
        torch.save(dict(state), file)


def save_last(folder: Path, state: Mapping[str, Any]) -> None:
    """Save last.pt in a run's folder; when it is written, and not before, the one before becomes previous.pt.

    Takes the room of three snapshots for a moment. Killed at any moment, last.pt or previous.pt is whole.
    """
    upcoming = folder / f".{LAST}.upcoming"
    save_snapshot(upcoming, state)
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / PREVIOUS)
    os.replace(upcoming, folder / LAST)


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
    if (folder / LAST).exists():
        os.replace(folder / LAST, folder / "damaged.pt")
    _log.warning("%s; the one before is taken, %s", problem, folder / PREVIOUS)
    return state


def forget_lost_best(folder: Path, state: dict[str, Any]) -> str:
    """Where best.pt is not of the best epoch that a run's state knows, let later epochs alone be compared.

    Returns what to say then; "" where all is well. Otherwise the run would miss the file when it has come to its end.
    """
    progress = state["progress"]
    if progress["best_epoch"] is None:
        return ""
    try:
        found = load_snapshot(folder / BEST, keys=("progress",))["progress"]["best_epoch"]
        problem = f"{folder / BEST} is of epoch {found}"
    except SnapshotError as error:
        found, problem = None, str(error)
    if found == progress["best_epoch"]:
        return ""
    state["progress"] = {**progress, "best_epoch": None, "best_accuracy": None}
    return f"{problem}; the best epoch so far was {progress['best_epoch']}: now the best of those to come is kept"


def load_snapshot(path: Path, *, device: torch.device | str = "cpu", keys: Sequence[str] = ()) -> dict[str, Any]:
    """Load what `save_snapshot` saved, by `weights_only=True`, with at least these keys.

    Raises SnapshotError for a file that is missing or damaged, or holds something else.
    """
    if not path.is_file():
        raise SnapshotError(f"there is no snapshot {path}")
    try:
        state = torch.load(path, map_location=device, weights_only=True)
    except (
        RuntimeError,
        EOFError,
        pickle.UnpicklingError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        reason = "more than tensors and plain data, or no snapshot at all"
        if isinstance(error, RuntimeError):
            reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        raise SnapshotError(f"the snapshot {path} is damaged or was not made by this program ({reason})") from error
    if not isinstance(state, dict):
        raise SnapshotError(f"{path} is no snapshot: it holds a {type(state).__name__}; expected what a run saved")
    if missing := [key for key in keys if key not in state]:
        raise SnapshotError(
            f"{path} is no snapshot of a run: {', '.join(missing)} not in it; expected what a run saved"
        )
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


def _shorten(keys: list[str], most: int = 5) -> str:
    rest = f" and {len(keys) - most} more" if len(keys) > most else ""
    return ", ".join(keys[:most]) + rest

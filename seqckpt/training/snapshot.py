"""Snapshots: the saved state of a training run, whole or not there.

A file is written beside its place, flushed to disk and renamed over the old one, so that whatever happens in between,
a good file bears the name.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from seqckpt.errors import SnapshotError

__all__ = ["load_snapshot", "replace_file", "save_snapshot", "write_text"]


def save_snapshot(path: Path, state: Mapping[str, Any]) -> None:
    """Save tensors, numbers, texts, lists and dicts at `path`; the file there before stays whole if that fails."""
    with replace_file(path) as file:
        torch.save(dict(state), file)


def load_snapshot(path: Path, *, device: torch.device | str = "cpu") -> dict[str, Any]:
    """Load what `save_snapshot` saved, by `weights_only=True`; raise SnapshotError for a missing or damaged file."""
    if not path.is_file():
        raise SnapshotError(f"there is no snapshot {path}")
    try:
        return torch.load(path, map_location=device, weights_only=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError, ValueError, KeyError) as error:
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise SnapshotError(f"the snapshot {path} is damaged or was not made by this program ({reason})") from error


@contextmanager
def replace_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a temporary file; on success it is on disk under the name `path`, on failure it is gone."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _flush_folder(path.parent)


def write_text(path: Path, text: str) -> None:
    """Write a text file, whole or not at all."""
    with replace_file(path) as file:
        file.write(text.encode())


def _flush_folder(folder: Path) -> None:
    """Bring the renaming itself to disk; Windows cannot open folders."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

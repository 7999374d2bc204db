"""Errors that users meet: each says what was given, what was expected and what to do."""

from __future__ import annotations

import errno

__all__ = [
    "BudgetError",
    "ConfigError",
    "DataError",
    "LostContactError",
    "ReplayError",
    "SnapshotError",
    "TrainingError",
    "UsageError",
    "explain_refusal",
    "is_out_of_room",
]

_NO_ROOM = {
    errno.EFBIG: "the file is larger than files may be here (ulimit -f)",
    getattr(errno, "EDQUOT", errno.ENOSPC): "the disk quota is used up",
    errno.ENOSPC: "the disk is full",
}


class UsageError(ValueError):
    """Something that a user can put right without reading a traceback; the command line prints only its message."""


class ConfigError(UsageError):
    """The configuration is wrong: an unknown key, a wrong type, a missing or impossible value."""


class BudgetError(UsageError):
    """A budget of memory cannot be met; `needed_bytes` is the smallest that can."""

    def __init__(self, message: str, *, needed_bytes: int) -> None:
        super().__init__(message)
        self.needed_bytes = needed_bytes


class DataError(UsageError):
    """A data set is not as its format says: names the file, the line, what was read and what was expected."""


class SnapshotError(UsageError):
    """A snapshot is damaged, or belongs to another model."""


class ReplayError(RuntimeError):
    """A replay did not, or cannot, repeat its first run: names the chunk or segment, by how much, and the likely
    cause."""


class TrainingError(RuntimeError):
    """Training cannot go on: names the clip and the step; what was learnt before is saved."""


class LostContactError(TrainingError):
    """Another of the processes that train together ended, or hangs."""


def is_out_of_room(error: OSError) -> bool:
    """Say whether a file could not be written because disk, quota or the size of files have come to their limit."""
    return error.errno in _NO_ROOM


def explain_refusal(error: OSError) -> str:
    """Return in words why the system refused to read or write a file.

    >>> explain_refusal(OSError(errno.ENOSPC, "No space left on device"))
    'the disk is full (No space left on device)'
    >>> explain_refusal(OSError(errno.EACCES, "Permission denied"))
    'Permission denied'
    """
    given = error.strerror or str(error)
    return f"{_NO_ROOM[error.errno]} ({given})" if error.errno in _NO_ROOM else given

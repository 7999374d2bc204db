"""Errors that users meet: each says what was given, what was expected and what to do."""

from __future__ import annotations

__all__ = [
    "BudgetError",
    "ConfigError",
    "DataError",
    "LostContactError",
    "ReplayError",
    "SnapshotError",
    "TrainingError",
    "UsageError",
]


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

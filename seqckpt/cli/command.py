"""What a command of the command line consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """A command's name, what it runs, and what `--help` says of it.

    `run` is called with the arguments (config=..., key=value) and the set of flags given; it returns the exit code.
    `flags` maps each flag ("--full") to its meaning.
    """

    name: str
    run: Callable[[Sequence[str], frozenset[str]], int]
    meaning: str
    flags: Mapping[str, str] = field(default_factory=dict)

"""What a command of the command line consists of."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from seqckpt.errors import UsageError

__all__ = ["Command", "take_names"]


@dataclass(frozen=True)
class Command:
    """A command's name, what it runs, and what `--help` says of it.

    `run` is called with the arguments (config=..., key=value) and the set of flags given; it returns the exit code.
    `flags` maps each flag ("--full") to its meaning. `usage` is what follows the name on the command line; `names` maps
    the arguments that are the command's own, and no keys of the configuration, to their meaning. `takes_keys` says
    whether keys of the configuration may follow. `closing` ends the
    help of a command that takes none.
    """

    name: str
    run: Callable[[Sequence[str], frozenset[str]], int]
    meaning: str
    flags: Mapping[str, str] = field(default_factory=dict)
    usage: str = "config=FILE [key=value ...]"
    names: Mapping[str, str] = field(default_factory=dict)
    takes_keys: bool = True
    closing: str = ""


def take_names(
    arguments: Sequence[str], names: Mapping[str, str], *, required: Sequence[str] = ()
) -> tuple[dict[str, str], list[str]]:
    """Part `name=value` arguments of a command's own from the rest, which are for the configuration to read.

    Raises UsageError where a required one is missing, or one is given twice, or is empty.
    """
    values: dict[str, str] = {}
    rest = []
    for text in arguments:
        name, _, value = text.partition("=")
        if name not in names:
            rest.append(text)
            continue
        if name in values or not value:
            problem = "is given more than once" if name in values else "has no value"
            raise UsageError(f"{text} {problem}: expected one {name}=..., {names[name]}")
        values[name] = value
    for name in required:
        if name not in values:
            given = [text.partition("=")[0] for text in rest]
            near = difflib.get_close_matches(name, given, n=1)
            meant = f"; is {near[0]}= meant for it?" if near else ""
            raise UsageError(f"{name}= is missing: {names[name]}{meant}")
    return values, rest

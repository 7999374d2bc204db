"""What a case of the bench is: a name, settings with two sets of defaults, and a function that fills a report."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seqckpt.bench.report import Report
from seqckpt.errors import UsageError

__all__ = ["Case", "Settings", "check_known", "read_settings"]

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One measurement side by side.

    `run` is given the settings and a report to fill. `settings` are the full run's defaults, whole numbers, floats,
    texts, or tuples of those (written a,b,c); `quick` says which of them are others under `--quick`.
    """

    name: str
    meaning: str
    run: Callable[[Settings, Report], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def choose(self, given: Mapping[str, str], *, is_quick: bool) -> Settings:
        """The settings of a run: defaults, then `--quick`'s, then what was given and is one of this case's."""
        chosen = {**self.settings, **(self.quick if is_quick else {})}
        return chosen | {name: _parse(name, text, self.settings[name]) for name, text in given.items()}


def check_known(key: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError where one of the names given to a setting is not among those that are known.

    >>> check_known("what", ["cold"], ["cold", "warm"])
    """
    known = list(known)
    for name in given:
        if name not in known:
            raise UsageError(f"{key}={name}: expected some of {', '.join(known)}")


def read_settings(cases: list[Case], given: Mapping[str, str]) -> dict[str, dict[str, str]]:
    """Sort `key=value` arguments to the cases that have such a key; raise UsageError for one that none has."""
    sorted_in: dict[str, dict[str, str]] = {case.name: {} for case in cases}
    for key, text in given.items():
        takers = [case for case in cases if key in case.settings]
        if not takers:
            known = sorted({name for case in cases for name in case.settings})
            near = difflib.get_close_matches(key, known, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            names = ", ".join(case.name for case in cases)
            raise UsageError(f"{key}={text}: {names} have no setting {key!r}; expected {', '.join(known)}{meant}")
        for case in takers:
            sorted_in[case.name][key] = text
    return sorted_in


def _parse(name: str, text: str, default: Any) -> Any:
    if isinstance(default, tuple):
        kind = default[0] if default else ""
        return tuple(_parse(name, part.strip(), kind) for part in text.split(",") if part.strip())
    try:
        return type(default)(text)
    except ValueError:
        kinds = {int: "a whole number", float: "a number"}
        raise UsageError(f"{name}={text}: expected {kinds[type(default)]}, such as {default}") from None

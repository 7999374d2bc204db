"""What a case of the bench is: a name, settings with defaults and limits, and a function that fills a report."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from seqckpt.bench.report import Report
from seqckpt.errors import UsageError
from seqckpt.models import list_encoders
from seqckpt.units import parse_bytes

__all__ = [
    "Case",
    "Settings",
    "check_encoder",
    "check_known",
    "part_settings",
    "read_bytes",
    "read_settings",
    "write_value",
]

Settings = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One measurement side by side.

    `run` is given the settings and a report to fill. `settings` are the full run's defaults, whole numbers, floats,
    texts, or tuples of those (written a,b,c); `quick` says which of them are others under `--quick`.

    Limits, for each number of a tuple, too: whole numbers are at least 1, or what `least` says, and at most what `most`
    says; other numbers are finite. Tuples have something in them, except those of `may_be_empty`. `check` raises
    UsageError for what else cannot be run; it costs no time.
    """

    name: str
    meaning: str
    run: Callable[[Settings, Report], None]
    settings: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)
    least: Mapping[str, float] = field(default_factory=dict)
    most: Mapping[str, float] = field(default_factory=dict)
    may_be_empty: Collection[str] = ()
    check: Callable[[Settings], object] | None = None

    def choose(self, given: Mapping[str, str], *, is_quick: bool) -> Settings:
        """The settings of a run: defaults, then `--quick`'s, then what was given and is one of this case's.

        Raises UsageError, which names the case, for what was given and cannot be read or is outside the limits.
        """
        chosen = {**self.settings, **(self.quick if is_quick else {})}
        try:
            for name, text in given.items():
                chosen[name] = _parse(name, text, self.settings[name])
                self._check_limits(name, text, chosen[name])
            if self.check is not None:
                self.check(chosen)
        except UsageError as error:
            raise UsageError(f"{self.name}: {error}") from None
        return chosen

    def _check_limits(self, name: str, text: str, value: Any) -> None:
        default = self.settings[name]
        if value == () and name not in self.may_be_empty:
            raise UsageError(f"{name}={text}: expected at least one, as in {name}={write_value(default)}")
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, str):
                continue
            least = self.least.get(name, 1 if isinstance(number, int) else -math.inf)
            most = self.most.get(name, math.inf)
            if not (least <= number <= most and math.isfinite(number)):
                kind = f"{'whole ' * isinstance(number, int)}number"
                kind = f"{kind}s" if isinstance(value, tuple) else f"a {kind}"
                limits = _describe_limits(least, most)
                raise UsageError(f"{name}={text}: expected {kind}{limits}, as in {name}={write_value(default)}")


def check_known(key: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raise UsageError where one of the names given to a setting is not among those that are known.

    >>> check_known("what", ["cold"], ["cold", "warm"])
    """
    known = list(known)
    for name in given:
        if name not in known:
            raise UsageError(f"{key}={name}: expected some of {', '.join(known)}")


def check_encoder(key: str, name: str) -> None:
    """Raise UsageError where a setting names no encoder.

    >>> check_encoder("encoder", "resnet18")
    """
    known = list_encoders()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=3) or known[:3]
        raise UsageError(f"{key}={name}: expected one of {len(known)} encoders, such as {', '.join(near)}")


def read_bytes(key: str, text: str) -> int:
    """The bytes that a setting names; raises UsageError where there are none.

    >>> read_bytes("cap", "2KiB")
    2048
    """
    try:
        num_bytes = parse_bytes(text)
    except ValueError as error:
        raise UsageError(f"{key}={text}: {error}") from None
    if num_bytes < 1:
        raise UsageError(f"{key}={text}: expected an amount of memory, such as 2GiB")
    return num_bytes


def part_settings(texts: Iterable[str]) -> dict[str, str]:
    """Part `key=value` arguments at the first equals sign; raise UsageError for a key that is given twice.

    >>> part_settings(["steps=2", "folder=a=b"])
    {'steps': '2', 'folder': 'a=b'}
    """
    given: dict[str, str] = {}
    for text in texts:
        key, _, value = text.partition("=")
        if key in given:
            raise UsageError(f"{key}={given[key]} and {text}: expected {key}= only once")
        given[key] = value
    return given


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
            raise UsageError(f"{key}={text}: no setting {key!r} in {names}; expected {', '.join(known)}{meant}")
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


def _describe_limits(least: float, most: float) -> str:
    if least > -math.inf and most < math.inf:
        return f" from {least:g} to {most:g}"
    if least > -math.inf:
        return f" of at least {least:g}"
    return f" of at most {most:g}" if most < math.inf else ""


def write_value(value: Any) -> str:
    """A setting as it is given, without its name."""
    return ",".join(str(part) for part in value) if isinstance(value, tuple) else str(value)

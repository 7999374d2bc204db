"""What is wrong with a key or a value, in words."""

from __future__ import annotations

import difflib
import math
import operator
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["describe_type", "nearest_key", "show", "show_pair", "what_is_expected"]

_INSIDE = {"of at least": operator.ge, "above": operator.gt, "of at most": operator.le, "below": operator.lt}


def nearest_key(key: str, keys: Iterable[str]) -> str | None:
    """Return the valid key that looks most like this one, by the whole of it or by its last part."""

    def likeness(known: str) -> float:
        pairs = (key, known), (key.rpartition(".")[2], known.rpartition(".")[2])
        whole, last = (difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
        return max(whole, last) + 0.1 * min(whole, last)

    best = max(keys, key=lambda known: 2.0 if key.startswith(f"{known}.") else likeness(known))
    return best if likeness(best) >= 0.65 else None


def what_is_expected(value: Any, metadata: Mapping[str, Any]) -> str | None:
    """Return in words what was expected, where a value is none of the choices or outside the limits of its key."""
    choices = metadata["choices"]
    limits = {name: limit for name, limit in metadata["limits"].items() if limit is not None}
    if choices and value not in choices and not (limits and isinstance(value, int)):
        return f"{'a number, or ' if limits else ''}one of {', '.join(choices)}"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if math.isfinite(value) and all(_INSIDE[name](value, limit) for name, limit in limits.items()):
        return None
    return f"a number {' and '.join(f'{name} {limit:g}' for name, limit in limits.items())}"


def describe_type(kind: Any) -> str:
    """Name a key's type as people write it."""
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        return " or ".join("null" if part is type(None) else describe_type(part) for part in arguments)
    if typing.get_origin(kind) is list:
        return "a list, such as [a, b]" if arguments[0] is str else "a list, such as [1, 4-8]"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[kind]


def show_pair(key: str, value: Any) -> str:
    """Write key=value as on the command line."""
    return f"{key}={show(value)}"


def show(value: Any) -> str:
    """Write a value as in YAML, as far as one line does."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return repr(value) if value == "" else str(value)

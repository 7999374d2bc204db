"""References in a configuration, `${train.lr}`: to its own keys, and to nothing else.

OmegaConf can also call functions, `${oc.env:HOME}`. Here they are refused: a configuration may come from somebody else,
and what it read from the environment (a token, say) would stand in the run's files, which people pass on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

__all__ = ["find_call"]


def find_call(value: Any) -> str | None:
    """Return the first text in a plain value, such as a list of texts, that calls a function; None where none does.

    >>> find_call(["a", "${oc.env:HOME}/b"]), find_call("${data.root}: ${${a}.b}/c:d")
    ('${oc.env:HOME}/b', None)
    >>> find_call({"a": {"b": "${${a}:HOME}"}})
    '${${a}:HOME}'
    """
    return next((text for text in _texts(value) if _has_call(text)), None)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, Sequence):
        for part in value:
            yield from _texts(part)


def _has_call(text: str) -> bool:
    """Say whether a colon stands within the braces of a reference: keys have none."""
    depth = 0
    for place, letter in enumerate(text):
        if text.startswith("${", place):
            depth += 1
        elif letter == "}":
            depth = max(0, depth - 1)
        elif letter == ":" and depth:
            return True
    return False

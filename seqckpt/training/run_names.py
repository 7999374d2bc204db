"""Which names a run may have: those that are one folder, on any system, and no trap in a shell."""

from __future__ import annotations

import re

__all__ = ["find_misnomer", "is_plain_name"]

_OF_WINDOWS = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # its devices


def is_plain_name(name: str) -> bool:
    """Say whether a name stays in the folder that it is looked up in, and can be that of a file."""
    return bool(name) and name not in (".", "..") and not set(name) & set("/\\\0") and _num_bytes(name) <= 200


def find_misnomer(name: str) -> str | None:
    """Return why a new run's folder must not have that name, on any system; None where it may.

    >>> find_misnomer("first_try"), find_misnomer("Ende gut, ü"), find_misnomer("con.1")
    (None, None, 'Windows has a device of that name')
    >>> find_misnomer("--x"), find_misnomer("a\\nb")
    ('it begins or ends with one of . - ~, or with a blank', "'\\\\n' in it")
    """
    if not is_plain_name(name):
        return f"it has {_num_bytes(name)} bytes, at most 200 fit" if _num_bytes(name) > 200 else "it is none"
    if odd := sorted({letter for letter in name if letter in ':*?"<>|' or not letter.isprintable()}):
        return f"{', '.join(map(repr, odd))} in it"
    if name[0] in ".-~" or name != name.strip() or name.endswith("."):
        return "it begins or ends with one of . - ~, or with a blank"
    return "Windows has a device of that name" if _OF_WINDOWS.fullmatch(name) else None


def _num_bytes(name: str) -> int:
    return len(name.encode(errors="surrogateescape"))

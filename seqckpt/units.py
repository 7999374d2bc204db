"""Bytes and seconds as people read and write them."""

from __future__ import annotations

import re

__all__ = ["format_bytes", "format_seconds", "parse_bytes"]

_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def format_bytes(num_bytes: float) -> str:
    """Write a number of bytes with a binary unit.

    >>> format_bytes(96 * 2**20), format_bytes(512), format_bytes(3 * 2**30)
    ('96.0 MiB', '512 B', '3.00 GiB')
    """
    if abs(num_bytes) >= 2**30:
        return f"{num_bytes / 2**30:.2f} GiB"
    if abs(num_bytes) >= 2**20:
        return f"{num_bytes / 2**20:.1f} MiB"
    if abs(num_bytes) >= 2**10:
        return f"{num_bytes / 2**10:.1f} KiB"
    return f"{num_bytes:.0f} B"


def parse_bytes(text: str | float) -> int:
    """Read "8GiB", "500 MB", "1.5g", "2e9" or a plain number as bytes; raise ValueError otherwise.

    >>> parse_bytes("8GiB") == 8 * 2**30, parse_bytes("500 MB"), parse_bytes(1024), parse_bytes(2e9)
    (True, 500000000, 1024, 2000000000)
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool) and abs(text) < float("inf"):
        return round(text)
    pattern = r"\s*(\d+(?:\.\d+)?(?:e[+]?\d{1,3})?)\s*([kmgt]?i?)b?\s*"
    match = re.fullmatch(pattern, text, re.IGNORECASE) if isinstance(text, str) else None
    if match is None or float(match[1]) == float("inf") or match[2].lower() not in _FACTORS:
        raise ValueError(f"{text!r} is no amount of memory: write it like 8GiB, 500MB or a number of bytes")
    return round(float(match[1]) * _FACTORS[match[2].lower()])


def format_seconds(seconds: float) -> str:
    """Write a duration as h:mm:ss, or m:ss below an hour.

    >>> format_seconds(75), format_seconds(7384)
    ('1:15', '2:03:04')
    """
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours}:{minute:02d}:{second:02d}" if hours else f"{minute}:{second:02d}"

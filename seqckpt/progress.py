"""Progress bars: lively in a terminal, a line now and then in a log file."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

__all__ = ["progress_bar"]


def progress_bar(*args: Any, **options: Any) -> tqdm:
    """tqdm with the same arguments, which writes every ten seconds at most where stderr is no terminal."""
    return tqdm(*args, mininterval=0.1 if sys.stderr.isatty() else 10.0, **options)

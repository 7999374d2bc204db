"""Progress bars: lively in a terminal, a whole line a minute in a log file, and one for all processes of a run."""

from __future__ import annotations

import sys
from typing import Any

from tqdm import tqdm

from seqckpt.launch import launched_as

__all__ = ["progress_bar"]

_QUIET_SECONDS = 60.0


def progress_bar(*args: Any, **options: Any) -> tqdm:
    """tqdm with the same arguments; where stderr is no terminal, nothing for a minute, and then a line each minute.

    Of several processes that torchrun started only the first shows it.
    """
    options.setdefault("disable", launched_as().rank > 0)
    if sys.stderr is not None and sys.stderr.isatty():  # None: closed, as by `2>&-`
        return tqdm(*args, **options)
    quiet = {"file": _WholeLines(), "mininterval": _QUIET_SECONDS, "delay": _QUIET_SECONDS, "ncols": 100}
    return tqdm(*args, **{**options, **quiet, "dynamic_ncols": False})


class _WholeLines:
    """Stands in for stderr: of what a bar draws over and over, each state is a line of its own."""

    def write(self, text: str) -> None:
        if line := text.strip():
            print(line, file=sys.stderr, flush=True)

    def flush(self) -> None:
        """Each line is written through at once."""

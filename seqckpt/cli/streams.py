"""Standard output and error that cannot be written: a full disk, a terminal that is closed, a reader that is gone."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO, cast

__all__ = ["named_output", "silence", "silence_what_is_gone"]


@contextlib.contextmanager
def named_output() -> Iterator[None]:
    """Within this context an error of standard output says that it is standard output's: the system does not."""
    if sys.stdout is None:  # closed, as by `>&-`
        yield
        return
    with contextlib.redirect_stdout(cast(TextIO, _Named(sys.stdout, "standard output"))):
        yield


class _Named:
    """Stands in for a stream; in all but its errors it is that stream."""

    def __init__(self, stream: TextIO, name: str) -> None:
        self._stream, self._own_name = stream, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        return self._do(self._stream.write, text)

    def flush(self) -> None:
        self._do(self._stream.flush)

    def _do(self, work: Callable[..., Any], *args: Any) -> Any:
        try:
            return work(*args)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self._own_name) from error


def silence(stream: TextIO) -> None:
    """Let what is still in a stream's buffer go nowhere, so that closing it does not fail once more."""
    with contextlib.suppress(OSError, ValueError):  # ValueError: no file of the system
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def silence_what_is_gone() -> None:
    """Let Python end without another error, and another exit code, for streams that cannot be written."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and _is_gone(stream):
            silence(stream)


def _is_gone(stream: TextIO) -> bool:
    try:
        stream.flush()
    except (OSError, ValueError):
        return True
    return False

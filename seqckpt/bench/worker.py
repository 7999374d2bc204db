"""Processes for measurements: each holds one subject and does what it is told, so that neither peaks nor times mix.

A worker is forked from a small server that has torch loaded and has run nothing (where there is no fork: spawned), so a
new one costs a moment, and what one has allocated is never another's. Workers that live side by side are asked for a
step in turn: then all of them see the same machine.
"""

from __future__ import annotations

import multiprocessing
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from types import TracebackType
from typing import Any

import torch

from seqckpt.errors import UsageError
from seqckpt.units import format_bytes

__all__ = ["DoesNotFit", "Refused", "RefusedUse", "Worker"]


class DoesNotFit(Exception):
    """A measurement needs, or would need, more memory than it may take."""


class Refused(Exception):
    """A subject cannot be had, or failed: a library that is not installed, say; the message is the reason."""


class RefusedUse(Refused, UsageError):
    """A subject raised a UsageError: its message, for the user where nobody catches it as Refused."""


class Worker:
    """A process with one subject; `ask(name, ...)` calls the subject's method of that name and returns its result.

    Args:
        build: a function of a module, which makes the subject in the process; `arguments` are its keyword arguments.
        limit_bytes: how much the process may allocate beyond what it has at its start (Linux; elsewhere it may all).

    Raises DoesNotFit where the limit is met or the system has killed the process, RefusedUse for a UsageError in the
    process, and Refused with the reason for any other failure.
    """

    def __init__(self, build: Callable[..., Any], *, limit_bytes: int | None = None, **arguments: Any) -> None:
        context = _context()
        self._connection, theirs = context.Pipe()
        self.limit_bytes = limit_bytes
        given = (theirs, build, arguments, limit_bytes, torch.get_num_threads())
        self._process = context.Process(target=_serve, args=given, daemon=True)  # type: ignore[attr-defined]
        self._process.start()
        theirs.close()
        self._is_built = False

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the subject, after it is built; return what it returns."""
        if not self._is_built:
            self._receive()
            self._is_built = True
        try:
            self._connection.send((name, arguments, named))
        except OSError:
            raise self._describe_end() from None
        return self._receive()

    def _receive(self) -> Any:
        try:
            kind, value = self._connection.recv()
        except (EOFError, OSError):
            raise self._describe_end() from None
        if kind == "memory":
            cap = "the machine has" if self.limit_bytes is None else f"its limit of {format_bytes(self.limit_bytes)}"
            raise DoesNotFit(f"needs more than {cap}")
        if kind == "usage":
            raise RefusedUse(value)
        if kind == "error":
            raise Refused(value)
        return value

    def _describe_end(self) -> DoesNotFit | Refused:
        """Why there is no answer: want of memory, if the system killed the process or it aborted under a limit."""
        self._process.join(timeout=5)
        code = self._process.exitcode
        how = f"by {signal.Signals(-code).name}" if code and code < 0 else f"with exit code {code}"
        if code == -signal.SIGKILL:
            return DoesNotFit(f"its process ended {how}: the system does that for want of memory")
        if code == -signal.SIGABRT and self.limit_bytes is not None:
            return DoesNotFit(f"its process ended {how} under its limit of {format_bytes(self.limit_bytes)}")
        return Refused(f"its process ended {how}")

    def close(self, *, at_once: bool = False) -> None:
        """End the process, `at_once` or when it has answered."""
        self._connection.close()
        if at_once:
            self._process.kill()
        self._process.join(timeout=5)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(at_once=kind is not None)


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["seqckpt.bench.cases"])  # with all that subjects are built of
    return context


def _serve(
    connection: Connection, build: Callable[..., Any], arguments: dict[str, Any], limit: int | None, threads: int
) -> None:
    """The process's own work: build the subject, then answer until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks: it ends this one
    torch.set_num_threads(threads)
    subject = None
    try:
        subject = build(**arguments)
        if limit is not None:
            _limit_memory(limit)
        answer: tuple[str, Any] = ("built", None)
    except Exception as error:
        answer = _describe(error)
    try:
        connection.send(answer)
        while subject is not None:
            name, given, named = connection.recv()
            try:
                answer = ("result", getattr(subject, name)(*given, **named))
            except Exception as error:
                answer = _describe(error)
                error.__traceback__ = None  # it holds the step's tensors
            connection.send(answer)
    except (EOFError, OSError):  # nobody is there any more
        return


def _describe(error: BaseException) -> tuple[str, str]:
    if isinstance(error, UsageError):
        return "usage", str(error)
    text = f"{type(error).__name__}: {error}".strip()
    is_memory = isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError))
    signs = ["allocate memory", "not enough memory", "out of memory", "bad_alloc"]
    signs += ["could not create a memory", "could not create a primitive"]  # oneDNN's words for it
    if is_memory or any(sign in text.lower() for sign in signs):
        return "memory", text
    where = traceback.extract_tb(error.__traceback__)[-1:]
    return "error", text + "".join(f" ({frame.filename.rsplit('/', 1)[-1]}:{frame.lineno})" for frame in where)


def _limit_memory(limit_bytes: int) -> None:
    """Let the process have that much more private memory than it has now; Linux only."""
    try:
        import resource

        with open("/proc/self/status", encoding="ascii") as file:
            now = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))
        resource.setrlimit(resource.RLIMIT_DATA, (now + limit_bytes, now + limit_bytes))
    except (ImportError, OSError, ValueError, StopIteration):
        return

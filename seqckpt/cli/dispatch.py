"""The command line: `seqckpt <command> config=... [key=value ...]`.

A mistake of the user's is one message on stderr and exit code 2; training that cannot go on is 1; Ctrl-C is 130,
SIGTERM 143 and SIGHUP 129; 141 where nobody reads the output any more. Of several processes that torchrun started the
first one talks; another only of what that one does not say.
"""

from __future__ import annotations

import contextlib
import difflib
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import redirect_stdout
from types import FrameType
from typing import TextIO

from seqckpt.cli.bench import BENCH
from seqckpt.cli.cache import CACHE
from seqckpt.cli.command import Command
from seqckpt.cli.compare import COMPARE
from seqckpt.cli.doctor import DOCTOR
from seqckpt.cli.evaluate import EVALUATE
from seqckpt.cli.export import EXPORT
from seqckpt.cli.plan import PLAN
from seqckpt.cli.predict import PREDICT
from seqckpt.cli.profile import PROFILE
from seqckpt.cli.report import REPORT
from seqckpt.cli.streams import named_output, silence, silence_what_is_gone
from seqckpt.cli.train import TRAIN
from seqckpt.config import describe_keys
from seqckpt.errors import LostContactError, TrainingError, UsageError, explain_refusal
from seqckpt.launch import launched_as
from seqckpt.training import Stopped, interrupt

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` defaults to the arguments of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("SEQCKPT_DEBUG", "") not in ("", "0")
    arguments = [text for text in arguments if text != "--debug"]
    rank = launched_as().rank
    warnings.showwarning = _show_warning if rank == 0 else _show_nothing
    logging.basicConfig(level=logging.WARNING if rank == 0 else logging.CRITICAL, format="warning: %(message)s")
    interrupt.forget_stop()
    with named_output() if rank == 0 else redirect_stdout(None), _ended_by_signals():
        try:
            return _run(arguments, rank, debug=debug)
        except Stopped as stop:  # while an error was being told: torchrun ends a process that lets the first one talk
            return stop.exit_code
        finally:
            silence_what_is_gone()


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP end a command by an exception, so that nothing half-written stays."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    process = os.getpid()

    def handle(number: int, frame: FrameType | None) -> None:
        if os.getpid() == process:
            interrupt.stop_at_once(number)
        os._exit(128 + number)

    before = {number: signal.signal(number, handle) for number in interrupt.list_signals()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(arguments: Sequence[str], rank: int, *, debug: bool) -> int:
    try:
        command, rest = _choose_command(arguments)
        if command is None or any(text in ("-h", "--help") for text in rest):
            print(_help(command), flush=True)
            return 0
        code = _COMMANDS[command].run(*_split_flags(_COMMANDS[command], rest))
        if sys.stdout is not None:  # which it is for all but the first of several processes
            sys.stdout.flush()
        return code
    except BrokenPipeError:  # who read the output, `head` say, has had enough of it
        silence(sys.stdout)
        return 141
    except KeyboardInterrupt as error:
        return _end_interrupted(error, rank, debug=debug)
    except Exception as error:
        if stop := interrupt.was_stopped():  # which whoever was at work has turned into an error of its own
            return _end_interrupted(stop, rank, debug=debug)
        if isinstance(error, (UsageError, TrainingError, OSError)):
            _report(f"error: {_describe(error)}", error, rank, debug=debug)
            return 2 if isinstance(error, UsageError) else 1
        # Not foreseen: still no traceback in a user's face, but the way to one.
        message = f"error: {type(error).__name__}: {error}\n(--debug shows where it came from)"
        _report(message, error, rank, debug=debug)
        return 1


def _end_interrupted(error: BaseException, rank: int, *, debug: bool) -> int:
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
        if debug:
            traceback.print_exc()
        if rank == 0:
            print("interrupted", file=sys.stderr)
    return getattr(error, "exit_code", 130)


def _report(message: str, error: Exception, rank: int, *, debug: bool) -> None:
    """Print an error; where it is likely that all processes found it, the first has time to, and torchrun ends us."""
    if rank and not isinstance(error, LostContactError):
        time.sleep(_TIME_TO_TALK_SECONDS)
        message = f"rank {rank}: {message}"
    with contextlib.suppress(OSError, ValueError):  # a terminal that is gone, or the full disk that it is about
        if debug:
            traceback.print_exc()
        else:
            print(message, file=sys.stderr, flush=True)


_TIME_TO_TALK_SECONDS = 10
_COMMANDS = {
    command.name: command
    for command in (DOCTOR, CACHE, PLAN, PROFILE, TRAIN, EVALUATE, REPORT, COMPARE, PREDICT, EXPORT, BENCH)
}


def _describe(error: Exception) -> str:
    """Return an error's message; of what the system refused, with the file before the reason."""
    if isinstance(error, OSError) and error.strerror:
        where = "" if error.filename is None else f"{error.filename} cannot be read or written: "
        return f"{where}{explain_refusal(error)}"
    return str(error)


def _choose_command(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            return None, arguments
        raise UsageError(f"a command is missing: expected one of {', '.join(_COMMANDS)}\n\n{_help(None)}")
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        near = difflib.get_close_matches(command, _COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{command!r} is no command: expected one of {', '.join(_COMMANDS)}{meant}")
    return command, rest


def _split_flags(command: Command, arguments: Sequence[str]) -> tuple[list[str], frozenset[str]]:
    """Part a command's flags from its other arguments; what is neither is for the configuration to refuse."""
    flags = frozenset(text for text in arguments if text in command.flags)
    return [text for text in arguments if text not in flags], flags


def _help(name: str | None) -> str:
    if name is None:
        listed = "\n".join(f"  {command.name:<12} {command.meaning}" for command in _COMMANDS.values())
        return f"usage: seqckpt COMMAND ... [key=value ...]\n\n{listed}\n\nseqckpt COMMAND --help says what it takes."
    command = _COMMANDS[name]
    usage = " ".join([f"usage: seqckpt {name} {command.usage}", *(f"[{flag}]" for flag in command.flags)])
    named = {**{f"{name}=...": meaning for name, meaning in command.names.items()}, **command.flags}
    listed = "".join(f"{name:<16} {meaning}\n" for name, meaning in named.items())
    if not command.takes_keys:
        debug = "--debug (or SEQCKPT_DEBUG=1) shows tracebacks."
        return f"{usage} [--debug]\n\n{command.meaning}\n{listed}\n{debug}{command.closing}"
    return f"""{usage} [--debug]

{command.meaning}
{listed}
{_CHANGES if "run" in command.names else _CONFIG} --debug (or SEQCKPT_DEBUG=1) shows tracebacks.

keys, with their defaults:
{describe_keys(without=_OF_TRAINING if "run" in command.names else ())}"""


_OF_TRAINING = ("run", "resume")  # keys that a command with a run= of its own does not read
_CONFIG = """\
config=FILE is read first: a bare name is looked up in configs/, anything with a / is a path. Then come the other
arguments, such as train.epochs=5 or data.split.test=[9-12]."""
_CHANGES = """\
Other arguments change the run's own configuration, such as data.root=/where/it/is/now or train.device=cpu."""


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _show_nothing(*unused: object, **options: object) -> None:
    """In the place of `_show_warning` where another process shows the same warnings."""

"""A server that runs commands in forked processes, and kills or stops them at a chosen change of a folder.

Changes are what Python's audit hooks tell before they happen: a file opened to be written, renamed, removed, linked,
cut; a folder made or removed. One request a line on stdin, one answer a line on stdout, JSON:

    {"folder": ..., "words": [...], "signals": [9], "at": 17}   ->   {"code": -9, "events": ["mkdir runs", ...]}

Signals are sent before the change of that number (from 0), one after the other. torch is imported once, in the server.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
SERVER_SECONDS = 300  # for one command; nothing is measured by it


class Server:
    """The process that forks, asked from here."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, folder: Path, words: Sequence[str], *, signals: Sequence[int] = (), at: int = -1) -> dict[str, Any]:
        """Run a command in a folder; return its exit code (negative: the signal that ended it) and the changes."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        asked = {"folder": str(folder), "words": list(words), "signals": list(signals), "at": at}
        print(json.dumps(asked), file=self.process.stdin, flush=True)
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextmanager
def serving() -> Iterator[Server]:
    """Start a server, and end it afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            yield Server(process)
        finally:
            process.kill()


def _watch(folder: Path, events: Path, signals: Sequence[int], at: int) -> None:
    """Write each change under a folder into a file; send the signals before that of number `at`."""
    log = os.open(events, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    seen = 0
    own = os.getpid()

    def hear(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal seen
        if event == "open":
            path, flags = arguments[0], arguments[2]
            if not isinstance(path, str | bytes | os.PathLike) or not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in CHANGES:
            return
        elif isinstance(arguments[0], int):  # by descriptor, as rmtree does
            path = f"/proc/self/fd/{arguments[0]}"
        else:
            path = arguments[0]
        is_there = os.path.lexists(path)
        if (event == "os.mkdir" and is_there) or (event == "os.remove" and not is_there):
            return  # which changes nothing
        if os.getpid() != own or folder not in Path(os.path.abspath(os.fsdecode(path))).parents:
            return
        os.write(log, f"{event.removeprefix('os.')} {os.path.relpath(os.fsdecode(path), folder)}\n".encode())
        seen += 1
        if seen == at + 1:
            for number in signals:
                os.kill(own, number)

    sys.addaudithook(hear)


def _serve() -> None:
    import torch

    from seqckpt.cli import main

    torch.set_num_threads(1)
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        folder = Path(asked["folder"])
        events = folder.with_name(f"{folder.name}.events")
        child = os.fork()
        if not child:
            os.chdir(folder)
            os.dup2(os.open(folder.with_name(f"{folder.name}.out"), os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
            os.dup2(1, 2)
            signal.alarm(SERVER_SECONDS)
            code = 99
            try:
                _watch(folder, events, asked["signals"], asked["at"])
                code = main(asked["words"])
                sys.stdout.flush()
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        answer = {"code": os.waitstatus_to_exitcode(status), "events": events.read_text().splitlines()}
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()

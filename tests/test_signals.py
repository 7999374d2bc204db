"""Signals at awkward moments: while torch is imported, while a snapshot is written, when the terminal is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_resume_command import assert_same_weights, command, stop_in_step

from seqckpt.cli import main
from seqckpt.training import Stopped, Trainer
from seqckpt.training.interrupt import catch_signals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such signals")

ROOT = Path(__file__).parents[1]
INSTALLED = "import sys; from seqckpt.__main__ import main; sys.exit(main())"  # what pip makes of the entry point
WAYS = {
    "train.py": [str(ROOT / "train.py")],
    "seqckpt": ["-c", INSTALLED, "train"],
    "-m seqckpt": ["-m", "seqckpt", "train"],
}
SWALLOWING_TORCH = """
import os, signal
try:
    os.kill(os.getpid(), getattr(signal, os.environ["SENT"]))
    for _ in range(1000):
        pass
except BaseException:  # as an extension module might, or an import that has another way to go
    pass
raise ImportError("torch is not here")
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("sent", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_while_torch_is_imported_is_one_line(tmp_path: Path, way: str, sent: str, code: int) -> None:
    """Whatever torch does with an exception in the midst of its import."""
    (tmp_path / "first" / "torch").mkdir(parents=True)
    (tmp_path / "first" / "torch" / "__init__.py").write_text(SWALLOWING_TORCH)
    path = os.pathsep.join([str(tmp_path / "first"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *WAYS[way], "config=surgical_video.yaml"],
        env={**os.environ, "PYTHONPATH": path, "SENT": sent},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "interrupted\n")


def test_what_comes_before_the_signals_are_answered_is_little() -> None:
    code = "import sys, seqckpt.__main__; print(sorted({'torch', 'numpy', 'seqckpt.cli'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("way", WAYS)
def test_ctrl_c_in_each_of_the_first_seconds(way: str, tmp_path: Path) -> None:
    """40 moments, 0.1 s apart, from the first in which Python itself has begun."""
    for number in range(40):
        process = subprocess.Popen(
            [sys.executable, *WAYS[way], "config=nothere.yaml"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(0.12 + 0.1 * number)
        process.send_signal(signal.SIGINT)
        _, told = process.communicate(timeout=60)
        assert "Traceback" not in told, (number, told)
        answered = (process.returncode, told) == (130, "interrupted\n")
        # Too late: all was said, and Python, which is about to end, has let go of the signals.
        ended = process.returncode in (2, -signal.SIGINT) and told.startswith("error: config=nothere.yaml")
        assert answered or ended, (number, process.returncode, told)


def test_public_names_come_when_they_are_asked_for() -> None:
    code = """
import sys, seqckpt
assert "torch" not in sys.modules
assert seqckpt.core.Schedule is seqckpt.Schedule
assert "torch" in sys.modules
from seqckpt import *
assert ChunkedEncoder and set(seqckpt.__all__) <= set(dir(seqckpt))
assert all(hasattr(seqckpt, name) for name in seqckpt.__all__)
assert seqckpt.errors.UsageError and seqckpt.units.format_bytes and seqckpt.memory.trace_memory
try:
    seqckpt.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "module 'seqckpt' has no attribute 'nothing'\n"


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGHUP, 129), (signal.SIGINT, 130)])
def test_a_lost_terminal_saves_as_a_scheduler_does(
    sample: Path, monkeypatch: pytest.MonkeyPatch, sent: int, code: int
) -> None:
    assert main(command(sample, "run=whole")) == 0
    with monkeypatch.context() as patched:
        stop_in_step(5, patched, sent)
        assert main(command(sample, "run=stopped")) == code
    assert main(command(sample, "run=stopped", "resume=auto")) == 0
    assert_same_weights(Path("runs/whole"), Path("runs/stopped"))


def test_system_and_shell_both_send_sighup() -> None:
    with catch_signals() as request:
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert request.number == signal.SIGHUP
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with catch_signals() as request:
            signal.raise_signal(signal.SIGHUP)
            assert not request
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_outlives_its_terminal(sample: Path) -> None:
    """The terminal is closed: SIGHUP comes, and nothing can be shown any more."""
    ours, theirs = os.openpty()
    words = [sys.executable, "-m", "seqckpt", *command(sample, "run=lost"), "train.epochs=10000"]
    process = subprocess.Popen(words, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True)
    os.close(theirs)
    shown = b""
    while b"epoch" not in shown:
        shown += os.read(ours, 1000)
    os.close(ours)
    process.send_signal(signal.SIGHUP)
    assert process.wait(timeout=60) == 129
    assert torch.load("runs/lost/last.pt", weights_only=True)["progress"]["step"] > 0


@pytest.mark.parametrize(
    ("signals", "code"), [((signal.SIGINT, signal.SIGTERM), 143), ((signal.SIGTERM, signal.SIGINT), 130)]
)
def test_a_second_signal_while_a_snapshot_is_written_keeps_its_exit_code(
    sample: Path,
    monkeypatch: pytest.MonkeyPatch,
    signals: tuple[int, int],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """torch turns an exception in the midst of its writing into an error of its own."""
    save = torch.save

    def save_and_be_stopped(state: Any, file: Any) -> None:
        write, written = file.write, []

        def write_and_be_stopped(data: Any) -> int:
            written.append(1)
            if len(written) == 3:
                signal.raise_signal(signals[1])
            return write(data)

        file.write = write_and_be_stopped
        save(state, file)

    with monkeypatch.context() as patched:
        stop_in_step(2, patched, signals[0])
        patched.setattr(torch, "save", save_and_be_stopped)
        assert main(command(sample, "run=a")) == code
    assert capsys.readouterr().err.endswith("interrupted\n")
    assert not Path("runs/a").exists()


def test_a_signal_that_somebody_turns_into_another_error_keeps_its_exit_code(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fit(self: Trainer, *args: Any) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        raise RuntimeError("what a library made of it")

    monkeypatch.setattr(Trainer, "fit", fit)
    assert main(command(sample, "run=a")) == 143
    assert "library" not in capsys.readouterr().err
    assert main(["doctor", "config=nothere.yaml"]) == 2  # not for ever


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
def test_a_full_disk_under_the_output_is_told() -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "seqckpt", "--help"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60
        )
    expected = "error: standard output cannot be read or written: the disk is full (No space left on device)\n"
    assert (done.returncode, done.stderr) == (1, expected)

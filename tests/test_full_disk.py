"""No room for a file: what could not be written is named, what was saved before is whole, and the run goes on later."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from test_resume_command import assert_same_weights, command, stop_in_step

from seqckpt.cli import main
from seqckpt.training import run_log, trainer

SIZE_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
from seqckpt.cli import main
sys.exit(main())
"""


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(sys.platform == "win32", reason="no limit on the size of files")
def test_a_snapshot_that_the_system_does_not_let_be_written(sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As `ulimit -f` does: torch meets the error in the midst of its own writing."""
    assert main(command(sample, "run=whole")) == 0
    with monkeypatch.context() as patched:
        stop_in_step(3, patched)
        assert main(command(sample, "run=a")) == 143
    words = [sys.executable, "-c", SIZE_LIMITED, *command(sample, "run=a", "resume=auto")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert "cannot be written into runs/a: the file is larger than files may be here (ulimit -f)" in done.stderr
    assert "go on with resume=runs/a" in done.stderr
    assert "enforce fail" not in done.stderr
    assert not list(Path("runs/a").glob(".*"))
    assert main(command(sample, "run=a", "resume=auto")) == 0
    assert_same_weights(Path("runs/whole"), Path("runs/a"))


def test_without_a_first_snapshot_it_is_begun_again(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(trainer, "save_last", fail)  # best.pt had room
        assert main(command(sample, "run=a", "train.epochs=1")) == 1
    told = capsys.readouterr().err
    assert "the snapshot of step 4 cannot be written into runs/a: the disk is full" in told
    assert "begin again with run=a resume=auto" in told
    assert main(command(sample, "run=a", "resume=auto", "train.epochs=1")) == 0


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="no way to tell the name of an open file")
@pytest.mark.parametrize("name", ["config.yaml", "environment.json", "curves.png", "metrics.csv", "summary.json", "v"])
def test_every_file_of_a_run_is_named(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Those that are written whole; the disk fills up when they are brought to it."""
    flush = os.fsync
    name = "video04.csv" if name == "v" else name

    def fill_up(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.startswith(f".{name}."):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fill_up)
    assert main(command(sample, "run=a", "train.epochs=1")) == 1
    told = capsys.readouterr().err
    assert "the disk is full" in told
    assert "runs/a" in told
    assert not list(Path("runs").rglob(".*"))


def test_a_row_that_has_no_room_is_named(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full:
        def __init__(self, *args: Any, **options: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(run_log.csv, "DictWriter", Full)
    assert main(command(sample, "run=a", "train.epochs=1")) == 1
    assert "the row of step 1 cannot be written into runs/a: the disk is full" in capsys.readouterr().err

"""What commands write, and say of themselves: without a traceback, and what cannot be written is said at once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from seqckpt.atomic import new_file, write_text
from seqckpt.cli import dispatch, main
from seqckpt.cli.command import Command
from seqckpt.cli.outputs import check_folder
from seqckpt.errors import UsageError


@pytest.mark.parametrize("inside", ["", "sub", "sub/deeper"])
@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "run={run}"],
        ["evaluate", "run={run}", "predictions={run}/predictions"],
        ["predict", "run={run}", "input={run}/nothing"],
        ["compare", "{run}", "{again}"],
    ],
)
def test_an_output_that_is_a_file_costs_no_work(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], inside: str
) -> None:
    again = tmp_path / "again"
    again.symlink_to(run)
    (tmp_path / "file").write_text("mine")
    output = tmp_path / "file" / inside
    arguments = [text.format(run=run, again=again) for text in command]
    assert main([*arguments, f"output={output}"]) == 2
    printed = capsys.readouterr()
    assert f"error: output={output}" in printed.err
    assert f"{tmp_path / 'file'} is a file; expected a folder, which is made where it is absent" in printed.err
    assert printed.out == ""
    assert (tmp_path / "file").read_text() == "mine"


def test_an_export_into_a_file_is_refused(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("mine")
    assert main(["export", f"run={run}", "format=torch", f"output={tmp_path / 'file' / 'model.pt2'}"]) == 2
    assert "is a file; expected a folder" in capsys.readouterr().err


def test_a_folder_that_may_not_be_written_in_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the system says of it: permissions do not hold root back."""
    check_folder(tmp_path / "a" / "b")
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != tmp_path)
    with pytest.raises(UsageError, match=rf"b: {tmp_path} may not be written in; name another folder"):
        check_folder(tmp_path / "a" / "b")


def test_what_the_system_refuses_is_said_of_the_file_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / f"{'n' * 250}.txt"
    with pytest.raises(OSError, match="File name too long") as caught:
        write_text(path, "text")
    assert caught.value.filename == str(path)
    monkeypatch.setattr("seqckpt.cli.dispatch._split_flags", lambda *_: write_text(path, "text"))
    assert main(["doctor", "x"]) == 1
    assert capsys.readouterr().err == f"error: {path} cannot be read or written: File name too long\n"


def test_a_reader_who_has_had_enough_is_no_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", encoding="utf-8") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["evaluate", "--help"]) == 141
        monkeypatch.undo()  # closing the pipe writes what is left in it, and must not fail
    assert capsys.readouterr().err == ""


def test_help_lists_no_key_that_a_command_does_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    """Where run= is the command's own, it is not the name of new results as well."""
    for command, has_own in (
        ("train", False),
        ("evaluate", True),
        ("predict", True),
        ("report", True),
        ("export", True),
    ):
        assert main([command, "--help"]) == 0
        shown = capsys.readouterr().out
        assert ("  run=null" in shown) == ("  resume=null" in shown) == (not has_own)
        assert "  data.root=" in shown


def test_sigterm_ends_a_command_and_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(arguments: Sequence[str], flags: frozenset[str]) -> int:
        with new_file(tmp_path / "table.csv") as file:
            file.write(b"half of it")
            signal.raise_signal(signal.SIGTERM)
        raise AssertionError("went on")

    monkeypatch.setitem(dispatch._COMMANDS, "doctor", Command("doctor", run, ""))
    before = signal.getsignal(signal.SIGTERM)
    assert main(["doctor"]) == 143
    assert list(tmp_path.iterdir()) == []
    assert signal.getsignal(signal.SIGTERM) is before
    assert "Traceback" not in capsys.readouterr().err


def test_a_process_that_is_ended_while_another_talks_shows_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torchrun ends all processes as soon as the first has told of a mistake that each of them found."""
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dispatch.time, "sleep", lambda seconds: signal.raise_signal(signal.SIGTERM))
    assert main(["trian"]) == 143
    assert capsys.readouterr().err == ""

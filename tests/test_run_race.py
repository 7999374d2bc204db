"""Two processes that ask for one run: whether it exists, and what it goes on from, is what the holder of its lock sees.

The moment between a look at the folder and the lock on it is entered here at will: the other process does all its work
in it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_resume_command import assert_same_weights, command, stop_in_step

from seqckpt.cli import main
from seqckpt.training import run_directory


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def before_the_lock(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Let another process do its work once this one has looked, and before it makes or opens the folder."""
    make, done = run_directory._make, []

    def work_and_make(folder: Path) -> bool:
        if not done:
            done.append(1)
            work()
        return make(folder)

    monkeypatch.setattr(run_directory, "_make", work_and_make)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_a_run_that_ended_meanwhile_is_not_overwritten(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words, written = command(sample, "run=a", "train.epochs=1"), []

    def train() -> None:
        assert main(words) == 0
        written.append(contents(Path("runs")))

    before_the_lock(monkeypatch, train)
    assert main([*words, "train.seed=5"]) == 2
    assert "the run runs/a exists already" in capsys.readouterr().err
    assert contents(Path("runs")) == written[0]


def test_a_run_that_ended_meanwhile_is_not_trained_anew_by_auto(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A scheduler that starts a job twice."""
    words, written = command(sample, "run=a", "resume=auto", "train.epochs=1"), []

    def train() -> None:
        assert main(words) == 0
        written.append(contents(Path("runs")))

    before_the_lock(monkeypatch, train)
    assert main(words) == 0
    assert "the run runs/a has come to its end already, after epoch 1" in capsys.readouterr().out
    assert contents(Path("runs")) == written[0]


@pytest.mark.parametrize("asked", [["run=a", "resume=auto"], ["resume=a"]])
def test_it_goes_on_from_what_the_other_process_left(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    assert main(command(sample, "run=whole")) == 0

    def stopped(number: int, *more: str) -> None:
        with monkeypatch.context() as patched:
            stop_in_step(number, patched)
            assert main(command(sample, *more)) == 143

    stopped(3, "run=a")
    before_the_lock(monkeypatch, lambda: stopped(4, "resume=a"))
    capsys.readouterr()
    assert main(command(sample, *asked)) == 0
    shown = capsys.readouterr().out
    assert "goes on with runs/a after step 3" in shown  # the other process
    assert "goes on with runs/a after step 7" in shown
    assert_same_weights(Path("runs/whole"), Path("runs/a"))


def test_without_a_name_auto_looks_for_another_run_where_this_one_ended_meanwhile(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command(sample, "resume=auto", "train.epochs=1")
    with monkeypatch.context() as patched:
        stop_in_step(2, patched)
        assert main(words) == 143
    (first,) = Path("runs").iterdir()
    before_the_lock(monkeypatch, lambda: main(words))
    assert main(words) == 0
    assert len(list(Path("runs").glob("*/summary.json"))) == 2
    assert first in list(Path("runs").iterdir())


def test_two_runs_without_a_name_that_begin_in_one_second_are_two(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, taken = run_directory._make, []

    def make_first(folder: Path) -> bool:
        if not taken:
            taken.append(folder)
            folder.mkdir(parents=True)
            (folder / "config.yaml").touch()
        return make(folder)

    monkeypatch.setattr(run_directory, "_make", make_first)
    assert main(command(sample, "train.epochs=1")) == 0
    assert sorted(os.listdir(taken[0])) == ["config.yaml"]
    assert len(list(Path("runs").glob("*/summary.json"))) == 1


@pytest.mark.parametrize("asked", [["run=a"], ["run=a", "resume=auto"]])
@pytest.mark.parametrize("left", [None, ".config.yaml.1234abcd.partial"])
def test_a_folder_in_which_nothing_was_begun_is_begun(sample: Path, asked: list[str], left: str | None) -> None:
    """As kill -9 leaves it between the making of the folder and of its first file."""
    Path("runs/a").mkdir(parents=True)
    if left:
        Path("runs/a", left).touch()
    assert main(command(sample, *asked, "train.epochs=1")) == 0
    assert Path("runs/a/summary.json").exists()
    assert not list(Path("runs/a").glob(".*"))


@pytest.mark.parametrize("asked", [["run=a"], ["run=a", "resume=auto"]])
def test_a_folder_of_somebody_elses_is_refused(
    sample: Path, capsys: pytest.CaptureFixture[str], asked: list[str]
) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/notes.txt").write_text("mine")
    assert main(command(sample, *asked)) == 2
    assert "runs/a exists already: choose another name" in capsys.readouterr().err
    assert os.listdir("runs/a") == ["notes.txt"]


def test_a_mistake_leaves_a_folder_as_it_was(sample: Path) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/config.yaml").write_text("killed before its first snapshot\n")
    assert main(command(sample, "run=a", "resume=auto", "data.root=nowhere")) == 2
    assert os.listdir("runs/a") == ["config.yaml"]
    Path("runs/b").mkdir()
    assert main(command(sample, "run=b", "data.root=nowhere")) == 2
    assert os.listdir("runs/b") == []


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("asked", [["run=a"], ["run=a", "resume=auto"], []])
def test_started_twice_at_the_same_moment(sample: Path, asked: list[str], tmp_path: Path) -> None:
    """20 times: one trains; the other is told so, finds the run at its end, or (without a name) has one of its own."""
    for number in range(20):
        folder = tmp_path / str(number)
        folder.mkdir()
        words = [sys.executable, "-m", "seqckpt", *command(sample, *asked, "train.epochs=1")]
        pair = [
            subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        told = [process.communicate(timeout=120) for process in pair]
        codes = sorted(process.returncode for process in pair)
        summaries = list(folder.glob("runs/*/summary.json"))
        if not asked:
            assert (codes, len(summaries)) == ([0, 0], 2), told
            continue
        assert len(summaries) == 1
        trained = sum("test accuracy" in out for out, _ in told)
        assert trained == 1, told
        if codes == [0, 0]:
            assert any("has come to its end already" in out for out, _ in told), told
        else:
            assert codes == [0, 2], told
            assert any("another process is training" in err or "exists already" in err for _, err in told), told

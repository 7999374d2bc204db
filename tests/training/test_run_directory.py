"""Names of runs, and that nothing half-made stays."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from seqckpt.errors import UsageError
from seqckpt.training import (
    choose_run_path,
    find_resumable,
    find_run,
    open_run_directory,
    remove_unbegun,
    run_directory,
)


def fail_after_writing(path: Path, name: str) -> None:
    def run() -> None:
        with open_run_directory(path) as folder:
            (folder / name).write_text("something")
            raise KeyError

    with pytest.raises(KeyError):
        run()


def test_a_run_is_named_after_its_config_and_the_time(tmp_path: Path) -> None:
    path = choose_run_path(None, "surgical_video", parent=tmp_path)
    assert re.fullmatch(r"surgical_video-\d{8}-\d{6}", path.name)
    assert not path.exists()


def test_two_runs_in_one_second_have_two_names(tmp_path: Path, monkeypatch) -> None:
    class Stopped:
        @staticmethod
        def now() -> Stopped:
            return Stopped()

        def __format__(self, spec: str) -> str:
            return "20250102-030405"

    monkeypatch.setattr("seqckpt.training.run_directory.datetime", Stopped)
    names = []
    for _ in range(3):
        path = choose_run_path(None, "a_b", parent=tmp_path)
        path.mkdir()
        names.append(path.name)
    assert names == ["a_b-20250102-030405", "a_b-20250102-030405-2", "a_b-20250102-030405-3"]


def test_a_taken_name_is_an_error(tmp_path: Path) -> None:
    assert choose_run_path("first", "c", parent=tmp_path) == tmp_path / "first"
    (tmp_path / "first").mkdir()
    with pytest.raises(UsageError, match=r"first exists already: choose another name"):
        choose_run_path("first", "c", parent=tmp_path)


ODD_NAMES = ("a\nb", "a\rb", "a\x1b[2J", "a\tb", ".hidden", "--help", "-rf", "~", "~root", " a", "a ", "a.", "\u202ea")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/tmp/x", "a\\b", "a:b", *ODD_NAMES, "CON", "nul.txt", "com1"])
def test_a_name_is_one_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match=r"cannot name a folder"):
        choose_run_path(name, "c", parent=tmp_path)


def test_a_run_that_fails_before_its_first_snapshot_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x"
    fail_after_writing(path, "config.yaml")
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_fails_later_keeps_its_files(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x"
    fail_after_writing(path, "last.pt")
    assert [entry.name for entry in path.iterdir()] == ["last.pt"]


def test_other_runs_stay(tmp_path: Path) -> None:
    (tmp_path / "runs" / "other").mkdir(parents=True)
    fail_after_writing(tmp_path / "runs" / "x", "config.yaml")
    assert [entry.name for entry in (tmp_path / "runs").iterdir()] == ["other"]


def test_a_folder_that_cannot_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(UsageError, match=r"cannot be made"), open_run_directory(tmp_path / "runs" / "x"):
        pass


def test_auto_finds_runs_of_that_configuration_alone(tmp_path: Path) -> None:
    """Not those of one whose name merely begins alike."""
    for name in ("a-b-20260101-000000", "a-best", "a[1]-20260101-000000"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "last.pt").touch()
    assert find_resumable(None, "a", parent=tmp_path) is None
    for name in ("a-b", "a[1]"):
        assert find_resumable(None, name, parent=tmp_path) == tmp_path / f"{name}-20260101-000000"


def test_a_run_that_is_not_there_is_named_by_the_key_it_was_given_by(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^resume=zz: there is no such run"):
        find_run("zz", parent=tmp_path, key="resume")


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_run_is_open_in_one_process_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two jobs on one folder would mix their snapshots and logs; a killed one leaves the folder free."""
    monkeypatch.setattr("seqckpt.training.run_directory._PATIENCE_SECONDS", 0.1)
    hold = "import fcntl, os, sys; fcntl.flock(os.open(sys.argv[1], os.O_RDONLY), fcntl.LOCK_EX); print(1, flush=True)"
    folder = tmp_path / "run"
    folder.mkdir()
    command = [sys.executable, "-c", f"{hold}; sys.stdin.read()", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        with pytest.raises(UsageError, match="another process is training the run"):
            open_run_directory(folder, may_exist=True).__enter__()
        assert folder.exists()
        other.kill()
        other.wait()
    with open_run_directory(folder, may_exist=True) as path:
        (path / "last.pt").touch()


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_folder_that_was_taken_away_while_its_lock_was_waited_for_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever held it failed before its first snapshot: the lock on a folder that is gone keeps nobody out."""
    wait, waited = run_directory._wait_for_lock, []

    def wait_and_take_away(place: int, folder: Path, deadline: float) -> None:
        wait(place, folder, deadline)
        waited.append(1)
        if len(waited) == 1:
            folder.rmdir()

    monkeypatch.setattr(run_directory, "_wait_for_lock", wait_and_take_away)
    with open_run_directory(tmp_path / "runs" / "a") as path:
        assert path.is_dir()
        (path / "last.pt").touch()
    assert len(waited) == 2


def test_what_is_in_a_folder_counts_once_it_is_locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = choose_run_path("a", "c", parent=tmp_path)
    path.mkdir()
    (path / "last.pt").write_text("of another process that began and ended meanwhile")
    with pytest.raises(UsageError, match=r"a exists already: go on with it by resume=auto, or choose another name"):
        open_run_directory(path).__enter__()
    assert [entry.name for entry in path.iterdir()] == ["last.pt"]


def test_who_holds_a_run_removes_what_the_dead_left(tmp_path: Path) -> None:
    path = tmp_path / "a"
    (path / "predictions").mkdir(parents=True)
    for name in ("last.pt", "config.yaml", "predictions/v.csv"):
        (path / name).touch()
    for name in ("..last.pt.upcoming.1.partial", ".curves.png.2.partial", ".last.pt.upcoming", ".own"):
        (path / name).touch()
    (path / "predictions" / ".v.csv.3.partial").touch()
    with open_run_directory(path, may_exist=True):
        found = sorted(str(entry.relative_to(path)) for entry in path.rglob("*"))
    assert found == [".own", "config.yaml", "last.pt", "predictions", "predictions/v.csv"]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_empty_folders_of_runs_without_a_name_are_removed(tmp_path: Path) -> None:
    for name in ("a-20260101-000000", "a-20260101-000001", "a-20260101-000002", "b-20260101-000000", "a-b"):
        (tmp_path / name).mkdir()
    (tmp_path / "a-20260101-000001" / "config.yaml").touch()
    with open_run_directory(tmp_path / "a-20260101-000002") as held:
        remove_unbegun("a", parent=tmp_path)
        assert held.exists()
        (held / "last.pt").touch()
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"a-20260101-000001", "a-20260101-000002", "b-20260101-000000", "a-b"}


@pytest.mark.parametrize(
    "name", ["a", "first_try", "2026-01-01", "contour", "null", "a-b.c", "Versuch \u00fc", "\u624b\u672f"]
)
def test_plain_names_are_taken(tmp_path: Path, name: str) -> None:
    assert choose_run_path(name, "c", parent=tmp_path) == tmp_path / name


def test_a_run_that_bears_an_odd_name_already_goes_on(tmp_path: Path) -> None:
    for name, file in ((".hidden", "last.pt"), ("--x", "config.yaml")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).touch()
    assert find_resumable(".hidden", "c", parent=tmp_path) == tmp_path / ".hidden"
    assert choose_run_path("--x", "c", parent=tmp_path, may_be_begun=True) == tmp_path / "--x"
    (tmp_path / "out").mkdir()
    (tmp_path / "last.pt").touch()
    assert find_resumable("..", "c", parent=tmp_path / "out") is None

"""Files and folders appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from seqckpt import atomic
from seqckpt.atomic import FolderTakenError, new_file, new_folder, remove_abandoned, write_text


class Interruption(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with new_file(path) as file:
        file.write(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    assert os.listdir(path.parent) == ["file"]


def test_an_interrupted_file_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")

    def write() -> None:
        with new_file(path) as file:
            file.write(b"new")
            raise Interruption

    with pytest.raises(Interruption):
        write()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("exists", [False, True])
def test_a_folder_appears_when_it_is_whole(exists: bool, tmp_path: Path) -> None:
    path = tmp_path / "folder"
    if exists:
        path.mkdir()  # empty: may be filled
    with new_folder(path) as folder:
        (folder / "inside").write_text("x")
        assert not (path / "inside").exists()
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(path) == ["inside"]


def test_an_interrupted_folder_leaves_nothing(tmp_path: Path) -> None:
    def fill() -> None:
        with new_folder(tmp_path / "folder") as folder:
            (folder / "inside").write_text("x")
            raise Interruption

    with pytest.raises(Interruption):
        fill()
    assert os.listdir(tmp_path) == []


def test_a_folder_never_replaces_another(tmp_path: Path) -> None:
    path = tmp_path / "folder"

    def fill() -> None:
        with new_folder(path) as folder:
            (folder / "mine").write_text("x")
            path.mkdir()
            (path / "theirs").write_text("x")

    with pytest.raises(FolderTakenError, match="meanwhile"):
        fill()
    assert os.listdir(tmp_path) == ["folder"]
    assert os.listdir(path) == ["theirs"]


HOLD = """
import sys, time
from pathlib import Path
from seqckpt.atomic import new_file, new_folder
with {how}(Path(sys.argv[1])) as opened:
    print("open", flush=True)
    sys.stdin.read()
"""


@contextlib.contextmanager
def held_open(how: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is writing `path`."""
    command = [sys.executable, "-c", HOLD.format(how=how), str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "open\n"
            yield other
        finally:
            other.kill()


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
@pytest.mark.parametrize("how", ["new_file", "new_folder"])
def test_what_a_dead_process_left_is_removed_at_once_and_a_live_ones_stays(how: str, tmp_path: Path) -> None:
    path = tmp_path / "a[b]"
    with held_open(how, path) as other:
        (of_the_living,) = os.listdir(tmp_path)
        write_text(tmp_path / "a[b]", "mine")  # the same name
        remove_abandoned(tmp_path)
        assert sorted(os.listdir(tmp_path)) == sorted([of_the_living, "a[b]"])
        other.kill()
        other.wait()
        (tmp_path / ".ab.1.partial").touch()  # of another name
        write_text(tmp_path / "a[b]", "mine")
        assert sorted(os.listdir(tmp_path)) == [".ab.1.partial", "a[b]"]
        remove_abandoned(tmp_path)
        assert os.listdir(tmp_path) == ["a[b]"]


def test_where_there_are_no_locks_what_is_left_is_removed_once_it_is_old(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("seqckpt.atomic.fcntl", None)
    for name, age in ((".a.1234abcd.partial", 7200), (".a.1234abce.partial", 60)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / ".a.folder.partial").mkdir()
    (tmp_path / ".a.folder.partial" / "inside").write_bytes(b"")
    for old in (tmp_path / ".a.folder.partial" / "inside", tmp_path / ".a.folder.partial"):
        os.utime(old, (time.time() - 7200,) * 2)
    write_text(tmp_path / "a", "new")
    assert sorted(os.listdir(tmp_path)) == [".a.1234abce.partial", "a"]


@pytest.mark.skipif(sys.platform == "win32", reason="no locks")
def test_a_file_that_was_taken_for_abandoned_before_it_was_locked_is_begun_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_lock, taken = atomic._take_lock, []

    def take_and_lose_the_first(descriptor: int) -> bool | None:
        taken.append(descriptor)
        if len(taken) == 1:
            next(tmp_path.glob(".a.*")).unlink()
        return take_lock(descriptor)

    monkeypatch.setattr(atomic, "_take_lock", take_and_lose_the_first)
    write_text(tmp_path / "a", "new")
    assert len(taken) == 2
    assert os.listdir(tmp_path) == ["a"]


def test_a_full_disk_is_told_with_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_up(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")  # without a name, as the system gives it

    monkeypatch.setattr(os, "fsync", fill_up)
    with pytest.raises(OSError, match="No space left") as raised:
        write_text(tmp_path / "a", "new")
    assert raised.value.filename == str(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_text_is_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "é\n")
    assert (tmp_path / "a.txt").read_bytes() == "é\n".encode()

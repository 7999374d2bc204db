"""Files and folders appear whole or not at all."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from seqckpt.atomic import FolderTakenError, new_file, new_folder, write_text


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


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    path = tmp_path / "a[b]"
    for name, age in ((".a[b].1234abcd.partial", 7200), (".a[b].1234abce.partial", 60), (".ab.1.partial", 7200)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    (tmp_path / ".a[b].folder.partial").mkdir()
    (tmp_path / ".a[b].folder.partial" / "inside").write_bytes(b"")
    for old in (tmp_path / ".a[b].folder.partial" / "inside", tmp_path / ".a[b].folder.partial"):
        os.utime(old, (time.time() - 7200,) * 2)
    with new_file(path) as file:
        file.write(b"new")
    assert sorted(os.listdir(tmp_path)) == [".a[b].1234abce.partial", ".ab.1.partial", "a[b]"]


def test_text_is_written_whole(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "é\n")
    assert (tmp_path / "a.txt").read_bytes() == "é\n".encode()

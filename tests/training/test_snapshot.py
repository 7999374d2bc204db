"""A snapshot is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from seqckpt.errors import SnapshotError
from seqckpt.training import load_last, load_snapshot, save_snapshot


def test_a_snapshot_loads_with_weights_only(tmp_path: Path) -> None:
    state = {"model": {"a": torch.arange(3.0)}, "epoch": 3, "names": ["x", "ü"], "best": None, "nested": {"k": [1.5]}}
    save_snapshot(tmp_path / "last.pt", state)
    loaded = load_snapshot(tmp_path / "last.pt")
    assert torch.equal(loaded["model"].pop("a"), torch.arange(3.0))
    assert loaded == {"model": {}, **{key: state[key] for key in ("epoch", "names", "best", "nested")}}


@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()])
def test_a_failure_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch, error: BaseException) -> None:
    path = tmp_path / "last.pt"
    save_snapshot(path, {"epoch": 1})

    def fail(state: object, file) -> None:
        file.write(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(type(error)):
        save_snapshot(path, {"epoch": 2})
    assert load_snapshot(path) == {"epoch": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_a_failure_to_rename_leaves_the_old_file_and_no_other(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "last.pt"
    save_snapshot(path, {"epoch": 1})

    def fail(source: object, target: object) -> None:
        raise OSError("read-only file system")

    monkeypatch.setattr("os.replace", fail)
    with pytest.raises(OSError, match="read-only"):
        save_snapshot(path, {"epoch": 2})
    assert load_snapshot(path) == {"epoch": 1}
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch) -> None:
    events: list[str] = []
    for name in ("fsync", "replace"):
        original = getattr(__import__("os"), name)
        monkeypatch.setattr(f"os.{name}", lambda *args, n=name, f=original: (events.append(n), f(*args))[1])
    save_snapshot(tmp_path / "last.pt", {"epoch": 1})
    assert events[:2] == ["fsync", "replace"]


def test_a_missing_or_damaged_snapshot_is_named(tmp_path: Path) -> None:
    path = tmp_path / "last.pt"
    with pytest.raises(SnapshotError, match=r"there is no snapshot .*last\.pt"):
        load_snapshot(path)
    save_snapshot(path, {"model": torch.zeros(1000)})
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SnapshotError, match=r"last\.pt is damaged"):
        load_snapshot(path)
    path.write_bytes(b"")
    with pytest.raises(SnapshotError, match=r"last\.pt is damaged"):
        load_snapshot(path)
    torch.save({"code": Path}, path)
    with pytest.raises(
        SnapshotError, match=r"last\.pt is damaged or was not made by this program \([^.]*\)$"
    ):  # no advice
        load_snapshot(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [(torch.zeros(3), "holds a Tensor"), ([1], "holds a list"), ({"model": {}}, "progress not in it")],
    ids=["tensor", "list", "weights"],
)
def test_what_is_no_snapshot_of_a_run_gives_way_to_the_one_before(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: object, words: str
) -> None:
    """A file of torch's that is whole, but somebody else's."""
    torch.save(content, tmp_path / "last.pt")
    with pytest.raises(SnapshotError, match=rf"last\.pt is no snapshot.*{words}"):
        load_snapshot(tmp_path / "last.pt", keys=("progress",))
    save_snapshot(tmp_path / "previous.pt", {"progress": 7})
    assert load_last(tmp_path, keys=("progress",)) == {"progress": 7}
    assert "previous.pt" in caplog.text


def test_a_file_with_any_byte_changed_is_read_or_named(tmp_path: Path) -> None:
    """Whatever the damage, no other error than SnapshotError."""
    path = tmp_path / "last.pt"
    save_snapshot(path, {"model": torch.zeros(3), "progress": {"step": 1, "records": [{"epoch": 1}]}})
    whole, num_damaged = path.read_bytes(), 0
    generator = random.Random(0)
    for _ in range(300):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] = generator.randrange(256)
        path.write_bytes(changed)
        try:
            load_snapshot(path)
        except SnapshotError:
            num_damaged += 1
    assert num_damaged > 30

"""A snapshot is whole or not there, whatever happens while it is written."""

from __future__ import annotations

import io
import random
import signal
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from seqckpt.errors import SnapshotError
from seqckpt.training import RUN_KEYS, Stopped, load_last, load_snapshot, save_snapshot
from seqckpt.training.randomness import read_random_states
from seqckpt.training.records import Progress


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


def run_state(**changes: Any) -> dict[str, Any]:
    """What a run saves, in small; `changes` by the names of parts."""
    parameter = nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([{"params": [("weight", parameter)], "base_lr": 0.1}])
    parameter.sum().backward()
    optimiser.step()
    return {
        "model": {"weight": torch.arange(5000.0)},
        "optimiser": optimiser.state_dict(),
        "scaler": {},
        "carried": {0: (torch.zeros(1, 1, 2), torch.zeros(1, 1, 2))},
        "progress": asdict(Progress(epoch=1, step=7, step_in_epoch=3, records=[{"epoch": 1}])),
        "random_states": read_random_states(),
        **changes,
    }


def progress(**changes: Any) -> dict[str, Any]:
    return {**run_state()["progress"], **changes}


def without(part: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in part.items() if name != key}


MISFITS: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no step in progress": (lambda: run_state(progress=without(progress(), "step")), "progress: .*step"),
    "a step in text": (lambda: run_state(progress=progress(step="7")), "progress: .*'7'"),
    "more steps in the epoch than in all": (
        lambda: run_state(progress=progress(step_in_epoch=10**9)),
        "progress: .*1000000000",
    ),
    "negative": (lambda: run_state(progress=progress(step_in_epoch=-1)), "progress: "),
    "a best epoch to come": (
        lambda: run_state(progress=progress(best_epoch=2, best_accuracy=0.5)),
        "progress: best_epoch=2",
    ),
    "a best epoch without a score": (
        lambda: run_state(progress=progress(best_epoch=1)),
        "progress: .*best_accuracy=None",
    ),
    "no records": (lambda: run_state(progress=progress(records=[])), "progress: 0 records of 1 epochs"),
    "no totals": (lambda: run_state(progress=progress(of_run={})), "progress: of_run"),
    "totals in text": (
        lambda: run_state(progress=progress(of_run=dict.fromkeys(progress()["of_run"], "1"))),
        "progress: of_run",
    ),
    "no random states": (lambda: run_state(random_states={}), "random_states: "),
    "a short random state": (
        lambda: run_state(random_states={**read_random_states(), "torch": torch.zeros(3, dtype=torch.uint8)}),
        "random_states: ",
    ),
    "no groups": (lambda: run_state(optimiser={**run_state()["optimiser"], "param_groups": []}), "optimiser: .*groups"),
    "no state of the optimiser": (lambda: run_state(optimiser={"param_groups": [{}]}), "optimiser: .*state"),
    "a group without names": (
        lambda: run_state(optimiser={"state": {}, "param_groups": [{"params": [0], "base_lr": 0.1}]}),
        "optimiser: .*names",
    ),
    "weights that are none": (lambda: run_state(model={"weight": 3}), "model: weight is a int"),
    "weights in a list": (lambda: run_state(model=[1]), "model: a list"),
    "a scaler in text": (lambda: run_state(scaler="x"), "scaler: a str"),
    "carried states without lanes": (lambda: run_state(carried=[1]), "carried: "),
    "carried numbers": (lambda: run_state(carried={0: (1.0, 2.0)}), "carried: .*no tensor"),
    "a config that is none": (lambda: run_state(config=3), "config: a int"),
    "phases without names": (lambda: run_state(phase_names=[1, 2]), "phase_names: "),
}


@pytest.mark.parametrize("kind", MISFITS)
def test_a_snapshot_of_another_form_gives_way_to_the_one_before_and_is_named(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make, words = MISFITS[kind]
    save_snapshot(tmp_path / "last.pt", make())
    with pytest.raises(SnapshotError, match=rf"last\.pt is no snapshot of a run: {words}"):
        load_snapshot(tmp_path / "last.pt", keys=RUN_KEYS)
    save_snapshot(tmp_path / "previous.pt", run_state())
    assert load_last(tmp_path)["progress"] == run_state()["progress"]
    assert "previous.pt" in caplog.text
    assert (tmp_path / "damaged.pt").exists()
    assert not (tmp_path / "last.pt").exists()


def test_one_changed_bit_anywhere_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    """torch loads such a file as good: it does not look at the checksums that stand in it."""
    good = run_state()
    save_snapshot(tmp_path / "last.pt", good)
    whole = (tmp_path / "last.pt").read_bytes()
    dice, num_noticed = random.Random(0), 0
    for _ in range(200):
        changed = bytearray(whole)
        changed[dice.randrange(len(whole))] ^= 1 << dice.randrange(8)
        (tmp_path / "last.pt").write_bytes(changed)
        try:
            loaded = load_snapshot(tmp_path / "last.pt", keys=RUN_KEYS)
        except SnapshotError as error:
            assert "last.pt" in str(error)  # noqa: PT017 - one of two outcomes
            num_noticed += 1
            continue
        assert torch.equal(loaded["model"]["weight"], good["model"]["weight"])
        assert loaded["progress"] == good["progress"]
    assert num_noticed > 150


@pytest.mark.parametrize("length", [0, 1, 100, 0.01, 0.3, 0.5, 0.9, 0.999])
def test_a_snapshot_cut_short_anywhere_gives_way(length: float, tmp_path: Path) -> None:
    """Some lengths make torch raise an OSError, which names no file."""
    save_snapshot(tmp_path / "last.pt", run_state())
    whole = (tmp_path / "last.pt").read_bytes()
    (tmp_path / "last.pt").write_bytes(whole[: length if isinstance(length, int) else round(length * len(whole))])
    save_snapshot(tmp_path / "previous.pt", run_state(extra="before"))
    assert load_last(tmp_path)["extra"] == "before"


@pytest.mark.parametrize("error", [OSError(22, "Invalid argument"), OverflowError("x"), AssertionError("x")])
def test_whatever_torch_raises_is_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise error

    save_snapshot(tmp_path / "last.pt", run_state())
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(SnapshotError, match=r"last\.pt"):
        load_snapshot(tmp_path / "last.pt")


def test_a_lack_of_memory_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    save_snapshot(tmp_path / "last.pt", run_state())
    save_snapshot(tmp_path / "previous.pt", run_state())
    monkeypatch.setattr(torch, "load", fail)
    with pytest.raises(torch.OutOfMemoryError):
        load_last(tmp_path)
    assert (tmp_path / "last.pt").exists()


def test_a_snapshot_that_reads_otherwise_than_it_was_written_takes_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_snapshot(tmp_path / "last.pt", run_state())
    save = torch.save

    def save_badly(state: object, file: Any) -> None:
        content = io.BytesIO()
        save(state, content)
        changed = bytearray(content.getvalue())
        changed[len(changed) // 2] ^= 1
        file.write(changed)

    monkeypatch.setattr(torch, "save", save_badly)
    with pytest.raises(OSError, match="reads otherwise"):
        save_snapshot(tmp_path / "last.pt", run_state(extra="after"))
    assert "extra" not in load_snapshot(tmp_path / "last.pt")
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_checksums_are_written_whatever_the_program_around_has_chosen(tmp_path: Path) -> None:
    torch.serialization.set_crc32_options(False)
    try:
        save_snapshot(tmp_path / "last.pt", run_state())
        assert torch.serialization.get_crc32_options() is False
        torch.save(run_state(), tmp_path / "without.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    with zipfile.ZipFile(tmp_path / "last.pt") as archive:
        assert all(member.CRC for member in archive.infolist())
    assert load_snapshot(tmp_path / "without.pt", keys=RUN_KEYS)["progress"] == run_state()["progress"]


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), Stopped(signal.SIGTERM, at_once=True)])
def test_what_keeps_a_snapshot_from_being_written_is_what_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """torch raises an error of its own, which knows of neither a disk nor a signal."""
    written = []

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            written.append(len(data))
            if sum(written) > 2000:
                raise error
            return super().write(data)

    @contextmanager
    def new_file(path: Path) -> Iterator[Any]:
        with Full(path, "wb") as file:
            yield file

    monkeypatch.setattr("seqckpt.training.snapshot.new_file", new_file)
    with pytest.raises(type(error)) as raised:
        save_snapshot(tmp_path / "last.pt", run_state())
    assert raised.value is error

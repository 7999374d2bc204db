"""A run killed or stopped at every change of its folder in turn, twice, ends as one that nobody disturbed.

Not at random moments alone: between two changes of the disk it does not matter when a process dies.
"""

from __future__ import annotations

import csv
import json
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from file_events import Server, serving
from run_comparison import TIMED, assert_alike
from test_resume_command import command

from seqckpt.training import load_snapshot

pytestmark = pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="no fork")

MODES: dict[str, tuple[str, ...]] = {
    "shuffled": (),
    "saved often": ("train.save_minutes=1e-9",),
    "carry": ("train.bptt=carry", "train.batch_size=2", "train.save_minutes=1e-9"),
    "average": ("train.ema=0.9", "train.precision=bf16"),
    "workers": ("data.num_workers=1", "train.accumulate=2"),
    "cache": ("data.cache_dir=cache",),
    "without a name": ("run=null",),
}
WAYS = {"killed": [signal.SIGKILL], "stopped": [signal.SIGTERM], "stopped twice": [signal.SIGINT, signal.SIGTERM]}
CODES = {"killed": {-9}, "stopped": {143, 0}, "stopped twice": {143, 0}}  # 0: all was written, but for a warning


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving() as started:
        yield started


def words_of(sample: Path, mode: str) -> list[str]:
    """Two epochs of two steps (accumulate: one), a few changes of the disk each."""
    more = {text.partition("=")[0]: text for text in (*command(sample)[1:], "run=a", "train.epochs=2", *MODES[mode])}
    return ["train", *more.values(), "resume=auto", "data.clip_length=100"]


def find_run(folder: Path) -> Path:
    (run,) = (folder / "runs").iterdir()
    return run


def assert_undisturbed(folder: Path, undisturbed: Path) -> None:
    """All files are those of the other run, but for times; nothing is left over."""
    run, other = find_run(folder), find_run(undisturbed)
    names, wanted = ({str(path.relative_to(top)) for path in top.rglob("*")} for top in (run, other))
    assert names - {"previous.pt"} == wanted - {"previous.pt"}
    assert not list(folder.rglob("*.partial"))
    for name in ("last.pt", "best.pt"):
        states = [load_snapshot(top / name) for top in (run, other)]
        for state in states:
            del state["config"]  # says where the cache is
        assert_alike(*states, name)
    for name in ("steps.csv", "metrics.csv"):
        assert without_times(run / name) == without_times(other / name), name
    for path in (other / "predictions").iterdir():
        assert (run / "predictions" / path.name).read_bytes() == path.read_bytes()
    scores = [json.loads((top / "summary.json").read_text()) for top in (run, other)]
    for key in ("test_accuracy", "test_jaccard", "val_accuracy", "best_epoch", "num_steps", "phase_frames"):
        assert scores[0][key] == scores[1][key], key


def without_times(path: Path) -> list[dict[str, Any]]:
    with open(path, newline="") as file:
        return [{key: value for key, value in row.items() if key not in TIMED} for row in csv.DictReader(file)]


def disturb(server: Server, folder: Path, words: list[str], way: str, at: int, undisturbed: Path) -> None:
    """Disturb a run before change number `at`, the run that goes on before its own of that number, and end it."""
    folder.mkdir()
    for _ in range(2):
        done = server.run(folder, words, signals=WAYS[way], at=at)
        if len(done["events"]) <= at:
            assert done["code"] == 0
            break
        told = folder.with_name(f"{folder.name}.out").read_text()
        assert done["code"] in CODES[way], (done["code"], done["events"][at:], told)
        assert "Traceback" not in told, told
    done = server.run(folder, words)
    told = folder.with_name(f"{folder.name}.out").read_text()
    assert done["code"] == 0, (done, told)
    try:
        assert_undisturbed(folder, undisturbed)
    except AssertionError as error:
        raise AssertionError(f"disturbed at {at} ({way}):\n{told}") from error
    shutil.rmtree(folder)


def begin(server: Server, sample: Path, mode: str, tmp_path: Path) -> tuple[list[str], Path, int]:
    words, undisturbed = words_of(sample, mode), tmp_path / "undisturbed"
    undisturbed.mkdir()
    done = server.run(undisturbed, words)
    assert done["code"] == 0, (undisturbed.with_name("undisturbed.out")).read_text()
    print(*done["events"], sep="\n")
    return words, undisturbed, len(done["events"])


def test_at_a_few_changes(server: Server, sample: Path, tmp_path: Path) -> None:
    words, undisturbed, num_events = begin(server, sample, "saved often", tmp_path)
    assert num_events > 30
    for number, at in enumerate((0, 2, num_events // 3, num_events // 2, num_events - 2)):
        way = list(WAYS)[number % len(WAYS)]
        disturb(server, tmp_path / str(at), words, way, at, undisturbed)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mode", MODES)
def test_at_every_change(server: Server, sample: Path, tmp_path: Path, mode: str, way: str) -> None:
    words, undisturbed, num_events = begin(server, sample, mode, tmp_path)
    for at in range(num_events):
        disturb(server, tmp_path / str(at), words, way, at, undisturbed)
    print(f"{mode}, {way}: {num_events} changes", file=sys.stderr)

"""`train resume=...` as people and schedulers use it: the same command again, after whatever ended the run."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train import arguments

from seqckpt.cli import main
from seqckpt.training import load_snapshot
from seqckpt.training.step import Stepper

NUM_STEPS = 12  # of three epochs over two videos, in two clips each


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def command(sample: Path, *more: str) -> list[str]:
    return arguments(sample, "train.epochs=3", "model.num_layers=2", "model.dropout=0.3", *more)


def stop_in_step(number: int, monkeypatch: pytest.MonkeyPatch, sent: int = signal.SIGTERM) -> None:
    """Let a signal arrive in that step of the next run."""
    run, steps = Stepper.run, []

    def run_and_stop(self: Stepper, *args: Any) -> Any:
        steps.append(1)
        if len(steps) == number:
            signal.raise_signal(sent)
        return run(self, *args)

    monkeypatch.setattr(Stepper, "run", run_and_stop)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_snapshot(run / "last.pt")["model"]


def assert_same_weights(one: Path, other: Path) -> None:
    first, second = weights(one), weights(other)
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[key]) for key, value in first.items())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_command_goes_on_after_a_signal(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: int
) -> None:
    more = (f"data.num_workers={workers}",)
    assert main(command(sample, "run=whole", *more)) == 0
    with monkeypatch.context() as patched:
        stop_in_step(6, patched)
        assert main(command(sample, "run=stopped", "resume=auto", *more)) == 143
    shown = capsys.readouterr()
    assert "resume=runs/stopped goes on from there" in shown.err
    assert not Path("runs/stopped/summary.json").exists()
    assert main(command(sample, "run=stopped", "resume=auto", *more)) == 0
    assert "goes on with runs/stopped after step 6" in capsys.readouterr().out
    assert_same_weights(Path("runs/whole"), Path("runs/stopped"))
    lines = Path("runs/stopped/log.txt").read_text(encoding="utf-8")
    for words in ("small + lstm", "epoch 1/3", "stopped by a signal; saved", "goes on with", "test accuracy"):
        assert words in lines, words
    scores = [json.loads(Path(f"runs/{name}/summary.json").read_text()) for name in ("whole", "stopped")]
    for key in ("test_accuracy", "test_jaccard", "val_accuracy", "best_epoch", "num_steps"):
        assert scores[0][key] == scores[1][key], key
    environment = json.loads(Path("runs/stopped/environment.json").read_text())
    assert [entry["from_step"] for entry in environment] == [0, 6]
    assert environment[0]["packages"]["torch"].partition("+")[0] == torch.__version__.partition("+")[0]


def test_without_a_name_auto_takes_the_last_run_that_has_not_ended(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = [text for text in command(sample, "train.epochs=1", "resume=auto") if text != "train.epochs=3"]
    assert main(short) == 0  # there is none: begun anew
    with monkeypatch.context() as patched:
        stop_in_step(2, patched, signal.SIGINT)
        assert main(short) == 130  # the first has ended: begun anew
    assert len(list(Path("runs").iterdir())) == 2
    assert main(short) == 0
    assert len(list(Path("runs").glob("*/summary.json"))) == 2
    first, second = sorted(Path("runs").iterdir())
    assert_same_weights(first, second)


def test_a_run_or_a_snapshot_can_be_named_and_brings_its_configuration(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        stop_in_step(5, patched)
        assert main(command(sample, "run=a")) == 143
    Path("copy").mkdir()
    for name in ("config.yaml", "last.pt"):
        (Path("copy") / name).write_bytes((Path("runs/a") / name).read_bytes())
    assert main(["train", "resume=a"]) == 0
    assert main(["train", "resume=copy/last.pt"]) == 0
    assert_same_weights(Path("runs/a"), Path("copy"))
    assert main(["train", "resume=a/previous.pt"]) == 0  # a snapshot in a run that is given by its name
    assert main(["train", "resume=b"]) == 2
    assert "resume=b: there is no such run" in capsys.readouterr().err
    torch.save({"weights": 1}, "copy/other.pt")
    assert main(["train", "resume=copy/other.pt"]) == 2
    assert "other.pt is no snapshot of a run" in capsys.readouterr().err


def test_memory_may_change_and_is_said(
    sample: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        stop_in_step(5, patched)
        assert main(command(sample, "run=a")) == 143
    capsys.readouterr()
    assert main(command(sample, "run=a", "resume=auto", "memory.chunk_size=10")) == 0
    shown = capsys.readouterr().out
    assert "memory.chunk_size: None -> 10" in shown
    assert "memory.segment_length" not in shown


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("model.hidden_size=17", "model.hidden_size: 128 -> 17"),
        ("data.clip_length=20", "data.clip_length: 500 -> 20"),
        ("train.seed=4", "train.seed: 0 -> 4"),
        ("train.class_weights=inverse_frequency", "train.class_weights: none -> inverse_frequency"),
        ("data.split.train=[1]", "data.split.train: ["),
    ],
)
def test_another_run_is_refused_with_the_keys_that_differ(
    run: Path, capsys: pytest.CaptureFixture[str], change: str, line: str
) -> None:
    assert main(["train", f"resume={run}", "train.lr=1e-5", change]) == 2
    shown = capsys.readouterr().err
    assert line in shown
    assert "train.lr" not in shown  # may change
    assert "Traceback" not in shown


def test_a_run_without_a_snapshot_begins_anew_in_its_folder(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs/a").mkdir(parents=True)
    Path("runs/a/config.yaml").write_text("killed before its first snapshot\n")
    Path("runs/a/steps.csv").write_text("step,loss\n1,0.5\n")
    assert main(command(sample, "run=a", "resume=auto", "train.epochs=1")) == 0
    assert Path("runs/a/steps.csv").read_text().splitlines()[1].startswith("1,1,")
    assert main(command(sample, "run=a")) == 2
    assert "exists already" in capsys.readouterr().err


def kill_at_random(process: subprocess.Popen[bytes], run: Path, dice: random.Random) -> bool:
    """Kill -9 a few steps after it has begun to train, or (one time in five) while it still starts; False if it ends
    before that."""
    begun = last_step(run)
    num_more = dice.randrange(8) if dice.random() < 0.8 else 0
    while num_more and process.poll() is None and last_step(run) in range(begun, begun + num_more):
        time.sleep(0.005)
    time.sleep(dice.uniform(0.0, 0.2 if num_more else 3.0))
    if process.poll() is not None:
        return False
    process.kill()
    return True


def last_step(run: Path) -> int:
    """The last whole row's step in steps.csv; 0 where there is none."""
    path = run / "steps.csv"
    lines = path.read_text().split("\n")[1:-1] if path.exists() else []
    return int(lines[-1].partition(",")[0]) if lines else 0


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL to send")
def test_killed_at_20_random_moments_it_ends_with_the_same_weights(sample: Path) -> None:
    """kill -9, and the same command again: bit for bit the run that was not killed."""
    more = ("train.save_minutes=0.0001", "train.epochs=40", "train.bptt=carry", "train.ema=0.9")
    base = [text for text in command(sample) if text != "train.epochs=3"]
    assert main([*base, "run=whole", *more]) == 0
    again = [sys.executable, "-m", "seqckpt", *base, "run=killed", "resume=auto", *more]
    dice, killed_after = random.Random(0), []
    while True:
        with subprocess.Popen(again, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            try:
                if len(killed_after) < 20 and kill_at_random(process, Path("runs/killed"), dice):
                    killed_after.append(last_step(Path("runs/killed")))
                shown = process.communicate()[1].decode()
            finally:
                process.kill()
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGKILL, shown
    print("killed after the steps", killed_after)
    assert len(killed_after) == 20
    assert len(set(killed_after)) >= 10, "killed in training, not only while it starts"
    assert Path("runs/killed/summary.json").exists()
    assert_same_weights(Path("runs/whole"), Path("runs/killed"))

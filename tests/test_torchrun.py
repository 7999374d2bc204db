"""`torchrun ... train.py`: several processes write the run that one writes, and end as one when one of them fails."""

from __future__ import annotations

import contextlib
import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from seqckpt.cli import main

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not dist.is_available(), reason="needs torch.distributed, and Linux to find processes"
)

ROOT = Path(__file__).parents[1]
SPLIT = ("data.split.train=[1,2]", "data.split.val=[3]", "data.split.test=[4]")
SMALL = ("model.hidden_size=16", "data.image_size=32", "data.clip_length=50", "train.warmup=0", "train.device=cpu")
SGD = ("train.optimiser=sgd", "train.batch_size=3", "train.epochs=2")
PATIENCE_SECONDS = 240  # nothing is measured by it


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(sample: Path, *more: str) -> list[str]:
    return ["config=surgical_video.yaml", f"data.root={sample}", *SPLIT, *SMALL, *more]


def command(num_processes: int, *words: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
    return [*launcher, str(ROOT / "train.py"), *words]


def torchrun(num_processes: int, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command(num_processes, *words),
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
        env=environment,
        check=False,
    )


def read_steps(run: str) -> list[list[float]]:
    with open(Path("runs") / run / "steps.csv", newline="") as file:
        return [[float(row["loss"]), float(row["gradient_norm"])] for row in csv.DictReader(file)]


AFTER_MANY_STEPS = 1e-4  # 40 steps add up float32's rounding; what goes on is held to 1e-7, in float64, elsewhere


def assert_same_run(run: str, expected: str, *, within: float = 1e-6) -> None:
    """Losses, gradients and weights, in float32; files as one process leaves them, and every frame scored."""
    for got, wanted in zip(read_steps(run), read_steps(expected), strict=True):
        assert got == pytest.approx(wanted, rel=within)
    weights, wanted_weights = (
        torch.load(Path("runs") / name / "last.pt", weights_only=True)["model"] for name in (run, expected)
    )
    for name, value in wanted_weights.items():
        assert (weights[name].double() - value.double()).abs().max() < within, name
    names, wanted_names = ({path.name for path in (Path("runs") / name).rglob("*")} for name in (run, expected))
    assert names == wanted_names
    texts = [(Path("runs") / name / "predictions" / "video04.csv").read_text().splitlines() for name in (run, expected)]
    assert len(texts[0]) == len(texts[1]) > 60


def assert_runs_are_the_same(
    sample: Path, num_processes: int, frame_parallel: int, *more: str, epochs: int = 2
) -> None:
    assert main(["train", *arguments(sample, *SGD, "run=one", *more)]) == 0
    shared = f"distributed.frame_parallel={frame_parallel}"
    done = torchrun(num_processes, *arguments(sample, *SGD, "run=several", shared, *more))
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout.count("test accuracy") == done.stdout.count(f"epoch {epochs}/{epochs}") == 1  # one of them talks
    assert_same_run("several", "one")


def test_two_processes_share_one_clips_frames(sample: Path) -> None:
    assert_runs_are_the_same(sample, 2, 2)


@pytest.mark.slow
@pytest.mark.parametrize(("num_processes", "frame_parallel"), [(2, 1), (4, 1), (4, 2), (4, 4)])
@pytest.mark.parametrize("more", [(), ("data.num_workers=1",), ("train.accumulate=2", "train.bptt=carry")])
def test_every_arrangement(sample: Path, num_processes: int, frame_parallel: int, more: tuple[str, ...]) -> None:
    """Clips of 50 frames and their rests, 4 in all: uneven lengths, and batches of 3 and 1."""
    assert_runs_are_the_same(sample, num_processes, frame_parallel, *more)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch norm policy 'chunk'")
def test_batch_norm_where_a_replica_has_nothing_to_do(sample: Path) -> None:
    """Its one frame is one value per channel in the last layers, and must not become the running statistics."""
    more = ("model.encoder=resnet18", "model.batch_norm=chunk", "train.batch_size=1", "train.epochs=1")
    assert_runs_are_the_same(sample, 2, 1, *more, epochs=1)


@contextlib.contextmanager
def begun(sample: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A long run of two processes that is in its second epoch; the launcher, and the numbers of the processes."""
    words = arguments(sample, "run=cut", "train.batch_size=2", "train.lr=1e-4", *more)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    launcher = subprocess.Popen(
        command(2, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not Path("runs/cut/metrics.csv").exists() and launcher.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        children = Path(f"/proc/{launcher.pid}/task/{launcher.pid}/children").read_text().split()
        yield launcher, [int(child) for child in children]
    finally:
        if launcher.poll() is None:
            launcher.terminate()
            launcher.communicate(timeout=PATIENCE_SECONDS)


@pytest.mark.slow
def test_a_process_that_dies_ends_the_run_which_goes_on_alone(sample: Path) -> None:
    plain = ("train.optimiser=sgd", "train.epochs=20")
    with begun(sample, *plain) as (launcher, ranks):
        os.kill(ranks[1], signal.SIGKILL)
        _, shown = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert launcher.returncode == 1
    assert "Signal 9" in shown  # torchrun's word
    words = arguments(sample, *plain, "train.batch_size=2", "train.lr=1e-4")
    assert main(["train", *words, "run=cut", "resume=auto"]) == 0
    assert main(["train", *words, "run=whole"]) == 0
    assert_same_run("cut", "whole", within=AFTER_MANY_STEPS)


@pytest.mark.slow
def test_a_process_that_hangs_ends_the_run(sample: Path) -> None:
    with begun(sample, "train.epochs=10000", "distributed.timeout_seconds=8") as (launcher, ranks):
        os.kill(ranks[1], signal.SIGSTOP)
        _, shown = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert launcher.returncode == 1
    assert "lost contact with another" in shown
    assert "distributed.timeout_seconds=8" in shown


@pytest.mark.slow
def test_sigterm_saves_and_more_processes_go_on(sample: Path) -> None:
    with begun(sample, "train.optimiser=sgd", "train.epochs=20") as (launcher, _):
        launcher.send_signal(signal.SIGTERM)
        _, shown = launcher.communicate(timeout=PATIENCE_SECONDS)
    assert "saved" in shown
    words = arguments(sample, "train.optimiser=sgd", "train.epochs=20", "train.batch_size=2", "train.lr=1e-4")
    done = torchrun(4, *words, "run=cut", "resume=auto", "distributed.frame_parallel=2")
    assert done.returncode == 0, done.stderr
    assert main(["train", *words, "run=whole"]) == 0
    assert_same_run("cut", "whole", within=AFTER_MANY_STEPS)


@pytest.mark.slow
def test_processes_whose_launcher_was_killed_save_and_end(sample: Path) -> None:
    plain = ("train.optimiser=sgd", "train.epochs=2000")
    with begun(sample, *plain) as (launcher, ranks):
        launcher.kill()
        launcher.communicate(timeout=PATIENCE_SECONDS)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while any(Path(f"/proc/{rank}").exists() for rank in ranks):
            assert time.monotonic() < deadline, "they train on, and nobody knows of them"
            time.sleep(0.1)
    snapshot = torch.load("runs/cut/last.pt", weights_only=True)
    assert snapshot["progress"]["step"] == len(read_steps("cut"))  # that of the signal, not of the epoch before
    assert "stopped by a signal; saved" in Path("runs/cut/log.txt").read_text()


@pytest.mark.slow
def test_mistakes_are_said_once(sample: Path) -> None:
    done = torchrun(2, *arguments(sample, "distributed.frame_parallel=3"))
    assert done.returncode == 1  # torchrun's; it shows the processes' own, 2
    assert done.stderr.count("error: distributed.frame_parallel=3 with 2 process(es)") == 1
    assert "dispatch.py" not in done.stderr  # no traceback of ours, though torchrun ends who waits; it adds its own

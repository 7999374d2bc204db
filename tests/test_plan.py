"""A budget of memory on the command line: planned runs, `seqckpt plan`, and the mistakes that users make with them."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from seqckpt import build
from seqckpt.cli import main
from seqckpt.config import load_config
from seqckpt.core import Schedule
from seqckpt.memory import MemoryTrace

SPLIT = ("data.split.train=[1,2]", "data.split.val=[3]", "data.split.test=[4]")
SMALL = ("model.hidden_size=16", "data.image_size=32", "data.clip_length=50", "train.epochs=1", "train.device=cpu")


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def arguments(command: str, sample: Path, *more: str) -> list[str]:
    return [command, "config=surgical_video.yaml", f"data.root={sample}", *SPLIT, *SMALL, *more]


def losses(run: str) -> list[float]:
    with open(Path("runs") / run / "steps.csv", newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def schedule_of(path: str) -> Schedule:
    return build.build_schedule(load_config([f"config={path}"])[1].memory)


def test_a_planned_run_computes_the_same_and_can_be_repeated(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments("train", sample, "run=plain", "memory.enabled=false")) == 0
    assert "planned for" not in capsys.readouterr().out
    assert main(arguments("train", sample, "run=planned", "memory.budget=6MiB")) == 0
    printed = capsys.readouterr().out
    schedule = schedule_of("runs/planned/config.yaml")
    assert f"planned for 6.0 MiB: {schedule.describe_choices()}; peak " in printed
    assert "MiB of the budget of 6.0 MiB" in printed
    assert "planned again" not in printed
    assert losses("planned") == pytest.approx(losses("plain"), rel=1e-4)
    assert main(["train", "config=runs/planned/config.yaml", "run=again"]) == 0
    assert "planned for" not in capsys.readouterr().out
    assert losses("again") == losses("planned")
    assert schedule_of("runs/again/config.yaml") == schedule


def test_what_is_given_is_kept(sample: Path) -> None:
    given = ("memory.chunk_size=7", "memory.segment_length=11", "memory.keep_depth=1.5")
    assert main(arguments("train", sample, "run=given", "memory.budget=1GiB", *given)) == 0
    schedule = schedule_of("runs/given/config.yaml")
    assert (schedule.chunk_size, schedule.segment_length, schedule.keep.depth) == (7, 11, 1.5)
    assert schedule.keep.chunks > 1


def test_plan_shows_the_trade_off(sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*arguments("plan", sample, "run=plan", "memory.budget=6MiB"), "--measure"]) == 0
    printed = capsys.readouterr().out
    rows = json.loads(Path("runs/plan/plan.json").read_text())
    assert len(rows) == 13
    assert [row["budget_bytes"] for row in rows if row["is_given"]] == [6 * 2**20]
    for row in rows:
        assert row["measured_peak_bytes"] <= row["budget_bytes"]
        assert row["schedule"]["predicted_peak_bytes"] == pytest.approx(row["measured_peak_bytes"], rel=0.1)
    seconds = [row["schedule"]["predicted_step_seconds"] for row in rows]
    assert seconds == pytest.approx(sorted(seconds, reverse=True), rel=0.03)  # more memory is never slower
    assert printed.count("| chunks of ") == 2 * 13  # first what is predicted, then what was measured beside it
    assert "6.0 MiB (given)" in printed
    assert "the plain run: " in printed
    assert Path("runs/plan/plan.md").read_text().strip() in printed
    assert Path("runs/plan/plan.png").stat().st_size > 10_000
    (given,) = (row["schedule"] for row in rows if row["is_given"])
    chosen = Schedule.from_dict(given)
    assert schedule_of("runs/plan/config.yaml").describe_choices() == chosen.describe_choices()
    assert f"for 6.0 MiB: {chosen}" in printed


def test_a_profile_follows_the_budget(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("profile", "config=surgical_video.yaml", *SMALL, "--no-plain", "memory.budget=4MiB")
    assert main([*arguments, "run=profile"]) == 0
    trace = MemoryTrace.from_json(Path("runs/profile/scheduled.json"))
    totals = trace.totals
    assert totals.peak_bytes + totals.parameter_bytes + totals.optimiser_bytes < 4 * 2**20


MISTAKES = {
    "memory.budget=8apples": "memory.budget: '8apples' is no amount of memory",
    "memory.budget=0": "memory.budget=0: expected more than 0 bytes",
    "memory.budget=100KiB": "a budget of 100.0 KiB cannot be met: the smallest feasible is ",
    "memory.outer_segment_length=10": "memory.outer_segment_length=10: expected a shorter memory.segment_length inside",
    "memory.keep_depth=-1": "memory.keep_depth=-1",
    "memory.keep_depth=99": "memory.keep_depth=99.0: keep.depth is 99.0, but the encoder can be cut in ",
}


@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("command", ["train", "plan"])
def test_mistakes_are_told_in_a_line(
    command: str, mistake: str, sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(command, sample, mistake)) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {MISTAKES[mistake]}")
    assert not Path("runs").exists()


@pytest.mark.parametrize("command", ["train", "plan"])
def test_the_plain_run_has_nothing_to_plan(command: str, sample: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(command, sample, "memory.budget=1GiB", "memory.enabled=false")) == 2
    assert "has nothing to plan" in capsys.readouterr().err

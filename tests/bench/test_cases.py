"""Every case of the bench runs end to end, at sizes where its figures mean nothing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seqckpt.bench import capped, host_memory, learning, online, planning, probes, reading, turns, video, video_long
from seqckpt.bench.suggest import find_by_dynamic_programme
from seqckpt.cli import main
from seqckpt.memory import find_best_reset_points

TINY = {
    "video": "models=small-16 lengths=12,24 steps=1 segment=6 smallest=2 balanced=4 fastest=4+1 "
    "error_frames=8 error_pixels=16 peers=checkpoint,recipe",
    "video-long": "frames=60 short=20 encoder=small pixels=32 choice=5 segment=10",
    "lm": "cap=3MiB vocabulary=500 width=8 batch=2 segment=5 shortest=20 most_ratio=2 steps=1",
    "memonger-cnn": "networks=densenet cap=8MiB densenet_depth=10 most_ratio=1.5 steps=1",
    "nin": "batch=2 steps=1 torch_segments=1 segments=3",
    "rnn": "lengths=60 hidden_size=8 steps=1",
    "suggest": "sizes=30 checkpoints=3",
    "planning": "encoder=small pixels=32 frames=40 shares=1,80 steps=0",
    "reading": "what=memory,augmentation frames=30 repeats=1",
    "online": "what=latency encoder=small frames=3",
    "host-memory": "lengths=200,400 chunk=10 segment=20",
    "fixed-costs": "chunks=5 frames=20 pixels=16 segment=10 steps=2",
}
PICTURES = {"video": 3, "rnn": 2, "suggest": 1}


IN_PROCESSES = {"rnn", "nin"}  # the others' subjects live in this process here: starting one takes 0.3 s


class LocalWorker:
    """A worker without a process."""

    def __init__(self, build: Callable[..., Any], *, limit_bytes: int | None = None, **arguments: Any) -> None:
        self.subject = build(**arguments)

    def ask(self, name: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self.subject, name)(*arguments, **named)

    def __enter__(self) -> LocalWorker:
        return self

    def __exit__(self, *error: object) -> None: ...


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (turns, capped, probes, video_long, host_memory, learning, online, planning, reading):
        monkeypatch.setattr(module, "Worker", LocalWorker)


def run(case: str, folder: Path, settings: str) -> tuple[str, dict[str, Any]]:
    assert main(["bench", case, f"output={folder}", *settings.split()]) == 0
    data = json.loads((folder / f"{case}.json").read_text(encoding="utf-8"))
    return (folder / f"{case}.md").read_text(encoding="utf-8"), data


@pytest.mark.parametrize("case", TINY)
def test_a_case_leaves_tables_figures_and_the_machine(
    case: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if case not in IN_PROCESSES:
        request.getfixturevalue("in_this_process")
    markdown, data = run(case, tmp_path / "out", TINY[case])
    assert data["records"]
    assert "fails" not in markdown
    assert f"`python -m seqckpt bench {case} " in markdown.splitlines()[-1]
    assert len(list((tmp_path / "out").glob("*.svg"))) == PICTURES.get(case, 0)
    if case == "video":
        check_video(markdown, data)
    if case == "planning":
        check_planning(markdown, data)


def check_video(markdown: str, data: dict[str, Any]) -> None:
    records = data["records"]
    errors = {record["name"]: record["gradient_errors"] for record in records}
    for name, error in errors.items():
        assert (error["float64"] < 1e-10) == (error["float32"] < 1e-4) == ("recipe" not in name), name
    assert errors["tutorial's recipe, chunks of 4"]["float64"] == pytest.approx(3)  # four pieces: see test_peers.py
    assert "| plain | " in markdown
    assert all(len(record["seconds"]) == 1 for record in records)


@pytest.mark.usefixtures("in_this_process")
def test_steps_that_read(tmp_path: Path, sample: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the cache and from a video; the second model is a small one here."""
    monkeypatch.setitem(reading.MODELS, list(reading.MODELS)[1], ("small", 16, 4))
    for what in ("cache", "waiting"):
        monkeypatch.setitem(reading._CLIP_FRAMES, what, (30, 50))
    shutil.copy(sample / "videos" / "video04.mp4", tmp_path / "long-600.mp4")  # in the place of the one to be made
    markdown, data = run("reading", tmp_path / "out", f"what=waiting,cache repeats=2 folder={tmp_path}")
    found = [(record["what"], record["num_frames"], record["model"]) for record in data["records"]]
    models = list(reading.MODELS)
    assert found == [(what, n, m) for what in ("waiting", "cache") for n, m in zip((30, 50), models, strict=True)]
    for record in data["records"][:2]:
        assert 0 <= record["waiting_seconds"] <= record["step_reading_ahead_seconds"]
    for record in data["records"][2:]:
        assert len(record["read_seconds"]) == len(record["step_seconds"]) == 2
    assert markdown.count(f"| {models[1]} | 50 | ") == 2


def test_decoding_keeps_its_own_processes_to_the_cores_asked_for(tmp_path: Path, sample: Path) -> None:
    before = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    shutil.copy(sample / "videos" / "video04.mp4", tmp_path / "long-60.mp4")  # in the place of the one to be made
    settings = f"what=decoding seconds=60 repeats=2 threads=1 folder={tmp_path}"
    markdown, data = run("reading", tmp_path / "out", settings)
    programs = ["seqckpt", "ffmpeg"] if shutil.which("ffmpeg") else ["seqckpt"]
    assert [record["by"] for record in data["records"]] == programs * 2  # in turn
    assert {record["num_frames"] for record in data["records"]} <= set(range(60, 72))
    assert all(f"| {by} | " in markdown for by in programs)
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == ["long-60.mp4"]  # frames are gone
    if before is not None:
        assert os.sched_getaffinity(0) == before
        assert all(record["num_cores"] == 1 for record in data["records"])


def check_planning(markdown: str, data: dict[str, Any]) -> None:
    plain, *records = data["records"]
    ways = ["planned", "whole chunks", "recompute all"]
    assert {(record["share"], record["way"]) for record in records} == {(n, way) for n in (1, 80) for way in ways}
    for record in records:
        assert record["budget_bytes"] == plain["plain_peak_bytes"] * record["share"] // 100
        assert ("error" in record) == (record["share"] == 1)  # parameters alone take more
        assert f"| {record['share']} % = " in markdown
    assert all(record["measured_peak_bytes"] < plain["plain_peak_bytes"] for record in records if "error" not in record)


@pytest.mark.slow
@pytest.mark.usefixtures("in_this_process")
def test_learning(tmp_path: Path) -> None:
    settings = "seeds=0 clip_lengths=25,50 frames_per_step=50 epochs=1 num_videos=3 video_seconds=60"
    markdown, data = run("learning", tmp_path, settings)
    assert len({record["num_frames_seen"] for record in data["records"]}) == 1
    assert "random features" in markdown


@pytest.mark.usefixtures("in_this_process")
def test_what_would_pass_the_memory_is_named_and_not_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With 25 MiB free by its own account, the machine is not asked for the longest plain run."""
    monkeypatch.setattr(video, "free_memory", lambda device: 25 * 2**20)
    settings = "models=small-32 lengths=20,40,300 steps=1 segment=10 smallest=5 balanced=5 fastest=5 peers= "
    markdown, data = run("video", tmp_path, settings + "error_frames=8 error_pixels=16")
    records = [record for record in data["records"] if record["num_frames"] == 300]
    assert any(record["seconds"] for record in records)
    assert {record["name"] for record in records if record["problem"]} == {"plain", "plain, channels_last"}
    assert all(record["seconds"] == [] for record in records if record["problem"])
    assert "| plain | does not fit: would need about " in markdown


@pytest.mark.usefixtures("in_this_process")
def test_a_long_clip_alone_is_tried_by_all_ways_but_those_that_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(video, "free_memory", lambda device: 25 * 2**20)
    settings = "models=small-32 lengths=300 steps=0 segment=10 smallest=5 balanced=5 fastest=5 peers=checkpoint "
    _, data = run("video", tmp_path, settings + "error_frames=8 error_pixels=16")
    tried = {record["name"]: record["problem"] for record in data["records"]}
    assert {name for name, problem in tried.items() if problem} == {"plain", "plain, channels_last"}


@pytest.mark.parametrize("checkpoints", [0, 1, 3, 40])
def test_the_quadratic_programme_is_a_fair_opponent(checkpoints: int) -> None:
    sizes = [(7 * k * k + 3) % 101 for k in range(25)]
    assert find_by_dynamic_programme(sizes, checkpoints) == find_best_reset_points(sizes, checkpoints)[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["vidoe"], "'vidoe' is no case of the bench: expected some of video"),
        (["rnn", "length=3"], "did you mean lengths?"),
        (["rnn", "steps=many"], "steps=many: expected a whole number, such as 5"),
        (["video", "models=resnet18"], "models=resnet18: expected encoder-pixels"),
        (["video", "balanced=fast"], "'fast' is no schedule"),
        (["reading", "what=everything"], "what=everything: expected some of cache, waiting, memory"),
        (["online", "what=everything"], "what=everything: expected some of latency, memory"),
        (["online", "encoder=vgg"], "encoder=vgg: expected some of small, resnet50"),
        (["online", "frames=few"], "frames=few: expected a whole number, such as 200"),
        (["online", "run=nowhere"], "run=nowhere: there is no such run"),
        (["video", "peers=gradcash"], "peers=gradcash: expected some of checkpoint, recipe, gradcache"),
    ],
)
def test_mistakes_are_answered_in_a_line(
    arguments: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments, f"output={tmp_path / 'new'}"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_help_names_the_cases_and_their_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--help"]) == 0
    text = capsys.readouterr().out
    assert "usage: seqckpt bench [case ...] [key=value ...] [--quick]" in text
    assert all(name in text for name in TINY)
    assert "lengths=100,250,500,1000,2000,5000" in text
    assert "train.epochs" not in text

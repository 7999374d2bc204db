"""`seqckpt profile` prints, draws and writes the traces of one configuration, and suggests checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from seqckpt import build
from seqckpt.cli import main
from seqckpt.memory import MemoryTrace

SMALL = ("model.hidden_size=16", "data.image_size=32", "data.clip_length=50", "train.device=cpu")
COMMAND = ("profile", "config=surgical_video.yaml", *SMALL)


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_both_ways_are_traced_drawn_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "run=both", "memory.chunk_size=10"]) == 0
    run = Path("runs/both")
    plain, scheduled = (MemoryTrace.from_json(run / f"{name}.json") for name in ("plain", "scheduled"))
    assert scheduled.peak_bytes < 0.5 * plain.peak_bytes
    assert not any(call.is_replay for call in plain.calls)
    chunks = [
        call.is_replay for call in scheduled.calls if call.module == "encoder.encoder.stem" and call.phase == "forward"
    ]
    assert chunks == [False] * 5 + [True] * 4
    assert plain.totals.optimiser_bytes > 2 * plain.totals.parameter_bytes * 0.99
    for name in ("plain.png", "scheduled.png", "comparison.png", "config.yaml"):
        assert (run / name).stat().st_size > 0
    printed = capsys.readouterr().out
    assert "plain: 50 frames of 32 px on cpu" in printed
    assert "scheduled: 50 frames of 32 px on cpu" in printed
    assert (run / "suggestions.txt").read_text() in printed
    assert "between encoder.encoder.stem.0 and encoder.encoder.project.1" in printed
    assert "1 checkpoint, " in printed


def test_the_plain_step_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "run=one", "--no-plain"]) == 0
    assert sorted(path.name for path in Path("runs/one").iterdir()) == [
        *("comparison.png", "config.yaml", "scheduled.json", "scheduled.png")
    ]
    assert "suggested" not in capsys.readouterr().out


def test_a_plain_step_that_does_not_fit_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    build_model = build.build_model

    def refuse_plain(config: object) -> object:
        if not config.memory.enabled:  # type: ignore[attr-defined]
            raise torch.OutOfMemoryError("tried to allocate 20 GiB")
        return build_model(config)  # type: ignore[arg-type]

    monkeypatch.setattr(build, "build_model", refuse_plain)
    assert main([*COMMAND, "run=oom"]) == 0
    assert "the plain step does not fit into memory (tried to allocate 20 GiB)" in capsys.readouterr().out
    assert Path("runs/oom/scheduled.png").exists()


def test_a_mistake_is_one_message(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*COMMAND, "data.clip_lenght=5"]) == 2
    assert "data.clip_length" in capsys.readouterr().err
    assert not Path("runs").exists()

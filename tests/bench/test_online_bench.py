"""What the bench measures of prediction is what README says; the figures are for a quiet machine to find."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from seqckpt.bench.online import Prediction
from seqckpt.cli import main
from seqckpt.inference import predict
from seqckpt.progress import progress_bar


def measure(folder: Path, *settings: str) -> tuple[str, list[dict[str, Any]]]:
    assert main(["bench", "online", f"output={folder}", *settings]) == 0
    records = json.loads((folder / "online.json").read_text(encoding="utf-8"))["records"]
    return (folder / "online.md").read_text(encoding="utf-8"), records


def test_both_are_measured_of_a_run(run: Path, sample: Path, tmp_path: Path) -> None:
    shutil.copy(sample / "videos" / "video04.mp4", tmp_path / "long-60.mp4")  # in the place of the one to be made
    markdown, records = measure(tmp_path / "out", f"run={run}", f"folder={tmp_path}", "frames=3", "seconds=60")
    latency, memory = records
    assert [record["what"] for record in records] == ["latency", "memory"]
    assert {record["model"] for record in records} == {str(run)}
    assert len(latency["seconds"]) == 3
    assert f"| {run} | cpu | " in markdown
    with (tmp_path / "predicted-0" / "long-60.csv").open(encoding="utf-8") as table:
        assert memory["num_frames"] == sum(1 for _ in table) - 1
    assert memory["video_seconds"] == pytest.approx(memory["num_frames"], abs=1)
    assert not (tmp_path / "predicted-0" / "long-60-phases.mp4").exists()


def test_the_process_that_predicts_shows_no_bar_beside_that_of_the_bench(
    run: Path, sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bars = []

    def record(**options: Any) -> Any:
        bars.append(progress_bar(**options))
        return bars[-1]

    monkeypatch.setattr(predict, "progress_bar", record)
    video = str(sample / "videos" / "video04.mp4")
    Prediction(run=str(run), encoder="").memory(video=video, folder=str(tmp_path), draw=True)
    assert (tmp_path / "video04-phases.mp4").exists()
    assert [bar.disable for bar in bars] == [True, True]  # of predicting, and of drawing


def test_what_is_wrong_with_a_run_is_said_as_elsewhere(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Found only when the run is opened, which another process does."""
    shutil.copy(run / "config.yaml", tmp_path)
    assert main(["bench", "online", "what=latency", f"run={tmp_path}", f"output={tmp_path / 'out'}"]) == 2
    assert f"error: the run {tmp_path} holds neither best.pt nor last.pt" in capsys.readouterr().err


@pytest.mark.slow
def test_two_hours_take_little_memory(tmp_path: Path) -> None:
    _, (record,) = measure(tmp_path / "out", "what=memory", "encoder=small", f"folder={tmp_path}")
    assert (record["num_frames"], record["video_seconds"]) == (7200, pytest.approx(7200))
    assert record["growth_bytes"] < 300 * 2**20

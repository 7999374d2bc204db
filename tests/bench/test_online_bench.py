"""The measurements of prediction run as README says; the figures are for a quiet machine to find."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from seqckpt.bench import online


def test_latency_is_measured(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert online.main([f"run={run}", "frames=3"]) == 0  # latency, where nothing is named
    line = capsys.readouterr().out.splitlines()[-1]
    assert re.search(r"ms a frame \(median\), .* over 3 frames of 854 x 480 on .*(thread|GPU|NVIDIA)", line), line


def test_memory_is_measured(run: Path, sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(sample / "videos" / "video04.mp4", tmp_path / "long-60.mp4")  # in the place of the one to be made
    assert online.main(["memory", f"run={run}", f"folder={tmp_path}", "seconds=60"]) == 0
    assert " frames of a video of 1:0" in capsys.readouterr().out
    assert (tmp_path / "predicted-0" / "long-60.csv").exists()


@pytest.mark.slow
def test_two_hours_take_little_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert online.main(["memory", "encoder=small", f"folder={tmp_path}"]) == 0
    out = capsys.readouterr().out
    found = re.search(r"7200 frames of a video of 2:00:00 .*: ([0-9.]+) MiB over the model", out)
    assert found, out
    assert float(found[1]) < 300


@pytest.mark.parametrize("arguments", [["everything"], ["latency", "speed=3"], ["encoder=vgg"], ["frames=few"]])
def test_what_is_not_understood_is_answered_with_what_there_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert online.main(arguments) == 2
    assert "expected one of latency, memory" in capsys.readouterr().out

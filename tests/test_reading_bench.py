"""The measurements of reading run as README says; the figures are for a quiet machine to find."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqckpt.bench import reading


def test_streaming_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reading.main(["memory", "frames=60", f"folder={tmp_path}"]) == 0
    assert "60 frames of 224 px streamed forward and backward in" in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["square-60.mp4"]


def test_augmentations_are_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert reading.main(["augmentation", "repeats=1"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1 + 7


@pytest.mark.parametrize("arguments", [[], ["everything"], ["cache", "speed=3"]])
def test_what_is_not_understood_is_answered_with_what_there_is(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert reading.main(arguments) == 2
    assert "expected one of cache, waiting, memory, decoding, augmentation" in capsys.readouterr().out

"""The videos that the bench makes to measure with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from seqckpt.bench import made_videos
from seqckpt.data import index_recording, stream_video


def test_a_long_video_is_a_short_one_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(made_videos, "_PART_SECONDS", 2)
    path = made_videos.make_long_video(tmp_path, seconds=5)
    timeline = index_recording(path)
    assert path == tmp_path / "long-5.mp4"
    assert timeline.duration_seconds == pytest.approx(6)  # parts are not cut
    assert np.diff(timeline.stamps * float(timeline.time_base)) == pytest.approx(1 / 25)
    frames = stream_video(path, fps=5.0, image_size=(48, 85)).frames[0:30]
    assert (frames[:10] == frames[20:]).all()
    assert (frames[0] != frames[9]).any()  # it moves
    written = path.stat().st_mtime_ns
    assert made_videos.make_long_video(tmp_path, seconds=5).stat().st_mtime_ns == written  # made once

"""The frames of a run's test videos, from its configuration: those that its training has decoded, where it has."""

from __future__ import annotations

from pathlib import Path

from seqckpt import build
from seqckpt.config import Config
from seqckpt.data import FrameSource
from seqckpt.errors import DataError

__all__ = ["find_frames"]


def find_frames(config: Config) -> dict[str, FrameSource]:
    """Return the frames of the test videos by id.

    Where the run had a cache, they are decoded into it if they are not there any more (with a progress bar). Raises
    DataError where the data is not where the configuration says.
    """
    if not Path(config.data.root).is_dir():  # the sample data, too, is not made anew for its pictures
        raise DataError(f"data.root={config.data.root}: there is no such folder; give the one where the data is now")
    test = build.choose_videos(config.data)["test"]
    if config.data.cache == "none":
        videos = build.read_videos(config.data, {"train": [], "val": [], "test": test}).test
        return {video.video_id: video.frames for video in videos}
    sampled = build.fill_frame_cache(config.data, {"test": test})
    return {video_id: video.frames for video_id, video in zip(test, sampled, strict=True)}

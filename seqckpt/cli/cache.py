"""`seqckpt cache`: decode all videos of a data set once, so that training reads them from disk."""

from __future__ import annotations

import time
from collections.abc import Sequence

from seqckpt import build
from seqckpt.cli.command import Command
from seqckpt.config import load_config
from seqckpt.units import format_seconds

__all__ = ["CACHE"]


def _cache(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Say what the cache will take, fill it, and say what is there; what was finished before stays as it is."""
    started = time.perf_counter()
    _, config = load_config(arguments, find_more=build.find_unusable_names)
    ids = build.choose_videos(config.data)
    folder, estimate = build.estimate_frame_cache(config.data, ids)
    print(f"frame cache in {folder}: {estimate}", flush=True)
    videos = build.fill_frame_cache(config.data, ids)
    num_repeated = sum(len(video.repeated) for video in videos)
    damage = f", {num_repeated} of them standing in for damaged ones" if num_repeated else ""
    num_frames = sum(len(video.frames) for video in videos)
    print(
        f"{len(videos)} videos with {num_frames} frames{damage} are in the cache, made or checked in "
        f"{format_seconds(time.perf_counter() - started)}"
    )
    return 0


CACHE = Command("cache", _cache, "decode the videos of a data set once, into the cache that training reads")

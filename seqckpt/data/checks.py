"""Checks of videos against their annotations that need no picture: training runs them by itself."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.findings import Finding
from seqckpt.data.label_track import LabelTrack
from seqckpt.data.video_facts import VideoFacts
from seqckpt.data.videos import IGNORE_INDEX

__all__ = ["check_labels", "check_videos"]

_LARGEST_TAIL = 0.02  # of the longer of video and annotation
_VARIABLE_FRAMES = 2  # a constant rate, sampled and rounded, strays by less


def check_videos(videos: Sequence[VideoFacts], *, tail: str) -> Iterator[Finding]:
    """Yield what is odd about videos and their annotations: lengths that differ or fit crosswise, variable rates."""
    for video in videos:
        for track in (video.phases, video.tools):
            if track is not None:
                yield from _check_length(video, track, videos, tail)
        if video.first_number > 1:
            yield Finding(
                "warning",
                video.video_id,
                f"the first frame in {video.path} is number {video.first_number}, and is taken for the video's first",
                "if frames before it are missing, all labels are shifted: add them",
            )
        if video.stray_frames > _VARIABLE_FRAMES:
            yield Finding(
                "warning",
                video.video_id,
                f"{video.path} has a variable frame rate ({video.num_frames / video.duration_seconds:.3g} a second on "
                f"average, up to {video.stray_frames:.0f} frames off)",
                "frames are taken by time stamp; see that the annotation's frame numbers count this file's frames",
            )
    yield from _check_crosswise(videos)


def check_labels(video_id: str, labels: NDArray[np.int64], fps: Fraction, *, unlabelled: str) -> Finding | None:
    """Say whether sampled frames lack a label: an error if `unlabelled` is "error", a warning where all of them do."""
    places = np.flatnonzero(labels == IGNORE_INDEX)
    if not len(places) or (unlabelled == "ignore" and len(places) < len(labels)):
        return None
    found = f"{len(places)} of {len(labels)} sampled frames have no label, the first at {float(places[0] / fps):.2f} s"
    if unlabelled == "error":
        return Finding("error", video_id, found, "expected a label for each (data.unlabelled=error)")
    return Finding("warning", video_id, found, "nothing is learnt of it")


def _check_length(video: VideoFacts, track: LabelTrack, videos: Sequence[VideoFacts], tail: str) -> Iterator[Finding]:
    """Compare a video's length with what its annotation covers."""
    if math.isinf(track.end) and video.duration_seconds > 1:
        found = f"the one row of {track.path} is taken for all {video.duration_seconds:.2f} s of {video.path}"
        yield Finding("warning", video.video_id, found, "is the annotation cut short?")
    seconds = abs(video.excess_seconds(track))
    if not seconds:
        return
    length = video.length_on(track)
    difference, longer = abs(track.end - length), max(track.end, length)
    found = f"{_describe(video, track)}: {difference:.4g} ({seconds:.2f} s) too many on one side"
    if tail == "strict":
        yield Finding("error", video.video_id, found, "expected equal lengths (data.tail=strict)")
    elif difference > max(1, math.floor(_LARGEST_TAIL * longer)):
        yield Finding(
            "error",
            video.video_id,
            f"{found}, {difference / longer:.1%}; expected at most {_LARGEST_TAIL:.0%}",
            _guess_cause(video, track, videos),
        )
    else:
        hint = "only what both have is used"
        better = _find_better(video, track, videos)
        if better is not None:
            hint += f"; is it another video's? It fits {better.video_id} ({better.path}) better"
        yield Finding("warning" if seconds > 1 else "note", video.video_id, found, hint)


def _guess_cause(video: VideoFacts, track: LabelTrack, videos: Sequence[VideoFacts]) -> str:
    better = _find_better(video, track, videos)
    if better is not None:
        return f"is it another video's? It fits {better.video_id} ({better.path}) better; or is the file cut short?"
    return "is the annotation another video's, is the file cut short, or do its frame numbers count another rate?"


def _find_better(video: VideoFacts, track: LabelTrack, videos: Sequence[VideoFacts]) -> VideoFacts | None:
    """Return the video whose length fits this annotation much better than that of its own does."""
    own = abs(video.excess_seconds(track))
    others = [other for other in videos if other is not video and track.is_complete]
    best = min(others, key=lambda other: abs(other.excess_seconds(track)), default=None)
    return best if best is not None and own > 1 and abs(best.excess_seconds(track)) < own / 4 else None


def _check_crosswise(videos: Sequence[VideoFacts]) -> Iterator[Finding]:
    """Yield pairs of videos whose annotations fit each other's lengths, but not their own."""
    known = [(video, video.phases) for video in videos if video.phases is not None and video.phases.is_complete]
    odd = [(video, track) for video, track in known if abs(video.excess_seconds(track)) > 1]
    for place, (video, track) in enumerate(odd):
        for other, others_track in odd[place + 1 :]:
            crosswise = max(abs(video.excess_seconds(others_track)), abs(other.excess_seconds(track)))
            own = min(abs(video.excess_seconds(track)), abs(other.excess_seconds(others_track)))
            if crosswise < own / 4:
                yield Finding(
                    "error",
                    video.video_id,
                    f"its annotation {track.path} fits {other.path} better, and {others_track.path} fits {video.path}",
                    "have the two been swapped?",
                )


def _describe(video: VideoFacts, track: LabelTrack) -> str:
    if video.rate_of(track) is None:
        return f"{video.path} has {video.num_frames} frames, but {track.path} is for {track.end:.10g}"
    rate = video.rate_of(track) or 1
    return (
        f"{video.path} lasts {video.duration_seconds:.2f} s, but {track.path} is for {track.end / rate:.2f} s "
        f"(at {rate:g} a second)"
    )

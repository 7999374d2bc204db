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

__all__ = ["ALL_VIDEOS", "check_labels", "check_videos"]

ALL_VIDEOS = "all videos"  # the subject of what is wrong with each of them in the same way
_LARGEST_TAIL = 0.02  # of the longer of video and annotation
_LARGEST_GAP = 0.1  # of a video's sampled frames
_SAME_FACTOR = 1.02  # lengths that are off by one factor agree in it to within this
_SHOWN_LINES = 5  # of those with an interval of length zero
_VARIABLE_FRAMES = 2  # a constant rate, sampled and rounded, strays by less


def check_videos(videos: Sequence[VideoFacts], *, tail: str) -> Iterator[Finding]:
    """Yield what is odd about videos and their annotations, without a look at any label.

    Lengths that differ or fit crosswise, intervals of length zero, variable rates.
    """
    common = _find_common_factor(videos)
    if common is not None:
        yield common
    for video in videos:
        for track in (video.phases, video.tools):
            if track is not None and (common is None or track is not video.phases):
                yield from _check_length(video, track, videos, tail)
        yield from _count_empty(video)
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


def check_labels(
    video_id: str, labels: NDArray[np.int64], fps: Fraction, *, unlabelled: str, is_complete: bool
) -> Finding | None:
    """Say whether sampled frames lack a label: an error if `unlabelled` is "error", else a warning where it is odd.

    That is where all of them do, or a tenth and more: anywhere, if the annotation promises a label for each
    (`is_complete`), or else in one stretch at the video's beginning or end.
    """
    places = np.flatnonzero(labels == IGNORE_INDEX)
    if not len(places):
        return None
    found = f"{len(places)} of {len(labels)} sampled frames have no label, the first at {float(places[0] / fps):.2f} s"
    if unlabelled == "error":
        return Finding("error", video_id, found, "expected a label for each (data.unlabelled=error)")
    if len(places) == len(labels):
        return Finding("warning", video_id, found, "nothing is learnt of it")
    gaps = _find_gaps(places, len(labels), only_at_ends=not is_complete)
    share = sum(end - start for start, end in gaps) / len(labels)
    if share <= _LARGEST_GAP:
        return None
    stretches = " and ".join(f"{float(start / fps):.1f} s to {float(end / fps):.1f} s" for start, end in gaps)
    where = stretches if len(gaps) <= 2 else f"in {len(gaps)} stretches, the first from {stretches.split(' and ')[0]}"
    hint = "is the annotation cut short, or another video's? Nothing is learnt of them"
    return Finding("warning", video_id, f"{share:.0%} of its frames ({where}) have no label", hint)


def _find_gaps(places: NDArray[np.int64], length: int, *, only_at_ends: bool) -> list[tuple[int, int]]:
    """Return stretches (start, end) of unlabelled places; `only_at_ends`: large ones at the beginning or the end."""
    stretches = np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)
    gaps = [(int(stretch[0]), int(stretch[-1]) + 1) for stretch in stretches]
    if not only_at_ends:
        return gaps
    return [(start, end) for start, end in gaps if (not start or end == length) and end - start > _LARGEST_GAP * length]


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
    excess = f"{seconds:.2f} s"
    if video.rate_of(track) is None:
        excess = f"{difference:.10g} frame{'s' * (difference != 1)} ({excess})"
    found = f"{_describe(video, track)}: the annotation is {excess} too {'long' if track.end > length else 'short'}"
    if tail == "strict":
        yield Finding("error", video.video_id, found, "expected equal lengths (data.tail=strict)")
    elif difference > max(1, math.floor(_LARGEST_TAIL * longer)):
        yield Finding(
            "error",
            video.video_id,
            f"{found} ({difference / longer:.1%}); expected at most {_LARGEST_TAIL:.0%}",
            _guess_cause(video, track, videos),
        )
    else:
        hint = "only what both have is used"
        better = _find_better(video, track, videos)
        if better is not None:
            hint += f"; is it another video's? It fits {better.video_id} ({better.path}) better"
        yield Finding("warning" if seconds > 1 else "note", video.video_id, found, hint)


def _count_empty(video: VideoFacts) -> Iterator[Finding]:
    """Count the intervals that end where they begin, and say where they stand."""
    for track in (video.phases, video.tools):
        if track is not None and track.empty_lines:
            num_empty, shown = len(track.empty_lines), ", ".join(map(str, track.empty_lines[:_SHOWN_LINES]))
            lines = f"line{'s' * (num_empty > 1)} {shown}{', ...' * (num_empty > _SHOWN_LINES)}"
            found = f"{num_empty} of {track.num_rows} intervals in {track.path} end where they begin ({lines})"
            yield Finding("warning", video.video_id, found, "no frame has their label")


def _guess_cause(video: VideoFacts, track: LabelTrack, videos: Sequence[VideoFacts]) -> str:
    better = _find_better(video, track, videos)
    if better is not None:
        return f"is it another video's? It fits {better.video_id} ({better.path}) better; or is the file cut short?"
    factor = track.end / video.length_on(track)
    rate = _suggest_rate(video, track, factor) if not 0.5 < factor < 2 else "do its frame numbers count another rate?"
    return f"is the annotation another video's, is the file cut short, or {rate}"


def _find_common_factor(videos: Sequence[VideoFacts]) -> Finding | None:
    """Say once, instead of for each video, that all annotations are too long or too short by one factor: a rate."""
    tracks = [(video, video.phases) for video in videos if video.phases is not None and len(video.phases.starts)]
    factors = sorted(track.end / video.length_on(track) for video, track in tracks)
    if len(factors) < 2 or math.isinf(factors[-1]) or factors[-1] > factors[0] * _SAME_FACTOR:
        return None
    factor = factors[len(factors) // 2]
    if 0.9 < factor < 1.1:
        return None
    video, track = tracks[0]
    wrong = any(abs(video.excess_seconds(track)) > 1 for video, track in tracks)
    ratio = f"{factor:.3g} times as long" if factor > 1 else f"{1 / factor:.3g} times shorter than"
    found = f"all {len(tracks)} annotations are {ratio}{' as' * (factor > 1)} their videos ({_describe(video, track)})"
    return Finding("error" if wrong else "warning", ALL_VIDEOS, found, _suggest_rate(video, track, factor))


def _suggest_rate(video: VideoFacts, track: LabelTrack, factor: float) -> str:
    """Ask whether another rate was meant, one by which a track that is too long by a factor fits its video."""
    own_rate, rate = video.num_frames / video.duration_seconds, video.rate_of(track)
    if rate is not None and video.path.is_dir():
        return f"is data.frame_rate={own_rate / factor:.3g} meant (in videos.csv the column fps)?"
    if track.rate is None:
        return f"is data.annotation_fps={(rate or own_rate) * factor:.3g} meant (in videos.csv the column fps)?"
    return f"does the annotation count something else than {rate:g} a second?"


def _find_better(video: VideoFacts, track: LabelTrack, videos: Sequence[VideoFacts]) -> VideoFacts | None:
    """Return the video whose length fits this annotation much better than that of its own does."""
    own = abs(video.excess_seconds(track))
    others = [other for other in videos if other is not video]
    best = min(others, key=lambda other: abs(other.difference_seconds(track)), default=None)
    return best if best is not None and own > 1 and abs(best.difference_seconds(track)) < own / 4 else None


def _check_crosswise(videos: Sequence[VideoFacts]) -> Iterator[Finding]:
    """Yield pairs of videos whose annotations fit each other's lengths, but not their own.

    Annotations may leave an end unlabelled, if not `is_complete`: of a pair, one must be wrong for sure.
    """
    known = [(video, video.phases) for video in videos if video.phases is not None]
    odd = [(video, track) for video, track in known if abs(video.difference_seconds(track)) > 1]
    for place, (video, track) in enumerate(odd):
        for other, others_track in odd[place + 1 :]:
            wrong = max(abs(video.excess_seconds(track)), abs(other.excess_seconds(others_track)))
            crosswise = max(abs(video.difference_seconds(others_track)), abs(other.difference_seconds(track)))
            own = min(abs(video.difference_seconds(track)), abs(other.difference_seconds(others_track)))
            if wrong > 1 and crosswise < own / 4:
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

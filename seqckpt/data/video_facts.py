"""What is known of a video and its annotation without looking into any picture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.formats import Annotation, VideoEntry
from seqckpt.data.frame_cache import SampledVideo
from seqckpt.data.frame_folder import find_first_number
from seqckpt.data.label_track import LabelTrack
from seqckpt.data.recording import number_frames
from seqckpt.data.timeline import Timeline, to_fraction

__all__ = ["VideoFacts", "facts_of_sample", "facts_of_timeline"]


@dataclass(frozen=True, eq=False)
class VideoFacts:
    """A video's length and regularity, and its annotation.

    Args:
        video_id, path: which video.
        num_frames: of the video, as annotations count them.
        duration_seconds: of the video.
        stray_frames: by how many frames it strays from a constant rate, at most.
        phases, tools: the annotation, where it could be read.
        annotation_fps: as in VideoEntry.
        first_number: that of the first of a folder's frames, if labels depend on it.
    """

    video_id: str
    path: Path
    num_frames: int
    duration_seconds: float
    stray_frames: float
    phases: LabelTrack | None
    tools: LabelTrack | None = None
    annotation_fps: float | None = None
    first_number: int = 0

    def length_on(self, track: LabelTrack) -> float:
        """Return the video's length in the units of an annotation."""
        rate = self.rate_of(track)
        return float(self.num_frames) if rate is None else self.duration_seconds * rate

    def rate_of(self, track: LabelTrack) -> float | None:
        """Return how many units of an annotation make a second; None where they are the video's own frames."""
        return float(track.rate) if track.rate is not None else self.annotation_fps

    def excess_seconds(self, track: LabelTrack) -> float:
        """Return by how much an annotation is longer than the video; below 0: shorter, though it promises to cover it.

        The annotation may be this video's or another's.
        """
        return self.difference_seconds(track) if track.is_complete or track.end > self.length_on(track) else 0.0

    def difference_seconds(self, track: LabelTrack) -> float:
        """Return as excess_seconds, but where an annotation may end before the video too (intervals)."""
        if math.isinf(track.end):
            return 0.0
        length = self.length_on(track)
        difference = track.end - length
        slack = track.step if track.step > 1 or self.rate_of(track) is not None else 0
        return 0.0 if abs(difference) < slack else difference * self.duration_seconds / length

    def place_on(self, track: LabelTrack, numbers: NDArray[np.int64], fps: Fraction) -> NDArray[np.float64]:
        """Return where sampled frames are on a track: by their numbers, or by the moments n / fps that they are for.

        Divided once and in whole numbers, so that a moment on a border is on it, whatever the rates, and one before a
        row's beginning stays before it.
        """
        rate = self.rate_of(track)
        if rate is None:
            return numbers.astype(np.float64)
        step = to_fraction(rate) / fps
        return np.array([_divide(n * step.numerator, step.denominator) for n in range(len(numbers))], np.float64)

    def label(self, numbers: NDArray[np.int64], fps: Fraction) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the phases of sampled frames, and their tools if there are any.

        Frames beyond the end of a complete annotation are left out; those in gaps have IGNORE_INDEX.
        """
        if self.phases is None:
            return np.empty(0, np.int64), None
        places = self.place_on(self.phases, numbers, fps)
        length = int(np.count_nonzero(places < self.phases.end)) if self.phases.is_complete else len(places)
        tools = None
        if self.tools is not None:
            tools = self.tools.at(self.place_on(self.tools, numbers, fps)[:length])
        return self.phases.at(places[:length]), tools


def facts_of_timeline(
    entry: VideoEntry, timeline: Timeline, annotation: Annotation | None, *, annotation_fps: float | None = None
) -> VideoFacts:
    """Collect what an indexed recording tells."""
    numbers, num_frames = number_frames(timeline, np.arange(len(timeline.stamps)))
    shown = (timeline.stamps - timeline.stamps[0]) / (timeline.end - timeline.stamps[0]) * num_frames
    return _collect(entry, annotation, annotation_fps, num_frames, timeline.duration_seconds, shown - numbers)


def facts_of_sample(
    entry: VideoEntry, video: SampledVideo, annotation: Annotation, *, fps: float, annotation_fps: float | None = None
) -> VideoFacts:
    """Collect what a sampled recording tells: no index is made for it."""
    rate = video.num_frames / video.duration_seconds
    moments = np.arange(len(video.numbers)) * (rate / fps)  # within the frame shown, so half of one is taken off
    return _collect(
        entry, annotation, annotation_fps, video.num_frames, video.duration_seconds, moments - video.numbers - 0.5
    )


def _divide(number: int, by: int) -> float:
    """Return the quotient, rounded, but not up to a whole number that it does not reach."""
    quotient = number / by
    return quotient if quotient < number // by + 1 else math.nextafter(quotient, 0)


def _collect(
    entry: VideoEntry,
    annotation: Annotation | None,
    annotation_fps: float | None,
    num_frames: int,
    duration_seconds: float,
    stray: NDArray[Any],
) -> VideoFacts:
    counts_frames = annotation is not None and not annotation.names_images
    return VideoFacts(
        video_id=entry.video_id,
        path=entry.path,
        num_frames=num_frames,
        duration_seconds=duration_seconds,
        stray_frames=float(np.abs(stray).max(initial=0.0)),
        phases=annotation.phases if annotation is not None else None,
        tools=annotation.tools if annotation is not None else None,
        annotation_fps=annotation_fps or entry.annotation_fps,
        first_number=find_first_number(entry.path) if entry.path.is_dir() and counts_frames else 0,
    )

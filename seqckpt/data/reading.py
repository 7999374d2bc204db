"""From the videos that a format has found to sampled videos with a label for each frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
import torch

from seqckpt.data.checks import check_labels, check_videos
from seqckpt.data.findings import Finding, report_findings
from seqckpt.data.formats import Annotation, DataSet, VideoEntry
from seqckpt.data.frame_cache import SampledVideo, cache_path
from seqckpt.data.frame_source import Stretch
from seqckpt.data.sampling import index_recordings, sample_videos
from seqckpt.data.timeline import to_fraction
from seqckpt.data.video_facts import VideoFacts, facts_of_sample, facts_of_timeline
from seqckpt.data.videos import Video
from seqckpt.errors import DataError

__all__ = ["Sources", "choose_cache_dir", "find_entries", "list_sources", "read_videos"]

_CACHE = "frame_cache"


@dataclass(frozen=True)
class Sources:
    """Which recordings to sample, and how: what `sample_videos` and `estimate_cache` take."""

    paths: Sequence[Path]
    fps: float
    image_size: tuple[int, int]
    frame_rates: Sequence[float | None]

    def cache_paths(self, cache_dir: Path) -> list[Path]:
        """Return where the cache of each is or would be."""
        return [
            cache_path(path, fps=self.fps, image_size=self.image_size, cache_dir=cache_dir, frame_rate=frame_rate)
            for path, frame_rate in zip(self.paths, self.frame_rates, strict=True)
        ]


def read_videos(
    data_set: DataSet,
    video_ids: Sequence[str],
    *,
    fps: float,
    image_size: int | tuple[int, int],
    cache_dir: str | Path | None,
    frame_rate: float | None = None,
    annotation_fps: float | None = None,
    tail: str = "trim",
    corrupt: str = "error",
    unlabelled: str = "ignore",
    progress: bool = True,
) -> list[Video]:
    """Read videos with their labels, sampled by time.

    Args:
        data_set: what a format has found.
        video_ids: which of its videos.
        fps: frames sampled per second.
        image_size: height and width that frames are resized to, in pixels; one number for both.
        cache_dir: where decoded frames are kept; None: they are decoded whenever they are read.
        frame_rate: how many numbers of extracted frames make a second; None: as the data set says.
        annotation_fps: frames a second that annotations count; None: as the format says.
        tail: what if a video and its annotation differ in length: "trim" uses the part that both have (logged as a
            warning above one second, an error above 2 %), "strict" is an error in any case.
        corrupt: what if a frame cannot be decoded: "error", or "repeat" the last good one (counted in the log).
        unlabelled: what if frames have no label: "ignore" gives them IGNORE_INDEX, "error" is an error.
        progress: show a progress bar while videos are decoded.

    Annotations are checked first, all of them, before anything is decoded. Memory: a frame per thread, and the labels.
    Raises DataError where anything is missing, damaged or not as the format says, with all that was found; what is
    odd, but can be used, is a warning in the log.
    """
    _check_choice("tail", tail, ("trim", "strict"))
    _check_choice("unlabelled", unlabelled, ("ignore", "error"))
    rate = to_fraction(fps)
    entries = find_entries(data_set, video_ids)
    sources = list_sources(entries, fps=fps, image_size=image_size, frame_rate=frame_rate)
    annotations = _read_annotations(entries)
    cache_dir = None if cache_dir is None else Path(cache_dir)
    if cache_dir is not None:
        _check_uncached(
            entries, annotations, sources, cache_dir, annotation_fps=annotation_fps, tail=tail, progress=progress
        )
    sampled = sample_videos(**vars(sources), cache_dir=cache_dir, corrupt=corrupt, progress=progress)
    facts = [
        facts_of_sample(entry, video, annotation, fps=float(rate), annotation_fps=annotation_fps)
        for entry, video, annotation in zip(entries, sampled, annotations, strict=True)
    ]
    videos = [_align(fact, video, rate) for fact, video in zip(facts, sampled, strict=True)]
    repeated = [_check_repeated(fact, video) for fact, video in zip(facts, sampled, strict=True)]
    gaps = [
        check_labels(
            video.video_id,
            video.phases.numpy(),
            rate,
            unlabelled=unlabelled,
            is_complete=annotation.phases.is_complete,
        )
        for video, annotation in zip(videos, annotations, strict=True)
    ]
    report_findings([*check_videos(facts, tail=tail), *(finding for finding in (*repeated, *gaps) if finding)])
    return videos


def choose_cache_dir(root: Path, cache: str, cache_dir: str | Path | None) -> Path | None:
    """Return where decoded frames are kept: `cache_dir`, or a folder in the root; None where `cache` is "none"."""
    _check_choice("cache", cache, ("memory_map", "none"))
    if cache == "none":
        return None
    return Path(cache_dir) if cache_dir is not None else root / _CACHE


def list_sources(
    entries: Sequence[VideoEntry], *, fps: float, image_size: int | tuple[int, int], frame_rate: float | None = None
) -> Sources:
    """Say how these videos are to be sampled; `frame_rate`, where given, is that of all folders of frames."""
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if min(size) < 1:
        raise ValueError(f"image_size is {image_size}; expected whole numbers from 1")
    return Sources(
        [entry.path for entry in entries],
        fps,
        size,
        [frame_rate or entry.frame_rate if entry.path.is_dir() else None for entry in entries],
    )


def find_entries(data_set: DataSet, video_ids: Sequence[str]) -> list[VideoEntry]:
    """Return the entries of these videos. Raises DataError with every video and every file that is missing."""
    known = {entry.video_id: entry for entry in data_set.entries}
    missing = [f"a video {video_id}" for video_id in video_ids if video_id not in known]
    for video_id in video_ids:
        if video_id in known:
            missing += [str(path) for path in known[video_id].missing]
    if missing:
        shown = "".join(f"\n  {name}" for name in dict.fromkeys(missing))
        raise DataError(
            f"{len(dict.fromkeys(missing))} file(s) of the data set are missing:{shown}\n"
            "add what is missing, or leave these videos out of data.split"
        )
    return [known[video_id] for video_id in video_ids]


def _read_annotations(entries: Sequence[VideoEntry]) -> list[Annotation]:
    """Read all annotations. Raises DataError with what is wrong in any of them."""
    read = [_try_to_read(entry) for entry in entries]
    report_findings(result for result in read if isinstance(result, Finding))
    return [result for result in read if isinstance(result, Annotation)]


def _try_to_read(entry: VideoEntry) -> Annotation | Finding:
    try:
        return entry.read()
    except DataError as error:
        return Finding("error", entry.video_id, str(error))


def _check_uncached(
    entries: Sequence[VideoEntry],
    annotations: Sequence[Annotation],
    sources: Sources,
    cache_dir: Path,
    *,
    annotation_fps: float | None,
    tail: str,
    progress: bool,
) -> None:
    """Raise what is wrong about lengths before an hour is spent on decoding what is not in the cache."""
    missing = [k for k, place in enumerate(sources.cache_paths(cache_dir)) if not place.exists()]
    timelines = index_recordings(
        [sources.paths[k] for k in missing], frame_rates=[sources.frame_rates[k] for k in missing], progress=progress
    )
    facts = [
        facts_of_timeline(entries[k], timeline, annotations[k], annotation_fps=annotation_fps)
        for k, timeline in zip(missing, timelines, strict=True)
    ]
    report_findings(finding for finding in check_videos(facts, tail=tail) if finding.severity == "error")


def _align(facts: VideoFacts, video: SampledVideo, fps: Fraction) -> Video:
    """Give each sampled frame its labels."""
    phases, tools = facts.label(video.numbers, fps)
    return Video(
        video_id=facts.video_id,
        frames=Stretch(video.frames, 0, len(phases)),
        seconds=np.arange(len(phases)) / float(fps),
        phases=torch.from_numpy(phases),
        tools=None if tools is None else torch.from_numpy(tools),
        path=facts.path,
    )


def _check_repeated(facts: VideoFacts, video: SampledVideo) -> Finding | None:
    if not video.repeated:
        return None
    found = f"{len(video.repeated)} of {len(video.numbers)} sampled frames of {facts.path} cannot be decoded"
    return Finding("warning", facts.video_id, found, "the last good frame stands in for each (data.corrupt=repeat)")


def _check_choice(name: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; expected {' or '.join(map(repr, choices))}")

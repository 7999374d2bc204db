"""New videos through a trained model: phases as a CSV, a ribbon and, if asked for, the video with both under it.

Memory does not grow with a video's length, but for 16 bytes a sampled frame: frames are decoded window by window, and
rows are written as they come.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.data import (
    IGNORE_INDEX,
    StreamedFrames,
    find_recordings,
    find_shown_size,
    read_recording,
    stream_video,
    to_fraction,
)
from seqckpt.errors import DataError, UsageError
from seqckpt.inference.run import Run
from seqckpt.plots import PhaseBand, Ribbon, choose_drawn_size, plot_ribbons, write_annotated_video
from seqckpt.progress import progress_bar
from seqckpt.training import VideoPrediction, predict_windows, prediction_rows, write_table

__all__ = [
    "PREDICTION_CHANGES",
    "PREDICTION_CHUNK",
    "NewVideo",
    "VideoSummary",
    "check_outputs",
    "describe_speed",
    "open_videos",
    "predict_video",
]

_WINDOW = 50  # frames; a progress bar that moves, and enough at once for any device
PREDICTION_CHUNK = 4  # frames: few, since large encoders take tens of MiB for each
# What a run is opened with to predict: chunks that need little memory, whatever it was trained or planned with.
PREDICTION_CHANGES = ("memory.enabled=true", "memory.budget=null", f"memory.chunk_size={PREDICTION_CHUNK}")


@dataclass(frozen=True)
class NewVideo:
    """A recording that is to be predicted: its frames, sampled as those that the run was trained on."""

    name: str
    frames: StreamedFrames
    fps: float
    phase_names: Sequence[str]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """When each sampled frame is shown."""
        return np.arange(len(self.frames)) / float(to_fraction(self.fps))


@dataclass(frozen=True)
class VideoSummary:
    """What became of a video: the files written, how long it lasts, and how long predicting and drawing it took."""

    name: str
    paths: list[Path]
    num_phases: int
    duration_seconds: float
    elapsed_seconds: float

    @property
    def times_real_time(self) -> float:
        return self.duration_seconds / self.elapsed_seconds


def open_videos(run: Run, path: Path) -> tuple[list[NewVideo], dict[str, DataError]]:
    """Open the recordings at `path`, a video, a folder of frames, or a folder of either; nothing is decoded yet.

    Returns those that can be opened, and by their names what is wrong with the others. Raises DataError where there is
    none to open, and, of a single recording, what is wrong with it.
    """
    data = run.config.data
    videos: list[NewVideo] = []
    errors: dict[str, DataError] = {}
    recordings = find_recordings(path)
    for name, place in recordings.items():
        try:
            sampled = stream_video(
                place,
                fps=data.fps,
                image_size=(data.image_size, data.image_size),
                frame_rate=data.frame_rate if place.is_dir() else None,
                corrupt=data.corrupt,
            )
        except DataError as error:
            if len(recordings) == 1:
                raise
            errors[name] = error
            continue
        assert isinstance(sampled.frames, StreamedFrames)
        videos.append(NewVideo(name, sampled.frames, data.fps, run.phase_names))
    return videos, errors


def _list_outputs(video: NewVideo, folder: Path, *, draw: bool) -> list[Path]:
    """Return the files that a video's prediction becomes in `folder`."""
    names = [f"{video.name}.csv", f"{video.name}-ribbon.png", *([f"{video.name}-phases.mp4"] if draw else [])]
    return [folder / name for name in names]


def check_outputs(videos: Sequence[NewVideo], folder: Path, *, draw: bool, overwrite: bool) -> None:
    """Raise UsageError where the outputs of these videos would become frames of one, or replace something."""
    sources = {video.frames.timeline.path.resolve() for video in videos}
    if folder.resolve() in sources:
        raise UsageError(f"output={folder} is the folder of the frames, whose images are the video; name another")
    there = [path for video in videos for path in _list_outputs(video, folder, draw=draw) if path.exists()]
    if there and not overwrite:
        more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        raise UsageError(f"{there[0]}{more} exists already: name another folder with output=, or give --overwrite")


def predict_video(
    run: Run, video: NewVideo, folder: Path, *, draw: bool = False, progress: bool = True
) -> VideoSummary:
    """Predict a video's phases and write `<name>.csv`, `<name>-ribbon.png` and, to `draw`, `<name>-phases.mp4`.

    Each file appears whole or not at all. Shows a progress bar with the speed against real time, unless `progress` is
    false. Raises DataError where a frame cannot be decoded.
    """
    table, ribbon, *drawn = _list_outputs(video, folder, draw=draw)
    timeline = video.frames.timeline
    phases = np.empty(len(video.frames), np.int64)
    started = time.perf_counter()
    parts = _predict(run, video, phases, progress=progress)
    write_table(table, (row for part in parts for row in prediction_rows(part, video.phase_names)))
    elapsed_seconds = time.perf_counter() - started
    plot_ribbons([Ribbon(video.name, None, phases, video.seconds)], video.phase_names, ribbon)
    for path in drawn:
        _draw(video, phases, path, progress=progress)
    return VideoSummary(
        video.name,
        [table, ribbon, *drawn],
        len(np.unique(phases)),
        timeline.duration_seconds,
        elapsed_seconds,
    )


class _Bar:
    """A progress bar over a video's frames that says how many times faster than the video itself it goes."""

    def __init__(self, title: str, num_frames: int, duration_seconds: float, *, progress: bool) -> None:
        options = {} if progress else {"disable": True}
        self._bar = progress_bar(desc=title, total=num_frames, unit="frame", leave=False, **options)
        self._seconds_per_frame = duration_seconds / max(1, num_frames)
        self._started = time.perf_counter()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.close()

    def advance(self, num_frames: int) -> None:
        elapsed = max(time.perf_counter() - self._started, 1e-9)
        speed = (self._bar.n + num_frames) * self._seconds_per_frame / elapsed
        self._bar.set_postfix_str(describe_speed(speed), refresh=False)
        self._bar.update(num_frames)


def describe_speed(times: float) -> str:
    """Write a speed against that of the video itself.

    >>> describe_speed(41.3), describe_speed(0.52)
    ('41x real time', '0.5x real time')
    """
    return f"{times:.0f}x real time" if times >= 10 else f"{times:.1f}x real time"


def _predict(run: Run, video: NewVideo, phases: NDArray[np.int64], *, progress: bool) -> Iterator[VideoPrediction]:
    """Yield the prediction window by window, and write it into `phases` as well."""
    seconds = video.seconds
    start = 0
    with _Bar(video.name, len(seconds), video.frames.timeline.duration_seconds, progress=progress) as bar:
        for probabilities in predict_windows(run.model, video.frames, window=_WINDOW):
            stop = start + len(probabilities)
            phases[start:stop] = probabilities.argmax(axis=-1)
            unknown = np.full(stop - start, IGNORE_INDEX)
            yield VideoPrediction(video.name, seconds[start:stop], unknown, phases[start:stop], probabilities)
            bar.advance(stop - start)
            start = stop


def _draw(video: NewVideo, phases: NDArray[np.int64], path: Path, *, progress: bool) -> None:
    """Write the whole video, at its own frame rate, with what was predicted under it."""
    timeline = video.frames.timeline
    stamps = timeline.stamps - timeline.stamps[0]
    height, width = choose_drawn_size(*find_shown_size(timeline))
    band = PhaseBand(
        width,
        seconds=video.seconds,
        phases=phases,
        end_seconds=timeline.duration_seconds,
        phase_names=video.phase_names,
    )
    rows = read_recording(
        timeline,
        np.arange(len(stamps)),
        image_size=(height, width),
        damaged=[] if video.frames.corrupt == "repeat" else None,
    )
    rate = Fraction(len(stamps) / timeline.duration_seconds).limit_denominator(1001)
    with _Bar(f"drawing {video.name}", len(stamps), timeline.duration_seconds, progress=progress) as bar:

        def frames() -> Iterator[tuple[int, NDArray[np.uint8]]]:
            for stamp, row in zip(stamps.tolist(), rows, strict=True):
                yield stamp, row.transpose(1, 2, 0)
                bar.advance(1)

        write_annotated_video(frames(), path, size=(height, width), time_base=timeline.time_base, rate=rate, band=band)

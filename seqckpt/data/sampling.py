"""All recordings of a data set at once: cached or streamed, in parallel, after an estimate of what the cache takes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from seqckpt.data.frame_cache import SampledVideo, Stopped, cache_path, cache_video
from seqckpt.data.recording import guess_num_samples, index_recording
from seqckpt.data.streamed_frames import stream_video
from seqckpt.data.timeline import Timeline
from seqckpt.errors import DataError
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["CacheEstimate", "estimate_cache", "index_recordings", "sample_videos"]

Result = TypeVar("Result")


def _do_nothing() -> None:
    return


@dataclass(frozen=True)
class CacheEstimate:
    """What a cache will hold, by what the containers claim: videos, frames and bytes in all, and what of it is missing.

    `free_bytes` is the room on the disk.
    """

    num_videos: int
    num_frames: int
    num_bytes: int
    num_missing_videos: int
    num_missing_frames: int
    num_missing_bytes: int
    free_bytes: int

    def __str__(self) -> str:
        text = f"{self.num_videos} videos, about {self.num_frames} frames, {format_bytes(self.num_bytes)}"
        if not self.num_missing_videos:
            return f"{text}: all there"
        missing = f"{self.num_missing_videos} videos, {format_bytes(self.num_missing_bytes)}"
        return f"{text}; to be made: {missing} ({format_bytes(self.free_bytes)} free)"


def estimate_cache(
    paths: Sequence[Path],
    *,
    fps: float,
    image_size: tuple[int, int],
    cache_dir: Path,
    frame_rates: Sequence[float | None] | None = None,
) -> CacheEstimate:
    """Estimate what the cache of these recordings will take, in a moment: nothing is decoded.

    Raises DataError where one cannot be opened.
    """
    height, width = image_size

    def work(path: Path, frame_rate: float | None) -> tuple[int, bool]:
        place = cache_path(path, fps=fps, image_size=image_size, cache_dir=cache_dir, frame_rate=frame_rate)
        return guess_num_samples(path, fps=fps, frame_rate=frame_rate), place.exists()

    found = _in_parallel(work, paths, frame_rates, threading.Event())
    missing = [num_frames for num_frames, is_there in found if not is_there]
    num_frames = sum(num_frames for num_frames, _ in found)
    return CacheEstimate(
        num_videos=len(paths),
        num_frames=num_frames,
        num_bytes=num_frames * 3 * height * width,
        num_missing_videos=len(missing),
        num_missing_frames=sum(missing),
        num_missing_bytes=sum(missing) * 3 * height * width,
        free_bytes=shutil.disk_usage(_nearest_folder(cache_dir)).free,
    )


def index_recordings(
    paths: Sequence[Path], *, frame_rates: Sequence[float | None] | None = None, progress: bool = True
) -> list[Timeline]:
    """List the frames of recordings without decoding any, in as many threads as there are cores.

    Raises DataError with everything that is wrong, where some of them cannot be read.
    """

    def index(path: Path, frame_rate: float | None) -> Timeline | DataError:
        try:
            return index_recording(path, frame_rate=frame_rate)
        except DataError as error:
            return error

    with _bar("listing frames", len(paths), "video", progress and len(paths) > 0) as bar:
        results = _in_parallel(index, paths, frame_rates, threading.Event(), bar.update)
    errors = [result for result in results if isinstance(result, DataError)]
    if len(errors) > 1:
        raise DataError(f"{len(errors)} recordings cannot be read:\n" + "\n".join(f"  {error}" for error in errors))
    if errors:
        raise errors[0]
    return [result for result in results if isinstance(result, Timeline)]


def sample_videos(
    paths: Sequence[Path],
    *,
    fps: float,
    image_size: tuple[int, int],
    cache_dir: Path | None,
    frame_rates: Sequence[float | None] | None = None,
    corrupt: str = "error",
    progress: bool = True,
) -> list[SampledVideo]:
    """Open recordings, `fps` frames a second, resized to `image_size`; in as many threads as there are cores.

    With a `cache_dir` each is decoded into it once and read from there; None: streamed, decoded whenever it is read.
    `frame_rates` are those of folders of images, None for video files; `corrupt` says what becomes of damaged frames
    ("error" or "repeat"). Raises DataError where one of them cannot be read, or where the disk has no room for the
    cache, before anything is decoded if that can be foreseen; videos that were finished stay usable.
    """
    if corrupt not in ("error", "repeat"):
        raise ValueError(f"corrupt is {corrupt!r}; expected 'error' or 'repeat'")
    stop = threading.Event()
    options: dict[str, Any] = {"fps": fps, "image_size": image_size, "corrupt": corrupt}
    if cache_dir is None:

        def stream(path: Path, frame_rate: float | None) -> SampledVideo:
            return stream_video(path, frame_rate=frame_rate, **options)

        with _bar("listing frames", len(paths), "video", progress) as bar:
            return _in_parallel(stream, paths, frame_rates, stop, bar.update)
    estimate = estimate_cache(paths, fps=fps, image_size=image_size, cache_dir=cache_dir, frame_rates=frame_rates)
    _check_room(estimate, cache_dir)

    decodes = estimate.num_missing_videos > 0
    title, total = ("decoding", estimate.num_missing_frames) if decodes else ("checking the cache", len(paths))
    with _bar(title, total, "frame" if decodes else "video", progress) as bar:

        def cache(path: Path, frame_rate: float | None) -> SampledVideo:
            count = bar.update if decodes else _do_nothing
            return cache_video(path, cache_dir=cache_dir, frame_rate=frame_rate, stop=stop, count=count, **options)

        return _in_parallel(cache, paths, frame_rates, stop, _do_nothing if decodes else bar.update)


def _in_parallel(
    work: Callable[[Path, float | None], Result],
    paths: Sequence[Path],
    frame_rates: Sequence[float | None] | None,
    stop: threading.Event,
    count: Callable[[], object] = _do_nothing,
) -> list[Result]:
    """Do the work in as many threads as there are cores; at the first error, and at Ctrl-C, `stop` is set at once.

    `count` is called for each recording that is done.
    """
    pool = ThreadPoolExecutor(max(1, min(len(paths), _count_cores())))
    try:
        rates = frame_rates if frame_rates is not None else [None] * len(paths)
        tasks = [pool.submit(work, path, rate) for path, rate in zip(paths, rates, strict=True)]
        for task in tasks:
            task.add_done_callback(lambda _: count())
        if any(task.exception() for task in wait(tasks, return_when=FIRST_EXCEPTION).done):
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise next(error for error in map(_find_error, tasks) if error)  # of several, the first in the list
        return [task.result() for task in tasks]
    finally:
        stop.set()
        pool.shutdown(cancel_futures=True)


def _find_error(task: Future[Any]) -> BaseException | None:
    """Return why a task failed; None where it did not, or was only stopped."""
    error = None if task.cancelled() else task.exception()
    return None if isinstance(error, Stopped) else error


def _check_room(estimate: CacheEstimate, cache_dir: Path) -> None:
    if estimate.num_missing_bytes > estimate.free_bytes:
        raise DataError(
            f"the frame cache in {cache_dir} would need about {format_bytes(estimate.num_missing_bytes)} more for "
            f"{estimate.num_missing_videos} videos, and the disk has {format_bytes(estimate.free_bytes)} free. Sample "
            "fewer or smaller frames, name another folder with data.cache_dir, or set data.cache=none"
        )


def _count_cores() -> int:
    """Return how many cores this process may use, which under a scheduler or in a container are not all there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _bar(title: str, total: int, unit: str, progress: bool) -> Any:
    return progress_bar(desc=title, total=total, unit=unit, leave=False, disable=not progress)


def _nearest_folder(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.is_dir())

"""The sample data set: short synthetic surgeries in the layout of Cholec80, made from a seed in under a minute."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.stream import VideoStream
from tqdm import tqdm

from seqckpt.atomic import FolderTakenError, new_folder
from seqckpt.data.formats.cholec80 import PHASES, TOOLS
from seqckpt.data.sample_scene import SIDE, draw_video
from seqckpt.data.sample_script import VIDEO_RATE, Script, per_frame_limit, write_script
from seqckpt.errors import DataError
from seqckpt.progress import progress_bar

__all__ = ["SAMPLE_SPLIT", "make_sample", "sample_per_frame_limit"]

SAMPLE_SPLIT: Mapping[str, Sequence[str | int]] = {"train": ["1-8"], "val": ["9-10"], "test": ["11-12"]}

_SHORTEST_SECONDS, _LONGEST_SECONDS = 500, 560


def make_sample(
    root: str | Path,
    *,
    seed: int = 0,
    num_videos: int = 12,
    shortest_seconds: int = _SHORTEST_SECONDS,
    longest_seconds: int = _LONGEST_SECONDS,
    progress: bool = True,
) -> None:
    """Make the sample data set in the folder `root`, which must not exist yet, or be empty.

    Videos are H.264 of 64 x 64 pixels at 5 frames a second; phases have a row per frame, tools a row per second. The
    same seed draws the same surgeries and, with the same libraries, the same files. They are made in a folder beside
    `root` that is renamed at the end: an interrupted run leaves nothing. Time: about 30 s on two cores.
    Raises DataError where `root` holds something, or cannot be written.
    """
    root = Path(root)
    if root.exists() and not (root.is_dir() and not any(root.iterdir())):
        raise DataError(f"the sample data is to be made in {root}, but something is there; remove it, or name another")
    scripts = _write_scripts(seed, num_videos, shortest_seconds, longest_seconds)
    stopped = threading.Event()
    try:
        with new_folder(root) as folder:
            for name in ("videos", "phase_annotations", "tool_annotations"):
                (folder / name).mkdir()
            pool = ThreadPoolExecutor(min(num_videos, os.cpu_count() or 1))
            bar = progress_bar(total=sum(len(script.phases) for script in scripts), unit="frame", disable=not progress)
            bar.set_description("making the sample data")
            try:
                works = [
                    pool.submit(_make_video, folder, seed, number, script, bar, stopped)
                    for number, script in enumerate(scripts, start=1)
                ]
                for work in as_completed(works):
                    work.result()
            finally:
                stopped.set()
                pool.shutdown(cancel_futures=True)
                bar.close()
    except FolderTakenError:
        return  # another process has made it meanwhile, whole
    except OSError as error:
        raise DataError(f"the sample data cannot be made in {root}: {error.strerror or error}") from error


def sample_per_frame_limit(*, seed: int = 0, num_videos: int = 12) -> float:
    """Return the accuracy (0..1) that no classifier of single frames can exceed on the sample; nothing is drawn."""
    return per_frame_limit(_write_scripts(seed, num_videos, _SHORTEST_SECONDS, _LONGEST_SECONDS))


def _write_scripts(seed: int, num_videos: int, shortest_seconds: int, longest_seconds: int) -> list[Script]:
    return [
        write_script(np.random.default_rng([seed, number]), shortest_seconds, longest_seconds)
        for number in range(1, num_videos + 1)
    ]


def _make_video(folder: Path, seed: int, number: int, script: Script, bar: tqdm, stopped: threading.Event) -> None:
    """Write one surgery: annotations, then the video. Ends early, with a useless file, once `stopped` is set."""
    name = f"video{number:02d}"
    rows = [f"{frame}\t{PHASES[phase]}\n" for frame, phase in enumerate(script.phases)]
    _write_text(folder / "phase_annotations" / f"{name}-phase.txt", ["Frame\tPhase\n", *rows])
    seconds = range(0, len(script.phases), VIDEO_RATE)
    rows = ["\t".join(map(str, [frame, *script.tools[frame].astype(int)])) + "\n" for frame in seconds]
    _write_text(folder / "tool_annotations" / f"{name}-tool.txt", ["\t".join(["Frame", *TOOLS]) + "\n", *rows])
    with av.open(str(folder / "videos" / f"{name}.mp4"), "w") as container:
        options = {"crf": "23", "preset": "superfast", "g": str(10 * VIDEO_RATE), "threads": "1"}
        stream = container.add_stream("libx264", rate=VIDEO_RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = SIDE, SIDE, "yuv420p"
        stream.codec_context.time_base = Fraction(1, VIDEO_RATE)
        for packet in _encode(stream, np.random.default_rng([seed, number, 1]), script, bar, stopped):
            container.mux(packet)


def _encode(
    stream: VideoStream, rng: np.random.Generator, script: Script, bar: tqdm, stopped: threading.Event
) -> Iterator[av.Packet]:
    number = 0
    for block in draw_video(rng, script):
        if stopped.is_set():
            return
        for picture in block:
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), format="rgb24")
            frame.pts = number
            number += 1
            yield from stream.encode(frame)
        bar.update(len(block))
    yield from stream.encode()


def _write_text(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(lines), encoding="utf-8", newline="\n")

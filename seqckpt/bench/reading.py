"""Case reading: what reading costs, against the step that it feeds, in memory, and against the ffmpeg command line.

- cache: an epoch's frames from the cache, against steps of two models.
- waiting: the share of a step spent waiting for frames that are streamed.
- memory: resident memory while frames of 224 pixels are streamed.
- decoding: a long video at one frame a second, against ffmpeg (on Linux: on that many `threads`' cores, for either).
- augmentation: what each augmentation costs.

Videos are made once in `folder` (default: a new temporary one): a moving pattern, a key frame every ten seconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
import torch
from torch import nn

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.made_videos import make_long_video, write_pattern
from seqckpt.bench.report import Report
from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import Augmentation, Clip, FrameSource, Video, WaitingTime, clip_loader, sample_videos
from seqckpt.data.frame_cache import CachedFrames
from seqckpt.errors import UsageError
from seqckpt.memory import PeakMeter
from seqckpt.models import FrameTransform, VideoModel, apply_batch_norm_policy, build_encoder
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["READING"]

_CHUNK = 25
_JOBS = {  # encoder, pixels, hidden size, frames of a clip: the default configuration, and a usual one
    "the default configuration (small encoder, 64 px)": ("small", 64, 128, 500),
    "ResNet-18 at 224 px": ("resnet18", 224, 256, 100),
}


def measure_cache(folder: Path, settings: Settings, report: Report) -> None:
    """Read a clip from the cache as a step does, chunk by chunk forward and then backward, without hiding it."""
    for name, (encoder, pixels, hidden_size, num_frames) in _JOBS.items():
        path = folder / f"{pixels}.frames"
        frames = np.random.default_rng(0).integers(0, 256, (num_frames, 3, pixels, pixels), np.uint8)
        frames.tofile(path)
        source = CachedFrames(path, 0, (num_frames, 3, pixels, pixels))
        model = _build_model(encoder, hidden_size)
        step = _median_seconds(partial(_step, model, torch.from_numpy(frames)), settings["repeats"])
        read = _median_seconds(partial(_read_both_ways, source), settings["repeats"])
        share = f"{read / step:.2%} of the step"
        report.add_note(f"{name}, {num_frames} frames: reading {1000 * read:.1f} ms, step {step:.2f} s: {share}")


def measure_waiting(folder: Path, settings: Settings, report: Report) -> None:
    """Run steps on clips that are decoded on the way (854 x 480, 25 fps, a sample each second), read ahead or not."""
    path = make_long_video(folder, seconds=600)
    for name, (encoder, pixels, hidden_size, _) in _JOBS.items():
        model = _build_model(encoder, hidden_size)
        _step(model, torch.zeros(2 * _CHUNK, 3, pixels, pixels, dtype=torch.uint8))  # warms up
        (video,) = sample_videos([path], fps=1.0, image_size=(pixels, pixels), cache_dir=None, progress=False)
        clip = _make_clip(video.frames, 500 if encoder == "small" else 50)
        waiting = WaitingTime()
        started = time.perf_counter()
        _step(model, clip.frames)
        alone = time.perf_counter() - started
        ((ahead,),) = clip_loader([[clip]], seed=0, epoch=0, waiting=waiting)
        started = time.perf_counter()
        _step(model, ahead.frames)
        seconds = time.perf_counter() - started
        report.add_note(
            f"{name}, {len(clip)} frames streamed: step {alone:.1f} s, with reading ahead {seconds:.1f} s, of which "
            f"{waiting.seconds / seconds:.1%} waiting for frames"
        )


def measure_memory(folder: Path, settings: Settings, report: Report) -> None:
    """Stream frames of 224 pixels in chunks, forward and backward, as training without a cache does."""
    num_frames, pixels = settings["frames"], 224
    path = folder / f"square-{num_frames}.mp4"
    if not path.exists():
        write_pattern(path, width=pixels, height=pixels, num_frames=num_frames, key_every=50)
    meter = PeakMeter()
    meter.start()
    (video,) = sample_videos([path], fps=25.0, image_size=(pixels, pixels), cache_dir=None)
    ((clip,),) = clip_loader([[_make_clip(video.frames, num_frames)]], seed=0, epoch=0)
    started = time.perf_counter()
    _read_both_ways(clip.frames)
    report.add_note(
        f"{len(clip)} frames of {pixels} px streamed forward and backward in {time.perf_counter() - started:.0f} s: "
        f"{format_bytes(meter.read() or 0)} ({meter.meaning}); the frames are {format_bytes(len(clip) * 3 * pixels**2)}"
    )


def measure_decoding(folder: Path, settings: Settings, report: Report) -> None:
    """Decode a long video of 480p at one frame a second, resized to 224, with this package and with ffmpeg."""
    path = make_long_video(folder, seconds=settings["seconds"])
    cores = sorted(os.sched_getaffinity(0))[: settings["threads"]]
    os.sched_setaffinity(0, cores)  # also of the programs started from here
    program = shutil.which("ffmpeg")
    times: dict[str, list[tuple[float, float]]] = {"seqckpt": [], "ffmpeg": []}
    output = folder / "ffmpeg.raw"
    threads = ["-threads", str(len(cores))]
    command = [program or "", "-v", "error", "-y", *threads, "-i", str(path), "-vf", "fps=1,scale=224:224:flags=area"]
    command += ["-pix_fmt", "rgb24", "-f", "rawvideo", *threads, str(output)]
    for _ in range(settings["repeats"]):
        started = _clocks()
        (video,) = sample_videos([path], fps=1.0, image_size=(224, 224), cache_dir=folder / "cache", progress=False)
        times["seqckpt"].append(_since(started))
        shutil.rmtree(folder / "cache")
        report.add_note(f"seqckpt: {len(video.frames)} frames into the cache in {_show(times['seqckpt'][-1])}")
        if program is None:
            report.add_note("ffmpeg is not installed: nothing to compare with")
            return
        started = _clocks()
        subprocess.run(command, check=True)
        times["ffmpeg"].append(_since(started))
        num_frames = output.stat().st_size // (3 * 224 * 224)
        output.unlink()
        report.add_note(f"ffmpeg: {num_frames} frames into a file in {_show(times['ffmpeg'][-1])}")
    (own, own_work), (other, other_work) = (
        (median(wall for wall, _ in values), median(work for _, work in values)) for values in times.values()
    )
    report.add_note(
        f"on {len(cores)} core(s): {own / other:.2f} times as long as ffmpeg, {own_work / other_work:.2f} times the "
        "processor time"
    )


def _clocks() -> tuple[float, float]:
    """Seconds on the wall, and seconds of processor time of this process and the ones it has waited for."""
    used = os.times()
    return time.perf_counter(), used.user + used.system + used.children_user + used.children_system


def _since(started: tuple[float, float]) -> tuple[float, float]:
    now = _clocks()
    return now[0] - started[0], now[1] - started[1]


def _show(times: tuple[float, float]) -> str:
    return f"{times[0]:.1f} s ({times[1]:.1f} s of processor time)"


def measure_augmentation(folder: Path, settings: Settings, report: Report) -> None:
    """Augment a chunk of frames of 224 pixels on this machine's CPU."""
    frames = torch.randint(256, (_CHUNK, 3, 224, 224), dtype=torch.uint8)
    kinds = {
        "crop": Augmentation(smallest_crop=0.5),
        "flip": Augmentation(flip=1.0),
        "rotation": Augmentation(rotation_degrees=10),
        "brightness": Augmentation(brightness=0.2),
        "contrast": Augmentation(contrast=0.2),
        "saturation": Augmentation(saturation=0.2),
        "hue": Augmentation(hue=0.05),
    }
    for name, kind in kinds.items():
        source = kind.apply_to(frames, seed=0, epoch=0, video_id="", start=0)
        seconds = _median_seconds(partial(source.__getitem__, slice(0, _CHUNK)), settings["repeats"])
        report.add_note(f"{name}: {1000 * seconds / _CHUNK:.2f} ms a frame of 224 px")


def _build_model(encoder_name: str, hidden_size: int) -> VideoModel:
    encoder = build_encoder(encoder_name)
    apply_batch_norm_policy(encoder, "frozen")
    rnn = nn.LSTM(encoder.num_features, hidden_size, batch_first=True)
    head = SegmentedLoss(nn.Linear(hidden_size, 7), nn.CrossEntropyLoss(), 50)
    return VideoModel(ChunkedEncoder(encoder, _CHUNK, transform=FrameTransform()), SegmentedRNN(rnn, 50), head)


def _step(model: VideoModel, frames: FrameSource) -> None:
    loss, _ = model([frames], [torch.arange(len(frames)) % 7])
    loss.backward()
    model.zero_grad(set_to_none=True)


def _read_both_ways(source: FrameSource) -> None:
    starts = range(0, len(source), _CHUNK)
    for start in [*starts, *reversed(starts[:-1])]:
        source[start : min(start + _CHUNK, len(source))]


def _make_clip(frames: FrameSource, length: int) -> Clip:
    num_frames = len(frames)
    labels = torch.zeros(num_frames, dtype=torch.int64)
    return Clip(
        Video("video", frames, np.arange(num_frames, dtype=np.float64), labels, None, Path("video.mp4")), 0, length
    )


def _median_seconds(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats + 1):  # the first one warms up
        started = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - started)
    return median(seconds[1:])


_MEASUREMENTS = {
    "cache": measure_cache,
    "waiting": measure_waiting,
    "memory": measure_memory,
    "decoding": measure_decoding,
    "augmentation": measure_augmentation,
}


def run_reading(settings: Settings, report: Report) -> None:
    """Make the measurements named, one after the other."""
    for name in settings["what"]:
        if name not in _MEASUREMENTS:
            raise UsageError(f"what={name}: expected some of {', '.join(_MEASUREMENTS)}")
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(settings["folder"] or temporary)
        place.mkdir(parents=True, exist_ok=True)
        for name in progress_bar(settings["what"], desc="reading", unit="measurement"):
            report.add_note(f"**{name}**")
            _MEASUREMENTS[name](place, settings, report)


READING = Case(
    "reading",
    "what reading costs: cache, streaming, memory, decoding against ffmpeg, augmentation",
    run_reading,
    settings={
        "what": tuple(_MEASUREMENTS),
        "repeats": 3,
        "seconds": 7200,
        "threads": 1,
        "frames": 20_000,
        "folder": "",
    },
    quick={"what": ("memory", "augmentation"), "repeats": 1, "frames": 300},
)

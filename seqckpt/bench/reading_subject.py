"""What a worker does for case reading: one measurement, whose figures it returns as plain data.

Seconds are lists of single runs, after one that warmed up where `repeats` are asked for.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import Augmentation, Clip, FrameSource, Video, WaitingTime, clip_loader, sample_videos
from seqckpt.data.frame_cache import CachedFrames
from seqckpt.memory import PeakMeter, time_step
from seqckpt.models import FrameTransform, VideoModel, apply_batch_norm_policy, build_encoder

__all__ = ["AUGMENTATIONS", "MODELS", "PIXELS", "Reading"]

MODELS = {  # encoder, pixels, hidden size: the default configuration, and a usual one
    "the default configuration (small encoder, 64 px)": ("small", 64, 128),
    "ResNet-18 at 224 px": ("resnet18", 224, 256),
}
AUGMENTATIONS = {
    "crop": Augmentation(smallest_crop=0.5),
    "flip": Augmentation(flip=1.0),
    "rotation": Augmentation(rotation_degrees=10),
    "brightness": Augmentation(brightness=0.2),
    "contrast": Augmentation(contrast=0.2),
    "saturation": Augmentation(saturation=0.2),
    "hue": Augmentation(hue=0.05),
}
PIXELS = 224  # of frames that no model is to see
_CHUNK = 25


class Reading:
    """Each method is one of the case's measurements, by its name there."""

    def cache(self, *, model: str, folder: str, num_frames: int, repeats: int) -> dict[str, Any]:
        """Read a clip from the cache as a step does, chunk by chunk forward and then backward, without hiding it."""
        pixels = MODELS[model][1]
        shape = (num_frames, 3, pixels, pixels)
        frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        built = _build_model(model)
        with tempfile.TemporaryDirectory(dir=folder) as place:
            path = Path(place) / "clip.frames"
            frames.tofile(path)
            read = _seconds(partial(_read_both_ways, CachedFrames(path, 0, shape)), repeats)
        step = _seconds(partial(_step, built, torch.from_numpy(frames)), repeats)
        return {"model": model, "num_frames": num_frames, "read_seconds": read, "step_seconds": step}

    def waiting(self, *, model: str, video: str, num_frames: int) -> dict[str, Any]:
        """Take a step on frames that are decoded on the way, a sample each second, read ahead or not."""
        pixels = MODELS[model][1]
        built = _build_model(model)
        _step(built, torch.zeros(2 * _CHUNK, 3, pixels, pixels, dtype=torch.uint8))  # warms up
        clip = _open_clip(video, fps=1.0, pixels=pixels, length=num_frames)
        waiting = WaitingTime()
        alone = time_step(partial(_step, built, clip.frames), "cpu")
        ((ahead,),) = clip_loader([[clip]], seed=0, epoch=0, waiting=waiting)
        seconds = time_step(partial(_step, built, ahead.frames), "cpu")
        record = {"model": model, "num_frames": len(clip), "step_seconds": alone}
        return {**record, "step_reading_ahead_seconds": seconds, "waiting_seconds": waiting.seconds}

    def memory(self, *, video: str, num_frames: int) -> dict[str, Any]:
        """Stream frames in chunks, forward and backward, as training without a cache does."""
        meter = PeakMeter()
        meter.start()
        ((clip,),) = clip_loader([[_open_clip(video, fps=25.0, pixels=PIXELS, length=num_frames)]], seed=0, epoch=0)
        seconds = time_step(partial(_read_both_ways, clip.frames), "cpu")
        record = {"num_frames": len(clip), "frame_bytes": len(clip) * 3 * PIXELS**2, "seconds": seconds}
        return {**record, "growth_bytes": meter.read(), "meaning": meter.meaning.removesuffix(" in a step")}

    def decoding(self, *, video: str, program: str, num_threads: int) -> dict[str, Any]:
        """Decode a video at one frame a second, resized, with this package (no `program`) or with ffmpeg."""
        cores = _keep_to_cores(num_threads)
        decode = partial(_decode_by_ffmpeg, program, num_threads=len(cores)) if program else _decode_into_cache
        with tempfile.TemporaryDirectory(dir=Path(video).parent) as folder:
            began, work_began = time.perf_counter(), _processor_seconds()
            num_frames = decode(Path(video), Path(folder))
            seconds, work = time.perf_counter() - began, _processor_seconds() - work_began
        record = {"by": "ffmpeg" if program else "seqckpt", "num_cores": len(cores), "num_frames": num_frames}
        return {**record, "seconds": seconds, "processor_seconds": work}

    def augmentation(self, *, kind: str, repeats: int) -> dict[str, Any]:
        """Augment a chunk of frames on this machine's CPU."""
        frames = torch.randint(256, (_CHUNK, 3, PIXELS, PIXELS), dtype=torch.uint8)
        source = AUGMENTATIONS[kind].apply_to(frames, seed=0, epoch=0, video_id="", start=0)
        seconds = _seconds(partial(source.__getitem__, slice(0, _CHUNK)), repeats)
        return {"kind": kind, "num_frames": _CHUNK, "seconds": seconds}


def _build_model(name: str) -> VideoModel:
    encoder_name, _, hidden_size = MODELS[name]
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


def _open_clip(video: str, *, fps: float, pixels: int, length: int) -> Clip:
    (sampled,) = sample_videos([Path(video)], fps=fps, image_size=(pixels, pixels), cache_dir=None, progress=False)
    frames = sampled.frames
    labels = torch.zeros(len(frames), dtype=torch.int64)
    seconds = np.arange(len(frames), dtype=np.float64)
    return Clip(Video("video", frames, seconds, labels, None, Path(video)), 0, length)


def _decode_into_cache(video: Path, folder: Path) -> int:
    (sampled,) = sample_videos([video], fps=1.0, image_size=(PIXELS, PIXELS), cache_dir=folder, progress=False)
    return len(sampled.frames)


def _decode_by_ffmpeg(program: str, video: Path, folder: Path, *, num_threads: int) -> int:
    output, threads = folder / "frames.raw", ["-threads", str(num_threads)]
    command = [program, "-v", "error", "-y", *threads, "-i", str(video)]
    command += ["-vf", f"fps=1,scale={PIXELS}:{PIXELS}:flags=area"]
    subprocess.run([*command, "-pix_fmt", "rgb24", "-f", "rawvideo", *threads, str(output)], check=True)
    return output.stat().st_size // (3 * PIXELS**2)


def _keep_to_cores(num_cores: int) -> list[int]:
    """Keep this process, and programs that it starts, to so many of its cores (Linux; elsewhere to all)."""
    if not hasattr(os, "sched_setaffinity"):
        return list(range(os.cpu_count() or 1))
    cores = sorted(os.sched_getaffinity(0))[:num_cores]
    os.sched_setaffinity(0, cores)
    return cores


def _processor_seconds() -> float:
    """Of this process, and of those that it has waited for."""
    used = os.times()
    return used.user + used.system + used.children_user + used.children_system


def _seconds(work: Callable[[], object], repeats: int) -> list[float]:
    return [time_step(work, "cpu") for _ in range(repeats + 1)][1:]  # the first one warms up

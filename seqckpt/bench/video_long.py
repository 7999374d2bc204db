"""Case video-long: one step over a whole operation, 7,200 frames streamed from an mp4, against one over 500.

The file is made first. Frames are decoded when a chunk needs them, and again in its replay; nothing is cached. What
grows with T is features, hidden states, and targets; the rest of the peak must not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch

from seqckpt.bench.case import Case, Settings, check_encoder
from seqckpt.bench.hardware import default_device, free_memory
from seqckpt.bench.made_videos import write_pattern
from seqckpt.bench.probes import SHORT, predict_peak, probe
from seqckpt.bench.report import Report
from seqckpt.bench.subject import Subject
from seqckpt.bench.turns import fits
from seqckpt.bench.video_model import HIDDEN_SIZE, build_parts, build_video_model, parse_choice
from seqckpt.bench.worker import Worker
from seqckpt.data import sample_videos
from seqckpt.errors import UsageError
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["VIDEO_LONG", "LongVideo"]


class LongVideo(Subject):
    """A subject whose frames come from a file, chunk by chunk, read ahead; only encoded frames lie in memory."""

    def __init__(self, *, path: str, encoder: str, pixels: int, num_frames: int, choice: str, segment: int) -> None:
        schedule = parse_choice(choice)
        parts = build_parts(encoder, channels_last=not schedule.fuse)  # fused layers choose their own
        model = build_video_model(parts, schedule, segment)
        (video,) = sample_videos([Path(path)], fps=25.0, image_size=(pixels, pixels), cache_dir=None, progress=False)
        self._frames = _First(video.frames, num_frames)
        targets = torch.arange(num_frames, device=default_device()) % 7
        self.num_features = parts.rnn.input_size

        def step() -> None:
            loss, _ = model([self._frames], [targets])
            loss.backward()

        super().__init__(step, dict(model.named_parameters()))

    def peak(self) -> dict[str, Any]:
        """As of any subject; a step of hours of video is not taken twice for its seconds."""
        return {**super().peak(), "num_features": self.num_features}


class _First:
    """The first so many frames of a source."""

    def __init__(self, frames: Any, num_frames: int) -> None:
        self.frames, self.num_frames = frames, num_frames

    def __len__(self) -> int:
        return self.num_frames

    def __getitem__(self, index: slice) -> torch.Tensor:
        return self.frames[index]


def run_video_long(settings: Settings, report: Report) -> None:
    """Make the file, take a step over the short and the long clip, and say what the plain run would need."""
    short, long, pixels = settings["short"], settings["frames"], settings["pixels"]
    model = {"encoder": settings["encoder"], "pixels": pixels}
    with tempfile.TemporaryDirectory() as folder, progress_bar(total=4, desc="video-long", unit="step") as bar:
        path = Path(folder) / "operation.mp4"
        write_pattern(path, width=pixels, height=pixels, num_frames=long, key_every=50)
        bar.update()
        found = {}
        for num_frames in (short, long):
            arguments = {**model, "num_frames": num_frames, "choice": settings["choice"]}
            with Worker(LongVideo, path=str(path), segment=settings["segment"], **arguments) as worker:
                found[num_frames] = worker.ask("peak")
            bar.update()
        points = probe({"way": "plain", "choice": "8", "segment_length": 50}, settings["encoder"], pixels, SHORT)
        bar.update()
    rows = [_row(num_frames, record) for num_frames, record in found.items()]
    report.records += [{"num_frames": num_frames, **record} for num_frames, record in found.items()]
    title = f"{settings['encoder']} at {pixels} px, LSTM {HIDDEN_SIZE}, {parse_choice(settings['choice']).describe()}"
    heads = ["T", "peak of a step", "of which features", "rest", "step (recorded), reading included"]
    report.add_table(f"{title}, frames streamed from an mp4", heads, rows)
    rest = {n: record["peak_bytes"] - _feature_bytes(n, record) for n, record in found.items()}
    whole = found[long]["peak_bytes"] / found[short]["peak_bytes"]
    needed = predict_peak(points, long)
    report.records.append({"plain_peak_bytes": needed, "rest_ratio": rest[long] / rest[short], "ratio": whole})
    problem = fits(needed, free_memory(default_device()))
    plain = f"The plain run at T = {long:,} {problem or f'would need about {format_bytes(needed)}, which is there'}."
    report.add_note(
        f"Apart from features the peak at T = {long:,} is {rest[long] / rest[short]:.2f}x that at T = {short:,} (with "
        f"them {whole:.2f}x). {plain}"
    )


def _feature_bytes(num_frames: int, record: dict[str, Any]) -> int:
    return 4 * num_frames * record["num_features"]


def _row(num_frames: int, record: dict[str, Any]) -> list[str]:
    features = _feature_bytes(num_frames, record)
    cells = [format_bytes(record["peak_bytes"]), format_bytes(features), format_bytes(record["peak_bytes"] - features)]
    return [f"{num_frames:,}", *cells, f"{record['seconds']:.1f} s"]


def _check(settings: Settings) -> None:
    check_encoder("encoder", settings["encoder"])
    parse_choice(settings["choice"])
    if settings["short"] >= settings["frames"]:
        raise UsageError(f"short={settings['short']}: expected fewer than frames={settings['frames']}")


VIDEO_LONG = Case(
    "video-long",
    "one step over a whole operation of 7,200 frames streamed from an mp4, against one over 500",
    run_video_long,
    settings={
        "frames": 7200,
        "short": 500,
        "encoder": "resnet18",
        "pixels": 224,
        "choice": "25f",
        "segment": 50,
    },
    quick={"frames": 600, "short": 100, "encoder": "small", "pixels": 64, "choice": "25"},
    check=_check,
)

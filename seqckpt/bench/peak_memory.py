"""Peak memory and time of one training step over the number of frames T, plain and checkpointed: README's picture.

    python -m seqckpt.bench.peak_memory [lengths=100,250,500,1000] [encoder=resnet18] [pixels=112] [repeats=3]
                                        [picture=peak_memory.svg]

ResNet-18 with frozen batch norm, LSTM 256, seven phases, float32, one clip. Gradients are None before each step. Peak:
the allocator's record over the step's start, the parameters' gradients included (torch.profiler on the CPU, the caching
allocator's statistics on CUDA). Time: median of `repeats` steps, the ways in turn, on as many threads as torch takes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import torch
from torch import nn

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.memory import peak_allocated_bytes, time_step
from seqckpt.models import (
    FrameTransform,
    PerFrame,
    PlainLoss,
    VideoModel,
    apply_batch_norm_policy,
    build_encoder,
)
from seqckpt.plots import plot_peak_memory
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["main", "measure"]

_WAYS = {"plain": None, "chunks of 25": 25, "chunks of 5": 5}


def build_model(encoder_name: str, chunk_size: int | None) -> VideoModel:
    """The same model, plain (None) or with the encoder in chunks and the rest in segments of 50."""
    encoder = build_encoder(encoder_name)
    apply_batch_norm_policy(encoder, "frozen")
    rnn = nn.LSTM(encoder.num_features, 256, batch_first=True)
    decoder, criterion, transform = nn.Linear(256, 7), nn.CrossEntropyLoss(), FrameTransform()
    if chunk_size is None:
        return VideoModel(PerFrame(encoder, transform=transform), rnn, PlainLoss(decoder, criterion))
    return VideoModel(
        ChunkedEncoder(encoder, chunk_size, transform=transform),
        SegmentedRNN(rnn, 50),
        SegmentedLoss(decoder, criterion, 50),
    )


def measure(encoder_name: str, num_frames: int, pixels: int, repeats: int) -> list[dict[str, Any]]:
    """Bytes and seconds of one step of every way, at one length."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    frames = torch.randint(256, (num_frames, 3, pixels, pixels), dtype=torch.uint8, device=device)
    targets = torch.randint(7, (num_frames,), device=device)
    models = {name: build_model(encoder_name, chunk_size).to(device) for name, chunk_size in _WAYS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(repeats):
        for name, model in models.items():
            seconds[name].append(time_step(_step_of(model, frames, targets), device))
    records = []
    for name, model in models.items():
        model.zero_grad(set_to_none=True)
        peak = peak_allocated_bytes(_step_of(model, frames, targets), device)
        records.append({"label": name, "num_frames": num_frames, "peak_bytes": peak, "seconds": median(seconds[name])})
        model.zero_grad(set_to_none=True)
    return records


def _step_of(model: VideoModel, frames: torch.Tensor, targets: torch.Tensor) -> Callable[[], None]:
    def step() -> None:
        loss, _ = model([frames], [targets])
        loss.backward()

    model.zero_grad(set_to_none=True)
    return step


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table as Markdown, draw the picture."""
    settings = {"picture": "peak_memory.svg", "lengths": "100,250,500,1000", "encoder": "resnet18", "pixels": "112"}
    settings |= {"repeats": "3"}
    given = dict(argument.split("=", 1) for argument in arguments if "=" in argument)
    if len(given) != len(arguments) or not given.keys() <= settings.keys():
        print(f"error: got {' '.join(arguments)}; expected {' '.join(f'{k}={v}' for k, v in settings.items())}")
        return 2
    settings |= given
    records = []
    for length in progress_bar([int(text) for text in settings["lengths"].split(",")], desc="lengths", unit="T"):
        records += measure(settings["encoder"], length, int(settings["pixels"]), int(settings["repeats"]))
    print("| frames | " + " | ".join(_WAYS) + " |")
    print("|---" * (1 + len(_WAYS)) + "|")
    for length in dict.fromkeys(record["num_frames"] for record in records):
        row = [record for record in records if record["num_frames"] == length]
        base = row[0]["seconds"]
        cells = [f"{format_bytes(r['peak_bytes'])}, {r['seconds']:.1f} s ({r['seconds'] / base:.2f}x)" for r in row]
        print(f"| {length} | " + " | ".join(cells) + " |")
    points = [{key: record[key] for key in ("label", "num_frames", "peak_bytes")} for record in records]
    plot_peak_memory(points, settings["picture"])
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads; picture: {settings['picture']}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

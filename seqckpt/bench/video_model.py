"""The model of the video cases, as a subject for a worker: encoder, LSTM 256, seven phases, one clip."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.bench.hardware import default_device
from seqckpt.bench.peers import PEERS, Cut, Parts, Step
from seqckpt.bench.subject import Subject
from seqckpt.core import ChunkedEncoder, Keep, SegmentedLoss, SegmentedRNN
from seqckpt.errors import UsageError
from seqckpt.models import FrameTransform, VideoModel, apply_batch_norm_policy, build_encoder

__all__ = ["OURS", "Choice", "build_parts", "build_video_model", "build_video_subject", "parse_choice"]

OURS = "ours"
NUM_PHASES, HIDDEN_SIZE = 7, 256


@dataclass(frozen=True)
class Choice:
    """A schedule of ours in short: 25+2x3 is chunks of 25, the last 2 stages kept, the last 3 chunks kept whole.

    An f at the end, as in 25+2f: layers are fused.
    """

    chunk_size: int
    depth: float = 0
    chunks: int = 1
    fuse: bool = False

    def describe(self) -> str:
        """In words."""
        kept = [f"the last {self.depth:g} stages"] if self.depth else []
        kept += [f"the last {self.chunks} chunks"] if self.chunks > 1 else []
        fused = ", fused" if self.fuse else ""
        return f"chunks of {self.chunk_size}{fused}" + (f", kept: {' and '.join(kept)}" if kept else "")


def parse_choice(text: str) -> Choice:
    """Read "25", "25f", "25+2", "25+2x3" or "25+2x3f".

    >>> parse_choice("25+2x3").describe()
    'chunks of 25, kept: the last 2 stages and the last 3 chunks'
    """
    front, _, chunks = text.removesuffix("f").partition("x")
    size, _, depth = front.partition("+")
    with suppress(ValueError):
        choice = Choice(int(size), float(depth) if depth else 0, int(chunks) if chunks else 1, text.endswith("f"))
        if choice.chunk_size >= 1 and 0 <= choice.depth < math.inf and choice.chunks >= 1:
            return choice
    raise UsageError(
        f"{text!r} is no schedule: expected chunk size+kept stages x kept chunks, as in 25, 25+2 or 25+2x3; an f "
        "behind it fuses layers"
    )


def build_parts(encoder_name: str, *, channels_last: bool, dtype: torch.dtype = torch.float32) -> Parts:
    """Encoder with frozen batch norm, transform, LSTM and decoder; the same weights every time."""
    torch.manual_seed(0)
    encoder = build_encoder(encoder_name)
    apply_batch_norm_policy(encoder, "frozen")
    rnn = nn.LSTM(encoder.num_features, HIDDEN_SIZE, batch_first=True)
    parts = Parts(encoder, FrameTransform(), rnn, nn.Linear(HIDDEN_SIZE, NUM_PHASES))
    for module in (parts.encoder, parts.transform, parts.rnn, parts.decoder):
        module.to(device=default_device(), dtype=dtype)
    if channels_last:
        parts.encoder.to(memory_format=torch.channels_last)
    return parts


def build_video_model(parts: Parts, choice: Choice, segment_length: int) -> VideoModel:
    """The same parts in this library's hands."""
    return VideoModel(
        ChunkedEncoder(
            parts.encoder,
            choice.chunk_size,
            transform=parts.transform,
            keep=Keep(depth=choice.depth, chunks=choice.chunks),
            fuse=choice.fuse,
        ),
        SegmentedRNN(parts.rnn, segment_length),
        SegmentedLoss(parts.decoder, nn.CrossEntropyLoss(), segment_length),
    )


def build_video_subject(
    *,
    way: str,
    encoder: str,
    pixels: int,
    num_frames: int,
    choice: str,
    segment_length: int,
    channels_last: bool = False,
    dtype: str = "float32",
    gives_back: bool = True,
) -> Subject:
    """A subject for `way`, one of PEERS or OURS; all are given the same weights, frames and targets."""
    parts = build_parts(encoder, channels_last=channels_last, dtype=getattr(torch, dtype))
    named = chain.from_iterable(
        module.named_parameters(prefix)
        for prefix, module in (("encoder", parts.encoder), ("rnn", parts.rnn), ("decoder", parts.decoder))
    )
    parameters = dict(named)  # before a peer wraps a part, and so renames what is in it
    generator = torch.Generator().manual_seed(1)
    shape = (num_frames, 3, pixels, pixels)
    frames = torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(default_device())
    targets = torch.randint(NUM_PHASES, (num_frames,), generator=generator).to(default_device())
    step = _step_of(way, parts, parse_choice(choice), segment_length)
    return Subject(_bind(step, frames, targets), parameters, gives_back=gives_back)


def _step_of(way: str, parts: Parts, choice: Choice, segment_length: int) -> Step:
    if way != OURS:
        return PEERS[way](parts, Cut(choice.chunk_size, segment_length))
    model = build_video_model(parts, choice, segment_length)

    def step(frames: Any, targets: Tensor) -> None:
        loss, _ = model([frames], [targets])
        loss.backward()

    return step


def _bind(step: Step, frames: Tensor, targets: Tensor) -> Callable[[], None]:
    return lambda: step(frames, targets)

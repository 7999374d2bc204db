"""Five models to check traces on, each with one training step: convolutions, a video model, and a language model.

Run as a script in a fresh process it prints what one step adds to peak resident size, and what a trace of it says.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models import convnext_tiny, densenet121, resnet18

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.memory import PeakMeter, trace_memory
from seqckpt.models import FrameTransform, PerFrame, PlainLoss, VideoModel, build_encoder

NUM_WORDS = 1000


@dataclass
class Job:
    """A model, its arguments, and the loss of its result (None: the first element is the loss)."""

    model: nn.Module
    args: tuple[Any, ...]
    loss: Callable[[Any], Tensor] | None

    def step(self) -> None:
        """One training step, from gradients of None."""
        result = self.model(*self.args)
        (result[0] if self.loss is None else self.loss(result)).backward()


class LanguageModel(nn.Module):
    """Words (B, T) -> logits of the next words (B, T, K)."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(NUM_WORDS, 64)
        self.lstm = nn.LSTM(64, 128, 2, batch_first=True, dropout=0.2)
        self.decoder = nn.Linear(128, NUM_WORDS)

    def forward(self, words: Tensor) -> Tensor:
        return self.decoder(self.lstm(self.embedding(words))[0])


def make_video_model(*, scheduled: bool = False) -> VideoModel:
    """The small encoder and an LSTM, plain or in chunks and segments."""
    encoder, rnn = build_encoder("small"), nn.LSTM(64, 32, batch_first=True)
    decoder, criterion, transform = nn.Linear(32, 7), nn.CrossEntropyLoss(), FrameTransform()
    if not scheduled:
        return VideoModel(PerFrame(encoder, transform=transform), rnn, PlainLoss(decoder, criterion))
    return VideoModel(
        ChunkedEncoder(encoder, 10, transform=transform), SegmentedRNN(rnn, 20), SegmentedLoss(decoder, criterion, 20)
    )


def make_job(name: str, size: int) -> Job:
    """`size`: images of 96 px, tens of frames of 64 px, or sequences of 200 words."""
    torch.manual_seed(0)
    if name == "lstm language model":
        words = torch.randint(NUM_WORDS, (size, 200))
        return Job(LanguageModel(), (words,), lambda y: nn.functional.cross_entropy(y.flatten(0, 1), words.flatten()))
    if name == "small encoder and lstm":
        frames = torch.randint(256, (10 * size, 3, 64, 64), dtype=torch.uint8)
        return Job(make_video_model(), ([frames], [torch.randint(7, (10 * size,))]), None)
    builder = {"resnet18": resnet18, "convnext_tiny": convnext_tiny, "densenet121": densenet121}[name]
    labels = torch.randint(10, (size,))
    model = builder(num_classes=10)
    return Job(model, (torch.randn(size, 3, 96, 96),), lambda y: nn.functional.cross_entropy(y, labels))


NAMES = ("resnet18", "convnext_tiny", "densenet121", "small encoder and lstm", "lstm language model")


def main(name: str, size: int) -> None:
    make_job(name, 1).step()  # loads kernels and their tables, which stay
    job = make_job(name, size)
    meter = PeakMeter("cpu")
    meter.start()
    job.step()
    resident = meter.read()
    job.model.zero_grad(set_to_none=True)
    trace = trace_memory(job.model, *job.args, loss=job.loss)
    print(json.dumps({"resident": resident, "meaning": meter.meaning, "traced": trace.peak_bytes}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))

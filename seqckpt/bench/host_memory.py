"""Case host-memory: what the process grows by for each frame, beside tensors: graph nodes, Python's objects.

Resident size after forward, when the graph is whole, less what torch's allocator has handed out there: features, hidden
states, losses. Each figure is from a process of its own; the slope between two lengths is the answer.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.peers import Cut, Parts, lose_by_hand
from seqckpt.bench.report import Report
from seqckpt.bench.subject import give_back
from seqckpt.bench.worker import DoesNotFit, Refused, Worker
from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.errors import UsageError
from seqckpt.memory import AllocationRecord
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["HOST_MEMORY"]


class Growth:
    """A tiny model, forward only, with its graph: how much the process, and the allocator, grow by."""

    def __init__(self, way: str, num_frames: int, chunk: int, segment: int) -> None:
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        rnn, decoder = nn.LSTM(4, 8, batch_first=True), nn.Linear(8, 7)
        self.frames = torch.randint(256, (num_frames, 3, 8, 8), dtype=torch.uint8)
        self.targets = torch.randint(7, (num_frames,))
        make = _ours if way == "ours" else _by_hand
        self.run = make(encoder, rnn, decoder, Cut(chunk, segment))
        self.run(self.frames[: 4 * chunk], self.targets[: 4 * chunk]).backward()  # sets everything up

    def resident(self) -> dict[str, int]:
        """Bytes that the process has grown by after forward, and whatever more after backward."""
        gc.collect()
        give_back()
        before = _resident_bytes()
        loss = self.run(self.frames, self.targets)
        after = _resident_bytes()
        loss.backward()
        return {"after_forward": after - before, "after_backward": _resident_bytes() - before}

    def allocated(self) -> int:
        """Bytes that the allocator has handed out at the end of forward."""
        with AllocationRecord() as record:
            loss = self.run(self.frames, self.targets)
            record.mark("end")
            loss.backward()
        return record.intervals[0].end_bytes


def _ours(encoder: nn.Module, rnn: nn.LSTM, decoder: nn.Module, cut: Cut) -> Any:
    chunked = ChunkedEncoder(encoder, cut.chunk_size, transform=_ToFloat())
    segmented = SegmentedRNN(rnn, cut.segment_length)
    head = SegmentedLoss(decoder, nn.CrossEntropyLoss(), cut.segment_length)
    return lambda frames, targets: head(segmented(chunked(frames[None]))[0], targets[None])


def _by_hand(encoder: nn.Module, rnn: nn.LSTM, decoder: nn.Module, cut: Cut) -> Any:
    parts = Parts(encoder, _ToFloat(), rnn, decoder)
    return lambda frames, targets: lose_by_hand(parts, cut, frames, targets)


class _ToFloat(nn.Module):
    def forward(self, frames: Tensor) -> Tensor:
        return frames.float() / 255


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * 4096


def run_host_memory(settings: Settings, report: Report) -> None:
    """The slope between the two lengths, for this library and for checkpoints by hand."""
    short, long = sorted(settings["lengths"])
    rows = []
    with progress_bar(total=8, desc="host-memory", unit="process") as bar:
        for way in ("ours", "checkpoint by hand"):
            try:
                beyond = {n: _measure(way, n, settings, bar.update) for n in (short, long)}
            except (DoesNotFit, Refused) as error:
                rows.append([way, str(error), "", ""])
                continue
            slope = (beyond[long] - beyond[short]) / (long - short)
            report.records.append({"way": way, "beyond_tensors": beyond, "bytes_per_frame": slope})
            cells = [format_bytes(beyond[short]), format_bytes(beyond[long]), f"{slope:,.0f} bytes"]
            rows.append([way, *cells])
    cut = f"chunks of {settings['chunk']}, segments of {settings['segment']}"
    title = f"what a step's forward leaves beside tensors, {cut}"
    report.add_table(title, ["way", f"T = {short:,}", f"T = {long:,}", "for each frame more"], rows)


def _measure(way: str, num_frames: int, settings: Settings, tick: Any) -> int:
    arguments = {"way": way, "num_frames": num_frames, "chunk": settings["chunk"], "segment": settings["segment"]}
    with Worker(Growth, **arguments) as worker:
        resident = worker.ask("resident")["after_forward"]
    tick()
    with Worker(Growth, **arguments) as worker:
        allocated = worker.ask("allocated")
    tick()
    return resident - allocated


def _check(settings: Settings) -> None:
    lengths = settings["lengths"]
    if len(lengths) != 2 or len(set(lengths)) != 2:
        given = ",".join(map(str, lengths))
        raise UsageError(f"lengths={given}: expected two different ones, between which the slope is taken")


HOST_MEMORY = Case(
    "host-memory",
    "bytes that the process grows by for each frame, beside frames, features and hidden states",
    run_host_memory,
    settings={"lengths": (1000, 20_000), "chunk": 25, "segment": 50},
    quick={"lengths": (500, 3000)},
    least={"lengths": 100},
    check=_check,
)

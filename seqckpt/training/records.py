"""What a run counts and reports: totals over steps, where it stands, and both in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seqckpt.units import format_bytes

__all__ = ["Progress", "Totals", "describe_epoch", "describe_step"]


@dataclass
class Totals:
    """What adds up over steps; frames are counted as labelled where the loss counts them."""

    loss: float = 0.0
    num_labelled: int = 0
    num_right: int = 0
    num_frames: int = 0
    seconds: float = 0.0
    waiting_seconds: float = 0.0
    peak_bytes: int = 0

    def add(self, other: Totals) -> None:
        """Take in one step's numbers."""
        for name in ("loss", "num_labelled", "num_right", "num_frames", "seconds", "waiting_seconds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)


@dataclass
class Progress:
    """Where a run stands: plain data, part of every snapshot. `epoch` counts the finished ones."""

    epoch: int = 0
    step_in_epoch: int = 0
    step: int = 0
    best_epoch: int | None = None
    best_accuracy: float | None = None
    records: list[dict[str, Any]] = field(default_factory=list)
    of_epoch: Totals = field(default_factory=Totals)
    of_run: Totals = field(default_factory=Totals)


def describe_step(row: Mapping[str, Any]) -> str:
    return f"loss={row['loss']:.3f}, {row['frames_per_second']:.0f} frames/s, peak {_bytes(row['peak_memory_bytes'])}"


def describe_epoch(record: Mapping[str, Any], num_epochs: int, *, is_best: bool) -> str:
    parts = [
        f"epoch {record['epoch']:>{len(str(num_epochs))}}/{num_epochs}",
        f"loss {record['train_loss']:.4f}",
        f"train accuracy {record['train_accuracy']:.3f}",
        f"val accuracy {record['val_accuracy']:.3f}{' (best)' if is_best else '       '}",
        f"{record['frames_per_second']:.0f} frames/s",
        f"peak {_bytes(record['peak_memory_bytes'])}",
        f"waiting for frames {record['waiting_share']:.1%}",
    ]
    return "  ".join(parts)


def _bytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)

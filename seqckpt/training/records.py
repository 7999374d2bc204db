"""What a run counts and reports: totals over steps, where it stands, and both in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from seqckpt.training.step import Outcome
from seqckpt.units import format_bytes

__all__ = ["Progress", "Totals", "describe_epoch", "describe_row", "describe_step"]


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
    num_skipped: int = 0

    @classmethod
    def of_step(cls, outcome: Outcome, *, seconds: float) -> Totals:
        """Return one step's numbers; its loss counts nowhere where the step was left out."""
        num_labelled = 0 if outcome.skipped else outcome.num_labelled
        return cls(
            loss=outcome.loss * num_labelled if num_labelled else 0.0,
            num_labelled=num_labelled,
            num_right=outcome.num_right if num_labelled else 0,
            num_frames=outcome.num_frames,
            seconds=seconds,
            num_skipped=bool(outcome.skipped),
        )

    def add(self, other: Totals) -> None:
        """Take in one step's numbers."""
        peak_bytes = max(self.peak_bytes, other.peak_bytes)
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)
        self.peak_bytes = peak_bytes


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

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Progress:
        """Return what `dataclasses.asdict` was made of."""
        totals = {name: Totals(**state[name]) for name in ("of_epoch", "of_run")}
        return cls(**{**state, **totals})

    def finish_epoch(self, accuracy: float, *, lr: float) -> tuple[dict[str, Any], bool]:
        """Count an epoch as done; return its row for metrics.csv, and whether its validation is the best so far.

        An undefined accuracy (no label anywhere) is never the best; of equal ones the later is.
        """
        totals = self.of_epoch
        self.epoch += 1
        self.step_in_epoch = 0
        is_best = accuracy >= (0.0 if self.best_accuracy is None else self.best_accuracy)
        if is_best:
            self.best_epoch, self.best_accuracy = self.epoch, accuracy
        record = {
            "epoch": self.epoch,
            "step": self.step,
            "train_loss": totals.loss / totals.num_labelled if totals.num_labelled else math.nan,
            "train_accuracy": totals.num_right / totals.num_labelled if totals.num_labelled else math.nan,
            "val_accuracy": accuracy,
            "lr": lr,
            "frames_per_second": totals.num_frames / totals.seconds,
            "peak_memory_bytes": totals.peak_bytes or None,
            "waiting_share": totals.waiting_seconds / totals.seconds,
            "skipped_steps": totals.num_skipped,
        }
        self.records.append(record)
        self.of_epoch = Totals()
        return record, is_best


def describe_row(progress: Progress, step: Totals, outcome: Outcome, *, lr: float) -> dict[str, Any]:
    """Return a step's row for steps.csv."""
    return {
        "step": progress.step,
        "epoch": progress.epoch + 1,
        "loss": outcome.loss,
        "lr": lr,
        "gradient_norm": outcome.gradient_norm,
        "frames_per_second": step.num_frames / step.seconds,
        "peak_memory_bytes": step.peak_bytes or None,
        "waiting_share": step.waiting_seconds / step.seconds,
        "skipped": outcome.skipped,
    }


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
        *([f"{record['skipped_steps']} steps left out"] if record["skipped_steps"] else []),
    ]
    return "  ".join(parts)


def _bytes(num_bytes: int | None) -> str:
    return "unknown" if num_bytes is None else format_bytes(num_bytes)

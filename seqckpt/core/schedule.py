"""A schedule: what is chunked, segmented, kept and recomputed, as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import nn

from seqckpt.core.chunked_encoder import ChunkedEncoder, Keep
from seqckpt.core.cuts import check_length, check_levels
from seqckpt.core.segmented_loss import SegmentedLoss
from seqckpt.core.segmented_rnn import SegmentedRNN
from seqckpt.units import format_bytes

__all__ = ["Schedule"]


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Settings of the three parts; `apply` sets them on a model, `to_dict` and `from_dict` go to and from YAML.

    Args:
        chunk_size: frames per encoder chunk.
        segment_length: time steps per segment of the recurrent network, or nested levels such as (250, 25).
        loss_segment_length: frames per segment of decoder and loss; None: the (innermost) segment_length.
        keep: what of the encoder is kept; see Keep.
        predicted_peak_bytes: most memory of a step, parameters and all; this and the following are None unless the
            schedule was planned (seqckpt.plan_schedule).
        predicted_step_seconds: forward and backward of a step.
        predicted_plain_peak_bytes, predicted_plain_step_seconds: the same of the plain run.
        recompute_fraction: seconds of what is run again over those of one forward.
        ratio_to_limit: predicted seconds over those of a step that keeps as many whole chunks as the budget holds and
            replays the others at the plain run's speed; below 1 where cuts by depth or better kernels beat that.

    >>> Schedule.from_dict(Schedule(chunk_size=25, segment_length=(250, 25)).to_dict()).segment_length
    (250, 25)
    """

    chunk_size: int
    segment_length: int | Sequence[int]
    loss_segment_length: int | None = None
    keep: Keep = field(default_factory=Keep)
    predicted_peak_bytes: int | None = None
    predicted_step_seconds: float | None = None
    predicted_plain_peak_bytes: int | None = None
    predicted_plain_step_seconds: float | None = None
    recompute_fraction: float | None = None
    ratio_to_limit: float | None = None

    def __post_init__(self) -> None:
        check_length(self.chunk_size, "chunk_size")
        levels = check_levels(self.segment_length, "segment_length")
        object.__setattr__(self, "segment_length", levels if len(levels) > 1 else levels[0])
        if self.loss_segment_length is not None:
            check_length(self.loss_segment_length, "loss_segment_length")

    def apply(self, model: nn.Module) -> nn.Module:
        """Set this schedule on every ChunkedEncoder, SegmentedRNN and SegmentedLoss inside; ValueError without any."""
        levels = (self.segment_length,) if isinstance(self.segment_length, int) else tuple(self.segment_length)
        parts = [m for m in model.modules() if isinstance(m, (ChunkedEncoder, SegmentedRNN, SegmentedLoss))]
        if not parts:
            raise ValueError(f"{type(model).__name__} has no ChunkedEncoder, SegmentedRNN or SegmentedLoss to set")
        for part in parts:
            if isinstance(part, ChunkedEncoder):
                part.chunk_size, part.keep = self.chunk_size, self.keep
            elif isinstance(part, SegmentedRNN):
                part.segment_length = list(levels) if len(levels) > 1 else levels[0]
            else:
                part.segment_length = self.loss_segment_length or levels[-1]
        return model

    def describe_choices(self) -> str:
        """What is chosen, in words, without what is predicted."""
        keep = self.keep
        stages = f"the last {keep.depth:.3g} stages" if keep.depth else ""
        kept = [text for text in (stages, f"the last {keep.chunks} chunks" if keep.chunks > 1 else "") if text]
        parts = [
            f"chunks of {self.chunk_size}",
            f"segments of {self.segment_length}",
            f"loss segments of {self.loss_segment_length}" if self.loss_segment_length else "",
            "kept: " + " and ".join(kept) if kept else "",
            "" if keep.frozen else "frozen stages replayed",
        ]
        return ", ".join(filter(None, parts))

    def __str__(self) -> str:
        parts = [self.describe_choices()]
        if self.predicted_peak_bytes is not None:
            plain = self.predicted_plain_peak_bytes
            beside = "" if plain is None else f" (plain {format_bytes(plain)})"
            parts.append(f"peak {format_bytes(self.predicted_peak_bytes)}{beside}")
        if self.predicted_step_seconds is not None:
            seconds = self.predicted_plain_step_seconds
            beside = "" if seconds is None else f" (plain {seconds:.3g} s)"
            parts.append(f"{self.predicted_step_seconds:.3g} s a step{beside}")
        if self.recompute_fraction is not None:
            parts.append(f"{self.recompute_fraction:.0%} of a forward recomputed")
        return "; ".join(parts)

    def to_dict(self) -> dict[str, Any]:
        """Numbers, lists and dicts only."""
        data = asdict(self)
        if not isinstance(self.segment_length, int):
            data["segment_length"] = list(self.segment_length)
        return data

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Schedule:
        values = dict(data)
        values["keep"] = Keep(**values.get("keep", {}))
        return cls(**values)

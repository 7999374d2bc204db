"""The choice of a schedule within the configuration's budget of memory."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from seqckpt.config import Config, MemoryConfig
from seqckpt.core import Schedule
from seqckpt.data import Clip
from seqckpt.memory import Fixed, Sample, hold_chunk_size, measure, resolve_budget, solve
from seqckpt.models import VideoModel

__all__ = ["Planning", "is_open_to_plan", "take_largest_batch"]


class Planning:
    """The choice of a schedule for a model under the configuration's budget: pieces are measured once, when made.

    `sample` is the largest batch that there will be. Raises BudgetError where `choose` finds that nothing fits.
    """

    def __init__(self, config: Config, model: VideoModel, sample: Sample, optimiser: torch.optim.Optimizer) -> None:
        self.model, self.sample, self.optimiser = model.train(), sample, optimiser
        budget = config.memory.budget or "auto"
        self.budget_bytes = resolve_budget(budget, model, sample, optimiser=optimiser)
        self.reserved_bytes = _reserve(config, model)
        self.fixed = hold_chunk_size(model, _fixed_by(config.memory))
        self.costs = measure(model, sample, optimiser=optimiser, budget_bytes=self.budget_bytes)

    def choose(self, budget_bytes: int | None = None) -> Schedule:
        """Return the fastest schedule within the configuration's budget, or another one."""
        within = self.budget_bytes if budget_bytes is None else budget_bytes
        return solve(self.costs, max(1, within - self.reserved_bytes), self.fixed)

    @property
    def resident_bytes(self) -> int:
        """What is there before a first step: parameters and frames; the optimiser's state comes with the step."""
        return self.costs.parameter_bytes + self.costs.frame_bytes + self.reserved_bytes


def _reserve(config: Config, model: VideoModel) -> int:
    """Return the bytes that a step has beside what is measured: averaged weights, and gradients of earlier batches."""
    copied = [*model.parameters(), *model.buffers()] if config.train.ema is not None else []
    added_to = [p for p in model.parameters() if p.requires_grad] if config.train.accumulate > 1 else []
    return sum(tensor.nbytes for tensor in (*copied, *added_to))


def is_open_to_plan(memory: MemoryConfig) -> bool:
    """Whether the configuration leaves anything for a plan to choose; one that a plan was written into does not."""
    fixed = _fixed_by(memory)
    return any(value is None for value in vars(fixed).values())


def take_largest_batch(config: Config, clips: Sequence[Clip], *, num_replicas: int = 1) -> Sample:
    """Return the longest clips, as many as a training step takes, in memory where training would have them there.

    Of several replicas one takes its part of them.
    """
    batch = sorted(clips, key=len, reverse=True)[: -(-config.train.batch_size // num_replicas)]
    if config.data.num_workers:  # these load clips into memory; without them frames are read when needed
        batch = [clip.load() for clip in batch]
    return Sample([clip.frames for clip in batch], [clip.targets for clip in batch])


def _fixed_by(memory: MemoryConfig) -> Fixed:
    inner, outer = memory.segment_length, memory.outer_segment_length
    return Fixed(
        chunk_size=memory.chunk_size,
        segment_length=inner if inner is None or outer is None else (outer, inner),
        loss_segment_length=memory.loss_segment_length,
        depth=memory.keep_depth,
        chunks=memory.keep_chunks,
        frozen=memory.keep_frozen,
    )

"""The fastest exact schedule within a budget of memory: from a model and a batch to a Schedule.

Pieces are measured on a few frames (step_costs.py); what schedules then cost is arithmetic (cost_model.py), and the
best of them is searched for (search.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from seqckpt.core.schedule import Schedule
from seqckpt.errors import UsageError
from seqckpt.memory.costs import Costs
from seqckpt.memory.device_memory import free_bytes
from seqckpt.memory.sample import Pipeline, Sample
from seqckpt.memory.search import Fixed, solve
from seqckpt.memory.step_costs import measure_costs, resident_bytes
from seqckpt.units import parse_bytes

__all__ = ["as_pipeline", "hold_chunk_size", "measure", "plan_schedule", "resolve_budget"]

_AUTO_SHARE = 0.9  # of what is free, where the budget is "auto"


def plan_schedule(
    model: nn.Module | Sequence[nn.Module],
    sample: Any,
    budget: int | str = "auto",
    *,
    optimiser: Optimizer | None = None,
    chunk_size: int | None = None,
    segment_length: int | Sequence[int] | None = None,
) -> Schedule:
    """Return the fastest schedule whose training step stays within a budget of memory. Nothing is changed in the model.

    Args:
        model: with parts `encoder` (a ChunkedEncoder), `rnn` (a SegmentedRNN, or any other network) and `head` (a
            SegmentedLoss, or any other loss), called as model(frames, targets) -> (loss, state); or these three parts.
        sample: (frames, targets) of one batch: frames (B, T, C, H, W), or a list of clips (t, C, H, W) that may be read
            when asked for; targets (B, T, ...) or a list. The largest batch that training will meet.
        budget: bytes, or "8GiB", for everything that a step needs: parameters, gradients, the optimiser's state,
            frames that are in memory, features, activations, kernels' work space; on a CPU what torch's allocator
            gives out, the interpreter not counted. "auto": 90 % of what the device has free.
        optimiser: its state is reckoned with, whether it is there already or not.
        chunk_size, segment_length: where given, these are kept and the rest is chosen.

    The schedule carries its predictions (see Schedule) and is set by `schedule.apply(model)`. Cost: forward and
    backward of about 300 frames, and some ten thousand sums.

    Raises BudgetError, naming the smallest feasible budget and what sets it; UsageError for a model without the parts.

    >>> import torch
    >>> from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
    >>> cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> rnn, head = nn.LSTM(8, 16, batch_first=True), nn.Linear(16, 7)
    >>> parts = (ChunkedEncoder(cnn, 25), SegmentedRNN(rnn, 50), SegmentedLoss(head, nn.CrossEntropyLoss(), 50))
    >>> sample = torch.rand(1, 200, 3, 32, 32), torch.zeros(1, 200, dtype=torch.long)
    >>> schedule = plan_schedule(parts, sample, "10MiB")
    >>> schedule.predicted_peak_bytes < 10 * 2**20 < schedule.predicted_plain_peak_bytes
    True
    """
    pipeline, batch = as_pipeline(model), _as_sample(sample)
    held = Fixed(chunk_size=chunk_size, segment_length=segment_length)
    if isinstance(pipeline, Pipeline) and not isinstance(batch.frames, Tensor):
        raise UsageError("the sample is a list of clips, which three parts in a row do not take: give (B, T, ...)")
    budget_bytes = resolve_budget(budget, pipeline, batch, optimiser=optimiser)
    costs = measure(pipeline, batch, optimiser=optimiser, budget_bytes=budget_bytes)
    return solve(costs, budget_bytes, hold_chunk_size(pipeline, held))


def _as_sample(sample: Any) -> Sample:
    if not isinstance(sample, (tuple, list)) or len(sample) != 2:
        raise UsageError(f"the sample is a {type(sample).__name__}: expected a pair (frames, targets) of one batch")
    return Sample(*sample)


def as_pipeline(model: nn.Module | Sequence[nn.Module]) -> nn.Module:
    """The model, its parts checked, or one made of three parts."""
    pipeline: Any = model if isinstance(model, nn.Module) and hasattr(model, "encoder") else None
    if isinstance(model, (tuple, list)) and len(model) == 3:
        pipeline = Pipeline(*model)
    if pipeline is None or not all(isinstance(getattr(pipeline, name, None), nn.Module) for name in ("rnn", "head")):
        raise UsageError(
            f"plan_schedule got a {type(model).__name__}: expected a model with the parts encoder, rnn and head, or "
            "these three modules"
        )
    if not hasattr(pipeline.encoder, "stages") or not hasattr(pipeline.encoder, "keep"):
        raise UsageError(
            f"the encoder is a {type(pipeline.encoder).__name__}: expected a ChunkedEncoder, since only that can be "
            "scheduled (memory.enabled=true builds it)"
        )
    return pipeline


def measure(model: nn.Module, sample: Sample, *, optimiser: Optimizer | None = None, budget_bytes: int) -> Costs:
    """Measure what the model's pieces cost, within the budget and what the device has free."""
    device = next(model.parameters()).device
    return measure_costs(model, sample, optimiser=optimiser, memory_bytes=min(budget_bytes, free_bytes(device)))


def resolve_budget(budget: int | str, model: nn.Module, sample: Sample, *, optimiser: Optimizer | None = None) -> int:
    """Return the budget in bytes; "auto" is 90 % of what is free, and what the model and the frames take already."""
    if not isinstance(budget, str) or budget.strip().lower() != "auto":
        budget_bytes = parse_bytes(budget)
        if budget_bytes <= 0:
            raise UsageError(f"a budget of {budget}: expected more than 0 bytes, such as 8GiB, or auto")
        return budget_bytes
    there = resident_bytes(model, sample, None)
    return round(_AUTO_SHARE * free_bytes(next(model.parameters()).device) + sum(there.values()))


def hold_chunk_size(model: Any, fixed: Fixed) -> Fixed:
    """Where batch norm takes its statistics from a chunk, another size of chunk is another function: keep the size."""
    norms = [m for m in model.encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if fixed.chunk_size is None and any(norm.training for norm in norms):
        return replace(fixed, chunk_size=model.encoder.chunk_size)
    return fixed

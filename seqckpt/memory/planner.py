"""The fastest exact schedule within a budget of memory.

Pieces are measured on a few frames (step_costs.py), every schedule's peak and time are then arithmetic (cost_model.py),
and the best is found by going through them: sizes of chunks, cuts by depth, frozen stages stored or replayed,
segments, and for each of those the most last chunks that can be kept whole. Late stages of a CNN cost few bytes for
the time that they take, so cuts by depth spare more than whole chunks do; those fill what is left.

The limit that a schedule is held against keeps whole chunks: 1 + (1 - k/N) F / (F + B) of the plain step, where k of N
chunks fit into the budget. Griewank and Walther, Algorithm 799: revolve (2000), for a chain cut in time; Beaumont et
al., Optimal Checkpointing for Heterogeneous Chains (2019), for a chain of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from seqckpt.core.cuts import check_length, check_levels
from seqckpt.core.schedule import Keep, Schedule
from seqckpt.errors import BudgetError, UsageError
from seqckpt.memory.cost_model import Cut, Encoder, Tail, combine, count_pieces, cut_at
from seqckpt.memory.costs import Costs, Prediction
from seqckpt.memory.device_memory import free_bytes
from seqckpt.memory.sample import Pipeline, Sample
from seqckpt.memory.step_costs import measure_costs, resident_bytes
from seqckpt.units import format_bytes, parse_bytes

__all__ = [
    "Fixed",
    "as_pipeline",
    "hold_chunk_size",
    "measure",
    "plan_schedule",
    "predict_plain",
    "resolve_budget",
    "smallest_budget",
    "solve",
]

_GROWTH = 1.25  # between one size of chunk that is considered and the next
_RESERVE = 0.03  # of the budget, for what a prediction may be off
_NOISE = 0.03  # of a time: schedules nearer to each other than that are taken for equally fast
_AUTO_SHARE = 0.9  # of what is free, where the budget is "auto"


@dataclass(frozen=True, kw_only=True)
class Fixed:
    """What is not the planner's to choose; None: free. `depth`, `chunks` and `frozen` are those of Keep."""

    chunk_size: int | None = None
    segment_length: int | Sequence[int] | None = None
    loss_segment_length: int | None = None
    depth: float | None = None
    chunks: int | None = None
    frozen: bool | None = None

    def __post_init__(self) -> None:
        for name in ("chunk_size", "loss_segment_length", "chunks"):
            if (value := getattr(self, name)) is not None:
                check_length(value, name)
        if self.segment_length is not None:
            check_levels(self.segment_length, "segment_length")


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


def solve(costs: Costs, budget_bytes: int, fixed: Fixed = Fixed()) -> Schedule:
    """Return the schedule that recomputes least, of those that are as fast as any to within 3 %, within the budget.

    Its predicted peak is within 97 % of the budget. Raises BudgetError if there is none.
    """
    limit = budget_bytes * (1 - _RESERVE)
    tails = _tails(costs, fixed)
    found: list[tuple[Prediction, Schedule]] = []
    fastest = float("inf")
    for encoder in _encoders(costs, fixed):
        for cut in _cuts(costs, encoder, fixed):
            for tail in tails:
                if encoder.least_seconds + tail.seconds >= fastest * (1 + _NOISE):
                    break  # nor are the next ones faster: they are smaller and slower
                for prediction, filled in _fill(costs, encoder, tail, cut, limit=limit, fixed=fixed):
                    if prediction.step_seconds <= fastest * (1 + _NOISE):
                        fastest = min(fastest, prediction.step_seconds)
                        found.append((prediction, _schedule(costs, encoder, tail, filled, fixed)))
    if not found:
        raise _infeasible(costs, budget_bytes, fixed)
    fast = [entry for entry in found if entry[0].step_seconds <= fastest * (1 + _NOISE)]
    prediction, schedule = min(fast, key=lambda entry: (entry[0].recompute_seconds, entry[0].step_seconds))
    return _with_predictions(costs, schedule, prediction, budget_bytes)


def _fill(
    costs: Costs, encoder: Encoder, tail: Tail, cut: Cut, *, limit: float, fixed: Fixed
) -> Iterator[tuple[Prediction, Cut]]:
    """The cut, if it fits, and ways to use what is left: one stage more of as many chunks, as many whole chunks."""
    found = combine(costs, encoder, tail, cut)
    if found.peak_bytes > limit:
        return
    yield found, cut

    def keep_chunks(number: int) -> Cut:
        if fixed.depth is None:
            return replace(cut, kept=number)
        return cut_at(costs, encoder.num_chunks, depth=fixed.depth, chunks=number, frozen=cut.stored)

    fillings: list[tuple[int, int, Callable[[int], Cut]]] = []
    if fixed.depth is None and cut.stages > 1:
        fillings.append((0, encoder.num_chunks - cut.kept, lambda number: replace(cut, deeper=number)))
    if fixed.chunks is None:
        fillings.append((1, encoder.num_chunks, keep_chunks))
    for least, most, make in fillings:
        low, high = least, most
        while low < high:
            middle = (low + high + 1) // 2
            fits = combine(costs, encoder, tail, make(middle)).peak_bytes <= limit
            low, high = (middle, high) if fits else (low, middle - 1)
        if low > least:
            yield combine(costs, encoder, tail, make(low)), make(low)


def _encoders(costs: Costs, fixed: Fixed) -> Iterator[Encoder]:
    """Chunks of every size worth looking at: each a quarter larger than the one before."""
    if fixed.chunk_size is not None:
        yield Encoder(costs, count_pieces(costs.num_rows, fixed.chunk_size))
        return
    counts, size = {1, costs.num_rows}, 1.0
    while size < costs.num_rows:
        counts.add(count_pieces(costs.num_rows, round(size)))
        size = max(size + 1, size * _GROWTH)
    for count in sorted(counts):
        yield Encoder(costs, count)


def _cuts(costs: Costs, encoder: Encoder, fixed: Fixed) -> Iterator[Cut]:
    """From all stages forgotten to none, frozen ones in front stored or replayed; what keeps least comes first."""
    first = costs.num_frozen if costs.num_frozen > 1 else 0
    kept = min(fixed.chunks or 1, encoder.num_chunks)
    choices = (True, False) if fixed.frozen is None else (fixed.frozen,)
    for stored in choices if first else choices[:1]:
        if fixed.depth is not None:
            yield cut_at(costs, encoder.num_chunks, depth=fixed.depth, chunks=kept, frozen=stored)
            continue
        # Frozen stages have no graphs that could be kept, and what is replayed of them is not stored as well.
        for stages in range(len(costs.stages), first - 1 if stored and first else first, -1):
            yield Cut(stages, kept=kept, stored=stored)


def _tails(costs: Costs, fixed: Fixed) -> list[Tail]:
    """Choices of segments, from the fastest to the smallest, without those that another one beats in both."""
    steps = costs.num_steps
    lengths = sorted({max(1, round(steps / 2**i)) for i in range(12)}, reverse=True)
    lengths = [length for length in lengths if length >= min(steps, 8)]
    given = fixed.segment_length
    segments: list[tuple[int, ...]]
    if given is not None:
        segments = [(given,) if isinstance(given, int) else tuple(given)]
    elif costs.tail.is_segmented:
        segments = [(length,) for length in lengths]
        if steps >= 1000:
            segments += [(a, b) for a in lengths for b in lengths if 4 * b <= a <= steps // 4]
    else:
        segments = [(steps,)]
    losses = lengths if fixed.loss_segment_length is None else [fixed.loss_segment_length]
    candidates = [Tail(costs, levels, loss) for levels in segments for loss in losses]
    candidates.sort(key=lambda tail: (tail.seconds, -tail.loss_length, -tail.levels[-1]))
    front: list[Tail] = []
    for tail in candidates:
        if not front or tail.peak_bytes < 0.98 * front[-1].peak_bytes:
            front.append(tail)
    return front


def _schedule(costs: Costs, encoder: Encoder, tail: Tail, cut: Cut, fixed: Fixed) -> Schedule:
    """The schedule that makes these choices; what was given stands in it as it was given."""
    depth: float = len(costs.stages) - cut.stages
    if cut.deeper:
        share = round(cut.deeper / (encoder.num_chunks - cut.kept), 4)
        depth += int(share) or share
    return Schedule(
        chunk_size=fixed.chunk_size or count_pieces(costs.num_rows, encoder.num_chunks),
        segment_length=tail.levels,
        loss_segment_length=tail.loss_length,
        keep=Keep(
            depth=depth if fixed.depth is None else fixed.depth, chunks=fixed.chunks or cut.kept, frozen=cut.stored
        ),
    )


def _with_predictions(costs: Costs, schedule: Schedule, prediction: Prediction, budget_bytes: int) -> Schedule:
    plain = predict_plain(costs)
    return replace(
        schedule,
        predicted_peak_bytes=prediction.peak_bytes,
        predicted_step_seconds=prediction.step_seconds,
        predicted_plain_peak_bytes=plain.peak_bytes,
        predicted_plain_step_seconds=plain.step_seconds,
        recompute_fraction=prediction.recompute_fraction,
        ratio_to_limit=prediction.step_seconds / limit_seconds(costs, schedule, budget_bytes),
    )


def predict_plain(costs: Costs) -> Prediction:
    """Predict the plain run: everything at once, everything kept."""
    whole = Tail(costs, (costs.num_steps,), costs.num_steps)
    return combine(costs, Encoder(costs, 1), whole, Cut(len(costs.stages)))


def limit_seconds(costs: Costs, schedule: Schedule, budget_bytes: int) -> float:
    """Seconds of a step that keeps as many whole chunks as the budget holds and replays the others, at plain speed."""
    num_chunks = count_pieces(costs.num_rows, min(schedule.chunk_size, costs.num_rows))
    encoder, plain = Encoder(costs, num_chunks), predict_plain(costs)
    fixed = combine(costs, encoder, Tail(costs, (1,), 1), Cut(len(costs.stages))).peak_bytes
    kept = min(num_chunks, 1 + max(0.0, budget_bytes - fixed) // encoder.whole) if encoder.whole else num_chunks
    return plain.step_seconds + (1 - kept / num_chunks) * plain.forward_seconds


def smallest_budget(costs: Costs, fixed: Fixed = Fixed()) -> int:
    """Return the least budget, in bytes, that `solve` can meet."""
    return round(_smallest(costs, fixed).peak_bytes / (1 - _RESERVE)) + 1


def _smallest(costs: Costs, fixed: Fixed) -> Prediction:
    tail = _tails(costs, fixed)[-1]
    return min(
        (
            combine(costs, encoder, tail, cut)
            for encoder in _encoders(costs, fixed)
            for cut in _cuts(costs, encoder, fixed)
        ),
        key=lambda prediction: prediction.peak_bytes,
    )


_ADVICE = {
    "parameters": "take a smaller encoder",
    "gradients": "freeze a part of the encoder, or take a smaller one",
    "optimiser state": "take an optimiser with less state, or freeze a part of the encoder",
    "frames": "shorten the clip, lower the batch, or read frames when they are asked for",
    "features": "shorten the clip or lower the batch",
    "frozen stages' output": "shorten the clip or lower the batch",
    "kept activations": "take smaller images or a smaller encoder",
    "work": "take smaller images or a smaller encoder",
}


def _infeasible(costs: Costs, budget_bytes: int, fixed: Fixed) -> BudgetError:
    least = _smallest(costs, fixed)
    needed = smallest_budget(costs, fixed)
    parts = sorted(((size, name) for name, size in least.parts.items() if size > 0), reverse=True)
    listed = ", ".join(f"{name} {format_bytes(size)}" for size, name in parts)
    held = [f"{name}={value}" for name, value in vars(fixed).items() if value is not None]
    given = f" with {' and '.join(held)} given" if held else ""
    largest = parts[0][1]
    behind = least.moment == "recurrent part" and largest == "work"
    advice = "take a smaller hidden size, or shorten the clip" if behind else _ADVICE[largest]
    if held:
        advice = (
            f"leave {' and '.join(name for name, value in vars(fixed).items() if value is not None)} open, or {advice}"
        )
    frames = f" of {costs.num_rows} frames" if largest in ("features", "frozen stages' output") else ""
    return BudgetError(
        f"a budget of {format_bytes(budget_bytes)} cannot be met{given}: the smallest feasible is "
        f"{format_bytes(needed)} ({needed} bytes), set by the moment '{least.moment}': {listed}. Most is needed by "
        f"{largest}{frames}: {advice}",
        needed_bytes=needed,
    )

"""The search for the fastest schedule whose predicted peak is within a budget.

Every schedule's peak and time are sums of measured costs (cost_model.py); the best is found by going through them:
sizes of chunks, cuts by depth, frozen stages stored or replayed, segments, and for each of those the most last chunks
that can be kept whole. Late stages of a CNN cost few bytes for the time that they take, so cuts by depth spare more
than whole chunks do; those fill what is left.

The limit that a schedule is held against keeps whole chunks: 1 + (1 - k/N) F / (F + B) of the plain step, where k of N
chunks fit into the budget. Griewank and Walther, Algorithm 799: revolve (2000), for a chain cut in time; Beaumont et
al., Optimal Checkpointing for Heterogeneous Chains (2019), for a chain of stages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from seqckpt.core.cuts import check_length, check_levels
from seqckpt.core.schedule import Keep, Schedule
from seqckpt.errors import BudgetError
from seqckpt.memory.cost_model import Cut, Encoder, Tail, combine, count_pieces, cut_at
from seqckpt.memory.costs import Costs, Prediction
from seqckpt.units import format_bytes

__all__ = ["Fixed", "predict_plain", "smallest_budget", "solve"]

_GROWTH = 1.25  # between one size of chunk that is considered and the next
_RESERVE = 0.03  # of the budget, for what a prediction may be off
_NOISE = 0.03  # of a time: schedules nearer to each other than that are taken for equally fast


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
        ratio_to_limit=prediction.step_seconds / _limit_seconds(costs, schedule, plain, budget_bytes),
    )


def predict_plain(costs: Costs) -> Prediction:
    """Predict the plain run: everything at once, everything kept."""
    whole = Tail(costs, (costs.num_steps,), costs.num_steps)
    return combine(costs, Encoder(costs, 1), whole, Cut(len(costs.stages)))


def _limit_seconds(costs: Costs, schedule: Schedule, plain: Prediction, budget_bytes: int) -> float:
    """Seconds of a step that keeps as many whole chunks as the budget holds and replays the others, at plain speed."""
    num_chunks = count_pieces(costs.num_rows, min(schedule.chunk_size, costs.num_rows))
    encoder = Encoder(costs, num_chunks)
    fixed = combine(costs, encoder, Tail(costs, (1,), 1), Cut(len(costs.stages))).peak_bytes
    kept = min(num_chunks, 1 + max(0.0, budget_bytes - fixed) // encoder.whole) if encoder.whole else num_chunks
    return plain.step_seconds + (1 - kept / num_chunks) * plain.forward_seconds


def smallest_budget(costs: Costs, fixed: Fixed = Fixed()) -> int:
    """Return the least budget, in bytes, that `solve` can meet."""
    return _budget_for(_smallest(costs, fixed))


def _budget_for(least: Prediction) -> int:
    return round(least.peak_bytes / (1 - _RESERVE)) + 1


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
    needed = _budget_for(least)
    parts = sorted(((size, name) for name, size in least.parts.items() if size > 0), reverse=True)
    listed = ", ".join(f"{name} {format_bytes(size)}" for size, name in parts)
    held = {name: value for name, value in vars(fixed).items() if value is not None}
    given = f" with {' and '.join(f'{name}={value}' for name, value in held.items())} given" if held else ""
    largest = parts[0][1]
    behind = least.moment == "recurrent part" and largest == "work"
    advice = "take a smaller hidden size, or shorten the clip" if behind else _ADVICE[largest]
    if held:
        advice = f"leave {' and '.join(held)} open, or {advice}"
    frames = f" of {costs.num_rows} frames" if largest in ("features", "frozen stages' output") else ""
    return BudgetError(
        f"a budget of {format_bytes(budget_bytes)} cannot be met{given}: the smallest feasible is "
        f"{format_bytes(needed)} ({needed} bytes), set by the moment '{least.moment}': {listed}. Most is needed by "
        f"{largest}{frames}: {advice}",
        needed_bytes=needed,
    )

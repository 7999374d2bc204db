"""Where to checkpoint a model: the best places in a row of layers, from a trace, and their application in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import nn

from seqckpt.core.ranges import CheckpointedRanges, checkpoint_ranges
from seqckpt.errors import UsageError
from seqckpt.memory.forecast import Forecast, Range
from seqckpt.memory.layers import find_layers
from seqckpt.memory.trace_records import MemoryTrace
from seqckpt.partition import partition
from seqckpt.units import format_bytes

__all__ = ["SuggestedCheckpoints", "apply_suggestions", "find_best_reset_points", "suggest_checkpoint_location"]


def find_best_reset_points(activation_sizes: Sequence[int], nb_checkpoints: int) -> tuple[int, list[int]]:
    """Cut a list of sizes at `nb_checkpoints` places at most so that the largest part is as small as it can be.

    Returns (size of the largest part, positions at which a new part begins). Exact, in O(n log(sum)) time; sizes are
    whole numbers from 0 up, of any magnitude. Raises ValueError for a negative size or number of checkpoints, TypeError
    for what is no whole number.

    >>> find_best_reset_points([10, 8, 8, 9, 7, 7, 5, 4, 4], 1)
    (35, [4])
    """
    sizes = [_check_whole(size, f"activation_sizes[{i}]") for i, size in enumerate(activation_sizes)]
    return partition(sizes, _check_whole(nb_checkpoints, "nb_checkpoints") + 1)


@dataclass(frozen=True, kw_only=True)
class SuggestedCheckpoints:
    """Which modules to checkpoint, and what comes of it.

    Args:
        max_memory: the peak of the step with them, in bytes above its start, foretold.
        split_modules: names of the modules at which a new part begins, the parts being checkpointed or plain.
        all_modules: the row of layers that was looked at.
        ranges: the parts to be checkpointed, each a list of names.
        shared_arguments: modules that are called with further arguments, the same for the whole row (a mask).
        recompute_seconds: of forward that the replays repeat.
    """

    max_memory: int
    split_modules: list[str]
    all_modules: list[str]
    ranges: list[list[str]] = field(default_factory=list)
    shared_arguments: list[str] = field(default_factory=list)
    recompute_seconds: float = 0.0

    def describe(self) -> str:
        """One line a range."""
        lines = [f"  {names[0]}" + (f" to {names[-1]}" if len(names) > 1 else "") for names in self.ranges]
        checkpoints = f"{len(lines)} checkpoint{'s' if len(lines) != 1 else ''}"
        head = f"peak {format_bytes(self.max_memory)} with {checkpoints}, {self.recompute_seconds:.3f} s"
        return "\n".join([f"{head} of forward repeated", *lines])


def suggest_checkpoint_location(
    trace: MemoryTrace, nb_checkpoints: int, num_skipped_layers: int = 0
) -> SuggestedCheckpoints:
    """Find the at most `nb_checkpoints` ranges of layers whose checkpointing makes the peak of the step least.

    Args:
        trace: of the plain step.
        num_skipped_layers: so many first layers (the stem) are left alone.

    The layers are the modules that the model calls in a row, each with the result of the one before; an nn.Sequential
    counts as its children. What comes after the last range is plain: its activations are needed at once. A peak counts
    everything: inputs of ranges, which stay until their backward, gradients, temporaries, and the rest of the model.
    Among ranges of one peak, layers that it does not pay to forget are left out, so that less is recomputed.

    Time: for n layers O(n^2 nb_checkpoints), a few times. Raises UsageError where the model has no such row.
    """
    num_ranges = _check_whole(nb_checkpoints, "nb_checkpoints")
    first = _check_whole(num_skipped_layers, "num_skipped_layers")
    if any(call.is_replay for call in trace.calls):
        raise UsageError("the trace shows replays: suggestions start from a trace of the plain model")
    layers = find_layers(trace)
    if not layers:
        raise UsageError(
            "the trace shows no modules that run in a row, each one's result being the next one's argument: wrap parts "
            "of the model in Checkpointed by hand"
        )
    names = [layer.forward.module for layer in layers]
    ranges: list[Range] = []
    peak = trace.peak_bytes
    if num_ranges and first < len(layers):
        forecast = Forecast(trace, layers, first)
        ranges = _spare_recompute(forecast, _find_ranges(forecast, num_ranges, peak))
        peak = forecast.peak(ranges)
    bounds = sorted({bound for bounds in ranges for bound in bounds} - {0, len(layers)})
    return SuggestedCheckpoints(
        max_memory=peak,
        split_modules=[names[i] for i in bounds],
        all_modules=names,
        ranges=[names[a:b] for a, b in ranges],
        shared_arguments=[layer.forward.module for layer in layers if layer.forward.shares_arguments],
        recompute_seconds=sum(layer.forward.seconds for a, b in ranges for layer in layers[a:b]),
    )


def apply_suggestions(model: nn.Module, suggestion: SuggestedCheckpoints) -> CheckpointedRanges:
    """Checkpoint the suggested ranges of a model in place; `.undo()` of what is returned takes it back.

    Also a context manager, which undoes at its end. Gradients stay bitwise what they were; modules, their names and
    `state_dict` stay. See `checkpoint_ranges` for the limits, and for what is raised.

    >>> import torch
    >>> from seqckpt.memory import trace_memory
    >>> model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)))
    >>> x = torch.randn(512, 64)
    >>> suggestion = suggest_checkpoint_location(trace_memory(model, x), nb_checkpoints=3)
    >>> with apply_suggestions(model, suggestion):
    ...     model(x).sum().backward()
    """
    return checkpoint_ranges(model, suggestion.ranges, sharing=suggestion.shared_arguments)


def _find_ranges(forecast: Forecast, num_ranges: int, plain_peak: int) -> list[Range]:
    """Ranges without gaps, then a plain rest, of the least peak, found by bisection to 0.1 %."""
    num_layers, first = len(forecast.layers), forecast.first
    costs = {a: forecast.costs_from(a) for a in range(first, num_layers)}
    rests = [forecast.plain_cost(c) for c in range(first, num_layers + 1)]
    held = forecast.saved_before(first)
    inputs = [forecast.size({storage} - held) for storage in forecast.inputs]
    best: list[Range] = []
    low, high = 0, plain_peak
    while high - low > max(high // 1000, 1):
        middle = (low + high) // 2
        found = _ranges_within(middle - forecast.size(held), num_ranges, first, costs, rests, inputs)
        if found is None:
            low = middle
        else:
            best, high = found, middle
    return best


def _ranges_within(
    limit: int, num_ranges: int, first: int, costs: dict[int, list[int]], rests: list[int], inputs: list[int]
) -> list[Range] | None:
    """Ranges that keep within a limit, or None. `kept[b]`: the fewest bytes of inputs with which ranges reach b."""
    num_layers = len(inputs)
    kept: dict[int, tuple[int, list[Range]]] = {first: (0, [])}
    for k in range(min(num_ranges, num_layers - first) + 1):
        for b, (num_bytes, ranges) in kept.items():
            if num_bytes + rests[b - first] <= limit:
                return ranges
        if k == num_ranges:
            return None
        reached: dict[int, tuple[int, list[Range]]] = {}
        for a, (num_bytes, ranges) in kept.items():
            for b in range(a + 1, num_layers + 1):
                if num_bytes + costs[a][b - 1 - a] > limit:
                    break
                total = num_bytes + inputs[a]
                if b not in reached or total < reached[b][0]:
                    reached[b] = total, [*ranges, (a, b)]
        kept = reached
    return None


def _spare_recompute(forecast: Forecast, ranges: list[Range]) -> list[Range]:
    """Take layers out of ranges, from the last range back and from both ends, as long as the peak stays."""
    limit = forecast.peak(ranges)
    for k in reversed(range(len(ranges))):
        for end in (1, 0):
            while ranges[k][0] < ranges[k][1]:
                a, b = ranges[k]
                tried = [*ranges[:k], (a, b - 1) if end else (a + 1, b), *ranges[k + 1 :]]
                if forecast.peak(tried) > limit:
                    break
                ranges = tried
    return [(a, b) for a, b in ranges if a < b]


def _check_whole(value: int, name: str) -> int:
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r} ({type(value).__name__}); expected a whole number from 0 up")
    if (number := value.__index__()) < 0:
        raise ValueError(f"{name} is {number}; expected a whole number from 0 up")
    return number

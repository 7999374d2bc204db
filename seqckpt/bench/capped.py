"""Ways compared by the largest size that they can do within a cap of memory, and by the time of equal work there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from seqckpt.bench.case import Settings
from seqckpt.bench.gradient_errors import Errors, measure_gradient_errors, show_errors
from seqckpt.bench.hardware import default_device, free_memory
from seqckpt.bench.report import Report
from seqckpt.bench.turns import measure_side_by_side
from seqckpt.bench.within_cap import Largest, find_largest
from seqckpt.bench.worker import DoesNotFit, Refused, Worker
from seqckpt.units import format_bytes

__all__ = ["Comparison", "compare_within_cap"]

Ways = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Comparison:
    """What is compared: `build(size=..., dtype=..., **ways[name])` makes a subject; the first way is the plain one.

    `error_size` is the size at which gradients are compared, in float64; `most_ratio` how many times the plain run's
    largest size is looked for.
    """

    title: str
    size_name: str
    build: Callable[..., Any]
    ways: Ways
    first: tuple[int, int]
    error_size: int
    most_ratio: float


def compare_within_cap(
    comparison: Comparison, cap_bytes: int, settings: Settings, report: Report, *, tick: Callable[[str], object]
) -> None:
    """Find each way's largest size, time them all at it in turn, compare gradients, and add a table.

    What is held against the cap is parameters, gradients and all else that the step allocates at its peak; the inputs,
    which are the same for all ways, are not.
    """
    found: dict[str, Largest | str] = {}
    most = 10**9
    for name in comparison.ways:
        tick(f"largest {comparison.size_name}: {name}")
        found[name] = _find(comparison, name, cap_bytes, most)
        if name == next(iter(comparison.ways)) and isinstance(largest := found[name], Largest):
            most = max(comparison.first[1], round(comparison.most_ratio * largest.size))
    sizes = {name: largest.size for name, largest in found.items() if isinstance(largest, Largest)}
    arguments = {name: {**comparison.ways[name], "size": size} for name, size in sizes.items()}
    figures = measure_side_by_side(arguments, comparison.build, num_steps=settings["steps"], peaks=False, tick=tick)
    seconds = {name: f.step_seconds / sizes[name] for name, f in figures.items() if f.step_seconds is not None}
    small = {name: {**arguments, "size": comparison.error_size} for name, arguments in comparison.ways.items()}
    errors = measure_gradient_errors(small, comparison.build, tick=tick)
    _add(comparison, cap_bytes, report, found, seconds, errors)


def _find(comparison: Comparison, name: str, cap_bytes: int, most: int) -> Largest | str:
    def measure(size: int) -> int | None:
        try:
            limit = min(2 * cap_bytes + 2**30, free_memory(default_device()))
            with Worker(comparison.build, limit_bytes=limit, size=size, **comparison.ways[name]) as worker:
                return worker.ask("peak")["with_gradients_bytes"] + worker.ask("parameter_bytes")
        except DoesNotFit:
            return None
        except Refused as error:
            raise Refused(f"fails with {comparison.size_name} {size}: {error}") from None

    try:
        found = find_largest(measure, cap_bytes, first=comparison.first, most=most)
    except Refused as error:  # another fault than want of memory: nothing is known of larger sizes
        return str(error)
    return found or f"does not fit, not even {comparison.first[0]}"


def _add(
    comparison: Comparison,
    cap_bytes: int,
    report: Report,
    found: Mapping[str, Largest | str],
    seconds: Mapping[str, float],
    errors: Mapping[str, Errors],
) -> None:
    plain = next(iter(comparison.ways))
    rows = []
    for name, largest in found.items():
        written = show_errors(errors[name])
        record: dict[str, Any] = {"title": comparison.title, "name": name, "gradient_errors": errors[name]}
        if isinstance(largest, str):
            report.records.append({**record, "problem": largest})
            rows.append([name, largest, "", "", "", "", written])
            continue
        base = found[plain]
        times = f"{largest.size / base.size:.1f}x" if isinstance(base, Largest) else ""
        predicted = largest.predicted_bytes
        ratio = f"{seconds[name] / seconds[plain]:.2f}x" if name in seconds and plain in seconds else ""
        rows.append(
            [
                name,
                f"{largest.size:,}" + (" or more" if largest.is_open else ""),
                times,
                "" if predicted is None else format_bytes(predicted),
                format_bytes(largest.actual_bytes),
                ratio,
                written,
            ]
        )
        trials = [vars(trial) for trial in largest.trials]
        record |= {"size": largest.size, "is_open": largest.is_open, "actual_bytes": largest.actual_bytes}
        report.records.append({**record, "trials": trials, "seconds_of_one": seconds.get(name)})
    heads = ["way", f"largest {comparison.size_name}", "of plain", "peak foretold", "measured"]
    heads += ["time of equal work", "gradient error (float64)"]
    report.add_table(f"{comparison.title}, within {format_bytes(cap_bytes)}", heads, rows)
    report.add_note(
        f"Time of equal work: a step's seconds for each 1 of {comparison.size_name}, over those of the plain run."
    )

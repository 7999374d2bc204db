"""Case suggest: find_best_reset_points against a quadratic dynamic programme over positions and checkpoints."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.report import Report
from seqckpt.memory import find_best_reset_points
from seqckpt.plots import plot_series
from seqckpt.progress import progress_bar

__all__ = ["SUGGEST", "find_by_dynamic_programme"]


def find_by_dynamic_programme(sizes: Sequence[int], num_checkpoints: int) -> int:
    """The least largest part of a list cut at `num_checkpoints` places at most: every position against every other.

    >>> find_by_dynamic_programme([10, 8, 8, 9, 7, 7, 5, 4, 4], 2)
    24
    """
    n = len(sizes)
    best = [0] * (n + 1)  # best[i]: of sizes[i:], with the checkpoints there are so far
    for i in reversed(range(n)):
        best[i] = best[i + 1] + sizes[i]
    for _ in range(num_checkpoints):
        after = best
        best = [0] * (n + 1)
        for i in range(n):
            part, least = 0, after[i]
            for j in range(i, n):
                part += sizes[j]
                worst = max(part, after[j + 1])
                if worst < least:
                    least = worst
            best[i] = least
    return best[0]


def run_suggest(settings: Settings, report: Report) -> None:
    """Same results, and the seconds of both, for random sizes."""
    generator = random.Random(0)
    num_checkpoints = settings["checkpoints"]
    rows = []
    series: dict[str, list[tuple[float, float]]] = {"find_best_reset_points": [], "quadratic": []}
    for n in progress_bar(sorted(settings["sizes"]), desc="suggest", unit="size"):
        sizes = [generator.randrange(1_000_000) for _ in range(n)]
        began = time.perf_counter()
        expected = find_by_dynamic_programme(sizes, num_checkpoints)
        middle = time.perf_counter()
        found, _ = find_best_reset_points(sizes, num_checkpoints)
        ended = time.perf_counter()
        slow, fast = middle - began, ended - middle
        record = {"n": n, "found": found, "expected": expected, "seconds": fast, "quadratic_seconds": slow}
        report.records.append(record)
        series["find_best_reset_points"].append((n, fast))
        series["quadratic"].append((n, slow))
        same = "yes" if found == expected else f"no: {found} and {expected}"
        rows.append([f"{n:,}", same, f"{1000 * fast:.2f} ms", f"{slow:.3g} s", f"{slow / fast:,.0f}x"])
    title = f"{num_checkpoints} checkpoints in a list of n random sizes"
    report.add_table(title, ["n", "same result", "find_best_reset_points", "quadratic", "ratio"], rows)
    path = report.add_picture("time", f"seconds over n, {title}")
    plot_series(series, path, title=title, xlabel="n", ylabel="seconds")


SUGGEST = Case(
    "suggest",
    "find_best_reset_points against a quadratic dynamic programme",
    run_suggest,
    settings={"sizes": (100, 500, 1000, 2000), "checkpoints": 10},
    quick={"sizes": (50, 200), "checkpoints": 10},
    least={"checkpoints": 0},
)

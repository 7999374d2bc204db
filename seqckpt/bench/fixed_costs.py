"""Case fixed-costs: what hooks, bookkeeping and random states cost, seen on a tiny encoder.

The peer is torch.utils.checkpoint by hand, with the same cut (chunks, segments, the last of each not replayed).
"""

from __future__ import annotations

from statistics import median

from seqckpt.bench.case import Case, Settings
from seqckpt.bench.report import Report
from seqckpt.bench.turns import Figures, measure_side_by_side
from seqckpt.bench.video_model import OURS, build_video_subject
from seqckpt.progress import progress_bar

__all__ = ["FIXED_COSTS"]


def run_fixed_costs(settings: Settings, report: Report) -> None:
    """Many short steps of both in turn; the ratio of their medians, and how the ratio of pairs spreads."""
    rows = []
    total = len(settings["chunks"]) * 2 * (settings["steps"] + 2)
    with progress_bar(total=total, desc="fixed-costs", unit="step") as bar:
        for chunk in settings["chunks"]:
            common = {"encoder": "small", "pixels": settings["pixels"], "num_frames": settings["frames"]}
            common |= {"choice": str(chunk), "segment_length": settings["segment"], "gives_back": False}
            ways = {"ours": {"way": OURS, **common}, "by hand": {"way": "checkpoint", **common}}
            figures = measure_side_by_side(
                ways, build_video_subject, num_steps=settings["steps"], num_warm_ups=2, tick=lambda name: bar.update()
            )
            ours, theirs = figures["ours"], figures["by hand"]
            report.records += [figure.to_record(chunk=chunk) for figure in figures.values()]
            cells = [_describe(ours), _describe(theirs)]
            if ours.problem is not None or theirs.problem is not None:
                rows.append([f"{chunk}", *cells, "", ""])
                continue
            pairs = sorted(a / b for a, b in zip(ours.seconds, theirs.seconds, strict=True))
            middle = f"{pairs[len(pairs) // 4]:.2f} to {pairs[-1 - len(pairs) // 4]:.2f}"
            rows.append([f"{chunk}", *cells, f"{median(pairs):.3f}x", middle])
    frames, pixels = settings["frames"], settings["pixels"]
    report.add_table(
        f"small encoder at {pixels} px, LSTM 256, T = {frames}, segments of {settings['segment']}",
        ["chunk", "ours", "torch.utils.checkpoint by hand", "median of pairs", "middle half of pairs"],
        rows,
    )


def _describe(figures: Figures) -> str:
    if figures.problem is not None or figures.step_seconds is None:
        return figures.problem or ""
    return f"{1000 * figures.step_seconds:.1f} ms"


FIXED_COSTS = Case(
    "fixed-costs",
    "hooks, bookkeeping and random states on a tiny encoder, against hand-written checkpoints with the same cut",
    run_fixed_costs,
    settings={"chunks": (5, 25), "frames": 500, "pixels": 16, "segment": 50, "steps": 40},
    quick={"chunks": (5,), "frames": 100, "steps": 5},
)

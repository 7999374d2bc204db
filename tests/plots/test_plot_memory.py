"""Pictures of memory show peaks, parts of a step, and names of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from seqckpt.core import Checkpointed
from seqckpt.errors import UsageError
from seqckpt.memory import MemoryTrace, trace_memory
from seqckpt.plots import MemoryPoint, compare_traces, plot_peak_memory, plot_trace


def test_peak_memory_axes(tmp_path: Path, figures: list[Figure]) -> None:
    points: list[Any] = [MemoryPoint("plain", length, 5e6 * length) for length in (1000, 125, 500)]
    points += [{"label": "chunks", "num_frames": length, "peak_bytes": 1e8} for length in (125, 500, 1000)]
    plot_peak_memory(points, tmp_path / "m.png")
    axes = figures[0].axes[0]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [line.get_label() for line in axes.lines] == ["plain", "chunks"]
    assert list(axes.lines[0].get_xdata()) == [125, 500, 1000]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["125", "500", "1,000"]
    assert "256 MiB" in [label.get_text() for label in axes.get_yticklabels()]
    plot_peak_memory(points[:1], tmp_path / "m.png")
    assert figures[1].axes[0].get_xscale() == "linear"
    with pytest.raises(UsageError, match="peak_bytes above 0"):
        plot_peak_memory([MemoryPoint("plain", 100, 0)], tmp_path / "n.png")


@pytest.fixture(scope="module")
def traces() -> dict[str, MemoryTrace]:
    model = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.Tanh()) for _ in range(3)), nn.Linear(64, 1))
    x = torch.randn(512, 64)
    checkpointed = nn.Sequential(Checkpointed(model[:2]), model[2:])
    return {"plain $x$": trace_memory(model, x), "_checkpointed": trace_memory(checkpointed, x)}


def test_a_trace_shows_its_peak_its_parts_and_its_modules(
    traces: dict[str, MemoryTrace], tmp_path: Path, figures: list[Figure]
) -> None:
    trace = traces["plain $x$"]
    plot_trace(trace, tmp_path / "t.png")
    (axes,) = figures[0].axes
    (peak,) = (line for line in axes.lines if line.get_marker() == "o")
    assert peak.get_ydata()[0] == trace.peak_bytes
    notes = [text.get_text() for text in axes.texts]
    assert any(note.startswith("peak ") and "backward" in note for note in notes)
    assert {" forward", " backward"} <= set(notes)
    names = [label.get_text() for label in axes.get_xticklabels()]
    assert names[:3] == ["0.0", "0.1", "1.0"]
    assert names[-1] == "0.0"  # backward comes back to the first
    assert "(the model)" not in names
    assert "" not in names
    (line,) = [patch for patch in axes.patches if patch.get_edgecolor()[:3] != (1, 1, 1) and not patch.get_fill()]
    assert np.array_equal(line.get_data().values, [moment.peak_bytes for moment in trace.timeline])
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert labels == ["temporaries", "activations", "gradients"]


def test_replays_are_hatched_and_named_in_the_legend(
    traces: dict[str, MemoryTrace], tmp_path: Path, figures: list[Figure]
) -> None:
    plot_trace(traces["_checkpointed"], tmp_path / "t.svg")
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert labels[-1] == "replay"
    assert any(patch.get_hatch() == "////" for patch in figures[0].axes[0].patches)


def test_many_modules_are_named_by_what_they_belong_to(tmp_path: Path, figures: list[Figure]) -> None:
    class Part(nn.Sequential):
        pass

    model = nn.Sequential(*(Part(*(nn.Linear(2, 2) for _ in range(40))) for _ in range(5)))
    plot_trace(trace_memory(model, torch.randn(1, 2)), tmp_path / "t.png")
    names = [label.get_text() for label in figures[0].axes[0].get_xticklabels()]
    assert names == [*"0123443210"]


def test_traces_are_compared_on_one_picture(
    traces: dict[str, MemoryTrace], tmp_path: Path, figures: list[Figure]
) -> None:
    compare_traces(traces, tmp_path / "c.png")
    labels = [text.get_text() for text in figures[0].legends[0].get_texts()]
    assert labels[0].startswith("plain $x$: peak ")
    assert labels[1].startswith("_checkpointed: peak ")
    marked = {line.get_ydata()[0] for line in figures[0].axes[0].lines if len(line.get_xdata()) == 1}
    assert marked == {trace.peak_bytes for trace in traces.values()}


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    class Empty:
        timeline: tuple[Any, ...] = ()

    with pytest.raises(UsageError, match="has no events"):
        plot_trace(Empty(), tmp_path / "t.png")
    with pytest.raises(UsageError, match="no trace to draw"):
        compare_traces({}, tmp_path / "t.png")
    with pytest.raises(UsageError, match="trace 'plain' has no events"):
        compare_traces({"plain": Empty()}, tmp_path / "t.png")

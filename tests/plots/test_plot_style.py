"""Pictures appear whole, leave nothing behind, and can be told apart by everyone."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from seqckpt import plots
from seqckpt.plots import (
    PALETTE,
    MemoryPoint,
    Ribbon,
    compare_traces,
    plot_curves,
    plot_peak_memory,
    plot_ribbons,
    plot_trace,
)

KINDS = ("ribbons", "curves", "peak_memory", "trace", "traces")


def draw(kind: str, path: Path) -> None:
    moment = {"module": "a", "phase": "forward", "is_replay": False, "start_seconds": 0.0, "peak_bytes": 1e6}
    trace = SimpleNamespace(timeline=[SimpleNamespace(**moment, activation_bytes=5e5, gradient_bytes=0)] * 3)
    if kind == "ribbons":
        plot_ribbons([Ribbon("video01", range(4), range(4), range(4))], list("abcd"), path)
    elif kind == "curves":
        plot_curves([{"epoch": epoch, "train_loss": 1 / epoch, "val_accuracy": 0.5} for epoch in (1, 2)], path)
    elif kind == "peak_memory":
        plot_peak_memory([MemoryPoint("plain", length, 2e6 * length) for length in (100, 800)], path)
    elif kind == "trace":
        plot_trace(trace, path)
    else:
        compare_traces({"plain": trace, "checkpointed": trace}, path)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_a_picture_is_written_whole(tmp_path: Path, kind: str, suffix: str) -> None:
    settings = dict(mpl.rcParams)
    path = tmp_path / "new folder été" / f"picture{suffix}"
    draw(kind, path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]
    if suffix == ".png":
        assert imread(path)[..., :3].std() > 0.05
    else:
        assert "</svg>" in path.read_text()
    assert dict(mpl.rcParams) == settings


@pytest.mark.parametrize("kind", KINDS)
def test_a_failure_leaves_the_old_picture(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_half_way(figure: Figure, file: BinaryIO, **options: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    path = tmp_path / "picture.png"
    path.write_bytes(b"old")
    monkeypatch.setattr(Figure, "savefig", fail_half_way)
    with pytest.raises(OSError, match="disk full"):
        draw(kind, path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["picture.png"]


def test_pyplot_is_not_needed() -> None:
    for file in Path(plots.__file__).parent.glob("*.py"):
        assert "pyplot" not in file.read_text().partition("from __future__")[2]


# How people without the red, green or blue receptors see a colour in linear RGB: Machado, Oliveira and Fernandes, "A
# Physiologically-based Model for Simulation of Color Vision Deficiency" (2009), severity 1.
DEFICIENCIES = {
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


@pytest.mark.parametrize("kind", DEFICIENCIES)
def test_the_first_colours_stay_apart_for_the_colour_blind(kind: str) -> None:
    encoded = np.array([to_rgb(color) for color in PALETTE[:8]])
    linear = np.where(encoded <= 0.04045, encoded / 12.92, ((encoded + 0.055) / 1.055) ** 2.4)
    seen = np.clip(linear @ np.array(DEFICIENCIES[kind]).T, 0, 1) ** (1 / 2.2)
    distances = np.linalg.norm(seen[:, None] - seen[None], axis=-1)
    assert distances[~np.eye(8, dtype=bool)].min() > 0.1

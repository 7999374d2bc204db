"""Pictures appear whole, show what they were given, and leave nothing behind."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, BinaryIO

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from seqckpt import plots
from seqckpt.errors import UsageError
from seqckpt.plots import PALETTE, MemoryPoint, Ribbon, phase_style, plot_curves, plot_peak_memory, plot_ribbons

NAMES = ["Preparation", "CalotTriangleDissection", "_hidden", "cost in $ and $"]


def make_ribbon(video_id: str = "video01", num_frames: int = 40) -> Ribbon:
    truth = np.arange(num_frames) * len(NAMES) // num_frames
    prediction = np.roll(truth, 2)
    return Ribbon(video_id, truth, prediction, np.arange(num_frames) * 2.0)


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep the figures that are saved, to look into them."""
    kept: list[Figure] = []
    save = plots._save

    def keep(figure: Figure, path: Path) -> None:
        kept.append(figure)
        save(figure, path)

    monkeypatch.setattr(plots, "_save", keep)
    return kept


def draw(kind: str, path: Path) -> None:
    if kind == "ribbons":
        plot_ribbons([make_ribbon(), make_ribbon("video02", 25)], NAMES, path)
    elif kind == "curves":
        plot_curves([{"epoch": epoch, "train_loss": 1 / epoch, "val_accuracy": 0.5} for epoch in (1, 2)], path)
    else:
        plot_peak_memory([MemoryPoint("plain", length, 2e6 * length) for length in (100, 800)], path)


@pytest.mark.parametrize("kind", ["ribbons", "curves", "peak_memory"])
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


@pytest.mark.parametrize("kind", ["ribbons", "curves", "peak_memory"])
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
    source = Path(plots.__file__).read_text()
    assert "import matplotlib.pyplot" not in source
    assert "from matplotlib import pyplot" not in source
    assert plots.__name__ in sys.modules


def test_ribbons_hold_every_frame(tmp_path: Path, figures: list[Figure]) -> None:
    ribbon = make_ribbon()
    plot_ribbons([ribbon, vars(make_ribbon("video02", 25))], NAMES, tmp_path / "r.png")
    axes = figures[0].axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["video01", "video02"]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()] == NAMES
    assert axes.get_xlim() == (0, 80)
    total = 0.0
    for bars in axes.collections:
        for stretch in bars.get_paths():
            total += stretch.get_extents().width
    assert total == 2 * 80 + 2 * 50  # seconds of truth and prediction of both videos
    labels = [tick.get_text() for tick in axes.get_xticklabels() if 0 <= tick.get_position()[0] <= 80]
    assert labels == [f"{second // 60}:{second % 60:02d}" for second in range(0, 81, 10)]


def test_truth_is_above_the_prediction(tmp_path: Path) -> None:
    plot_ribbons([Ribbon("a", [0] * 10, [1] * 10, range(10))], NAMES, tmp_path / "r.png")
    image = imread(tmp_path / "r.png")
    column = image[:, image.shape[1] // 2, :3]
    rows = [np.flatnonzero(np.abs(column - to_rgb(PALETTE[phase])).max(axis=1) < 0.01) for phase in (0, 1)]
    assert rows[0].max() < rows[1].min()


def test_frames_without_label_are_grey_and_named(tmp_path: Path, figures: list[Figure]) -> None:
    plot_ribbons([Ribbon("a", [-100, 0, 0], [0, 0, 1], [0, 1, 2])], NAMES, tmp_path / "r.png")
    assert figures[0].legends[0].get_texts()[-1].get_text() == "(no label)"
    assert phase_style(-100)["color"] == "#DDDDDD"


def test_any_name_can_be_drawn(tmp_path: Path) -> None:
    plot_ribbons([make_ribbon("胆嚢 $01$ _été_")], NAMES, tmp_path / "r.png")


def test_a_frame_alone_and_many_videos(tmp_path: Path) -> None:
    plot_ribbons([Ribbon("a", [0], [1], [0.0])], NAMES, tmp_path / "one.png")
    plot_ribbons([make_ribbon(f"video{index}") for index in range(40)], NAMES, tmp_path / "many.png")
    height, width, _ = imread(tmp_path / "many.png").shape
    assert height / 40 > 30  # dots for each video: enough to read its name
    assert width == 1650


def test_every_phase_looks_its_own() -> None:
    styles = [tuple(phase_style(phase).items()) for phase in range(50)]
    assert len(set(styles)) == 50
    assert len(set(PALETTE)) == len(PALETTE) >= 12


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


@pytest.mark.parametrize(
    ("ribbons", "message"),
    [
        ([], "at least one video"),
        ([Ribbon("a", [0, 1], [0], [0, 1])], "'a' has 2 true phases, 1 predicted ones and 2 times"),
        ([Ribbon("a", [], [], [])], "at least one"),
        ([Ribbon("a", [0], [9], [0])], "holds phase 9, but only 4 phase names"),
    ],
)
def test_ribbons_that_cannot_be_drawn(tmp_path: Path, ribbons: list[Ribbon], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plot_ribbons(ribbons, NAMES, tmp_path / "r.png")
    assert list(tmp_path.iterdir()) == []


def test_curves_leave_out_what_is_not_there(tmp_path: Path, figures: list[Figure]) -> None:
    records = [
        {"epoch": "1", "train_loss": "2.5", "val_loss": "", "val_accuracy": None, "frames_per_second": "400"},
        {"epoch": "2", "train_loss": "nan", "val_loss": "1.5", "val_accuracy": "0.5", "frames_per_second": "400"},
        {"epoch": "3", "train_loss": "1.0", "val_loss": "1.25", "val_accuracy": "0.75"},
    ]
    plot_curves(records, tmp_path / "c.png")
    loss, accuracy = figures[0].axes
    lines = {line.get_label(): line.get_xydata().tolist() for line in (*loss.lines, *accuracy.lines)}
    assert lines == {
        "train_loss": [[1, 2.5], [3, 1]],
        "val_loss": [[2, 1.5], [3, 1.25]],
        "val_accuracy": [[2, 0.5], [3, 0.75]],
    }


def test_curves_over_steps_without_accuracy(tmp_path: Path, figures: list[Figure]) -> None:
    plot_curves([{"step": step, "loss": 1.0} for step in range(100)], tmp_path / "c.png", x="step")
    assert len(figures[0].axes) == 1
    with pytest.raises(UsageError, match="expected records with 'epoch'"):
        plot_curves([{"step": 1, "loss": 1.0}], tmp_path / "d.png")


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

"""Ribbons and curves show what they were given."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import imread

from seqckpt.errors import UsageError
from seqckpt.plots import PALETTE, Ribbon, phase_style, plot_curves, plot_ribbons

NAMES = ["Preparation", "CalotTriangleDissection", "_hidden", "cost in $ and $"]


def make_ribbon(video_id: str = "video01", num_frames: int = 40) -> Ribbon:
    truth = np.arange(num_frames) * len(NAMES) // num_frames
    prediction = np.roll(truth, 2)
    return Ribbon(video_id, truth, prediction, np.arange(num_frames) * 2.0)


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


def test_a_new_video_has_no_truth(tmp_path: Path, figures: list[Figure]) -> None:
    plot_ribbons([Ribbon("new", None, [0, 1, 1], [0, 1, 2])], NAMES, tmp_path / "r.png")
    axes = figures[0].axes[0]
    assert axes.get_title(loc="left") == "predicted phases"
    assert sum(path.get_extents().width for bars in axes.collections for path in bars.get_paths()) == 3
    plot_ribbons([Ribbon("new", None, [0], [0]), make_ribbon()], NAMES, tmp_path / "both.png")
    assert figures[1].axes[0].get_title(loc="left") == "each row: truth above, prediction below"


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


@pytest.mark.parametrize(
    ("ribbons", "message"),
    [
        ([], "at least one video"),
        ([Ribbon("a", [0, 1], [0], [0, 1])], "'a' has 2 true phases, 1 predicted ones and 2 times"),
        ([Ribbon("a", [], [], [])], "at least one"),
        ([Ribbon("a", None, [0, 1], [0])], "'a' has 2 predicted ones and 1 times"),
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

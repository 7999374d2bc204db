"""The page as text: escaping, what it may load, its size, and what it says where something is missing."""

from __future__ import annotations

import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from made_reports import HOSTILE, NAMES, GreyFrames, make_prediction, make_report

from seqckpt.report import Report, make_page, make_thumbnails
from seqckpt.report.curves import draw_curves
from seqckpt.report.tables import describe_table, write_confusion
from seqckpt.training import VideoPrediction


def read_data(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return dict(json.loads(found[1]))


def long_video(number: int, num_frames: int, num_phases: int = 7) -> VideoPrediction:
    generator = np.random.default_rng(number)
    truth = np.sort(generator.integers(0, num_phases, num_frames))
    wrong = generator.random(num_frames) < 0.1
    prediction = np.where(wrong, generator.integers(0, num_phases, num_frames), truth)
    shares = generator.random((num_frames, num_phases), dtype=np.float32)
    return VideoPrediction(f"video{number}", np.arange(num_frames) * 1.0, truth, prediction, shares)


class Tags(HTMLParser):
    """Collects the tags that have an address."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.scripts = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href", "action", "data")]
        assert not [name for name, _ in attrs if name.startswith("on") or name == "style"]


def test_the_data_is_that_of_the_predictions() -> None:
    first = make_prediction("first", [0, 0, 1, -100], [0, 1, 1, 2], seconds=np.array([0, 0.5, 1.0, 1.5]))
    data = read_data(make_page(make_report([first], thumbnails=None)))
    (video,) = data["videos"]
    assert (video["frames"], video["start"], video["step"]) == (4, 0, 0.5)
    assert video["truth"] == [0, 2, 1, 1, -1, 1]
    assert video["prediction"] == [0, 1, 1, 2, 2, 1]
    assert [phase["name"] for phase in data["phases"]] == NAMES
    assert data["pictures"] is None


def test_no_name_gets_out_of_its_place() -> None:
    prediction = make_prediction(HOSTILE, [0, 0], [1, 1])
    page = make_page(make_report([prediction], [HOSTILE, f"{HOSTILE}2", "c"], title=HOSTILE, notes=[HOSTILE]))
    tags = Tags()
    tags.feed(page)
    assert tags.scripts == 2
    assert read_data(page)["videos"][0]["id"] == HOSTILE
    assert "<script>alert" not in page


def test_nothing_outside_is_named() -> None:
    tags = Tags()
    tags.feed(make_page(make_report([make_prediction("v", [0, 0], [0, 1])])))
    assert all(address.startswith(("#", "data:")) for address in tags.addresses)


def test_twelve_videos_of_500_frames_stay_below_5_mib() -> None:
    """With frames that JPEG can hardly make smaller: noise."""
    predictions = [long_video(number, 500) for number in range(12)]
    noise = np.random.default_rng(0).integers(0, 256, (500, 3, 64, 64), dtype=np.uint8)

    class Noise(GreyFrames):
        def __getitem__(self, index: slice):
            import torch

            return torch.from_numpy(noise[index])

    pictures = make_thumbnails({entry.video_id: Noise(500) for entry in predictions}, budget_bytes=2_300_000)
    names = [f"phase {number}" for number in range(7)]
    page = make_page(make_report(predictions, names, thumbnails=pictures))
    assert len(page.encode()) < 5 * 2**20


def test_many_long_videos_stay_small_too() -> None:
    predictions = [long_video(number, 7200) for number in range(80)]
    names = [f"phase {number}" for number in range(7)]
    page = make_page(make_report(predictions, names, thumbnails=None))
    assert len(page.encode()) < 5 * 2**20
    assert read_data(page)["all_probabilities"] is False
    assert "it holds the probability of the predicted phase only" in page


def test_a_page_without_videos() -> None:
    page = make_page(Report("empty", "", ["a"], notes=["nothing yet"], settings=[("data.fps", "1", False)]))
    assert "nothing yet" in page
    assert 'id="ribbons"' not in page
    assert 'id="curves"' not in page
    assert read_data(page)["videos"] == []


def test_videos_without_labels_have_no_scores() -> None:
    page = make_page(make_report([make_prediction("v", [-100] * 4, [0, 1, 1, 2])]))
    assert "No frame has a label." in page
    assert "no labels · 4 frames · 0:04" in page
    assert "nan" not in page.partition("<main")[2].partition("<script")[0]
    assert 'id="confusion"' not in page


def test_nothing_wrong_is_said() -> None:
    assert "No frame with a label is wrong." in make_page(make_report([make_prediction("v", [0, 1], [0, 1])]))


def test_one_frame_is_enough() -> None:
    page = make_page(make_report([make_prediction("v", [0], [1])], thumbnails=None))
    assert read_data(page)["videos"][0]["truth"] == [0, 1]


def test_tables_show_what_is_undefined_as_a_dash() -> None:
    table = describe_table(
        "t", [{"phase": "20211105", "a": 0.12345, "b": math.nan, "c": 87.654, "d": 12345, "e": 1e-5}]
    )
    cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", table.partition("<tbody>")[2])
    assert cells == ["20211105", "0.123", "\N{EN DASH}", "87.7", "12,345", "1e-05"]
    assert describe_table("t", []) == ""


def test_confusion_is_in_per_cent_of_each_row() -> None:
    table = write_confusion(np.array([[3, 1], [0, 0]]), ["a", "b"])
    cells = re.findall(r"<td[^>]*>(?:<span>)?([^<]*)", table)
    assert cells == ["75", "25", "4", "·", "·", "0"]


def test_a_large_confusion_is_a_list_of_pairs() -> None:
    confusion = np.diag(np.full(40, 10))
    confusion[3, 5] = 7
    table = write_confusion(confusion, [f"p{number}" for number in range(40)])
    assert re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", table.partition("<tbody>")[2]) == ["p3", "p5", "7", "0.412"]


def test_curves_leave_out_what_is_no_number() -> None:
    rows = [
        {"epoch": 1, "train_loss": 3.0, "val_accuracy": None},
        {"epoch": 2, "train_loss": math.inf, "val_accuracy": "0.5"},
        {"epoch": None, "train_loss": 1.0},
    ]
    drawn = draw_curves(rows)
    assert "train_loss from 3 in epoch 1 to 3 in epoch 1" in drawn
    assert "val_accuracy from 0.5 in epoch 2 to 0.5 in epoch 2" in drawn
    assert draw_curves([]) == draw_curves([{"epoch": 1, "lr": 1.0}]) == ""


@pytest.mark.parametrize("losses", [[0.0, 0.0], [1e-9, 2e-9], [-3.0, -1.0], [1e9, 5.0], [2.5]])
def test_curves_stay_in_their_frame(losses: list[float]) -> None:
    drawn = draw_curves([{"epoch": epoch, "train_loss": loss} for epoch, loss in enumerate(losses, start=1)])
    points = re.search(r'<polyline points="([^"]*)"', drawn)
    assert points is not None
    places = [tuple(map(float, place.split(","))) for place in points[1].split()]
    assert len(places) == len(losses)
    assert all(56 <= x <= 446 and 12 <= y <= 208 for x, y in places)


def test_every_protocol_is_in_a_table() -> None:
    page = make_page(make_report([make_prediction("v", [0, 0, 1, 1], [0, 1, 1, 1])]))
    rows = re.findall(r'<tr><th scope="row">([^<]*)</th>((?:<td[^>]*>[^<]*</td>)*)', page)
    cells = {name: re.findall(r">([^<]*)</td>", row) for name, row in reversed(rows)}
    dash = "\N{EN DASH}"
    assert cells["video"] == ["0.750", dash, "0.750", "0.833", "0.750", "0.583", "0.733"]
    assert cells["pooled"] == ["0.750", dash, "0.750", "0.833", "0.750", "0.583", "0.733"]
    assert cells["relaxed"][0] == "1.000"
    assert cells["relaxed-matlab"][2] == dash
    assert cells["segmental"] == ["100.0", dash, "100.0", "100.0", "100.0"]

"""Gathering videos: chunks are the whole, every protocol by name, and the flat rows that tables are made from."""

from __future__ import annotations

import dataclasses
import itertools
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from seqckpt.errors import UsageError
from seqckpt.metrics import (
    PROTOCOLS,
    Accumulator,
    LengthMismatchError,
    pooled_scores,
    relaxed_scores,
    score_rows,
    segmental_scores,
    video_scores,
)

TRUTHS = [[0] * 5 + [1] * 5, [0, 0, 0, 0, -100]]
PREDICTIONS = [[0] * 7 + [1] * 3, [0, 0, 0, 2, 1]]


def gather(**options) -> Accumulator:
    accumulator = Accumulator(3, fps=1, **options)
    for name, truth, prediction in zip("ab", TRUTHS, PREDICTIONS, strict=True):
        accumulator.add(truth, prediction, video=name)
    return accumulator


def test_every_protocol_is_that_of_the_functions() -> None:
    scores = gather(tolerance_seconds=1, background=[2]).scores()
    assert tuple(scores) == PROTOCOLS
    assert all(of_one.protocol == name for name, of_one in scores.items())
    assert scores["video"].as_dict() == video_scores(TRUTHS, PREDICTIONS, 3).as_dict()
    assert scores["pooled"].as_dict() == pooled_scores(TRUTHS, PREDICTIONS, 3).as_dict()
    assert scores["segmental"].as_dict() == segmental_scores(TRUTHS, PREDICTIONS, background=[2]).as_dict()
    for name, as_matlab in (("relaxed", False), ("relaxed-matlab", True)):
        expected = relaxed_scores(TRUTHS, PREDICTIONS, 3, fps=1, tolerance_seconds=1, as_matlab=as_matlab)
        assert scores[name].as_dict() == expected.as_dict()


@hypothesis.given(cuts=st.lists(st.integers(0, 10), max_size=4))
def test_chunks_are_the_whole(cuts: list[int]) -> None:
    """Case 50: the last, shorter chunk counts as well; chunks of videos may alternate, as lanes of a batch do."""
    accumulator = Accumulator(3, fps=1)
    edges = [0, *sorted(cuts), 10]
    accumulator.add([], [], video="a")
    for start, stop in itertools.pairwise(edges):
        accumulator.add(TRUTHS[0][start:stop], PREDICTIONS[0][start:stop], video="a")
        accumulator.add(TRUTHS[1][start:stop], PREDICTIONS[1][start:stop], video="b")
    whole = gather().scores()
    assert {name: entry.as_dict() for name, entry in accumulator.scores().items()} == {
        name: entry.as_dict() for name, entry in whole.items()
    }


def test_the_last_frame_counts() -> None:
    """Case 50: 50 frames in chunks of 7; another label of frame 49 changes the accuracy."""
    for last, expected in ((0, 1.0), (1, 0.98)):
        accumulator = Accumulator(2)
        truth = [0] * 49 + [last]
        for start in range(0, 50, 7):
            accumulator.add(truth[start : start + 7], [0] * len(truth[start : start + 7]), video="v")
        scores = accumulator.scores(["video"])["video"]
        assert scores.num_frames == 50
        assert scores.accuracy_mean == pytest.approx(expected)


def test_videos_without_a_name_are_each_their_own() -> None:
    accumulator = Accumulator(2, fps=1)
    accumulator.add([0, 1], [0, 1])
    accumulator.add([0, 1], [0, 0])
    assert accumulator.videos == ["video 1", "video 2"]
    accumulator.add([0, 1], [0, 0], video="video 4")
    with pytest.raises(UsageError, match="called 'video 4' already"):
        accumulator.add([0, 1], [0, 0])


def test_what_cannot_be_added_or_scored() -> None:
    accumulator = Accumulator(2)
    with pytest.raises(LengthMismatchError, match="truth has 100 frames and prediction 99"):
        accumulator.add([0] * 100, [0] * 99)
    with pytest.raises(UsageError, match="prediction holds phase 2"):
        accumulator.add([0], [2])
    assert accumulator.videos == []
    with pytest.raises(UsageError, match="no video to score"):
        accumulator.scores(["video"])
    accumulator.add([0], [0])
    with pytest.raises(UsageError, match="relaxed is about seconds: give fps="):
        accumulator.scores()
    with pytest.raises(UsageError, match="'strict' is no protocol: expected some of video, pooled"):
        accumulator.scores(["strict"])
    assert list(accumulator.scores(["segmental", "video"])) == ["segmental", "video"]


def test_any_ignore_index() -> None:
    """Case 103, under every protocol: class 5 is predicted only where there is no label."""
    accumulator = Accumulator(6, fps=1, tolerance_seconds=0, ignore_index=-1)
    accumulator.add([0, -1, 1, 1], [0, 5, 1, 0])
    scores = accumulator.scores()
    for name in ("video", "relaxed", "relaxed-matlab"):
        assert scores[name].accuracy_mean == pytest.approx(2 / 3)
        np.testing.assert_allclose(scores[name].jaccard.per_phase[:2], [0.5, 0.5])
        assert np.isnan(scores[name].jaccard.per_phase[2:]).all()
    assert scores["pooled"].jaccard_macro == 0.5
    assert scores["segmental"].edit_mean == pytest.approx(200 / 3)
    assert scores["delay"].delay.per_phase[:2].tolist() == [0, 0]


def test_inference_time() -> None:
    accumulator = Accumulator(2)
    accumulator.add([0] * 30, [0] * 30, video="a", inference_seconds=1)
    assert accumulator.inference_time().mean_seconds == 1
    accumulator.add([0] * 30, [0] * 30, video="a", inference_seconds=2)
    accumulator.add([0] * 40, [0] * 40, video="b", inference_seconds=1)
    accumulator.add([0], [0], video="untimed")
    time = accumulator.inference_time()
    assert time.seconds_per_video[:2].tolist() == [3, 1]
    assert time.mean_seconds == 2
    assert time.frames_per_second == 25
    assert time.as_dict()["seconds_per_video"] == [3, 1, None]
    assert Accumulator(2).inference_time() is None


def test_rows_hold_every_number_with_its_protocol() -> None:
    accumulator = gather()
    scores = accumulator.scores()
    rows = score_rows(scores, video_ids=accumulator.videos, phase_names=["p", "q", "r"])
    found = {(row.protocol, row.measure, row.video, row.phase): row for row in rows}
    assert len(found) == len(rows)
    assert {row.protocol for row in rows} == set(PROTOCOLS)
    video = scores["video"]
    assert found["video", "accuracy", "", ""].value == pytest.approx(77.5)
    assert found["video", "accuracy", "a", ""].value == pytest.approx(80)
    assert found["video", "jaccard", "", ""].std_over_phases == pytest.approx(100 * video.jaccard.std_over_phases)
    assert found["video", "jaccard", "b", "p"].value == pytest.approx(75)
    assert found["pooled", "jaccard", "", "q"].value == pytest.approx(60)
    assert found["relaxed", "jaccard", "", "r"].value == found["video", "jaccard", "", "r"].value
    assert math.isnan(found["relaxed-matlab", "jaccard", "", "r"].value)
    assert found["segmental", "f1@10", "", ""].value == scores["segmental"].f1[10]
    assert found["delay", "delay", "a", "q"].value == 2
    assert found["delay", "delay", "a", "q"].unit == "s"
    assert ("relaxed", "f1", "", "") not in found
    assert dataclasses.asdict(rows[0])["unit"] == "%"


@pytest.mark.parametrize("phase", [-1, 2])
def test_a_background_that_is_no_phase(phase: int) -> None:
    with pytest.raises(UsageError, match=rf"the background {phase} is no phase: expected some of 0 to 1"):
        Accumulator(2, background=[0, phase])

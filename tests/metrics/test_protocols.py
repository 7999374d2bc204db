"""The protocols `video` and `pooled`, on two videos that can be worked out by hand."""

from __future__ import annotations

import json

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import torch

from seqckpt.errors import UsageError
from seqckpt.metrics import frame_accuracy, jaccard_per_phase, pooled_scores, video_scores

NAN = float("nan")

# Video A: 10 frames of phases 0 and 1; two frames of 1 are called 0. Phase 2 is nowhere.
# Video B: 4 labelled frames of phase 0, one of them called 2; one frame without label.
TRUTHS = [[0] * 5 + [1] * 5, [0, 0, 0, 0, -100]]
PREDICTIONS = [[0] * 7 + [1] * 3, [0, 0, 0, 2, 1]]


def test_video_protocol() -> None:
    scores = video_scores(TRUTHS, PREDICTIONS, 3)
    assert (scores.protocol, scores.num_videos, scores.num_frames) == ("video", 2, 14)
    np.testing.assert_allclose(scores.accuracy_per_video, [0.8, 0.75])
    assert scores.accuracy_mean == pytest.approx(0.775)
    assert scores.accuracy_std_over_videos == pytest.approx(0.05 / 2**0.5)  # N - 1
    assert scores.balanced_accuracy_mean == pytest.approx((0.8 + 0.75) / 2)  # A: (1 + 0.6) / 2, B: 3 / 4

    np.testing.assert_allclose(scores.jaccard.per_video_and_phase, [[5 / 7, 3 / 5, NAN], [3 / 4, NAN, 0]])
    per_phase = [(5 / 7 + 3 / 4) / 2, 3 / 5, 0]
    np.testing.assert_allclose(scores.jaccard.per_phase, per_phase)
    assert scores.jaccard.mean == pytest.approx(sum(per_phase) / 3)
    assert scores.jaccard.std_over_phases == pytest.approx(np.std(per_phase, ddof=1))
    per_video = [(5 / 7 + 3 / 5) / 2, (3 / 4 + 0) / 2]
    np.testing.assert_allclose(scores.jaccard.per_video, per_video)
    assert scores.jaccard.std_over_videos == pytest.approx(abs(per_video[0] - per_video[1]) / 2**0.5)

    # Phase 2 in video B: predicted but not there, so its precision is 0 and its recall undefined.
    np.testing.assert_allclose(scores.precision.per_phase, [(5 / 7 + 1) / 2, 1, 0])
    np.testing.assert_allclose(scores.recall.per_phase, [(1 + 3 / 4) / 2, 3 / 5, NAN])
    assert scores.recall.mean == pytest.approx((0.875 + 0.6) / 2)
    np.testing.assert_allclose(scores.f1.per_phase, [(10 / 12 + 6 / 7) / 2, 6 / 8, 0])
    np.testing.assert_array_equal(scores.confusion, [[8, 0, 1], [2, 3, 0], [0, 0, 0]])


def test_pooled_protocol() -> None:
    scores = pooled_scores(TRUTHS, PREDICTIONS, 4)
    assert (scores.protocol, scores.num_videos, scores.num_frames) == ("pooled", 2, 14)
    assert scores.accuracy == pytest.approx(11 / 14)
    np.testing.assert_allclose(scores.jaccard_per_phase, [8 / 11, 3 / 5, 0, NAN])
    assert scores.jaccard_macro == pytest.approx((8 / 11 + 3 / 5 + 0) / 3)
    np.testing.assert_allclose(scores.precision_per_phase, [8 / 10, 1, 0, NAN])
    np.testing.assert_allclose(scores.recall_per_phase, [8 / 9, 3 / 5, NAN, NAN])
    assert scores.balanced_accuracy == scores.recall_macro == pytest.approx((8 / 9 + 3 / 5) / 2)
    np.testing.assert_allclose(scores.f1_per_phase, [16 / 19, 6 / 8, 0, NAN])


def test_one_video_has_no_spread() -> None:
    scores = video_scores(TRUTHS[:1], PREDICTIONS[:1], 3)
    assert scores.accuracy_mean == pytest.approx(0.8)
    assert np.isnan(scores.accuracy_std_over_videos)
    assert np.isnan(scores.jaccard.std_over_videos)


def test_a_video_without_labels_is_left_out_of_the_means() -> None:
    scores = video_scores([*TRUTHS, [-100, -100]], [*PREDICTIONS, [0, 1]], 3)
    assert scores.accuracy_mean == pytest.approx(0.775)
    assert np.isnan(scores.accuracy_per_video[2])


@pytest.mark.parametrize("function", [video_scores, pooled_scores])
def test_outputs_are_json_and_name_their_protocol(function) -> None:
    record = json.loads(json.dumps(function(TRUTHS, PREDICTIONS, 4).as_dict(), allow_nan=False))
    assert record["protocol"] == function.__name__.removesuffix("_scores")
    assert record["confusion"][1] == [2, 3, 0, 0]
    per_phase = record["jaccard"]["per_phase"] if function is video_scores else record["jaccard_per_phase"]
    assert per_phase[3] is None


@pytest.mark.parametrize("function", [video_scores, pooled_scores])
def test_what_cannot_be_scored(function) -> None:
    with pytest.raises(UsageError, match="no video to score"):
        function([], [], 3)
    with pytest.raises(UsageError, match="2 videos have labels and 1 predictions"):
        function(TRUTHS, PREDICTIONS[:1], 3)
    with pytest.raises(UsageError, match="truth has 5 frames and prediction 4"):
        function(TRUTHS[1:], [[0, 0, 0, 2]], 3)


@pytest.mark.parametrize(
    "form", [np.array, torch.tensor, lambda rows: [np.array(row, np.uint8) for row in rows], tuple]
)
@pytest.mark.parametrize("function", [video_scores, pooled_scores])
def test_videos_of_one_length_may_be_one_array(function, form) -> None:
    truths, predictions = [[0, 0, 1, 1], [1, 1, 1, 0]], [[0, 1, 1, 1], [1, 1, 0, 0]]
    assert function(form(truths), form(predictions), 2).as_dict() == function(truths, predictions, 2).as_dict()
    with pytest.raises(UsageError, match="no video to score"):
        function(np.zeros((0, 4), int), np.zeros((0, 4), int), 2)


VIDEO = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12)


@hypothesis.given(videos=st.lists(VIDEO, min_size=1, max_size=4))
def test_against_the_definition(videos: list[list[tuple[int, int]]]) -> None:
    """Means over videos per phase, then over phases, written as loops."""
    truths = [[truth for truth, _ in video] for video in videos]
    predictions = [[guess for _, guess in video] for video in videos]
    scores = video_scores(truths, predictions, 4)
    jaccards = []
    for phase in range(4):
        values = []
        for truth, prediction in zip(truths, predictions, strict=True):
            value = jaccard_per_phase(truth, prediction, 4)[phase]
            if phase in truth or phase in prediction:
                values.append(value)
            else:
                assert np.isnan(value)
        if values:
            jaccards.append(sum(values) / len(values))
    assert scores.jaccard.mean == pytest.approx(sum(jaccards) / len(jaccards))
    accuracies = [frame_accuracy(*pair) for pair in zip(truths, predictions, strict=True)]
    assert scores.accuracy_mean == pytest.approx(sum(accuracies) / len(accuracies))
    whole = pooled_scores([np.concatenate(truths)], [np.concatenate(predictions)], 4)
    assert pooled_scores(truths, predictions, 4).jaccard_macro == pytest.approx(whole.jaccard_macro)

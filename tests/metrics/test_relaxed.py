"""The relaxed protocols: worked by hand, against a frame-by-frame reading of the rule, and what must always hold."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from seqckpt.errors import UsageError
from seqckpt.metrics import (
    CHOLEC80,
    M2CAI16,
    LengthMismatchError,
    Neighbours,
    choose_neighbours,
    relaxed_scores,
    video_scores,
)

NAN = float("nan")


def score(truth: list[int], prediction: list[int], num_phases: int = 7, **options: Any):
    return relaxed_scores([truth], [prediction], num_phases, **{"fps": 1, **options})


def test_a_late_start_is_forgiven_within_the_window() -> None:
    """Phase 1 is seen four frames late; a window of three forgives three of them."""
    truth, prediction = [0] * 10 + [1] * 10, [0] * 14 + [1] * 6
    scores = score(truth, prediction, tolerance_seconds=3)
    assert scores.accuracy_mean == 19 / 20
    # Phase 1: union is frames 10 to 19, right are 10, 11, 12 (forgiven) and 14 to 19.
    # Phase 0: union is frames 0 to 13, right are 0 to 12; precision counts the forgiven, 13 of 14; recall is cut to 1.
    np.testing.assert_allclose(scores.jaccard.per_phase[:2], [13 / 14, 9 / 10])
    np.testing.assert_allclose(scores.precision.per_phase[:2], [13 / 14, 1])
    np.testing.assert_allclose(scores.recall.per_phase[:2], [1, 9 / 10])
    assert np.isnan(scores.jaccard.per_phase[2:]).all()
    # The script forgives late starts as well.
    assert score(truth, prediction, tolerance_seconds=3, as_matlab=True).accuracy_mean == 19 / 20


def test_an_early_end_is_forgiven_only_without_the_scripts_fault() -> None:
    """Phase 1 is seen two frames early; the script forgives the first frames of phase 0 instead of the last."""
    truth, prediction = [0] * 10 + [1] * 10, [0] * 8 + [1] * 12
    assert score(truth, prediction, tolerance_seconds=3).accuracy_mean == 1
    assert score(truth, prediction, tolerance_seconds=3, as_matlab=True).accuracy_mean == 18 / 20
    # The mask (no, yes, yes) of the last three frames of phase 0 falls on its first three: there phase 6 is "right".
    wrong_start = [0, 6, 6, 0, 0, 0, 0, 0, 1, 1] + [1] * 10
    assert score(truth, wrong_start, tolerance_seconds=3).accuracy_mean == 18 / 20
    matlab = score(truth, wrong_start, tolerance_seconds=3, as_matlab=True)
    assert matlab.accuracy_mean == 18 / 20
    np.testing.assert_allclose(matlab.jaccard.per_phase[:2], [8 / 10, 10 / 12])
    # In a segment no longer than the window, the two masks lie on the same frames and the fault does nothing.
    short, guess = [0] * 3 + [1] * 3, [0, 1, 1, 1, 1, 1]
    for as_matlab in (False, True):
        assert score(short, guess, tolerance_seconds=10, as_matlab=as_matlab).accuracy_mean == 1


def test_the_middle_of_a_phase_is_as_strict() -> None:
    """Case 100: an error in the middle, ten frames from either end, is the same error."""
    truth, prediction = [1] * 40, [1] * 15 + [2] * 10 + [1] * 15
    strict = video_scores([truth], [prediction], 7)
    for as_matlab in (False, True):
        scores = score(truth, prediction, as_matlab=as_matlab)
        assert scores.accuracy_mean == strict.accuracy_mean == 0.75
        assert scores.jaccard.per_phase[1] == strict.jaccard.per_phase[1] == 0.75


def test_the_window_counts_sampled_frames() -> None:
    """Case 100: 25 fps said of frames at 1 fps make ten seconds to four minutes."""
    truth, prediction = [0] * 300 + [1] * 300, [0] * 500 + [1] * 100
    right, wrong = score(truth, prediction), score(truth, prediction, fps=25)
    assert (right.window_frames, wrong.window_frames) == (10, 250)
    assert right.accuracy_mean == pytest.approx(410 / 600)
    assert wrong.accuracy_mean == 1
    assert score([0], [0], fps=10, tolerance_seconds=0.3).window_frames == 3  # 0.3 * 10 is 2.9999... in floats
    assert score([0], [0], fps=1, tolerance_seconds=2.9).window_frames == 2


def test_cholec80_forgives_two_phases_at_the_end() -> None:
    def forgiven(true_phase: int, guess: int, *, at_start: bool, num_phases: int = 7) -> bool:
        """Say whether one frame of a segment of four, of which the windows hold one each, is forgiven."""
        truth, prediction = [true_phase] * 4, [true_phase] * 4
        prediction[0 if at_start else -1] = guess
        return score(truth, prediction, num_phases, tolerance_seconds=1).accuracy_mean == 1

    for phase in range(7):
        lags = [guess for guess in range(phase) if forgiven(phase, guess, at_start=True)]
        leads = [guess for guess in range(phase + 1, 7) if forgiven(phase, guess, at_start=False)]
        assert lags == [guess for guess in range(phase - (2 if phase >= 5 else 1), phase) if guess >= 0]
        assert leads == [guess for guess in range(phase + 1, phase + (2 if phase >= 3 else 1) + 1) if guess < 7]
        assert not any(forgiven(phase, guess, at_start=True) for guess in range(phase + 1, 7))
        assert not any(forgiven(phase, guess, at_start=False) for guess in range(phase))
    # Other sets of phases: one neighbour each way; M2CAI16 begins with a phase more than Cholec80.
    assert not forgiven(9, 7, at_start=True, num_phases=10)
    assert forgiven(9, 8, at_start=True, num_phases=10)
    assert forgiven(7, 5, at_start=True, num_phases=8)
    assert choose_neighbours(7) is CHOLEC80
    assert choose_neighbours(8) is M2CAI16
    assert choose_neighbours(3) == Neighbours("one", (1, 1, 1), (1, 1, 1))


def test_a_phase_that_is_only_predicted_counts_as_in_the_strict_metric() -> None:
    """As 0, unless all of it is forgiven; the script leaves it out of that video."""
    truth, prediction = [0] * 10, [0] * 5 + [3] * 5
    for tolerance in (0, 3):
        scores = score(truth, prediction, tolerance_seconds=tolerance)
        np.testing.assert_array_equal(scores.jaccard.per_phase[:4], [0.5, NAN, NAN, 0])
        assert (scores.precision.per_phase[3], np.isnan(scores.recall.per_phase[3])) == (0, True)
    assert video_scores([truth], [prediction], 7).jaccard.per_phase[3] == 0
    script = score(truth, prediction, as_matlab=True)
    np.testing.assert_array_equal(np.isnan(script.jaccard.per_phase), [False] + [True] * 6)
    forgiven = score([0] * 10, [0] * 8 + [1] * 2, tolerance_seconds=3)
    np.testing.assert_array_equal(forgiven.jaccard.per_phase[:2], [1, NAN])


def test_a_phase_forgiven_but_never_predicted_has_precision_one() -> None:
    """As in the script, where it is Inf and cut to 100; recall 1 of 3 by the forgiven frame."""
    scores = score([0] * 5 + [1] * 3, [0] * 8, tolerance_seconds=1)
    np.testing.assert_allclose(scores.precision.per_phase[:2], [6 / 8, 1])
    np.testing.assert_allclose(scores.recall.per_phase[:2], [1, 1 / 3])
    strict = score([0] * 5 + [1] * 3, [0] * 8, tolerance_seconds=0)
    assert np.isnan(strict.precision.per_phase[1])


@pytest.mark.parametrize("ignore_index", [-100, -1])
def test_frames_without_label_count_nowhere(ignore_index: int) -> None:
    """Windows count labelled frames, and a gap inside a segment opens none of its own."""
    gap = [ignore_index] * 4
    truth = [0] * 5 + gap + [0] * 5 + [1] * 6
    prediction = [0] * 4 + [1] + [5] * 4 + [0] * 5 + [0] * 2 + [1] * 4
    scores = score(truth, prediction, tolerance_seconds=2, ignore_index=ignore_index)
    # Frame 4 leads by one at the gap: no end of phase 0, so an error. The two late frames of phase 1 are forgiven.
    assert scores.num_frames == 16
    assert scores.accuracy_mean == 15 / 16
    kept = [(t, p) for t, p in zip(truth, prediction, strict=True) if t != ignore_index]
    without = score(*(list(row) for row in zip(*kept, strict=True)), tolerance_seconds=2)
    assert without.as_dict() == scores.as_dict()
    # A gap between two phases: the windows are at the last labelled frames before it and the first after it.
    between = score([0] * 5 + gap + [1] * 5, [0] * 4 + [1] + [5] * 4 + [0] + [1] * 4, ignore_index=ignore_index)
    assert between.accuracy_mean == 1
    nothing = score(gap, [0] * 4, ignore_index=ignore_index)
    assert math.isnan(nothing.accuracy_mean)
    assert math.isnan(nothing.jaccard.mean)


def test_what_cannot_be_scored() -> None:
    with pytest.raises(LengthMismatchError, match="truth has 100 frames and prediction 99"):
        score([0] * 100, [0] * 99)
    with pytest.raises(UsageError, match="prediction holds phase 7"):
        score([0], [7])
    with pytest.raises(UsageError, match="no video to score"):
        relaxed_scores([], [], 7, fps=1)
    for fps in (0, -1, NAN, float("inf")):
        with pytest.raises(UsageError, match=r"fps=.*: expected the sampled frames per second"):
            score([0], [0], fps=fps)
    with pytest.raises(UsageError, match="a tolerance of -1 seconds"):
        score([0], [0], tolerance_seconds=-1)
    with pytest.raises(UsageError, match="'cholec80' are for 7 phases: expected 3"):
        score([0], [0], 3, neighbours=CHOLEC80)
    with pytest.raises(TypeError, match="fps"):
        relaxed_scores([[0]], [[0]], 7)  # type: ignore[call-arg]


def test_outputs_are_json_and_name_their_protocol() -> None:
    for as_matlab, name in ((False, "relaxed"), (True, "relaxed-matlab")):
        record = json.loads(json.dumps(score([0, 1], [0, 1], as_matlab=as_matlab).as_dict(), allow_nan=False))
        assert record["protocol"] == name
        assert record["jaccard"]["per_phase"] == [1, 1, None, None, None, None, None]
        assert record["neighbours"]["name"] == "cholec80"
        assert (record["tolerance_seconds"], record["fps"]) == (10, 1)


# --- what must always hold -------------------------------------------------------------------------------------------


@st.composite
def videos(draw: st.DrawFn, num_phases: int = 7) -> tuple[list[int], list[int]]:
    """A truth of segments with frames ignored here and there, and a prediction that is often near it."""
    segments = draw(st.lists(st.tuples(st.integers(0, num_phases - 1), st.integers(1, 9)), min_size=1, max_size=6))
    truth = [phase for phase, length in segments for _ in range(length)]
    shifts = draw(st.lists(st.sampled_from([0, 0, 0, -1, 1, -2, 2, 5]), min_size=len(truth), max_size=len(truth)))
    prediction = [(phase + shift) % num_phases for phase, shift in zip(truth, shifts, strict=True)]
    hidden = draw(st.sets(st.integers(0, len(truth) - 1), max_size=3))
    return [-100 if place in hidden else phase for place, phase in enumerate(truth)], prediction


def by_frames(truth: list[int], prediction: list[int], window: int, *, as_matlab: bool) -> dict[str, Any]:
    """The rule of the script read frame by frame, phases and places counted from 1 as there."""
    kept = [(t + 1, p + 1) for t, p in zip(truth, prediction, strict=True) if t != -100]
    ends: list[int] = []  # the place of the last frame of the segment that each frame is in
    for place in range(len(kept), 0, -1):
        goes_on = place < len(kept) and kept[place][0] == kept[place - 1][0]
        ends.insert(0, ends[0] if goes_on else place)
    right = []
    for place, (true, guess) in enumerate(kept, start=1):
        begin = place
        while begin > 1 and ends[begin - 2] == ends[place - 1]:
            begin -= 1
        end = ends[place - 1]
        width = min(window, end - begin + 1)
        from_start, from_end = place - begin, end - place
        lag = 2 if true in (6, 7) else 1
        lead = 2 if true in (4, 5, 6, 7) else 1
        ok = guess == true or (from_start < width and 1 <= true - guess <= lag)
        if as_matlab and from_start < width:  # the frame whose fate is laid on this one
            other_guess = kept[end - width + from_start][1]
            ok = ok or 1 <= other_guess - true <= lead
        if not as_matlab and from_end < width:
            ok = ok or 1 <= guess - true <= lead
        right.append(ok)
    scores: dict[str, Any] = {"accuracy": sum(right) / len(kept) if kept else NAN}
    for phase in range(1, 8):
        true_count = sum(true == phase for true, _ in kept)
        guess_count = sum(guess == phase for _, guess in kept)
        union = [ok for ok, pair in zip(right, kept, strict=True) if phase in pair]
        hits = sum(union)
        if not true_count:
            counts = not as_matlab and any(not ok and pair[1] == phase for ok, pair in zip(right, kept, strict=True))
            scores[phase] = (0, NAN, 0) if counts else (NAN, NAN, NAN)
            continue
        precision = min(100, 100 * hits / guess_count) if guess_count else (100 if hits else NAN)
        scores[phase] = (precision / 100, min(100, 100 * hits / true_count) / 100, hits / len(union))
    return scores


@hypothesis.given(video=videos(), window=st.integers(0, 12), as_matlab=st.booleans())
def test_against_the_rule_read_frame_by_frame(video, window: int, as_matlab: bool) -> None:
    expected = by_frames(*video, window, as_matlab=as_matlab)
    scores = score(*video, tolerance_seconds=window, as_matlab=as_matlab)
    np.testing.assert_allclose(scores.accuracy_mean, expected["accuracy"])
    for phase in range(7):
        found = [getattr(scores, name).per_phase[phase] for name in ("precision", "recall", "jaccard")]
        np.testing.assert_allclose(found, expected[phase + 1])


@hypothesis.given(sets=st.lists(videos(), min_size=1, max_size=4), as_matlab=st.booleans())
def test_no_tolerance_is_the_strict_metric_exactly(sets, as_matlab: bool) -> None:
    """The script leaves out phases that are only predicted; all else is equal, bit for bit."""
    truths, predictions = (list(rows) for rows in zip(*sets, strict=True))
    scores = relaxed_scores(truths, predictions, 7, fps=25, tolerance_seconds=0, as_matlab=as_matlab)
    strict = video_scores(truths, predictions, 7)
    np.testing.assert_array_equal(scores.accuracy_per_video, strict.accuracy_per_video)
    np.testing.assert_equal(scores.accuracy_mean, strict.accuracy_mean)
    in_truth = np.array([np.isin(np.arange(7), truth) for truth in truths])
    for name in ("precision", "recall", "jaccard"):
        found, expected = getattr(scores, name), getattr(strict, name)
        np.testing.assert_array_equal(found.per_video_and_phase[in_truth], expected.per_video_and_phase[in_truth])
        if as_matlab:
            assert np.isnan(found.per_video_and_phase[~in_truth]).all()
        if not as_matlab or all(set(guess) <= set(truth) for truth, guess in sets):
            for field in dataclasses.fields(found):
                np.testing.assert_equal(getattr(found, field.name), getattr(expected, field.name))


@hypothesis.given(video=videos(), window=st.integers(0, 12), as_matlab=st.booleans())
def test_forgiving_only_ever_helps(video, window: int, as_matlab: bool) -> None:
    scores = score(*video, tolerance_seconds=window, as_matlab=as_matlab)
    strict = score(*video, tolerance_seconds=0)
    more = score(*video, tolerance_seconds=window + 1)
    if not np.isnan(scores.accuracy_mean):
        assert 0 <= strict.accuracy_mean <= scores.accuracy_mean <= 1
    for name in ("precision", "recall", "jaccard"):
        values, least, most = (getattr(entry, name).per_phase for entry in (scores, strict, more))
        defined = ~np.isnan(least) & np.isin(np.arange(7), video[0])
        assert (values[defined] >= least[defined]).all()
        assert ((values >= 0) & (values <= 1) | np.isnan(values)).all()
        if not as_matlab:
            assert (most[defined] >= values[defined]).all()


@hypothesis.given(sets=st.lists(videos(), min_size=2, max_size=4), order=st.randoms(use_true_random=False))
def test_the_order_of_videos_does_not_matter(sets, order) -> None:
    shuffled = order.sample(sets, len(sets))
    one, other = (
        relaxed_scores(*(list(rows) for rows in zip(*entries, strict=True)), 7, fps=1, tolerance_seconds=3)
        for entries in (sets, shuffled)
    )
    np.testing.assert_allclose(one.accuracy_mean, other.accuracy_mean)
    np.testing.assert_allclose(one.jaccard.per_phase, other.jaccard.per_phase)
    np.testing.assert_allclose(one.precision.mean, other.precision.mean)

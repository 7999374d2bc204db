"""Segments, edit score, F1 by overlap and delays: the cases, worked examples, and independent implementations."""

from __future__ import annotations

import functools
import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from seqckpt.errors import UsageError
from seqckpt.metrics import (
    LengthMismatchError,
    delay_scores,
    edit_score,
    find_background,
    segment_counts,
    segmental_scores,
    transition_delays,
)

NAN = float("nan")


def test_background_segments_are_left_out() -> None:
    """Case 101."""
    truth = [0, 0, 1, 1, 0, 0]
    scores = segmental_scores([truth], [truth], background=[0])
    assert (scores.protocol, scores.edit_mean) == ("segmental", 100)
    assert scores.f1 == {10: 100, 25: 100, 50: 100}
    assert scores.f1_counts[10] == (1, 0, 0)
    missed = segmental_scores([truth], [[0] * 6], background=[0])
    assert missed.edit_mean == 0
    assert missed.f1 == {10: 0, 25: 0, 50: 0}
    # Without background the three true segments stand against one.
    with_all = segmental_scores([truth], [[0] * 6])
    assert with_all.edit_mean == pytest.approx(100 / 3)
    assert with_all.f1_counts[10] == (1, 0, 2)


def test_nothing_but_background_is_undefined() -> None:
    """Case 101: a defined value, nan, and no crash; it is left out of means and adds nothing to the counts."""
    scores = segmental_scores([[0] * 4], [[0] * 4], background=[0])
    assert math.isnan(scores.edit_mean)
    assert all(math.isnan(value) for value in scores.f1.values())
    both = segmental_scores([[0] * 4, [0, 1]], [[0] * 4, [0, 1]], background=[0])
    assert both.edit_mean == 100
    assert both.f1[50] == 100
    # Only predicted: the script fails here. All that was predicted is surplus.
    surplus = segmental_scores([[0] * 4], [[0, 1, 1, 0]], background=[0])
    assert surplus.edit_mean == 0
    assert surplus.f1_counts[10] == (0, 1, 0)
    assert surplus.f1[10] == 0


def test_background_is_found_by_name() -> None:
    assert find_background(["idle"], ["cut", "idle"]) == (1,)
    with pytest.raises(UsageError, match="'background' is no phase: expected some of cut, idle"):
        find_background(["background"], ["cut", "idle"])


def test_what_background_parts_stays_parted() -> None:
    assert edit_score([1, 0, 1], [1, 1, 1], background=[0]) == 50
    assert segment_counts([1, 0, 1], [1, 1, 1], overlap=10, background=[0]) == (1, 0, 1)


def test_overlaps_worked_by_hand() -> None:
    """Phase 0: 4 of 6 frames; phase 1: 4 of 6; phase 2 begins late: 1 of 4; a stray 3 has no partner."""
    truth = [0] * 6 + [1] * 4 + [2] * 4
    prediction = [0] * 4 + [1] * 6 + [3] * 3 + [2]
    assert segment_counts(truth, prediction, overlap=10) == (3, 1, 0)
    assert segment_counts(truth, prediction, overlap=25) == (3, 1, 0)
    assert segment_counts(truth, prediction, overlap=50) == (2, 2, 1)
    assert segment_counts(truth, prediction, overlap=67) == (0, 4, 3)
    scores = segmental_scores([truth], [prediction])
    assert scores.f1[10] == pytest.approx(600 / 7)
    assert scores.f1[50] == pytest.approx(400 / 7)
    assert scores.edit_mean == 75


def test_a_true_segment_is_hit_once() -> None:
    """The first piece takes it although the second overlaps more: in order, as in the script."""
    truth, prediction = [0] * 10, [0] * 3 + [1] + [0] * 6
    assert segment_counts(truth, prediction, overlap=25) == (1, 2, 0)
    assert segment_counts(truth, prediction, overlap=50) == (1, 2, 0)  # here the first is below 50 %, the second hits


def test_counts_are_pooled_over_videos() -> None:
    scores = segmental_scores([[0] * 4, [0, 1, 2, 3]], [[1] * 4, [0, 1, 2, 3]])
    assert scores.f1_counts[10] == (4, 1, 1)
    assert scores.f1[10] == 80  # the mean of the videos' own would be 50
    np.testing.assert_allclose(scores.f1_per_video[10], [0, 100])
    assert scores.edit_mean == 50
    assert scores.edit_std_over_videos == pytest.approx(100 / 2**0.5)


@pytest.mark.parametrize("ignore_index", [-100, -1])
def test_a_gap_inside_a_segment_does_not_cut_it(ignore_index: int) -> None:
    truth = [0, 0, ignore_index, ignore_index, 0, 1]
    prediction = [0, 0, 5, 6, 0, 1]
    assert edit_score(truth, prediction, ignore_index=ignore_index) == 100
    assert segment_counts(truth, prediction, overlap=100, ignore_index=ignore_index) == (2, 0, 0)
    assert math.isnan(edit_score([ignore_index] * 2, [0, 1], ignore_index=ignore_index))


def test_what_cannot_be_scored() -> None:
    for function in (edit_score, functools.partial(segment_counts, overlap=10), segmental_single):
        with pytest.raises(LengthMismatchError, match="truth has 100 frames and prediction 99"):
            function([0] * 100, [0] * 99)
    with pytest.raises(UsageError, match="an overlap of 0 %"):
        segment_counts([0], [0], overlap=0)
    with pytest.raises(UsageError, match="no video to score"):
        segmental_scores([], [])


def segmental_single(truth, prediction):
    return segmental_scores([truth], [prediction])


def test_outputs_are_json() -> None:
    record = json.loads(json.dumps(segmental_scores([[0, 1]], [[0, 0]], background=[1]).as_dict(), allow_nan=False))
    assert record["f1"] == {"10": 100, "25": 100, "50": 100}
    assert record["background"] == [1]


FRAMES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=14)


def runs(phases: list[int]) -> list[tuple[int, set[int]]]:
    found: list[tuple[int, set[int]]] = []
    for place, phase in enumerate(phases):
        if not found or found[-1][0] != phase:
            found.append((phase, set()))
        found[-1][1].add(place)
    return found


@hypothesis.given(frames=FRAMES, background=st.sets(st.integers(0, 3), max_size=2))
def test_edit_score_against_recursion(frames: list[tuple[int, int]], background: set[int]) -> None:
    truth, prediction = ([pair[side] for pair in frames] for side in (0, 1))
    one, other = ([phase for phase, _ in runs(row) if phase not in background] for row in (truth, prediction))

    @functools.cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        swapped = distance(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, swapped)

    longer = max(len(one), len(other))
    expected = (1 - distance(len(one), len(other)) / longer) * 100 if longer else NAN
    np.testing.assert_allclose(edit_score(truth, prediction, background=background), expected)
    np.testing.assert_allclose(edit_score(prediction, truth, background=background), expected)


@hypothesis.given(frames=FRAMES, overlap=st.sampled_from([10, 25, 50, 75, 100]), background=st.sets(st.integers(0, 3)))
def test_counts_against_sets_of_frames(frames, overlap: int, background: set[int]) -> None:
    truth, prediction = ([pair[side] for pair in frames] for side in (0, 1))
    true, guessed = ([run for run in runs(row) if run[0] not in background] for row in (truth, prediction))
    taken: set[int] = set()
    surplus = 0
    for phase, places in guessed:
        shares = [len(places & others) / len(places | others) if phase == other else 0.0 for other, others in true]
        best = max(range(len(true)), key=lambda k, shares=shares: (shares[k], -k), default=None)
        if best is None or best in taken or shares[best] < overlap / 100:
            surplus += 1
        else:
            taken.add(best)
    counts = segment_counts(truth, prediction, overlap=overlap, background=background)
    assert counts == (len(taken), surplus, len(true) - len(taken))


@hypothesis.given(videos=st.lists(FRAMES, min_size=1, max_size=4), order=st.randoms(use_true_random=False))
def test_ranges_and_order_of_videos(videos, order) -> None:
    def scored(entries):
        return segmental_scores(*([[pair[side] for pair in video] for video in entries] for side in (0, 1)))

    scores, again = scored(videos), scored(order.sample(videos, len(videos)))
    assert scores.f1 == again.f1
    assert scores.edit_mean == pytest.approx(again.edit_mean)
    assert 0 <= scores.edit_mean <= 100
    assert 0 <= scores.f1[50] <= scores.f1[25] <= scores.f1[10] <= 100


# --- delays -----------------------------------------------------------------------------------------------------------


def test_delays_worked_by_hand() -> None:
    """At 2 fps: phase 1 three frames late, phase 2 one early, phase 3 never seen, phase 4 only seen."""
    truth = [0] * 4 + [1] * 6 + [2] * 4 + [3] * 2
    prediction = [0] * 7 + [1] * 2 + [2] * 5 + [4] * 2
    np.testing.assert_allclose(transition_delays(truth, prediction, 5, fps=2), [0, 1.5, -0.5, NAN, NAN])
    scores = delay_scores([truth, [0, 0, 1]], [prediction, [0, 1, 1]], 5, fps=2)
    assert (scores.protocol, scores.fps) == ("delay", 2)
    np.testing.assert_allclose(scores.delay.per_phase, [0, 0.5, -0.5, NAN, NAN])
    np.testing.assert_allclose(scores.absolute_delay.per_phase, [0, 1, 0.5, NAN, NAN])
    assert scores.missed_per_phase.tolist() == [0, 0, 0, 1, 0]
    assert json.loads(json.dumps(scores.as_dict(), allow_nan=False))["delay"]["per_phase"][3] is None


@pytest.mark.parametrize("ignore_index", [-100, -1])
def test_time_goes_on_in_frames_without_label(ignore_index: int) -> None:
    """The prediction of phase 1 inside the gap does not count; its first labelled one is three frames after phase 1."""
    truth = [0, 1, ignore_index, ignore_index, 1]
    delays = transition_delays(truth, [0, 0, 1, 1, 1], 2, fps=1, ignore_index=ignore_index)
    assert delays.tolist() == [0, 3]


def test_delays_that_cannot_be_measured() -> None:
    with pytest.raises(UsageError, match="fps=0: expected the sampled frames per second"):
        transition_delays([0], [0], 1, fps=0)
    with pytest.raises(LengthMismatchError, match="truth has 100 frames and prediction 99"):
        transition_delays([0] * 100, [0] * 99, 1, fps=1)

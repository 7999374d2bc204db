"""Stretches of one value, and the longest of wrong frames."""

from __future__ import annotations

from itertools import groupby

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from made_reports import make_prediction

from seqckpt.report import find_wrong_stretches
from seqckpt.report.stretches import find_stretches


@given(st.lists(st.integers(-1, 3), max_size=40))
def test_stretches_are_those_of_a_plain_loop(values: list[int]) -> None:
    starts, stops = find_stretches(np.array(values, np.int64))
    found = [(values[start], stop - start) for start, stop in zip(starts, stops, strict=True)]
    assert found == [(value, len(list(group))) for value, group in groupby(values)]


def test_the_longest_come_first_with_what_was_confused() -> None:
    first = make_prediction("first", [0, 0, 0, 1, 1, 1, 2, 2], [0, 1, 1, 2, 1, 1, 2, 0])
    second = make_prediction("second", [0] * 5, [2, 2, 0, 0, 2], seconds=np.arange(5) * 10.0)
    found = find_wrong_stretches([first, second], most=3)
    assert [(stretch.video, stretch.start, stretch.stop) for stretch in found] == [(1, 0, 2), (1, 4, 5), (0, 1, 4)]
    longest, _, mixed = found
    assert (longest.start_second, longest.stop_second, longest.seconds) == (0, 20, 20)
    assert (longest.truth, longest.phase, longest.num_pairs) == (0, 2, 1)
    assert (mixed.truth, mixed.phase, mixed.num_pairs) == (0, 1, 2)
    assert mixed.probability == pytest.approx((0.41 + 0.42 + 0.43) / 3)


def test_frames_without_label_are_not_wrong_and_end_a_stretch() -> None:
    prediction = make_prediction("v", [0, 0, -100, 0, 0, 0], [1] * 6)
    found = find_wrong_stretches([prediction], most=9)
    assert [(stretch.start, stretch.stop) for stretch in found] == [(3, 6), (0, 2)]


def test_there_may_be_none() -> None:
    assert find_wrong_stretches([], most=9) == []
    assert find_wrong_stretches([make_prediction("v", [0, -100], [0, 1])], most=9) == []

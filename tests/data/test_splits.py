"""Splits: what a user may write, and every way in which it can be wrong."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from seqckpt.data import SAMPLE_SPLIT, expand_split, parse_split
from seqckpt.errors import DataError

IDS = [f"video{number:02d}" for number in range(1, 13)]


@pytest.mark.parametrize(
    ("entries", "numbers"),
    [
        ([1, "2", "03", "video04"], [1, 2, 3, 4]),
        (["1-3"], [1, 2, 3]),
        (["video09-video11"], [9, 10, 11]),
        (["9 - 11", 2], [9, 10, 11, 2]),
        (["3-3"], [3]),
        (5, [5]),
        ("5-6", [5, 6]),
        ((7, 8), [7, 8]),
    ],
)
def test_what_may_be_written(entries: Any, numbers: list[int]) -> None:
    assert parse_split({"train": entries}, IDS) == {"train": [f"video{number:02d}" for number in numbers]}


def test_the_samples_own_split() -> None:
    split = parse_split(SAMPLE_SPLIT, IDS)
    assert {name: len(ids) for name, ids in split.items()} == {"train": 8, "val": 2, "test": 2}
    assert sorted(chain(*split.values())) == IDS


def test_an_id_that_looks_like_a_range_is_an_id() -> None:
    ids = ["case1-2", "1-2", "case1", "case2"]
    assert parse_split({"train": ["1-2"], "val": ["case1-2"]}, ids) == {"train": ["1-2"], "val": ["case1-2"]}
    assert parse_split({"train": ["case1-case2"]}, ids) == {"train": ["case1", "case2"]}


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ({"train": [1], "val": [], "test": [2]}, "val is empty"),
        ({"train": [1], "val": None}, "val is empty"),
        ({"train": ["1-4"], "test": ["4-6"]}, "video04 is in train and in test"),
        ({"train": [1, "video01"]}, "video01 is twice in train"),
        ({"train": [41]}, "train: video 41 is not there"),
        ({"train": ["video41"]}, "train: there is no video 'video41'"),
        ({"train": ["10-14"]}, "train: videos 13, 14 of the range '10-14' are not there"),
        ({"train": ["case01-case03"]}, "train: videos case1, case2, case3 of the range 'case01-case03' are not there"),
        ({"train": ["6-4"]}, "the range '6-4' runs backwards"),
        ({"train": ["1-999999999"]}, "is for 999999999 videos"),
        ({"train": ["video01-case02"]}, "there is no video 'video01-case02'"),
        ({"train": [True]}, "True is no video"),
        ({"train": [1.5]}, "1.5 is no video"),
        ({"train": [None]}, "None is no video"),
        ({"train": [""]}, "there is no video ''"),
    ],
)
def test_what_is_wrong(split: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_split(split, IDS)
    assert "available are video01, video02" in str(caught.value)


def test_everything_wrong_is_said_at_once() -> None:
    with pytest.raises(DataError) as caught:
        parse_split({"train": ["1-4", 99], "val": [4], "test": []}, IDS)
    for message in ("video 99 is not there", "video04 is in train and in val", "test is empty"):
        assert message in str(caught.value)


def test_a_number_that_fits_several_is_refused() -> None:
    with pytest.raises(DataError, match="video 1 fits several: case1, video01"):
        parse_split({"train": [1]}, ["case1", "video01"])
    assert parse_split({"train": ["case1"]}, ["case1", "video01"]) == {"train": ["case1"]}


def test_a_data_set_without_videos() -> None:
    with pytest.raises(DataError, match="available are none"):
        parse_split({"train": [1]}, [])


@given(st.dictionaries(st.text(max_size=5), st.lists(st.one_of(st.text(max_size=9), st.integers(-5, 20), st.none()))))
def test_nothing_else_is_ever_raised(split: dict[str, Any]) -> None:
    try:
        parts = parse_split(split, IDS)
    except DataError:
        return
    everything = list(chain(*parts.values()))
    assert len(set(everything)) == len(everything)
    assert set(everything) <= set(IDS)
    assert all(parts.values())


LISTS = {"train.split1.bundle": ["video01", "video02", "video03"], "test": ["video04"], "gone": ["video98", "video99"]}


def test_lists_of_the_data_set() -> None:
    split = {"train": ["train.split1.bundle", "not 2"], "val": [2], "test": ["test"]}
    assert parse_split(split, IDS, lists=LISTS) == {
        "train": ["video01", "video03"],
        "val": ["video02"],
        "test": ["video04"],
    }
    assert parse_split({"train": ["1-6", "not train.split1.bundle"]}, IDS, lists=LISTS) == {"train": IDS[3:6]}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["gone"], "the list 'gone' names video98, video99, not there"),
        (["train.split2.bundle"], "there is no video 'train.split2.bundle'"),
        (["1-3", "not 4"], "train: 'not 4' takes out video04, which is not in it"),
        (["1-3", "not 1-3"], "train is empty"),
        (["1-3", "not 99"], "train: video 99 is not there"),
    ],
)
def test_lists_that_are_wrong(entries: list[str], message: str) -> None:
    with pytest.raises(DataError, match=message) as caught:
        parse_split({"train": entries}, IDS, lists=LISTS)
    assert "lists are train.split1.bundle, test, gone" in str(caught.value)


def test_overlaps_stay_to_be_examined() -> None:
    split = {"train": ["1-3"], "val": ["3-4", 77], "test": ["8-99"]}
    parts, problems, broken = expand_split(split, IDS)
    assert parts == {"train": IDS[:3], "val": IDS[2:4], "test": IDS[7:]}
    assert broken == {"val", "test"}
    assert problems == [
        "val: video 77 is not there",
        "test: videos 13, 14, 15, 16, 17, ..., 95, 96, 97, 98, 99 of the range '8-99' are not there",
        "video03 is in train and in val; expected each video in one part, once",
    ]


def test_one_recording_in_two_parts_under_two_ids(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    paths = {"a": tmp_path / "a.mp4", "b": tmp_path / "link" / "a.mp4", "c": tmp_path / "c.mp4"}
    with pytest.raises(DataError, match=r"a in train and b in test are one recording, .*a\.mp4"):
        parse_split({"train": ["a", "c"], "test": ["b"]}, ["a", "b", "c"], paths=paths)
    assert parse_split({"train": ["a", "b"], "test": ["c"]}, ["a", "b", "c"], paths=paths)["train"] == ["a", "b"]

"""A schedule is plain data, checked when it is made, and set on the parts of a model in one call."""

from __future__ import annotations

import json
from typing import Any

import pytest
from torch import nn

from seqckpt import ChunkedEncoder, Schedule, SegmentedLoss, SegmentedRNN
from seqckpt.core import Keep


def model() -> nn.ModuleDict:
    return nn.ModuleDict(
        {
            "encoder": ChunkedEncoder(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), 1),
            "rnn": SegmentedRNN(nn.LSTM(4, 5), 1),
            "head": SegmentedLoss(nn.Linear(5, 2), nn.CrossEntropyLoss(), 1),
        }
    )


@pytest.mark.parametrize("segment_length", [50, (250, 25), [250, 25], [50]])
@pytest.mark.parametrize("loss_segment_length", [None, 40])
def test_goes_through_plain_data_and_back(segment_length: Any, loss_segment_length: int | None) -> None:
    schedule = Schedule(
        chunk_size=25,
        segment_length=segment_length,
        loss_segment_length=loss_segment_length,
        keep=Keep(depth=2, chunks=3, frozen=False),
    )
    data = json.loads(json.dumps(schedule.to_dict()))
    assert Schedule.from_dict(data) == schedule
    assert hash(Schedule.from_dict(data)) == hash(schedule)


def test_predictions_go_along_and_are_written_out() -> None:
    schedule = Schedule(
        chunk_size=25,
        segment_length=(250, 25),
        keep=Keep(depth=2.5, chunks=3, frozen=False),
        predicted_peak_bytes=3 * 2**20,
        predicted_step_seconds=1.25,
        predicted_plain_peak_bytes=30 * 2**20,
        predicted_plain_step_seconds=1.0,
        recompute_fraction=0.75,
        ratio_to_limit=0.9,
    )
    assert Schedule.from_dict(json.loads(json.dumps(schedule.to_dict()))) == schedule
    assert str(schedule) == (
        "chunks of 25, segments of (250, 25), kept: the last 2.5 stages and the last 3 chunks, frozen stages replayed; "
        "peak 3.0 MiB (plain 30.0 MiB); 1.25 s a step (plain 1 s); 75% of a forward recomputed"
    )
    assert str(Schedule(chunk_size=2, segment_length=3)) == "chunks of 2, segments of 3"


def test_applies_to_every_part() -> None:
    parts = model()
    Schedule(chunk_size=25, segment_length=[250, 25], keep=Keep(depth=1)).apply(parts)
    assert (parts["encoder"].chunk_size, parts["encoder"].keep) == (25, Keep(depth=1))
    assert parts["rnn"].segment_length == [250, 25]
    assert parts["head"].segment_length == 25  # the innermost level
    Schedule(chunk_size=8, segment_length=50, loss_segment_length=40).apply(parts)
    assert (parts["rnn"].segment_length, parts["head"].segment_length) == (50, 40)


def test_applies_through_wrappers() -> None:
    parts = nn.Sequential(nn.Sequential(model()["rnn"]))
    assert Schedule(chunk_size=1, segment_length=7).apply(parts) is parts
    assert parts[0][0].segment_length == 7


@pytest.mark.parametrize("wrong", [0, -1, None, 2.5, "7"])
@pytest.mark.parametrize("name", ["chunk_size", "segment_length", "loss_segment_length"])
def test_wrong_lengths_are_refused_when_it_is_made(name: str, wrong: Any) -> None:
    """Case 33."""
    if name == "loss_segment_length" and wrong is None:
        return
    values = {"chunk_size": 1, "segment_length": 1, name: wrong}
    with pytest.raises((TypeError, ValueError), match=f"{name} is"):
        Schedule(**values)


def test_levels_must_become_shorter() -> None:
    with pytest.raises(ValueError, match="each shorter than the one before"):
        Schedule(chunk_size=1, segment_length=(25, 250))


def test_models_without_parts_are_refused() -> None:
    with pytest.raises(ValueError, match="Linear has no ChunkedEncoder, SegmentedRNN or SegmentedLoss"):
        Schedule(chunk_size=1, segment_length=1).apply(nn.Linear(1, 1))

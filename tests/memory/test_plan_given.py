"""What plan_schedule is given: budgets in every spelling, mistakes, and frames that are not to be read twice over."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.errors import UsageError
from seqckpt.memory import plan_schedule
from seqckpt.memory.step_costs import Sample
from seqckpt.units import parse_bytes

FRAMES, TARGETS = torch.rand(1, 12, 3, 8, 8), torch.zeros(1, 12, dtype=torch.long)


def make_parts() -> tuple[nn.Module, ...]:
    cnn = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    rnn, head = (
        SegmentedRNN(nn.LSTM(4, 5, batch_first=True), 6),
        SegmentedLoss(nn.Linear(5, 3), nn.CrossEntropyLoss(), 6),
    )
    return ChunkedEncoder(cnn, 4), rnn, head


@pytest.mark.parametrize("budget", [1e7, "1e7", "10 MB", " AUTO "])
def test_a_budget_may_be_spelt_as_people_do(budget: float | str) -> None:
    with torch.no_grad():  # planning runs steps of its own
        assert plan_schedule(make_parts(), (FRAMES, TARGETS), budget).chunk_size >= 1  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [True, None, b"8GiB", float("nan"), float("inf"), "inf", "1e999", "80%"])
def test_what_is_no_amount_of_memory_is_refused(given: Any) -> None:
    with pytest.raises(ValueError, match="no amount of memory"):
        parse_bytes(given)


@pytest.mark.parametrize(
    "more", [{"chunk_size": 0}, {"segment_length": 0}, {"segment_length": []}, {"segment_length": "5"}]
)
def test_sizes_that_make_no_sense_are_refused(more: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=f"{next(iter(more))} is"):
        plan_schedule(make_parts(), (FRAMES, TARGETS), "10MiB", **more)


@pytest.mark.parametrize("sample", [FRAMES, (FRAMES,), ([FRAMES[0]], [TARGETS[0]])])
def test_another_sample_than_the_parts_take_is_refused(sample: Any) -> None:
    with pytest.raises(UsageError, match="the sample is a"):
        plan_schedule(make_parts(), sample, "10MiB")


def test_a_model_that_nothing_trains_is_refused() -> None:
    parts = make_parts()
    for part in parts:
        part.requires_grad_(False)
    with pytest.raises(UsageError, match="no training step to plan"):
        plan_schedule(parts, (FRAMES, TARGETS), "10MiB")


class Source:
    """Counts the frames that are read from it."""

    num_read = 0

    def __len__(self) -> int:
        return 5000

    def __getitem__(self, index: slice) -> Tensor:
        rows = range(5000)[index]
        self.num_read += len(rows)
        return torch.zeros(len(rows), 3, 8, 8)


def test_frames_that_nobody_looks_at_are_not_read() -> None:
    source = Source()
    sample = Sample([source], [torch.zeros(5000, dtype=torch.long)]).stretched(1000)
    assert (len(sample.frames[0]), len(sample.targets[0]), source.num_read) == (1000, 1000, 1)
    assert sample.frames[0].untyped_storage().nbytes() == 3 * 8 * 8 * 4

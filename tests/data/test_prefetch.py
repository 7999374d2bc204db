"""Reading ahead changes when frames are read, and never which ones come."""

from __future__ import annotations

import gc
import threading
from itertools import chain

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from made_videos import Recorded, make_video

from seqckpt.core.cuts import balanced_spans
from seqckpt.data.prefetch import Prefetched, WaitingTime
from seqckpt.errors import DataError


def frames_of(length: int) -> torch.Tensor:
    frames = make_video("a", length).frames
    assert isinstance(frames, torch.Tensor)
    return frames


def finish(source: Prefetched) -> None:
    """Wait until what is read ahead is there."""
    if source._ahead is not None:
        source._ahead.result()


def there_and_back(length: int, size: int) -> list[tuple[int, int]]:
    """The chunks of a step: all of them forward, and all but the last, whose graph was kept, backward."""
    spans = balanced_spans(length, size)
    return [*spans, *reversed(spans[:-1])]


class Threads(Recorded):
    """Notes which thread reads, too."""

    def __init__(self, frames: torch.Tensor) -> None:
        super().__init__(frames)
        self.threads: list[str] = []

    def __getitem__(self, index: slice) -> torch.Tensor:
        self.threads.append(threading.current_thread().name.partition("_")[0])
        return super().__getitem__(index)


@given(spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=12))
def test_any_reads_give_the_frames_themselves(spans: list[tuple[int, int]]) -> None:
    frames = frames_of(37)
    source = Prefetched(frames)
    for a, b in spans:
        assert torch.equal(source[a:b], frames[a:b])
    assert torch.equal(source[:], frames)
    assert len(source) == 37


@given(length=st.integers(1, 70), size=st.integers(1, 30))
def test_a_step_finds_every_chunk_but_the_first_read_ahead(length: int, size: int) -> None:
    frames = frames_of(length)
    recorded = Threads(frames)
    source = Prefetched(recorded)
    for a, b in there_and_back(length, size):
        assert torch.equal(source[a:b], frames[a:b])
        finish(source)
    assert recorded.threads == ["MainThread", *["prefetch"] * (len(recorded.threads) - 1)]


def test_the_order_of_reads_is_that_of_the_picture_in_the_module() -> None:
    recorded = Recorded(frames_of(100))
    source = Prefetched(recorded)
    for a, b in there_and_back(100, 25):
        source[a:b]
        finish(source)
    assert recorded.reads == [
        *((0, 25), (25, 51), (51, 76), (76, 100)),  # each frame once: a decoder goes on
        *((49, 75), (24, 49), (0, 24)),
    ]


def test_one_pass_reads_nothing_twice() -> None:
    recorded = Recorded(frames_of(60))
    source = Prefetched(recorded, turns_back=False)
    for start in range(0, 60, 20):
        source[start : start + 20]
        finish(source)
    assert recorded.reads == [(0, 20), (20, 41), (41, 60)]


def test_an_error_comes_where_the_frames_are_asked_for() -> None:
    class Damaged(Recorded):
        def __getitem__(self, index: slice) -> torch.Tensor:
            if index.stop > 30:
                raise DataError("damaged at 30")
            return super().__getitem__(index)

    source = Prefetched(Damaged(frames_of(50)))
    source[0:10]
    source[10:20]
    assert len(source[20:28]) == 8
    with pytest.raises(DataError, match="damaged at 30"):
        source[28:36]


def test_waiting_time_adds_up_over_sources_and_loader() -> None:
    waiting = WaitingTime()
    for length in (20, 30):
        Prefetched(frames_of(length), waiting=waiting)[0:10]
    assert waiting.seconds > 0
    taken = waiting.take()
    assert (taken > 0, waiting.seconds) == (True, 0.0)
    assert list(waiting.over(iter([1, 2, 3]))) == [1, 2, 3]
    assert waiting.take() > 0


def test_the_thread_ends_with_the_source() -> None:
    sources = [Prefetched(frames_of(50)) for _ in range(5)]
    for source in sources:
        list(chain(source[0:10], source[10:20]))
        finish(source)
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("prefetch")]
    assert len(threads) >= 5
    del source, sources
    gc.collect()
    for thread in threads:
        thread.join(timeout=10)
    assert not any(thread.is_alive() for thread in threads)

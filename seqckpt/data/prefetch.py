"""Reading frames ahead in the background: the next chunk while forward runs, the previous one while backward does.

A checkpointed step reads a clip's chunks in order in forward, and from last to first in backward. Which way it goes is
seen from the last two reads; at the end of the clip the way back begins:

    forward   [0 25) [25 50) [50 75) [75 100)        backward   [50 75) [25 50) [0 25)
    read ahead    [25    [50     [75     [50             ...        [25     [0

So decoding is hidden behind computing, as far as it takes no longer. `WaitingTime` says how far that is.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from seqckpt.data.frame_source import FrameSource, span_of

__all__ = ["Prefetched", "WaitingTime"]


Item = TypeVar("Item")


class WaitingTime:
    """Adds up the seconds in which frames were asked for and not yet there, over the sources that share it."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def over(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield the items, and count the time that each took to come."""
        iterator = iter(items)
        while True:
            started = time.perf_counter()
            try:
                item = next(iterator)
            except StopIteration:
                return
            self.seconds += time.perf_counter() - started
            yield item

    def take(self) -> float:
        """Return the seconds since the last call."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds


class Prefetched:
    """A FrameSource that has the chunk after (or before) the last read ready, or on its way, when it is asked for.

    The frames are those of `source`, which is read by one thread at a time: it need not be safe in several. An error
    comes where its frames are asked for. `waiting` takes the time spent waiting. Memory: two chunks. Chunks may differ
    in length by a frame, as balanced ones do: one more than the last chunk had is read ahead, and what is left over is
    kept. Where frames are read once, in order, `turns_back` is False: then nothing is read at the end.
    """

    def __init__(self, source: FrameSource, *, waiting: WaitingTime | None = None, turns_back: bool = True) -> None:
        self.source = source
        self.turns_back = turns_back
        self.waiting = waiting or WaitingTime()
        self._pool: ThreadPoolExecutor | None = None  # its thread ends with this source
        self._ahead: Future[_Buffer] | None = None
        self._last = 0, 0
        self._backward = False

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: slice) -> Tensor:
        start, stop = span_of(index, len(self))
        started = time.perf_counter()
        buffer = self._take_ahead()
        if buffer is None or not buffer.holds(start, stop):
            buffer = _Buffer(start, self.source[start:stop])
        self.waiting.seconds += time.perf_counter() - started
        if start < stop:
            self._read_ahead(start, stop, buffer)
        return buffer.frames[start - buffer.start : stop - buffer.start]

    def _take_ahead(self) -> _Buffer | None:
        """Wait for what is being read ahead; None where it failed: it may be a frame that nobody asks for."""
        ahead, self._ahead = self._ahead, None
        return None if ahead is None or ahead.exception() is not None else ahead.result()

    def _read_ahead(self, start: int, stop: int, buffer: _Buffer) -> None:
        if (stop == len(self) and self.turns_back) or stop <= self._last[0]:
            self._backward = True
        elif start >= self._last[1]:
            self._backward = False
        self._last = start, stop
        length = stop - start + 1
        first, end = (max(0, start - length), start) if self._backward else (stop, min(len(self), stop + length))
        if first < end:
            self._pool = self._pool or ThreadPoolExecutor(1, "prefetch")
            self._ahead = self._pool.submit(_extend, self.source, buffer, first, end)


@dataclass(frozen=True)
class _Buffer:
    """Frames in memory, the first of which is frame `start` of its source."""

    start: int
    frames: Tensor

    @property
    def stop(self) -> int:
        return self.start + len(self.frames)

    def holds(self, start: int, stop: int) -> bool:
        return self.start <= start and stop <= self.stop


def _extend(source: FrameSource, buffer: _Buffer, start: int, stop: int) -> _Buffer:
    """Read frames `start` to `stop`, those in the buffer from there: a decoder in front of it then goes on."""
    first, end = max(start, buffer.start), min(stop, buffer.stop)
    if first >= end:
        return _Buffer(start, source[start:stop])
    held = buffer.frames[first - buffer.start : end - buffer.start]
    spans = [(start, first), (end, stop)]
    before, after = (source[a:b] if a < b else held[:0] for a, b in spans)
    return _Buffer(start, torch.cat([before, held, after]))

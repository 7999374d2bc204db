"""Frames that need not be in memory: the one protocol, and a stretch of such frames as frames of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor

__all__ = ["FrameSource", "Stretch", "Window", "span_of"]


@runtime_checkable
class FrameSource(Protocol):
    """Frames that need not be in memory: `len(source)`, and `source[a:b]` as a uint8 tensor (b - a, C, H, W).

    Reading twice gives the same frames. A tensor (T, C, H, W) is a FrameSource.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: slice) -> Tensor: ...


@dataclass(frozen=True)
class Stretch:
    """Frames `start` to `stop` (exclusive) of a FrameSource, as one of its own; nothing is read before it is sliced."""

    source: FrameSource
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, index: slice) -> Tensor:
        start, stop = span_of(index, len(self))
        return self.source[self.start + start : self.start + stop]


@dataclass(frozen=True)
class Window:
    """A FrameSource of `length` frames of which only a window is here: those of `source`, from frame `start` on.

    For a process that shares a clip with others. Reading outside the window is an IndexError: a mistake in sharing.
    """

    source: FrameSource
    start: int
    length: int

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: slice) -> Tensor:
        start, stop = span_of(index, len(self))
        end = self.start + len(self.source)
        if start < self.start or stop > end:
            raise IndexError(f"frames {start} to {stop} are read where only {self.start} to {end} are here")
        return self.source[start - self.start : stop - self.start]


def span_of(index: slice, length: int) -> tuple[int, int]:
    """Return first and last (exclusive) frame of a slice of `length` frames, as a list would take it.

    Raises TypeError for what is no slice, and ValueError for one with a step.

    >>> span_of(slice(-3, None), 10), span_of(slice(5, 2), 10)
    ((7, 10), (5, 5))
    """
    if not isinstance(index, slice):
        raise TypeError(f"frames are read by slice, such as frames[3:4]; got {index!r}")
    start, stop, step = index.indices(length)
    if step != 1:
        raise ValueError(f"frames are read in a row; got a slice with step {step}")
    return start, max(start, stop)

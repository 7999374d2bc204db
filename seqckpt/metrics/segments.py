"""Segments: the stretches of one phase that a sequence of frames consists of. Ends are exclusive."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from seqckpt.errors import UsageError
from seqckpt.metrics.frame import Integers

__all__ = ["Segments", "find_background", "find_segments"]


@dataclass(frozen=True)
class Segments:
    """N segments in their order, int64 (N,) each: segment n holds the frames starts[n] to stops[n] - 1."""

    phases: Integers
    starts: Integers
    stops: Integers

    def __len__(self) -> int:
        return len(self.phases)


def find_segments(phases: Integers, background: Collection[int] = ()) -> Segments:
    """Cut frames into segments; those of background phases are left out, what they part stays parted.

    >>> found = find_segments(np.array([1, 1, 0, 1, 2]), background=[0])
    >>> found.phases.tolist(), found.starts.tolist(), found.stops.tolist()
    ([1, 1, 2], [0, 3, 4], [2, 4, 5])
    """
    starts = np.flatnonzero(np.diff(phases, prepend=phases[:1] - 1))
    stops = np.append(starts[1:], len(phases))[: len(starts)]
    kept = ~np.isin(phases[starts], list(background))
    return Segments(phases[starts][kept], starts[kept], stops[kept])


def find_background(names: Sequence[str], phase_names: Sequence[str]) -> tuple[int, ...]:
    """Return the ids of background phases by their names. Raises UsageError for a name that no phase has.

    >>> find_background(["idle"], ["idle", "cut"])
    (0,)
    """
    unknown = [name for name in names if name not in phase_names]
    if unknown:
        raise UsageError(f"the background {unknown[0]!r} is no phase: expected some of {', '.join(phase_names)}")
    return tuple(phase_names.index(name) for name in names)

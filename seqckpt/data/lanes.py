"""The order in which an epoch reads clips: shuffled, or in lanes that read videos from start to end.

    lane 0   video3 [0, 500)   video3 [500, 812)   video1 [0, 500)    video1 [500, 640)
    lane 1   video2 [0, 500)   video2 [500, 1000)  video2 [1000, 1300)
             step 1            step 2              step 3             step 4

A lane is one row of the batch. State may be carried along it from step to step, and is reset where a clip says so
(`Clip.resets`): where a video begins. The order is a function of seed and epoch alone.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from itertools import chain

import numpy as np

from seqckpt.data.clips import Clip
from seqckpt.errors import DataError

__all__ = ["fill_lanes", "order_clips", "shuffle_clips"]


def order_clips(clips: Sequence[Clip], *, order: str, batch_size: int, seed: int, epoch: int) -> list[list[Clip]]:
    """Return an epoch's batches in the order "shuffled" or "sequential"; as many in every epoch."""
    if order not in ("shuffled", "sequential"):
        raise DataError(f"order is {order!r}; expected shuffled or sequential")
    arrange = shuffle_clips if order == "shuffled" else fill_lanes
    return arrange(clips, batch_size, seed=seed, epoch=epoch)


def shuffle_clips(clips: Sequence[Clip], batch_size: int, *, seed: int, epoch: int) -> list[list[Clip]]:
    """Return batches of `batch_size` clips in random order, the last one shorter where they do not divide."""
    _check(batch_size)
    order = np.random.default_rng([seed, epoch]).permutation(len(clips)).tolist()
    return [[clips[k] for k in order[start : start + batch_size]] for start in range(0, len(order), batch_size)]


def fill_lanes(clips: Sequence[Clip], num_lanes: int, *, seed: int, epoch: int) -> list[list[Clip]]:
    """Return batches of one clip per lane, in the order of lanes; a lane that is done is missing from later ones.

    Videos are given to lanes whole, the longest first, each to the lane with the fewest clips, so that the lanes last
    about equally long; within a lane the videos come in random order, and the clips of each in theirs. Every clip is
    read once. Which videos share a lane is the same in every epoch, and so is the number of batches.
    """
    _check(num_lanes)
    by_video: dict[int, list[Clip]] = {}
    for clip in sorted(clips, key=lambda clip: clip.start):
        by_video.setdefault(id(clip.video), []).append(clip)
    in_order = [by_video[key] for key in dict.fromkeys(id(clip.video) for clip in clips)]
    lanes: list[list[list[Clip]]] = [[] for _ in range(num_lanes)]
    for video in sorted(in_order, key=len, reverse=True):
        min(lanes, key=lambda lane: sum(map(len, lane))).append(video)
    rng = np.random.default_rng([seed, epoch])
    rows = [list(chain.from_iterable(lane[k] for k in rng.permutation(len(lane)))) for lane in lanes]
    return [
        [dataclasses.replace(row[step], lane=lane) for lane, row in enumerate(rows) if step < len(row)]
        for step in range(max(map(len, rows)))
    ]


def _check(batch_size: int) -> None:
    if batch_size < 1:
        raise DataError(f"batch_size={batch_size}; expected at least 1")

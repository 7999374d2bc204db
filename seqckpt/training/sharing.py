"""Who does what: the clips of a step shared out over replicas, their frames over the ranks of each, videos over all.

Everything here follows from the epoch's order of clips, which every rank knows: nothing is communicated, and which
rank does what depends on nothing that a snapshot would have to hold.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from seqckpt.core import frame_spans
from seqckpt.data import Clip
from seqckpt.training.ranks import Ranks

__all__ = ["Share", "deal", "deal_evenly", "take_share"]


@dataclass(frozen=True)
class Share:
    """What one rank does of a batch: its replica's clips, and the frames (start, stop) of each that it encodes.

    Where `counts` is False the replica had nothing left to do, and takes part for the others' sake: in the sum of
    gradients, as zero.
    """

    batch: Sequence[Clip]
    clips: list[Clip]
    spans: list[tuple[int, int]]
    counts: bool = True


def take_share(batch: Sequence[Clip], ranks: Ranks) -> Share:
    """Return a rank's share of a batch of clips.

    A clip in a lane belongs to the replica of that lane, `lane % num_replicas`, where its state is; others are dealt
    out so that replicas have about equally many frames, and none has more clips than it must.
    """
    if batch[0].lane is not None:
        own = [clip for clip in batch if clip.lane is not None and clip.lane % ranks.num_replicas == ranks.replica]
    else:
        own = [batch[place] for place in deal_evenly([len(clip) for clip in batch], ranks.num_replicas)[ranks.replica]]
    counts = bool(own)
    if not own:
        own = [dataclasses.replace(batch[0], stop=batch[0].start + 1, lane=None)]
    spans = frame_spans([len(clip) for clip in own], ranks.num_frame_ranks, ranks.frame_rank)
    return Share(batch, own, spans, counts)


def deal(sizes: Sequence[int], num_hands: int, *, most: int | None = None) -> list[list[int]]:
    """Deal things of these sizes out, the largest first, each to who has least; return the places that each gets.

    Nobody gets more than `most` things, where given. Places are in order.

    >>> deal([500, 500, 120, 500, 80], 2)
    [[0, 3], [1, 2, 4]]
    """
    hands: list[list[int]] = [[] for _ in range(num_hands)]
    totals = [0] * num_hands
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        open_hands = [hand for hand in range(num_hands) if most is None or len(hands[hand]) < most]
        hand = min(open_hands, key=totals.__getitem__)
        hands[hand].append(place)
        totals[hand] += sizes[place]
    return [sorted(hand) for hand in hands]


def deal_evenly(sizes: Sequence[int], num_hands: int) -> list[list[int]]:
    """Deal out as `deal` does, with as few things for who has most as there can be: a step takes memory for that many.

    >>> deal_evenly([500, 120, 80, 60], 2)
    [[0, 3], [1, 2]]
    """
    return deal(sizes, num_hands, most=-(-len(sizes) // num_hands))

"""The recurrent state that is handed on, detached, from one clip of a video to the next.

    lane 0   video3 [0, 500) --h,c--> video3 [500, 812) --x   video1 [0, 500) --h,c--> video1 [500, 640)
    lane 1   video2 [0, 500) --h,c--> video2 [500, 1000) --h,c--> ...

Forward sees the whole video up to now; gradients end where the clip begins. A video starts with no state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from seqckpt.data import Clip
from seqckpt.errors import UsageError
from seqckpt.models import VideoModel
from seqckpt.training.ranks import Ranks

__all__ = ["CarriedState", "batch_dim_of", "gather_lanes"]


class CarriedState:
    """The state at the end of each lane's last clip: tensors, or tuples, lists and dicts of them, `batch_dim` 1 wide.

    A batch holds one clip of each of its lanes. Memory: one state per lane.
    """

    def __init__(self, *, batch_dim: int) -> None:
        self.batch_dim = batch_dim
        self.lanes: dict[int, Any] = {}

    def gather(self, clips: Sequence[Clip]) -> Any:
        """Return the state that a batch begins with, zero for clips that begin a video; None where all do."""
        states = [None if clip.resets else self.lanes.get(_lane(clip)) for clip in clips]
        known = next((state for state in states if state is not None), None)
        if known is None:
            return None
        filled = [_map(torch.zeros_like, known) if state is None else state for state in states]
        return _map(lambda *rows: torch.cat(rows, dim=self.batch_dim), *filled)

    def keep(self, clips: Sequence[Clip], state: Any) -> None:
        """Keep each clip's part of the state that a batch ended with."""
        if state is None:
            return
        for row, clip in enumerate(clips):
            own = _map(lambda part, row=row: part.detach().narrow(self.batch_dim, row, 1).clone(), state)
            self.lanes[_lane(clip)] = own

    def forget(self, clips: Sequence[Clip]) -> None:
        """Let the lanes of these clips go on without a state."""
        for clip in clips:
            self.lanes.pop(_lane(clip), None)

    def state_dict(self) -> dict[int, Any]:
        return dict(self.lanes)

    def load_state_dict(self, state: Mapping[int, Any], *, device: torch.device) -> None:
        self.lanes = {lane: _map(lambda part: part.to(device), own) for lane, own in state.items()}


def gather_lanes(lanes: Mapping[int, Any], ranks: Ranks) -> dict[int, Any]:
    """Collect the states of all lanes from the replicas that read them, lane `l` from `l % num_replicas`."""
    own = {lane: state for lane, state in lanes.items() if lane % ranks.num_replicas == ranks.replica}
    if ranks.world_size == 1:
        return own
    parts = ranks.gather({lane: _map(Tensor.cpu, state) for lane, state in own.items()})
    merged = {lane: state for part in parts for lane, state in part.items()}
    return {lane: merged[lane] for lane in sorted(merged)}


def _lane(clip: Clip) -> int:
    if clip.lane is None:
        raise ValueError(f"the clip of {clip.video.video_id} has no lane: state is carried in sequential order only")
    return clip.lane


def _map(function: Callable[..., Tensor], *states: Any) -> Any:
    """Apply a function to the tensors of equally built states."""
    first = states[0]
    if isinstance(first, Tensor):
        return function(*states)
    if isinstance(first, Mapping):
        return {key: _map(function, *(state[key] for state in states)) for key in first}
    return type(first)(_map(function, *parts) for parts in zip(*cast(Sequence[Sequence[Any]], states), strict=True))


def batch_dim_of(model: VideoModel) -> int:
    """Return the dimension of clips in the states of a model's recurrent network: 1 in torch's own, 0 in others.

    Raises UsageError for a network in both directions, whose state cannot be handed on in time.
    """
    core = getattr(model.rnn, "core", model.rnn)
    if getattr(core, "bidirectional", False):
        raise UsageError("a bidirectional network cannot carry its state: it begins at the end of a video, too")
    return 1 if isinstance(core, nn.RNNBase) else 0

"""State handed on along lanes: what forward sees is the whole video, and gradients end where a clip begins."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_trainer import VALIDATION, VIDEOS, make_model, make_trainer
from torch import nn

from seqckpt.core import SegmentedRNN
from seqckpt.data import Clip, cut_clips, order_clips
from seqckpt.errors import UsageError
from seqckpt.training.carried_state import CarriedState, batch_dim_of

STATES = {
    "h": lambda row: torch.full((2, 1, 3), float(row)),
    "h and c": lambda row: (torch.full((2, 1, 3), float(row)), torch.full((2, 1, 4), -float(row))),
    "a dict": lambda row: {"a": [torch.full((1, 1), float(row))], "b": torch.full((2, 1, 5), 2.0 * row)},
}


def clips_in_lanes() -> list[list[Clip]]:
    return order_clips(cut_clips(VIDEOS, 10), order="sequential", batch_size=2, seed=0, epoch=0)


def flat(state: object) -> list[torch.Tensor]:
    return torch.utils._pytree.tree_leaves(state)


@pytest.mark.parametrize("kind", STATES)
def test_each_lane_gets_back_what_it_left(kind: str) -> None:
    make, carried = STATES[kind], CarriedState(batch_dim=1)
    first, second, third = clips_in_lanes()
    assert carried.gather(first) is None  # two videos begin
    both = torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts, dim=1), make(1), make(2))
    carried.keep(first, both)
    assert all(torch.equal(a, b) for a, b in zip(flat(carried.gather(second)), flat(both), strict=True))
    carried.keep(second, both)
    (last,) = third  # the other lane is at its end
    assert all(
        torch.equal(a, b) for a, b in zip(flat(carried.gather(third)), flat(make(1 + (last.lane or 0))), strict=True)
    )


def test_a_lane_that_begins_a_video_beside_one_that_goes_on_has_zeros() -> None:
    carried = CarriedState(batch_dim=1)
    carried.keep([Clip(VIDEOS[0], 0, 10, lane=0), Clip(VIDEOS[1], 0, 10, lane=1)], torch.ones(1, 2, 3))
    state = carried.gather([Clip(VIDEOS[0], 10, 20, lane=0), Clip(VIDEOS[1], 0, 10, lane=1)])
    assert state.tolist() == [[[1, 1, 1], [0, 0, 0]]]


def test_what_is_kept_holds_no_graph_and_no_more_than_its_own_part() -> None:
    carried = CarriedState(batch_dim=1)
    state = torch.ones(1, 2, 3, requires_grad=True) * 2
    carried.keep([Clip(VIDEOS[0], 0, 10, lane=0), Clip(VIDEOS[1], 0, 10, lane=1)], state)
    for kept in carried.lanes.values():
        assert not kept.requires_grad
        assert kept.untyped_storage().nbytes() == 3 * 4


def test_steps_along_a_video_are_the_whole_video_with_gradients_cut(tmp_path: Path) -> None:
    """Cases 4, 18: the same losses as a whole video whose state is detached by hand, without retain_graph."""
    trainer = make_trainer(tmp_path, order="sequential", carry=True, batch_size=1, lr=1e-30, num_epochs=1)
    twin = make_model(checkpointed=False).train()
    got, expected = [], []
    forward = trainer.stepper._forward
    trainer.stepper._forward = lambda clips: (got.append(forward(clips)), got[-1])[1]  # type: ignore[method-assign]
    trainer.fit(cut_clips(VIDEOS, 10), VALIDATION)
    state: tuple[torch.Tensor, ...] = ()
    for (clip,) in order_clips(cut_clips(VIDEOS, 10), order="sequential", batch_size=1, seed=0, epoch=0):
        before = None if clip.resets else tuple(part.detach() for part in state)
        loss, state = twin([clip.frames], [clip.targets], before)
        expected.append(loss.item())
    assert [loss.item() for loss in got] == pytest.approx(expected, rel=1e-5)  # float32
    fresh = [twin([clip.frames], [clip.targets])[0].item() for clip in cut_clips(VIDEOS, 10) if not clip.resets]
    assert not set(fresh) & set(expected)


def test_two_lanes_carry_what_each_video_alone_would(tmp_path: Path) -> None:
    """Videos side by side, of 20 and 27 frames, do not see each other's state, nor the padding."""
    ends: list[dict[str, torch.Tensor]] = []
    for name, videos, size in (("both", VIDEOS, 2), ("first", VIDEOS[:1], 1), ("second", VIDEOS[1:], 1)):
        (tmp_path / name).mkdir()
        trainer = make_trainer(tmp_path / name, order="sequential", carry=True, batch_size=size, lr=1e-30, num_epochs=1)
        trainer.fit(cut_clips(videos, 10), VALIDATION)
        assert trainer.carried is not None
        batches = order_clips(cut_clips(videos, 10), order="sequential", batch_size=size, seed=0, epoch=0)
        lanes = {clip.lane: clip.video.video_id for batch in batches for clip in batch}
        ends.append({lanes[lane]: torch.cat(flat(state)) for lane, state in trainer.carried.lanes.items()})
    both, *alone = ends
    assert len(both) == 2
    for end in alone:
        for video_id, state in end.items():
            assert torch.allclose(both[video_id], state, rtol=1e-5, atol=1e-6), video_id  # float32
    assert not torch.allclose(*both.values())


def test_networks_whose_state_cannot_be_handed_on_are_refused_by_name() -> None:
    model = make_model()
    assert batch_dim_of(model) == 1
    model.rnn = SegmentedRNN(nn.GRU(8, 4, batch_first=True, bidirectional=True), 5)
    with pytest.raises(UsageError, match="bidirectional network cannot carry"):
        batch_dim_of(model)

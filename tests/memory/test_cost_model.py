"""The cost model is arithmetic: its sums, worked out by hand, and its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from seqckpt.core import Keep, Schedule
from seqckpt.memory import Costs, Prediction, predict
from seqckpt.memory.cost_model import count_pieces
from seqckpt.memory.costs import Curve, StageCosts, TailCosts


def per_row(value: float) -> Curve:
    return Curve(((1, value),))


def stage(name: str, seconds: tuple[float, float, float], output: float, saved: float, **peaks: Any) -> StageCosts:
    """Everything is per row, save gradients. `seconds`: without gradients, forward, backward."""
    no_grad, forward, backward = seconds
    return StageCosts(
        name=name,
        no_grad_seconds=per_row(no_grad),
        forward_seconds=per_row(forward),
        backward_seconds=per_row(backward),
        output_bytes=per_row(output),
        saved_bytes=per_row(saved),
        no_grad_peak=per_row(peaks.pop("no_grad")),
        forward_peak=per_row(peaks.pop("forward")),
        backward_peak=per_row(peaks.pop("backward")),
        **peaks,
    )


READING = stage(
    "reading", (1, 1, 0), 10, 0, no_grad=12, forward=12, backward=0,
    output_is_saved=False, output_is_saved_later=True, gradient_bytes=0,
)  # fmt: skip
EARLY = stage(
    "early", (2, 3, 5), 40, 100, no_grad=60, forward=150, backward=170,
    output_is_saved=True, output_is_saved_later=False, gradient_bytes=1000,
)  # fmt: skip
LATE = stage(
    "late", (1, 1, 2), 4, 20, no_grad=50, forward=160, backward=150,
    output_is_saved=False, output_is_saved_later=False, gradient_bytes=500,
)  # fmt: skip
COSTS = Costs(
    stages=(READING, EARLY, LATE),
    tail=TailCosts(
        fixed_bytes=100,
        step_bytes=10,
        segment_bytes=5,
        state_bytes=7,
        loss_bytes=2,
        end_bytes=30,
        end_step_bytes=1,
        forward_seconds=0.5,
        backward_seconds=1,
        segment_seconds=0.25,
    ),
    num_rows=12,
    num_steps=12,
    parameter_bytes=1500,
    optimiser_bytes=3000,
    optimiser_work_bytes=250,
    frame_bytes=600,
    chunk_seconds=0.5,
    kept_byte_seconds=0.01,
)
ALWAYS = 1500 + 3000 + 600  # parameters, optimiser, frames


def predict_with(costs: Costs = COSTS, *, chunk_size: int = 4, segment_length: Any = 6, **keep: Any) -> Prediction:
    loss = keep.pop("loss_segment_length", None)
    return predict(
        costs,
        Schedule(
            chunk_size=chunk_size, segment_length=segment_length, loss_segment_length=loss, keep=Keep(**keep)
        ),
    )  # fmt: skip


def test_a_step_of_three_chunks_and_two_segments() -> None:
    """4 rows a chunk. The last chunk's backward is the peak: 4 x 170 bytes of `early` with all gradients there, and
    what the recurrent part leaves, 30 + 12 x 1."""
    step = predict_with()
    assert step.moment == "encoder, last chunk backward"
    assert step.peak_bytes == ALWAYS + (4 * 170 + 1500) + (30 + 12)
    # Two chunks without gradients and again with them, the last one once; 12 + 16 frames backward; what is held.
    first_runs, replays, last = 2 * 4 * (1 + 2 + 1), 2 * 4 * (1 + 3 + 1), 4 * (1 + 3 + 1)
    backward, bookkeeping, held = 12 * (5 + 2), 3 * 0.5, 0.01 * 4 * (100 + 20 + 4)
    tail = 12 * 0.5 + 12 * 1 + 6 * 0.5 + (2 + 2) * 0.25  # half of the steps are run again; 2 segments of each kind
    assert step.step_seconds == pytest.approx(first_runs + replays + last + backward + bookkeeping + held + tail)
    assert step.recompute_seconds == pytest.approx(replays + 3)
    assert step.recompute_fraction == pytest.approx((40 + 3) / (60 + 6))


def test_the_recurrent_part_at_its_peak() -> None:
    """Two levels: states of 12 / 6 and 6 / 3 segments, one segment of 3 steps, 5 steps of the loss."""
    costs = replace(COSTS, tail=replace(COSTS.tail, fixed_bytes=10_000))
    step = predict_with(costs, segment_length=(6, 3), loss_segment_length=5)
    assert step.moment == "recurrent part"
    tail = 10_000 + 12 * 10 + 3 * 5 + (2 + 2) * 7 + 5 * 2
    features, last_chunk = 12 * 4, 4 * (100 + 20 + 4)
    assert step.peak_bytes == ALWAYS + tail + features + last_chunk
    assert step.parts["features"] == features
    assert step.parts["kept activations"] == last_chunk
    assert sum(step.parts.values()) == step.peak_bytes
    assert step.recompute_seconds == pytest.approx(40 + 6 * (1 / 2 + 1 / 2))  # half by each level


def test_a_kept_stage_costs_its_graph_in_every_chunk_and_is_not_run_again() -> None:
    """Behind the cut: 20 bytes saved, 4 of features, 40 at the cut, which is handed over without a copy."""
    step, nothing_kept = predict_with(depth=1), predict_with()
    graphs = 2 * 4 * (20 + 4 + 40)
    assert step.peak_bytes == nothing_kept.peak_bytes + graphs
    assert step.recompute_seconds == pytest.approx(2 * 4 * (1 + 3) + 3)
    runs = nothing_kept.step_seconds - step.step_seconds
    assert runs == pytest.approx(2 * 4 * 1 - 0.01 * graphs)  # `late` once less, and memory that has to be made


def test_half_a_stage_is_one_of_two_chunks() -> None:
    step, nothing_kept = predict_with(depth=0.5), predict_with()
    assert step.peak_bytes == nothing_kept.peak_bytes + 4 * (20 + 4 + 40)
    assert step.recompute_seconds == pytest.approx(nothing_kept.recompute_seconds - 4)


def test_a_chunk_kept_whole_is_not_run_again() -> None:
    step, nothing_kept = predict_with(chunks=2), predict_with()
    assert step.peak_bytes == nothing_kept.peak_bytes + 4 * (100 + 20 + 4)
    assert step.recompute_seconds == pytest.approx(nothing_kept.recompute_seconds - 4 * (1 + 3 + 1))


def test_frozen_stages_are_stored_and_not_run_again() -> None:
    """`early` frozen, saving nothing: 40 bytes a frame stored in place of 2 x 4 x (1 + 3) seconds."""
    early = replace(EARLY, saved_bytes=per_row(0), output_is_saved=False, output_is_saved_later=True, gradient_bytes=0)
    costs = replace(COSTS, stages=(READING, early, LATE), num_frozen=2)
    stored, replayed = predict_with(costs), predict_with(costs, frozen=False)
    assert stored.parts["frozen stages' output"] == 12 * 40
    assert replayed.parts["frozen stages' output"] == 0
    assert replayed.recompute_seconds - stored.recompute_seconds == pytest.approx(2 * 4 * (1 + 3))


def test_the_optimisers_step_may_be_the_peak() -> None:
    step = predict_with(replace(COSTS, optimiser_work_bytes=10_000))
    assert step.moment == "optimiser"
    assert step.peak_bytes == ALWAYS + 1500 + 42 + 10_000


@pytest.mark.parametrize("depth", [0, 1, 1.5, 3])
def test_more_than_there_is_changes_nothing(depth: float) -> None:
    assert predict_with(chunk_size=12, depth=depth) == predict_with(chunk_size=10**6, depth=depth)
    assert predict_with(chunks=3, depth=depth) == predict_with(chunks=99, depth=depth)
    longest = predict_with(segment_length=12, depth=depth)
    assert longest == predict_with(segment_length=10**6, depth=depth)
    assert longest == predict_with(segment_length=(10**6, 12), depth=depth, loss_segment_length=10**6)


def test_everything_kept_recomputes_nothing() -> None:
    for step in (predict_with(chunks=3, segment_length=12), predict_with(chunk_size=12, segment_length=12)):
        assert step.recompute_seconds == step.recompute_fraction == 0


def test_a_share_of_no_chunks_is_a_stage_of_the_kept_ones() -> None:
    """All chunks are kept whole: the cut inside them is where the whole number above would be."""
    assert predict_with(chunk_size=12, depth=0.5) == predict_with(chunk_size=12, depth=1)


def test_where_nothing_is_trained_nothing_is_run_again() -> None:
    frozen = tuple(replace(s, gradient_bytes=0, saved_bytes=per_row(0)) for s in COSTS.stages)
    step = predict_with(replace(COSTS, stages=frozen), segment_length=12)
    assert step.recompute_seconds == 0


def test_one_stage() -> None:
    costs = replace(COSTS, stages=(EARLY,))
    whole, kept = predict_with(costs), predict_with(costs, chunks=3)
    assert kept.peak_bytes == whole.peak_bytes + 2 * 4 * 100  # its output is saved: no bytes beside them
    assert whole.recompute_seconds - kept.recompute_seconds == pytest.approx(2 * 4 * 3)


def test_seconds_are_scaled_by_what_real_steps_took() -> None:
    """Straight between sizes of chunks, and as at the nearest one beyond them; the recurrent part is not scaled."""
    tail = 12 * 0.5 + 12 * 1 + 6 * 0.5 + (2 + 2) * 0.25
    costs = replace(COSTS, seconds_factors=((2, 1.0), (6, 2.0)))
    for chunk_size, factor in ((1, 1.0), (4, 1.5), (12, 2.0)):
        own, plain = predict_with(costs, chunk_size=chunk_size), predict_with(chunk_size=chunk_size)
        assert own.step_seconds - tail == pytest.approx(factor * (plain.step_seconds - tail))
        assert own.recompute_seconds - 3 == pytest.approx(factor * (plain.recompute_seconds - 3))


def test_curves_go_on_beyond_their_points_and_never_below_nothing() -> None:
    assert Curve(((4, 10.0),))(8) == 20
    line = Curve(((4, 10.0), (8, 18.0), (16, 50.0)))
    assert [line(rows) for rows in (0, 4, 6, 12, 32)] == [2, 10, 14, 34, 114]
    assert Curve(((4, 2.0), (8, 10.0)))(1) == 0


@pytest.mark.parametrize(("length", "piece", "count"), [(12, 4, 3), (13, 4, 4), (1, 9, 1)])
def test_pieces_are_counted_up(length: int, piece: int, count: int) -> None:
    assert count_pieces(length, piece) == count

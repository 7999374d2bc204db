"""The planner: as fast as the fastest schedule that fits, and never over the budget. Costs here are made up."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from seqckpt.core import Keep, Schedule
from seqckpt.errors import BudgetError
from seqckpt.memory import Costs, Fixed, predict, predict_plain, smallest_budget, solve
from seqckpt.memory.costs import Curve, StageCosts, TailCosts

SHARE = 0.97  # of the budget that predictions may take


@st.composite
def stages(draw: st.DrawFn, *, is_frozen: bool = False) -> StageCosts:
    """A stage whose curves are lines through the origin, of whole numbers."""
    number = st.integers(1, 50)
    output, saved = draw(number), 0 if is_frozen else draw(number)
    forward = draw(number)
    peak = output + saved
    is_saved = not is_frozen and draw(st.booleans())
    return StageCosts(
        name="stage",
        no_grad_seconds=Curve(((1, forward * draw(st.sampled_from([0.8, 1.0]))),)),
        forward_seconds=Curve(((1, float(forward)),)),
        backward_seconds=Curve(((1, 0.0 if is_frozen else 2.0 * forward),)),
        output_bytes=Curve(((1, float(output)),)),
        saved_bytes=Curve(((1, float(saved + (output if is_saved else 0))),)),
        no_grad_peak=Curve(((1, 2.0 * output),)),
        forward_peak=Curve(((1, 3.0 * peak),)),
        backward_peak=Curve(((1, 0.0 if is_frozen else 4.0 * peak),)),
        output_is_saved=is_saved,
        output_is_saved_later=not is_saved and draw(st.booleans()),
        gradient_bytes=0 if is_frozen else draw(number),
    )


@st.composite
def all_costs(draw: st.DrawFn) -> Costs:
    num_frozen = draw(st.sampled_from([0, 0, 2]))
    small = st.integers(0, 20)
    row = [draw(stages(is_frozen=i < max(1, num_frozen))) for i in range(draw(st.integers(num_frozen + 1, 4)))]
    return Costs(
        stages=tuple(row),
        tail=TailCosts(
            fixed_bytes=draw(small),
            step_bytes=draw(small),
            segment_bytes=draw(small),
            state_bytes=draw(small),
            loss_bytes=draw(small),
            end_bytes=draw(small),
            forward_seconds=draw(small),
            backward_seconds=draw(small),
            segment_seconds=draw(small),
            is_segmented=draw(st.booleans()),
        ),
        num_rows=draw(st.integers(1, 8)),
        num_steps=draw(st.sampled_from([1, 8, 16])),
        num_frozen=num_frozen,
        parameter_bytes=draw(small),
        chunk_seconds=draw(small),
        kept_byte_seconds=draw(st.sampled_from([0.0, 0.01])),
    )


def all_schedules(costs: Costs) -> list[Schedule]:
    """Every size of chunk, cut, number of kept chunks, and halving of the steps."""
    lengths = [costs.num_steps // 2**i for i in range(6) if costs.num_steps // 2**i >= min(8, costs.num_steps)]
    rows, depths = range(1, costs.num_rows + 1), range(len(costs.stages))
    choices = product(rows, depths, rows, (True, False), lengths, lengths)
    return [
        Schedule(
            chunk_size=size,
            segment_length=segment,
            loss_segment_length=loss,
            keep=Keep(depth=depth, chunks=chunks, frozen=frozen),
        )
        for size, depth, chunks, frozen, segment, loss in choices
        if chunks <= -(-costs.num_rows // size)
    ]


@settings(max_examples=30)
@given(costs=all_costs(), share=st.floats(0, 1.1))
def test_the_choice_is_as_fast_as_any_that_fits(costs: Costs, share: float) -> None:
    smallest, plain = smallest_budget(costs), predict_plain(costs).peak_bytes
    budget = round(smallest + share * max(0, plain - smallest))
    chosen = solve(costs, budget)
    assert chosen.predicted_peak_bytes <= budget
    assert predict(costs, chosen).peak_bytes == chosen.predicted_peak_bytes
    assert predict(costs, chosen).step_seconds == pytest.approx(chosen.predicted_step_seconds)
    fitting = [p.step_seconds for s in all_schedules(costs) if (p := predict(costs, s)).peak_bytes <= SHARE * budget]
    assert chosen.predicted_step_seconds <= min(fitting, default=float("inf")) * 1.03 * (1 + 1e-9)  # "equally fast"


@given(costs=all_costs(), shares=st.tuples(st.floats(0, 1.2), st.floats(0, 1.2)))
def test_more_memory_is_never_slower(costs: Costs, shares: tuple[float, float]) -> None:
    smallest, plain = smallest_budget(costs), predict_plain(costs).peak_bytes
    tight, wide = (round(smallest + share * max(0, plain - smallest)) for share in sorted(shares))
    assert solve(costs, wide).predicted_step_seconds <= solve(costs, tight).predicted_step_seconds * 1.03 * (1 + 1e-9)


@given(costs=all_costs(), less=st.integers(1, 100))
def test_the_smallest_budget_is_that(costs: Costs, less: int) -> None:
    smallest = smallest_budget(costs)
    assert solve(costs, smallest).predicted_peak_bytes <= smallest
    least = min(predict(costs, schedule).peak_bytes for schedule in all_schedules(costs))
    # Tails of less than a 50th less are not looked at.
    assert smallest <= 1.03 * least / SHARE + 2
    too_little = int(SHARE * smallest) - less
    assume(too_little > 0)
    with pytest.raises(BudgetError, match="cannot be met") as caught:
        solve(costs, too_little)
    assert caught.value.needed_bytes == smallest
    assert f"({smallest} bytes)" in str(caught.value)


@given(
    costs=all_costs(),
    chunk_size=st.one_of(st.none(), st.integers(1, 20)),
    segment_length=st.one_of(st.none(), st.integers(1, 40), st.just((9, 3))),
    loss_segment_length=st.one_of(st.none(), st.integers(1, 40)),
    depth=st.one_of(st.none(), st.integers(0, 1), st.just(0.5)),
    chunks=st.one_of(st.none(), st.integers(1, 3)),
    frozen=st.one_of(st.none(), st.booleans()),
)
def test_what_is_given_is_kept(costs: Costs, **given: Any) -> None:
    if given["depth"] is not None and len(costs.stages) - costs.num_frozen <= 1:
        given["depth"] = 0
    fixed = Fixed(**given)
    chosen = solve(costs, 10**9, fixed)
    for name in ("chunk_size", "segment_length", "loss_segment_length"):
        assert given[name] is None or getattr(chosen, name) == given[name]
    for name in ("depth", "chunks"):
        assert given[name] is None or getattr(chosen.keep, name) == given[name]
    assert predict(costs, chosen).peak_bytes == chosen.predicted_peak_bytes
    if fixed.frozen is not None and costs.num_frozen:
        assert chosen.keep.frozen == fixed.frozen

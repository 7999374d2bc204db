"""Measured costs, held against the allocator's own record of whole steps; and that measuring leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_models import PIPELINES, make_clips, make_pipeline, measured_peak
from torch import Tensor, nn

from seqckpt import plan_schedule
from seqckpt.core import ChunkedEncoder, Keep, Schedule, SegmentedLoss, SegmentedRNN
from seqckpt.errors import BudgetError, UsageError
from seqckpt.memory import (
    Costs,
    Sample,
    measure,
    predict,
    predict_plain,
    smallest_budget,
    solve,
    stage_costs,
    step_costs,
)
from seqckpt.models import VideoModel


@pytest.fixture(autouse=True)
def _short_clocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds are no matter here: once is enough."""
    for module in (stage_costs, step_costs):
        monkeypatch.setattr(module, "repeat_for_a_moment", lambda run: [run()])


@pytest.fixture(scope="module")
def measured() -> Iterator[Callable[[str], tuple[nn.Module, Any, Costs]]]:
    """Costs of a pipeline, measured once in this file."""
    known: dict[str, Any] = {}

    def get(name: str) -> tuple[nn.Module, Any, Costs]:
        if name not in known:
            torch.manual_seed(0)
            model, sample = make_pipeline(PIPELINES[name]), make_clips(PIPELINES[name])
            known[name] = model, sample, measure(model, Sample(*sample), budget_bytes=2**33)
        return known[name]

    yield get
    known.clear()


# ------------------------------------------------------------------- predicted and real peaks


def schedules(num_stages: int) -> list[Schedule]:
    """Chunks of several sizes, cuts everywhere, kept chunks, one and two levels of segments."""
    n = num_stages if num_stages > 1 else 0
    choices: list[tuple[int, Any, int | None, Keep]] = [
        (7, 50, None, Keep()),
        (20, 9, 11, Keep(chunks=2)),
        (10, (30, 6), 8, Keep(depth=n // 2)),
        (12, 16, None, Keep(depth=n // 2 * 1.0 + (0.5 if n else 0), chunks=2)),
        (8, 1000, 5, Keep(depth=n)),
        (15, 9, 1000, Keep(depth=n, chunks=2, frozen=False)),
        (9, 7, None, Keep(chunks=99)),
        (9, 20, None, Keep(depth=max(0, n - 0.4), frozen=False)),
        (1000, 30, None, Keep(depth=n)),
        (1000, 1000, 1000, Keep()),
    ]
    return [
        Schedule(chunk_size=chunk, segment_length=segment, loss_segment_length=loss, keep=keep)
        for chunk, segment, loss, keep in choices
    ]


@pytest.mark.parametrize("name", PIPELINES)
def test_the_peak_is_the_allocators_own(name: str, measured: Any) -> None:
    model, sample, costs = measured(name)
    ratios = {}
    for schedule in schedules(len(model.encoder.stages)):
        ratios[str(schedule)] = predict(costs, schedule).peak_bytes / measured_peak(model, sample, schedule)
    wrong = {text: ratio for text, ratio in ratios.items() if not 0.9 <= ratio <= 1.1}
    assert not wrong, f"{wrong}; all: {min(ratios.values())} to {max(ratios.values())}"


@pytest.mark.parametrize("name", ["small", "resnet18"])
def test_the_plain_peak_is_the_allocators_own(name: str, measured: Any) -> None:
    _, sample, costs = measured(name)
    twin = make_pipeline(PIPELINES[name], plain=True)
    assert predict_plain(costs).peak_bytes == pytest.approx(measured_peak(twin, sample, None), rel=0.1)


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad])
@pytest.mark.parametrize("is_there", [True, False], ids=["with state", "before its first step"])
def test_the_optimisers_state_is_counted(kind: Any, is_there: bool) -> None:
    torch.manual_seed(0)
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    schedule = Schedule(chunk_size=10, segment_length=20)
    optimiser = kind(model.parameters())
    if is_there:
        measured_peak(model, sample, schedule, optimiser=optimiser)
    costs = measure(model, Sample(*sample), optimiser=optimiser, budget_bytes=2**33)
    if not is_there:
        assert not any("exp_avg" in state for state in optimiser.state.values())
    peak = measured_peak(model, sample, schedule, optimiser=optimiser)
    assert predict(costs, schedule).peak_bytes == pytest.approx(peak, rel=0.1)


@settings(max_examples=12)
@given(name=st.sampled_from(["small", "clips", "traced", "no recurrence"]), share=st.floats(0, 1))
def test_the_real_peak_never_passes_the_budget(name: str, share: float, measured: Any) -> None:
    model, sample, costs = measured(name)
    smallest = smallest_budget(costs)
    budget = round(smallest + share * (predict_plain(costs).peak_bytes - smallest))
    assert measured_peak(model, sample, solve(costs, budget)) <= budget


# ------------------------------------------------------------------- the function that is public


def test_plans_a_model_or_its_parts() -> None:
    model, sample = make_pipeline(PIPELINES["one tensor"]), make_clips(PIPELINES["one tensor"])
    for whole_or_parts in (model, (model.encoder, model.rnn, model.head)):
        schedule = plan_schedule(whole_or_parts, sample, "3 MiB")
        assert schedule.predicted_peak_bytes <= 3 * 2**20
        assert measured_peak(model, sample, schedule) <= 3 * 2**20
        assert schedule.predicted_plain_peak_bytes > 3 * 2**20
        assert schedule.predicted_step_seconds > 0
        assert schedule.ratio_to_limit > 0


def test_a_budget_that_cannot_be_met_names_the_smallest_that_can() -> None:
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    with pytest.raises(BudgetError, match=r"a budget of 9\.8 KiB cannot be met: the smallest feasible is") as caught:
        plan_schedule(model, sample, 10_000)
    needed = caught.value.needed_bytes
    assert f"({needed} bytes), set by the moment '" in str(caught.value)
    assert "Most is needed by frames: shorten the clip, lower the batch, or read frames when they are asked for" in str(
        caught.value
    )
    costs = measure(model, Sample(*sample), budget_bytes=10_000)
    schedule = solve(costs, smallest_budget(costs))
    assert measured_peak(model, sample, schedule) <= smallest_budget(costs)
    assert smallest_budget(costs) == pytest.approx(needed, rel=0.01)  # measured anew
    assert plan_schedule(model, sample, round(needed * 1.01)).predicted_peak_bytes <= needed * 1.01


def test_what_cannot_be_met_with_what_is_given_says_what_was_given() -> None:
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    with pytest.raises(BudgetError, match="cannot be met with chunk_size=90 and segment_length=60 given"):
        plan_schedule(model, sample, "2MiB", chunk_size=90, segment_length=60)


def test_what_is_given_wins() -> None:
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    schedule = plan_schedule(model, sample, "1GiB", chunk_size=7, segment_length=[40, 10])
    assert (schedule.chunk_size, schedule.segment_length) == (7, (40, 10))


@pytest.mark.parametrize("wrong", ["8 apples", "", "-1GiB", "0", 0, -5])
def test_wrong_budgets_are_refused(wrong: Any) -> None:
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    with pytest.raises(ValueError, match=r"no amount of memory|expected more than 0 bytes"):
        plan_schedule(model, sample, wrong)


def test_all_that_is_free_is_a_budget() -> None:
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    schedule = plan_schedule(model, sample, "auto")
    assert schedule.recompute_fraction == pytest.approx(0, abs=1e-6)  # a small model: everything can be kept


def test_models_without_the_parts_are_refused() -> None:
    model, sample = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    for wrong in (nn.Linear(1, 1), (model.encoder, model.rnn), nn.Sequential(model.encoder, model.rnn, model.head)):
        with pytest.raises(UsageError, match="expected a model with the parts encoder, rnn and head, or these three"):
            plan_schedule(wrong, sample)
    with pytest.raises(UsageError, match=r"the encoder is a PerFrame: expected a ChunkedEncoder.*memory\.enabled"):
        plan_schedule(make_pipeline(PIPELINES["small"], plain=True), sample)


@pytest.mark.parametrize("frames", [[], [torch.zeros(0, 3, 32, 32)], torch.zeros(0, 5, 3, 32, 32)], ids=str)
def test_empty_samples_are_refused(frames: Any) -> None:
    with pytest.raises(UsageError, match="expected one or more, none of them empty"):
        plan_schedule(make_pipeline(PIPELINES["small"]), (frames, []))


def test_frames_are_read_when_asked_for() -> None:
    """Frames on disk are no bytes in memory."""

    class OnDisk:
        def __len__(self) -> int:
            return 180

        def __getitem__(self, index: slice) -> Tensor:
            return torch.zeros(len(range(*index.indices(180))), 3, 32, 32, dtype=torch.uint8)

    model, (frames, targets) = make_pipeline(PIPELINES["small"]), make_clips(PIPELINES["small"])
    in_memory = measure(model, Sample(frames, targets), budget_bytes=2**33)
    on_disk = measure(model, Sample([OnDisk()], targets), budget_bytes=2**33)
    assert (in_memory.frame_bytes, on_disk.frame_bytes) == (180 * 3 * 32 * 32, 0)


def test_a_chunk_size_that_batch_norm_depends_on_is_kept() -> None:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    parts = (
        ChunkedEncoder(encoder, 13, transform=lambda x: x.float()),
        SegmentedRNN(nn.LSTM(4, 6, batch_first=True), 20),
        SegmentedLoss(nn.Linear(6, 5), nn.CrossEntropyLoss(), 20),
    )
    sample = make_clips(PIPELINES["one tensor"])
    assert plan_schedule(parts, sample, "1GiB").chunk_size == 13
    encoder.eval()
    assert plan_schedule(parts, sample, "1GiB").chunk_size != 13


# ------------------------------------------------------------------- nothing is left behind


class Watched:
    """Everything of a model that measuring might leave changed, by identity and by value."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.gradients = [(p, p.grad, None if p.grad is None else p.grad.clone()) for p in model.parameters()]
        self.parameters = [(p, p.detach().clone(), p._version) for p in model.parameters()]
        self.buffers = [(b, b.clone()) for b in model.buffers()]
        self.state = torch.get_rng_state()
        self.modes = [m.training for m in model.modules()]
        self.settings = self.read_settings()
        self.hooks = self.read_hooks()

    def read_settings(self) -> list[Any]:
        names = ("chunk_size", "keep", "segment_length", "collect", "transform")
        parts = (self.model.encoder, self.model.rnn, self.model.head)
        return [parts, [getattr(part, name, None) for part in parts for name in names]]

    def read_hooks(self) -> list[int]:
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        return [len(getattr(module, kind)) for module in self.model.modules() for kind in kinds]

    def check(self) -> None:
        for parameter, gradient, value in self.gradients:
            assert parameter.grad is gradient
            assert gradient is None or torch.equal(gradient, value)
            assert not parameter._backward_hooks
        for parameter, value, version in self.parameters:
            assert torch.equal(parameter, value)
            assert parameter._version == version
        now = list(self.model.buffers())
        assert len(now) == len(self.buffers)
        for buffer, (own, value) in zip(now, self.buffers, strict=True):
            assert buffer is own
            assert torch.equal(buffer, value)
        assert torch.equal(torch.get_rng_state(), self.state)
        assert [m.training for m in self.model.modules()] == self.modes
        assert self.read_settings() == self.settings
        assert self.read_hooks() == self.hooks


class Moody(nn.Module):
    """Batch norm, dropout, a counter in a buffer and one that comes up; raises at its `fails_at`th call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.dropout = nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.Dropout(0.3)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("late", None)
        self.fails_at = -1

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) -> (n, 6)."""
        self.count += 1
        self.late = self.count * 2
        if self.fails_at == 0:
            raise KeyError("a fault in the model")
        self.fails_at -= 1
        return self.dropout(self.norm(self.conv(x))).mean((2, 3))


def moody_model() -> VideoModel:
    model = VideoModel(
        ChunkedEncoder(Moody(), 10, transform=lambda x: x.float() / 255, keep=Keep(chunks=2)),
        SegmentedRNN(nn.LSTM(6, 8, 2, batch_first=True, dropout=0.2), [20, 5]),
        SegmentedLoss(nn.Linear(8, 5), nn.CrossEntropyLoss(), 7, collect=lambda logits: pytest.fail("collected")),
    )
    model.rnn.eval()  # a mixture of modes
    return model


@pytest.mark.parametrize("with_gradients", [False, True])
@pytest.mark.parametrize("fails_at", [None, 0, 1, 3, 9, 40])
def test_nothing_is_left_behind(with_gradients: bool, fails_at: int | None) -> None:
    model, sample = moody_model(), make_clips(PIPELINES["clips"])
    if with_gradients:
        for parameter in list(model.parameters())[::2]:
            parameter.grad = torch.randn_like(parameter)
    if fails_at is not None:
        model.encoder.encoder.fails_at = fails_at
    watched = Watched(model)
    if fails_at is None:
        plan_schedule(model, sample, "1GiB")
    else:
        with pytest.raises(KeyError, match="a fault in the model"):
            plan_schedule(model, sample, "1GiB")
    assert not torch.autograd._profiler_enabled()
    watched.check()


# ------------------------------------------------------------------- planned steps are exact


@pytest.mark.parametrize("name", ["small", "clips", "no recurrence", "traced", "one tensor", "frozen front"])
def test_planned_gradients_are_those_of_the_plain_twin(name: str, measured: Any) -> None:
    """Float64, whatever the budget makes of chunks, cuts and segments."""
    _, _, costs = measured(name)
    kind = PIPELINES[name]
    torch.manual_seed(1)
    plain = make_pipeline(kind, plain=True).double()
    torch.manual_seed(1)
    planned, sample = make_pipeline(kind).double(), make_clips(kind)
    if name == "frozen front":  # a few frames are enough
        sample = [frames[:12] for frames in sample[0]], [targets[:12] for targets in sample[1]]
    loss = plain(*sample)[0]
    loss.backward()
    expected = {key.replace("rnn.", "rnn.core."): p.grad for key, p in plain.named_parameters()}
    smallest, most = smallest_budget(costs), predict_plain(costs).peak_bytes
    for share in (0.0, 0.3, 0.7):
        solve(costs, max(smallest, round(smallest + share * (most - smallest)))).apply(planned)
        planned.zero_grad(set_to_none=True)
        own = planned(*sample)[0]
        own.backward()
        # Another size of batch rounds differently.
        torch.testing.assert_close(own, loss, rtol=1e-10, atol=0)
        for key, parameter in planned.named_parameters():
            twin = expected[key.replace("rnn.core.", "rnn.core.")]
            torch.testing.assert_close(parameter.grad, twin, rtol=1e-7, atol=1e-10, msg=key)

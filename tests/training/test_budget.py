"""A budget in training: the first step is watched, what passes it or runs out of memory is planned again, once."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainer import VALIDATION, VIDEOS, make_trainer
from torch import Tensor, nn

from seqckpt.core import Schedule
from seqckpt.data import cut_clips
from seqckpt.errors import BudgetError, TrainingError
from seqckpt.training import Budget, Trainer
from seqckpt.training.budget import is_out_of_memory

MiB = 2**20


class Replan:
    """Notes the factors that it is called with, and sets a schedule of small chunks."""

    def __init__(self, model: nn.Module | None = None) -> None:
        self.model, self.factors = model, []  # type: ignore[var-annotated]

    def __call__(self, factor: float) -> str:
        self.factors.append(factor)
        schedule = Schedule(chunk_size=3, segment_length=4)
        if self.model is not None:
            schedule.apply(self.model)
        return str(schedule)


def losses(folder: Path) -> list[float]:
    with open(folder / "steps.csv", newline="") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def watch(budget: Budget, num_bytes: int) -> list[str]:
    """A step that allocates so much; return what was said."""
    lines: list[str] = []
    with budget.watching(torch.device("cpu"), lines.append):
        torch.zeros(num_bytes, dtype=torch.uint8)
    return lines


def test_a_step_over_the_budget_plans_again_once_and_says_so() -> None:
    replan = Replan()
    budget = Budget(limit_bytes=3 * MiB, resident_bytes=2 * MiB, replan=replan)
    (line,) = watch(budget, 4 * MiB)
    assert replan.factors == [pytest.approx(2, rel=1e-3)]  # 2 + 4 MiB of 3
    assert "took 6.0 MiB of the budget of 3.0 MiB, which is too much; planned again: chunks of 3" in line
    assert watch(budget, 4 * MiB) == []
    assert len(replan.factors) == 1


def test_a_step_within_the_budget_closes_the_matter() -> None:
    replan = Replan()
    budget = Budget(limit_bytes=7 * MiB, resident_bytes=2 * MiB, replan=replan)
    assert watch(budget, 4 * MiB) == ["the first step took 6.0 MiB of the budget of 7.0 MiB"]
    assert watch(budget, 40 * MiB) == []
    assert budget.ran_out() is None
    assert replan.factors == []


def test_memory_that_runs_out_plans_again_once() -> None:
    replan = Replan()
    budget = Budget(limit_bytes=3 * MiB, resident_bytes=0, replan=replan)
    line = budget.ran_out()
    assert line is not None
    assert "memory ran out: planned again: chunks of 3" in line
    assert budget.ran_out() is None
    assert watch(budget, 4 * MiB) == []
    assert len(replan.factors) == 1
    assert replan.factors[0] > 1


def test_a_step_that_fails_leaves_no_profiler_running() -> None:
    budget = Budget(limit_bytes=3 * MiB, resident_bytes=0, replan=Replan())
    with pytest.raises(KeyError), budget.watching(torch.device("cpu"), print):
        raise KeyError
    assert not torch.autograd._profiler_enabled()


# ------------------------------------------------------------------- in the trainer


class Failing:
    """A hook on the recurrent network that runs out of memory as often as it is told to, after it drew numbers."""

    def __init__(self, times: int, make_error: Callable[[], BaseException]) -> None:
        self.left, self.make_error = times, make_error

    def __call__(self, module: nn.Module, args: Any) -> None:
        torch.rand(3)
        if self.left:
            self.left -= 1
            raise self.make_error()


def run(folder: Path, failing: Failing, *, with_budget: bool = True, **changes: Any) -> tuple[Trainer, list[str], Any]:
    """Train with dropout between the features and the recurrent network, so that a random state matters."""
    folder.mkdir()
    trainer = make_trainer(folder, num_epochs=1, **changes)
    trainer.model.encoder.encoder.append(nn.Dropout(0.5))
    trainer.model.rnn.register_forward_pre_hook(failing)
    lines: list[str] = []
    trainer.log.print_line = lines.append
    replan = Replan(trainer.model)
    if with_budget:
        trainer.stepper.budget = Budget(limit_bytes=10**12, resident_bytes=0, replan=replan)
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    return trainer, lines, replan


def out_of_memory() -> torch.OutOfMemoryError:
    return torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nmore words")


def test_a_first_step_without_memory_is_planned_again_and_gives_the_same_loss(tmp_path: Path) -> None:
    """Before the failure numbers were drawn, logits of segments collected, and perhaps gradients made."""
    expected, _, replan = run(tmp_path / "whole", Failing(0, out_of_memory))
    assert replan.factors == []
    trainer, lines, replan = run(tmp_path / "failing", Failing(1, out_of_memory))
    assert trainer.model.encoder.chunk_size == 3
    assert len(replan.factors) == 1
    assert lines[0].startswith("memory ran out: planned again: chunks of 3, segments of 4")
    # float32, and other sizes of chunks: kernels round differently by size. Masks of dropout are drawn by chunk, in the
    # same order of rows.
    assert losses(tmp_path / "failing") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    assert trainer.progress.of_run.num_frames == expected.progress.of_run.num_frames


def test_gradients_of_a_failed_backward_are_dropped(tmp_path: Path) -> None:
    whole, _, _ = run(tmp_path / "whole", Failing(0, out_of_memory))
    (tmp_path / "failing").mkdir()
    trainer = make_trainer(tmp_path / "failing", num_epochs=1)
    trainer.model.encoder.encoder.append(nn.Dropout(0.5))
    trainer.model.rnn.register_forward_pre_hook(Failing(0, out_of_memory))
    trainer.stepper.budget = Budget(limit_bytes=10**12, resident_bytes=0, replan=Replan(trainer.model))
    left = [1]

    def fail(gradient: Tensor) -> None:
        if left:
            left.pop()
            raise out_of_memory()

    # The encoder's gradients come last: those of the decoder and the recurrent network are there already.
    trainer.model.encoder.encoder[0][0].weight.register_hook(fail)
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    assert not left
    assert losses(tmp_path / "failing") == pytest.approx(losses(tmp_path / "whole"), rel=1e-4)
    for key, value in trainer.model.state_dict().items():
        torch.testing.assert_close(value, whole.model.state_dict()[key], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("times", "with_budget"), [(2, True), (1, False)], ids=["a second time", "without a budget"])
def test_memory_that_runs_out_for_good_names_the_clip_and_the_setting(
    tmp_path: Path, times: int, with_budget: bool
) -> None:
    with pytest.raises(
        TrainingError, match=r"memory ran out in step 1 \(epoch 1\), on video0\d frames \d+ to \d+"
    ) as caught:
        run(tmp_path / "run", Failing(times, out_of_memory), with_budget=with_budget, batch_size=2)
    for words in ("memory.budget", "memory.chunk_size", "train.batch_size", "data.clip_length", "CUDA out of memory"):
        assert words in str(caught.value)
    assert "more words" not in str(caught.value)
    assert is_out_of_memory(caught.value.__cause__)  # type: ignore[arg-type]


def test_other_errors_are_not_touched(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^shapes do not fit$"):
        run(tmp_path / "run", Failing(1, lambda: RuntimeError("shapes do not fit")))


def test_a_budget_that_nothing_meets_any_more_is_said(tmp_path: Path) -> None:
    def replan(factor: float) -> str:
        raise BudgetError("a budget of 1 B cannot be met", needed_bytes=2)

    trainer = make_trainer(tmp_path, num_epochs=1)
    trainer.model.rnn.register_forward_pre_hook(Failing(1, out_of_memory))
    trainer.stepper.budget = Budget(limit_bytes=1, resident_bytes=0, replan=replan)
    with pytest.raises(BudgetError, match="cannot be met"):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)


# ------------------------------------------------------------------- what errors say


def test_torchs_own_errors_are_recognised() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"), True),
        (RuntimeError("CUDA error: out of memory"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (ValueError("out of memory"), False),
        (KeyboardInterrupt(), False),
    ],
)
def test_what_says_that_memory_ran_out(error: BaseException, is_it: bool) -> None:
    assert is_out_of_memory(error) is is_it


@pytest.mark.parametrize("place", ["update", "validation"])
def test_memory_may_run_out_beside_forward_and_backward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """The optimiser's state comes with its first step; validation has other sizes than training."""
    trainer = make_trainer(tmp_path)

    def fail(*args: Any, **options: Any) -> None:
        raise out_of_memory()

    owner, name = (trainer.optimiser, "step") if place == "update" else (trainer.model, "predict")
    monkeypatch.setattr(owner, name, fail)
    where = {"update": "after step 0", "validation": "while video03 was predicted"}[place]
    with pytest.raises(TrainingError, match=rf"memory ran out {where}: CUDA out of memory.*\n.*memory\.budget"):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)

"""One step: many batches as one, scaled and clipped once, and nothing left of a step that is left out."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from test_trainer import VALIDATION, VIDEOS, make_model, make_trainer, make_video, rows, whole
from torch import nn

from seqckpt.build.model import list_class_weights, set_class_weights
from seqckpt.core import SegmentedLoss, TemporalSmoothing
from seqckpt.data import Clip, cut_clips
from seqckpt.errors import TrainingError, UsageError
from seqckpt.models import VideoModel
from seqckpt.training import Precision
from seqckpt.training.step import Stepper

CLIPS = cut_clips([*VIDEOS, make_video(4, 31)], 12)  # of 3 to 12 frames


class NoTransform(nn.Module):
    """Frames as float64, so that sums in another order agree to 1e-12."""

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return frames.double() / 255


def double_model(weight: torch.Tensor | None = None) -> VideoModel:
    model = make_model().double()
    model.encoder.transform = NoTransform()
    model.head.criterion = nn.CrossEntropyLoss(ignore_index=-100, weight=weight)
    return model


class Recorder:
    """In an optimiser's place: the gradients that it is asked to step with."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.gradients: list[dict[str, torch.Tensor]] = []
        self.optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        self.optimiser.register_step_pre_hook(lambda *unused: self.note())

    def note(self) -> None:
        self.gradients.append({name: p.grad.clone() for name, p in self.model.named_parameters()})


def gradients_of(batches: Sequence[Sequence[Clip]], weight: torch.Tensor | None = None, **options: Any) -> Any:
    model = double_model(weight)
    recorder = Recorder(model)
    stepper = Stepper(model, recorder.optimiser, Precision("float32", torch.device("cpu")), **options)
    outcome = stepper.run(whole(batches), iter(batches), "in step 1")
    (gradients,) = recorder.gradients
    return gradients, outcome


WEIGHTS = [None, torch.tensor([0.5, 0.0, 3.0], dtype=torch.float64)]


@pytest.mark.parametrize("weight", WEIGHTS, ids=["unweighted", "weighted"])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_batches_of_a_step_make_the_gradient_of_all_their_clips(size: int, weight: torch.Tensor | None) -> None:
    """Case 44: clips of 3 to 12 frames, and classes of other weights, count by their frames, not by their batch."""
    expected, whole = gradients_of([CLIPS], weight)
    batches = [CLIPS[k : k + size] for k in range(0, len(CLIPS), size)]
    got, outcome = gradients_of(batches, weight)
    assert outcome.loss == pytest.approx(whole.loss, rel=1e-12)
    assert outcome.gradient_norm == pytest.approx(whole.gradient_norm, rel=1e-10)
    assert (outcome.num_frames, outcome.num_right) == (whole.num_frames, whole.num_right)
    for name, gradient in expected.items():
        assert torch.allclose(got[name], gradient, rtol=1e-10, atol=1e-14), name


def test_a_batch_without_a_label_adds_nothing() -> None:
    """Case 46: it is no nan, and the rest counts as if it were not there."""
    unlabelled = make_video(9, 8)
    unlabelled.phases.fill_(-100)
    expected, whole = gradients_of([CLIPS[:2]])
    got, outcome = gradients_of([CLIPS[:2], cut_clips([unlabelled], None)])
    assert outcome.loss == whole.loss
    assert all(torch.equal(got[name], gradient) for name, gradient in expected.items())
    _, nothing = gradients_of([cut_clips([unlabelled], None)])
    assert (nothing.loss, nothing.gradient_norm, nothing.num_labelled) == (0.0, 0.0, 0)


def test_a_criterion_that_is_not_cross_entropy() -> None:
    """Several criteria are a ModuleList, without class weights: the step's gradient is that of the model."""
    model = make_model().double()
    model.encoder.transform = NoTransform()
    criteria = [nn.CrossEntropyLoss(ignore_index=-100), TemporalSmoothing(weight=0.3)]
    model.head = SegmentedLoss(model.head.decoder, criteria, 5).double()
    twin, recorder, batch = copy.deepcopy(model), Recorder(model), CLIPS[:2]
    stepper = Stepper(model, recorder.optimiser, Precision("float32", torch.device("cpu")))
    outcome = stepper.run(whole([batch]), iter([batch]), "in step 1")
    loss, _ = twin([clip.frames for clip in batch], [clip.targets for clip in batch])
    loss.backward()
    assert outcome.loss == pytest.approx(loss.item(), rel=1e-12)
    for name, parameter in twin.named_parameters():
        assert torch.allclose(recorder.gradients[0][name], parameter.grad, rtol=1e-10, atol=1e-14), name
    assert list_class_weights(model) is None
    with pytest.raises(UsageError, match=r"class_weights=inverse_frequency, and the criterion, a ModuleList"):
        set_class_weights(model, "inverse_frequency", [], num_phases=3)


def test_a_step_unscales_clips_and_steps_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 54: eight batches, one unscale, and the norm that is reported is that of the unscaled gradient."""
    model = make_model()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    precision = Precision("fp16", torch.device("cpu"))
    calls: list[str] = []
    for name in ("unscale_", "step", "update"):
        original = getattr(precision.scaler, name)

        def count(*args: Any, name: str = name, original: Any = original) -> Any:
            calls.append(name)
            return original(*args)

        monkeypatch.setattr(precision.scaler, name, count)
    stepper = Stepper(model, optimiser, precision, clip_norm=1.0)
    batches = [[clip] for clip in CLIPS[:8]]
    outcome = stepper.run(whole(batches), iter(batches), "in step 1")
    assert calls == ["unscale_", "step", "update"]
    plain = Stepper(make_model(), optimiser, Precision("float32", torch.device("cpu")), clip_norm=1.0)
    expected = plain.run(whole(batches), iter(batches), "in step 1")
    assert outcome.gradient_norm == pytest.approx(expected.gradient_norm, rel=1e-2)  # fp16 has 11 bits
    assert outcome.loss == pytest.approx(expected.loss, rel=1e-2)


def test_gradients_that_overflow_halve_the_scale_and_are_left_out(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, precision="fp16", num_epochs=1)
    trainer.model.get_submodule("head.decoder").bias.register_hook(lambda gradient: gradient * math.inf)
    before = copy.deepcopy(trainer.model.state_dict())
    batch = [CLIPS[:1]]
    scale = trainer.precision.scaler.get_scale()
    outcome = trainer.stepper.run(whole(batch), iter(batch), "in step 1")
    assert "overflowed fp16" in outcome.skipped
    assert trainer.precision.scaler.get_scale() == scale / 2
    assert all(torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())
    trainer.precision.scaler.update(2.0**-9)  # as after many such steps
    with pytest.raises(TrainingError, match=r"overflow fp16 even when .* train\.precision=bf16"):
        _run_twice(trainer.stepper, batch)


def _run_twice(stepper: Stepper, batch: Sequence[Sequence[Clip]]) -> None:
    for _ in range(2):
        stepper.run(whole(batch), iter(batch), "in a step")


def test_a_step_whose_loss_is_not_finite_can_be_left_out(tmp_path: Path) -> None:
    """The others are made, the clip is named in the log, and the epoch's mean stays a number."""
    lines: list[str] = []
    trainer = make_trainer(tmp_path, skip_not_finite=True, num_epochs=2)
    trainer.log.print_line = lines.append
    forward = trainer.stepper._forward

    def spoil(clips: Sequence[Clip]) -> torch.Tensor:
        return forward(clips) * (math.nan if clips[0].video is VIDEOS[1] and clips[0].start == 12 else 1.0)

    trainer.stepper._forward = spoil  # type: ignore[method-assign]
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    steps = rows(tmp_path / "steps.csv")
    left_out = [row["skipped"] for row in steps if row["skipped"]]
    assert len(steps) == 10
    assert len(left_out) == 2
    assert all("loss became nan in step" in text and "video02 frames 12 to 24" in text for text in left_out)
    assert sum("step left out" in line for line in lines) == 2
    for row in rows(tmp_path / "metrics.csv"):
        assert row["skipped_steps"] == "1"
        assert math.isfinite(float(row["train_loss"]))
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())


def test_a_step_whose_gradient_is_not_finite_can_be_left_out(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, skip_not_finite=True)
    trainer.model.get_submodule("head.decoder").bias.register_hook(lambda gradient: gradient * math.inf)
    before = copy.deepcopy(trainer.model.state_dict())
    batch = [CLIPS[:1]]
    assert "the gradient became" in trainer.stepper.run(whole(batch), iter(batch), "in step 1").skipped
    assert all(torch.equal(value, before[key]) for key, value in trainer.model.state_dict().items())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_statistics_of_a_step_that_is_left_out_are_taken_back(tmp_path: Path) -> None:
    model = make_model()
    model.encoder.encoder.append(nn.BatchNorm1d(8))
    trainer = make_trainer(tmp_path, model, skip_not_finite=True)
    batch = [CLIPS[:1]]
    trainer.stepper.run(whole(batch), iter(batch), "in step 1")
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    forward = trainer.stepper._forward
    trainer.stepper._forward = lambda clips: forward(clips) * math.nan  # type: ignore[method-assign]
    assert trainer.stepper.run(whole(batch), iter(batch), "in step 2").skipped
    assert before
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())
    trainer.stepper._forward = forward  # type: ignore[method-assign]
    trainer.stepper.run(whole(batch), iter(batch), "in step 3")
    assert not all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_nothing_that_is_reported_holds_a_graph(tmp_path: Path) -> None:
    """Case 64."""
    trainer = make_trainer(tmp_path)
    batch = [CLIPS[:1]]
    outcome = trainer.stepper.run(whole(batch), iter(batch), "in step 1")
    assert type(outcome.loss) is float
    assert type(outcome.gradient_norm) is float
    assert not any(predicted.requires_grad for predicted in trainer.stepper._predicted)


def test_a_run_that_leaves_out_all_its_steps_ends(tmp_path: Path) -> None:
    """No run goes on for days in which nothing is learnt; an epoch of it has no loss, rather than one of 0."""
    trainer = make_trainer(tmp_path, skip_not_finite=True, num_epochs=99)
    forward = trainer.stepper._forward
    trainer.stepper._forward = lambda clips: forward(clips) * math.nan  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match=r"50 steps in a row were left out.*step 50 \(epoch 10\), on video0"):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    assert {row["train_loss"] for row in rows(tmp_path / "metrics.csv")} == {"nan"}


def test_steps_between_those_left_out_count_anew(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, skip_not_finite=True, num_epochs=30)
    forward, done = trainer.stepper._forward, []

    def spoil(clips: Sequence[Clip]) -> torch.Tensor:
        done.append(1)
        return forward(clips) * (1.0 if len(done) == 40 else math.nan)

    trainer.stepper._forward = spoil  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match=r"in step 90 "):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)

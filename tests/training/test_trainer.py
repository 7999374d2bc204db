"""The training loop on videos in memory: what it saves, when it stops, and that it is exact over whole clips."""

from __future__ import annotations

import csv
import gc
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import Augmentation, Clip, Video, cut_clips
from seqckpt.errors import TrainingError
from seqckpt.models import FrameTransform, PerFrame, PlainLoss, SmallEncoder, VideoModel
from seqckpt.training import Ranks, Trainer, TrainSettings, build_optimiser, load_snapshot, predict_videos
from seqckpt.training.sharing import Share, take_share

NUM_PHASES = 3


def make_video(number: int, length: int) -> Video:
    generator = torch.Generator().manual_seed(number)
    phases = torch.arange(length) * NUM_PHASES // length
    frames = torch.randint(0, 64, (length, 3, 16, 16), generator=generator, dtype=torch.uint8)
    frames += (phases * 60).to(torch.uint8).view(-1, 1, 1, 1)
    seconds = np.arange(length, dtype=np.float64)
    return Video(f"video{number:02d}", frames, seconds, phases, None, Path(f"video{number:02d}.mp4"))


VIDEOS = [make_video(1, 20), make_video(2, 27)]
VALIDATION = [make_video(3, 23)]


def make_model(*, checkpointed: bool = True) -> VideoModel:
    torch.manual_seed(0)
    encoder, rnn, decoder = SmallEncoder(8, width=8), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, NUM_PHASES)
    criterion, transform = nn.CrossEntropyLoss(ignore_index=-100), FrameTransform()
    if not checkpointed:
        return VideoModel(PerFrame(encoder, transform=transform), rnn, PlainLoss(decoder, criterion))
    chunked = ChunkedEncoder(encoder, 6, transform=transform)
    return VideoModel(chunked, SegmentedRNN(rnn, 7), SegmentedLoss(decoder, criterion, 5))


def make_trainer(folder: Path, model: VideoModel | None = None, **changes: object) -> Trainer:
    values: dict[str, object] = {
        "num_epochs": 2,
        "batch_size": 1,
        "lr": 1e-2,
        "warmup": 0.0,
        "clip_norm": 1.0,
        "seed": 0,
        "validation_window": 10,
    }
    model = model or make_model()
    settings = TrainSettings(**{**values, **changes})  # type: ignore[arg-type]
    optimiser = build_optimiser(model, lr=settings.lr, weight_decay=0.01)
    extra = {"phase_names": ["a", "b", "c"]}
    return Trainer(
        model,
        optimiser,
        settings,
        folder=folder,
        phase_names=["a", "b", "c"],
        extra=extra,
        print_line=lambda line: None,
    )


def whole(batches: Sequence[Sequence[Clip]]) -> list[Share]:
    """What a process alone does of batches: all."""
    return [take_share(batch, Ranks()) for batch in batches]


def rows(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_plain_and_checkpointed_models_train_alike(tmp_path: Path, batch_size: int) -> None:
    losses = []
    for checkpointed in (True, False):
        folder = tmp_path / str(checkpointed)
        folder.mkdir()
        trainer = make_trainer(folder, make_model(checkpointed=checkpointed), num_epochs=4, batch_size=batch_size)
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
        losses.append([float(row["loss"]) for row in rows(folder / "steps.csv")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # float32: kernels round differently by size
    assert losses[0][-1] < losses[0][0]


def test_an_epoch_steps_once_per_batch_and_saves_plain_values(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)  # 12 + 8 and 12 + 12 + 3 frames
    assert [row["step"] for row in rows(tmp_path / "steps.csv")] == [str(step) for step in range(1, 11)]
    assert [row["step"] for row in rows(tmp_path / "metrics.csv")] == ["5", "10"]
    state = load_snapshot(tmp_path / "last.pt")
    assert state["phase_names"] == ["a", "b", "c"]
    assert state["progress"]["epoch"] == 2
    assert state["progress"]["of_run"]["num_frames"] == 2 * (20 + 27)
    for record in state["progress"]["records"]:
        assert all(isinstance(value, int | float) for value in record.values())
    assert not any(value.requires_grad for value in state["model"].values())
    assert all(parameter.grad is None for parameter in trainer.model.parameters())


def test_the_same_seed_trains_the_same_weights(tmp_path: Path) -> None:
    weights = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        trainer = make_trainer(tmp_path / name)
        torch.rand(len(weights))  # whatever state the global generator is in
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
        weights.append(trainer.model.state_dict())
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_what_is_not_finite_stops_with_the_clip_named(tmp_path: Path, what: str) -> None:
    trainer = make_trainer(tmp_path, batch_size=2)
    parameter = trainer.model.get_submodule("head.decoder").bias
    if what == "loss":
        with torch.no_grad():
            parameter.fill_(math.nan)
    else:
        parameter.register_hook(lambda gradient: gradient * math.inf)
    message = rf"the {what} became (nan|inf) in step 1 \(epoch 1\), on video0\d frames \d+ to \d+, video0\d frames"
    before = {key: value.clone() for key, value in trainer.model.state_dict().items()}
    with pytest.raises(TrainingError, match=message):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    for key, value in trainer.model.state_dict().items():
        assert torch.equal(value.nan_to_num(), before[key].nan_to_num()), "no step was made"


def test_an_undefined_validation_is_never_the_best(tmp_path: Path) -> None:
    unlabelled = Video("video09", VALIDATION[0].frames, VALIDATION[0].seconds, torch.full((23,), -100), None, Path("x"))
    trainer = make_trainer(tmp_path)
    trainer.fit(cut_clips(VIDEOS, 12), [unlabelled])
    assert not (tmp_path / "best.pt").exists()
    assert (tmp_path / "last.pt").exists()
    assert trainer.progress.best_accuracy is None
    trainer.load_best()  # keeps the weights of the last epoch


def test_a_worse_epoch_leaves_the_best_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    accuracies = iter([0.5, 0.8, 0.7])

    class Scores:
        def __init__(self) -> None:
            self.accuracy_mean = next(accuracies)

    monkeypatch.setattr("seqckpt.training.trainer.score", lambda predictions, num_phases: Scores())
    make_trainer(tmp_path, num_epochs=3).fit(cut_clips(VIDEOS, 12), VALIDATION)
    best = load_snapshot(tmp_path / "best.pt")["progress"]
    assert (best["epoch"], best["best_epoch"], best["best_accuracy"]) == (2, 2, 0.8)
    last = load_snapshot(tmp_path / "last.pt")["progress"]
    assert (last["epoch"], last["best_epoch"]) == (3, 2)


def test_windows_predict_what_the_whole_video_does() -> None:
    model = make_model()
    (whole,) = predict_videos(model, VALIDATION, window=100)
    (pieces,) = predict_videos(model, VALIDATION, window=7)
    assert np.array_equal(whole.prediction, pieces.prediction)
    assert np.allclose(whole.probabilities, pieces.probabilities, rtol=1e-5, atol=1e-6)
    assert model.training


def test_a_video_is_predicted_alike_after_another() -> None:
    # Case 18: no state goes from one video to the next.
    model = make_model()
    alone = predict_videos(model, VALIDATION, window=10)[-1]
    after = predict_videos(model, [*VIDEOS, *VALIDATION], window=10)[-1]
    assert np.array_equal(alone.probabilities, after.probabilities)


def clips_of_steps(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[list[Clip]]:
    """The clips of every step, as they are taken."""
    taken: list[list[Clip]] = []
    forward = trainer.stepper._forward

    def note(clips: list[Clip]) -> torch.Tensor:
        taken.append(clips)
        return forward(clips)

    monkeypatch.setattr(trainer.stepper, "_forward", note)
    return taken


def test_sequential_order_reads_along_the_videos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, order="sequential", batch_size=2, num_epochs=1)
    taken = clips_of_steps(trainer, monkeypatch)
    trainer.fit(cut_clips(VIDEOS, 10), VALIDATION)
    assert [[(clip.lane, clip.start, clip.resets) for clip in clips] for clips in taken] == [
        [(0, 0, True), (1, 0, True)],
        [(0, 10, False), (1, 10, False)],
        [(0, 20, False)],
    ]


def test_augmentation_is_for_training_clips_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the same whether frames are recomputed or not, and loaded by workers or read on the way."""
    flipped = Augmentation(flip=1.0)
    losses = []
    for checkpointed, num_workers in ((True, 0), (False, 0), (True, 1)):
        folder = tmp_path / f"{checkpointed}{num_workers}"
        folder.mkdir()
        trainer = make_trainer(
            folder, make_model(checkpointed=checkpointed), augmentation=flipped, num_workers=num_workers
        )
        taken = clips_of_steps(trainer, monkeypatch)
        predicted = predict_videos(trainer.model, VALIDATION, window=10)
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
        for (clip,) in taken:
            stored = clip.video.frames[clip.start : clip.stop]
            assert torch.equal(clip.frames[0 : len(clip)], stored.flip(-1))
        losses.append([float(row["loss"]) for row in rows(folder / "steps.csv")])
        fresh = predict_videos(make_model(checkpointed=checkpointed), VALIDATION, window=10)
        assert (predicted[0].probabilities == fresh[0].probabilities).all()
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # float32: kernels round differently by size
    assert losses[0] == losses[2]


def test_the_share_of_time_spent_waiting_is_written(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, augmentation=Augmentation(flip=1.0))
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    for name in ("steps.csv", "metrics.csv"):
        assert all(0 < float(row["waiting_share"]) < 1 for row in rows(tmp_path / name)), name


def test_200_steps_leave_no_tensor_behind(tmp_path: Path) -> None:
    """Case 63: neither states, nor losses, nor logs keep anything of a step alive."""
    trainer = make_trainer(tmp_path, num_epochs=1, order="sequential", carry=True, averaging=0.9, save_minutes=1e-9)
    counts: list[tuple[int, int]] = []
    resident: list[int] = []
    run = trainer.stepper.run

    def run_and_count(*args: Any) -> Any:
        outcome = run(*args)
        if trainer.progress.step + 1 not in (5, 100, 200):  # to look at all objects takes a while
            return outcome
        gc.collect()
        tensors = [thing for thing in gc.get_objects() if issubclass(type(thing), torch.Tensor)]
        counts.append((len(tensors), sum(tensor.nbytes for tensor in tensors)))
        resident.append(resident_bytes())
        return outcome

    trainer.stepper.run = run_and_count  # type: ignore[method-assign]
    trainer.fit(cut_clips([make_video(1, 200)], 1), VALIDATION)
    assert counts == [counts[0]] * 3
    assert resident[-1] <= 1.05 * resident[0]


def resident_bytes() -> int:
    """This process's resident size; 0 where the system does not say."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmRSS")), 0)


def test_predictions_that_are_not_finite_are_never_scored(tmp_path: Path) -> None:
    """The argmax of nan is a phase, too: running statistics can overflow where no loss does."""
    trainer = make_trainer(tmp_path)
    predict = trainer.model.predict

    def spoil(clips: Any, state: Any) -> Any:
        (logits,), state = predict(clips, state)
        logits[7:9] = math.nan
        return (logits,), state

    trainer.model.predict = spoil  # type: ignore[method-assign]
    with pytest.raises(TrainingError, match=r"video03 are not finite in 4 of 23 frames, first in frame 7"):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)
    assert not (tmp_path / "best.pt").exists()


def test_a_worker_that_dies_while_a_step_is_done_is_reported_with_what_it_was_loading(tmp_path: Path) -> None:
    """torch raises from a signal's handler, wherever the main process is."""
    trainer = make_trainer(tmp_path)

    def die(*unused: Any) -> Any:
        raise RuntimeError("DataLoader worker (pid 17) is killed by signal: Killed. ")

    trainer.stepper.run = die  # type: ignore[method-assign]
    message = (
        r"ended unexpectedly while step 1 was done, and the next loaded: video0\d frames .*, video0\d .*\n.*num_wo"
    )
    with pytest.raises(TrainingError, match=message):
        trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)

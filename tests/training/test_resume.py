"""A run that was stopped goes on as if it had not been: bitwise on the CPU, whatever the moment and the settings."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from run_comparison import assert_alike
from test_trainer import VALIDATION, VIDEOS, make_model, make_trainer, rows
from torch import nn

from seqckpt.core import Schedule
from seqckpt.data import Augmentation, Clip, cut_clips
from seqckpt.errors import SnapshotError, TrainingError
from seqckpt.models import VideoModel
from seqckpt.training import Stopped, Trainer, forget_lost_best, load_last, load_snapshot, save_snapshot

NUM_STEPS = 10  # of two epochs over the clips of VIDEOS, 12 frames each

WAYS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "two workers": {"num_workers": 2},
    "augmented": {"augmentation": Augmentation(flip=0.5, brightness=0.5), "batch_size": 2},
    "state carried": {"order": "sequential", "carry": True, "batch_size": 2},
    "averaged": {"averaging": 0.9},
    "two batches a step": {"accumulate": 2},
    "bf16": {"precision": "bf16"},
    "linear, without a limit": {"schedule": "linear", "warmup": 0.3, "clip_norm": None},
}


def model_with_dropout() -> VideoModel:
    model = make_model()
    model.encoder.encoder.append(nn.Dropout(0.5))
    return model


def begin(folder: Path, **changes: Any) -> Trainer:
    folder.mkdir(exist_ok=True)
    return make_trainer(folder, model_with_dropout(), **changes)


def fit(trainer: Trainer) -> None:
    trainer.fit(cut_clips(VIDEOS, 12), VALIDATION)


def stop_after(trainer: Trainer, num_steps: int, number: int = signal.SIGTERM) -> None:
    """Let a signal come in the middle of that step."""
    run, done = trainer.stepper.run, []

    def run_and_count(*args: Any) -> Any:
        done.append(1)
        if len(done) == num_steps:
            signal.raise_signal(number)
        return run(*args)

    trainer.stepper.run = run_and_count  # type: ignore[method-assign]


def go_on(folder: Path, **changes: Any) -> Trainer:
    torch.rand(7)  # whatever state the global generator is in
    trainer = begin(folder, **changes)
    trainer.load(load_last(folder), folder / "last.pt")
    fit(trainer)
    return trainer


def assert_same_run(one: Path, other: Path) -> None:
    """Snapshots and logs of two runs are the same, but for what was timed."""
    for name in ("last.pt", "best.pt"):
        assert_alike(load_snapshot(one / name), load_snapshot(other / name), name)
    for name in ("steps.csv", "metrics.csv"):
        assert_alike(rows(one / name), rows(other / name), name)


@pytest.mark.parametrize("way", WAYS)
def test_a_stopped_run_goes_on_as_if_it_were_not(tmp_path: Path, way: str) -> None:
    """Cases 68, 69: in the middle of an epoch, at its end, and several times in one run."""
    whole = begin(tmp_path / "whole", **WAYS[way])
    fit(whole)
    num_steps = whole.progress.step
    stopped = tmp_path / "stopped"
    trainer = begin(stopped, **WAYS[way])
    for num_more in (1, num_steps // 2 - 2, 1, 2):
        stop_after(trainer, num_more)
        with pytest.raises(Stopped) as stop:
            fit(trainer)
        assert stop.value.exit_code == 143
        trainer = begin(stopped, **WAYS[way])
        trainer.load(load_last(stopped), stopped / "last.pt")
    assert 1 < trainer.progress.step < num_steps
    fit(trainer)
    assert_same_run(tmp_path / "whole", stopped)


def test_the_clips_that_are_left_are_those_that_were_not_seen(tmp_path: Path) -> None:
    """Case 68: none is seen twice, none is left out."""

    def seen(trainer: Trainer) -> list[tuple[str, int]]:
        taken: list[Clip] = []
        forward = trainer.stepper._forward

        def note(clips: list[Clip]) -> torch.Tensor:
            taken.extend(clips)
            return forward(clips)

        trainer.stepper._forward = note  # type: ignore[method-assign, assignment]
        with suppress(Stopped):
            fit(trainer)
        return [(clip.video.video_id, clip.start) for clip in taken]

    expected = seen(begin(tmp_path / "whole", num_epochs=3))
    first = begin(tmp_path / "stopped", num_epochs=3)
    stop_after(first, 7)
    before = seen(first)
    second = begin(tmp_path / "stopped", num_epochs=3)
    second.load(load_last(tmp_path / "stopped"), tmp_path / "stopped" / "last.pt")
    assert before == expected[:7]
    assert seen(second) == expected[7:]


def test_a_run_that_is_stopped_while_it_validates_goes_on_with_that(tmp_path: Path, monkeypatch: Any) -> None:
    fit(begin(tmp_path / "whole"))
    predict = VideoModel.predict
    calls: list[int] = []

    def stop_in_the_second(self: VideoModel, *args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return predict(self, *args)

    trainer = begin(tmp_path / "stopped")
    with monkeypatch.context() as patched:
        patched.setattr(VideoModel, "predict", stop_in_the_second)
        with pytest.raises(Stopped) as stop:
            fit(trainer)
    assert stop.value.exit_code == 130
    assert (trainer.progress.epoch, trainer.progress.step) == (0, 5)
    go_on(tmp_path / "stopped")
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")


def test_a_second_signal_stops_at_once_and_saves_nothing(tmp_path: Path) -> None:
    trainer = begin(tmp_path / "run")
    stop_after(trainer, 2)
    stop_after(trainer, 2)
    with pytest.raises(Stopped) as stop:
        fit(trainer)
    assert stop.value.at_once
    assert not (tmp_path / "run" / "last.pt").exists()


def test_a_damaged_snapshot_gives_way_to_the_one_before(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Case 72: the same end, with a warning, and the damaged file never takes the place of a good one."""
    fit(begin(tmp_path / "whole"))
    folder = tmp_path / "stopped"
    trainer = begin(folder, save_minutes=1e-9)  # after every step
    stop_after(trainer, 8)
    with pytest.raises(Stopped):
        fit(trainer)
    last = folder / "last.pt"
    last.write_bytes(last.read_bytes()[: last.stat().st_size // 2])
    go_on(folder)
    assert "last.pt is damaged" in caplog.text
    assert "previous.pt" in caplog.text
    assert load_snapshot(folder / "previous.pt")["progress"]["step"] > 0
    assert_same_run(tmp_path / "whole", folder)


def test_where_both_snapshots_are_damaged_both_are_named(tmp_path: Path) -> None:
    for name in ("last.pt", "previous.pt"):
        (tmp_path / name).write_bytes(b"PK half of it")
    with pytest.raises(SnapshotError, match=r"last\.pt is damaged.*previous\.pt is damaged"):
        load_last(tmp_path)


def test_snapshots_within_an_epoch_are_those_of_its_steps(tmp_path: Path) -> None:
    trainer = begin(tmp_path / "run", save_minutes=1e-9)
    steps: list[int] = []
    save = trainer.save

    def save_and_note() -> None:
        save()
        steps.append(load_snapshot(tmp_path / "run" / "last.pt")["progress"]["step"])

    trainer.save = save_and_note  # type: ignore[method-assign]
    fit(trainer)
    assert steps == [1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 10, 10]


def test_a_full_disk_keeps_the_last_good_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = begin(tmp_path / "run")
    original: Callable[..., None] = torch.save
    saved: list[int] = []

    def fill_up(state: Mapping[str, Any], file: Any) -> None:
        if len(saved) == 2:  # best.pt and last.pt of the first epoch
            file.write(b"half of it")
            raise OSError(28, "No space left on device")
        original(state, file)
        saved.append(state["progress"]["step"])

    monkeypatch.setattr(torch, "save", fill_up)
    stop_after(trainer, 7)
    with pytest.raises(TrainingError, match=r"step 7 cannot be written into .*No space left on device.*resume="):
        fit(trainer)
    monkeypatch.undo()
    assert load_snapshot(tmp_path / "run" / "last.pt")["progress"]["step"] == 5
    assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]


def test_what_saves_memory_may_change(tmp_path: Path) -> None:
    """Case 75: another schedule, the same training to rounding."""
    fit(begin(tmp_path / "whole"))
    trainer = begin(tmp_path / "stopped")
    stop_after(trainer, 4)
    with pytest.raises(Stopped):
        fit(trainer)
    trainer = begin(tmp_path / "stopped")
    Schedule(chunk_size=4, segment_length=3).apply(trainer.model)
    trainer.load(load_last(tmp_path / "stopped"), tmp_path / "stopped" / "last.pt")
    fit(trainer)
    losses = [[float(row["loss"]) for row in rows(tmp_path / name / "steps.csv")] for name in ("whole", "stopped")]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)  # float32: kernels round differently by size
    assert losses[0] != losses[1]


def test_another_model_is_refused_with_the_keys_that_differ(tmp_path: Path) -> None:
    trainer = begin(tmp_path / "run", num_epochs=1)
    fit(trainer)
    other = make_trainer(tmp_path / "run", make_model())
    other.model.rnn.core = nn.LSTM(8, 9, batch_first=True)
    with pytest.raises(SnapshotError, match=r"of another shape: rnn\.weight_ih_l0 \(32, 8\), here \(36, 8\)"):
        other.load(load_last(tmp_path / "run"), tmp_path / "run" / "last.pt")


def test_the_best_epoch_outlasts_a_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 74: a worse epoch after going on leaves best.pt, and an undefined one is never the best."""
    accuracies = iter([0.5, 0.8, 0.7, math.nan])

    class Scores:
        def __init__(self) -> None:
            self.accuracy_mean = next(accuracies)

    monkeypatch.setattr("seqckpt.training.trainer.score", lambda predictions, num_phases: Scores())
    trainer = begin(tmp_path / "run", num_epochs=4)
    stop_after(trainer, NUM_STEPS + 2)
    with pytest.raises(Stopped):
        fit(trainer)
    trainer = go_on(tmp_path / "run", num_epochs=4)
    assert (trainer.progress.best_epoch, trainer.progress.best_accuracy) == (2, 0.8)
    assert load_snapshot(tmp_path / "run" / "best.pt")["progress"]["epoch"] == 2
    assert load_snapshot(tmp_path / "run" / "last.pt")["progress"]["epoch"] == 4


def test_a_best_epoch_whose_file_is_lost_gives_way_to_those_to_come(tmp_path: Path) -> None:
    """Where best.pt was not moved along, is damaged, or is of an epoch after an older snapshot."""
    trainer = begin(tmp_path / "run", num_epochs=3)
    stop_after(trainer, 12)
    with pytest.raises(Stopped):
        fit(trainer)
    folder, best = tmp_path / "run", tmp_path / "run" / "best.pt"
    whole = best.read_bytes()
    state = load_last(folder)
    known = state["progress"]["best_epoch"]
    assert forget_lost_best(folder, state) == ""
    assert state["progress"]["best_epoch"] == known
    save_snapshot(best, {"progress": {"best_epoch": known + 1}})
    for content, words in ((best.read_bytes(), f"is of epoch {known + 1}"), (whole[:99], "damaged"), (None, "no snap")):
        best.unlink() if content is None else best.write_bytes(content)
        state = load_last(folder)
        assert words in forget_lost_best(folder, state)
        assert state["progress"]["best_epoch"] is None
    trainer = begin(folder, num_epochs=3)
    trainer.load(state, folder / "last.pt")
    fit(trainer)
    assert trainer.progress.best_epoch == 3
    trainer.load_best()


def test_a_signal_is_noted_where_nothing_can_be_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The terminal may be gone, or a line half written: the run is saved all the same."""

    def fail(*args: Any, **options: Any) -> None:
        raise RuntimeError("reentrant call")

    trainer = begin(tmp_path / "run")
    stop_after(trainer, 3)
    monkeypatch.setattr("seqckpt.training.interrupt.print", fail, raising=False)
    with pytest.raises(Stopped):
        fit(trainer)
    assert load_last(tmp_path / "run")["progress"]["step"] == 3


def test_a_snapshot_from_beyond_the_end_of_an_epoch_is_refused(tmp_path: Path) -> None:
    trainer = begin(tmp_path / "run")
    stop_after(trainer, 3)
    with pytest.raises(Stopped):
        fit(trainer)
    state = load_last(tmp_path / "run")
    state["progress"] |= {"step": 10**9, "step_in_epoch": 10**9}
    trainer = begin(tmp_path / "run")
    trainer.load(state, tmp_path / "run" / "last.pt")
    with pytest.raises(
        SnapshotError, match=r"last\.pt is no snapshot of this run: .*1000000000 of an epoch of 5 steps"
    ):
        fit(trainer)


@pytest.mark.parametrize("part", ["optimiser", "scaler", "progress", "random_states"])
def test_a_part_that_does_not_fit_is_told_with_the_name_of_the_file(tmp_path: Path, part: str) -> None:
    trainer = begin(tmp_path / "run", precision="fp16" if part == "scaler" else "float32")
    trainer.save()
    state = {**load_last(tmp_path / "run"), part: {"something": "else"}}
    if part == "scaler" and not trainer.precision.scaler.is_enabled():
        pytest.skip("no scaler on this machine")
    with pytest.raises(SnapshotError, match=r"the snapshot .*last\.pt does not belong to this run"):
        trainer.load(state, tmp_path / "run" / "last.pt")

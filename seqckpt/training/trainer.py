"""The training loop: steps over clips, epochs with validation, snapshots from which a run goes on as if never stopped.

    for each epoch:  for each step:  loss = model(frames, targets);  loss.backward();  optimiser.step()
                     validate;  save best.pt if it is the best so far, and last.pt;  write metrics.csv

A step is exact over its clips; what the model does to save memory is its own affair. Nothing that is logged or saved
holds a graph: losses are Python floats as soon as a step is over.

Note 1. Where a run stands is three things: `progress` (counts), the states that `_state` collects, and the order of
clips, which is a function of seed and epoch alone. A snapshot between any two steps holds the first two; going on
skips the batches of the epoch that are done already.

Note 2. Of several ranks every one runs this loop over the same steps, on its share of each. All three are the same on
all of them, but for the carried states, which are where their lanes are read; so a snapshot does not depend on how many
there are. Rank 0 alone writes. Whether to stop or to save is agreed upon, since all must do it after the same step.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any

from torch.optim import Optimizer
from tqdm import tqdm

from seqckpt.data import Clip, Video, WaitingTime, clip_loader, explain_dead_workers, order_clips
from seqckpt.errors import SnapshotError
from seqckpt.memory import PeakMeter
from seqckpt.models import VideoModel
from seqckpt.progress import progress_bar
from seqckpt.training.averaging import WeightAverage
from seqckpt.training.budget import Budget, out_of_memory_explained
from seqckpt.training.carried_state import CarriedState, batch_dim_of, gather_lanes
from seqckpt.training.evaluation import predict_videos, score
from seqckpt.training.interrupt import Stopped, StopRequest, catch_signals
from seqckpt.training.optimiser import learning_rate, learning_rate_factor, load_optimiser_state, set_learning_rate
from seqckpt.training.parallel_model import share_buffers, share_random_states
from seqckpt.training.precision import Precision
from seqckpt.training.randomness import read_random_states, write_random_states
from seqckpt.training.ranks import Ranks
from seqckpt.training.records import Progress, Totals, describe_epoch, describe_row, describe_step
from seqckpt.training.results import draw_validation
from seqckpt.training.run_directory import writing_into
from seqckpt.training.run_log import NoLog, RunLog
from seqckpt.training.settings import TrainSettings
from seqckpt.training.sharing import Share, take_share
from seqckpt.training.snapshot import BEST, belonging, load_snapshot, load_weights, save_last, save_snapshot
from seqckpt.training.step import Stepper, name_clips

__all__ = ["Trainer"]


class Trainer:
    """Train `model` on clips and write into `folder`: last.pt, previous.pt, best.pt, logs (RunLog), pictures.

    `extra` is saved in every snapshot (names of the phases, the config's text). `print_line` takes the line that is
    written after each epoch. `budget` watches the first step, see Budget; it is for one process alone. `ranks` are the
    processes that train together, see Note 2.
    """

    def __init__(
        self,
        model: VideoModel,
        optimiser: Optimizer,
        settings: TrainSettings,
        *,
        folder: Path,
        phase_names: Sequence[str],
        extra: Mapping[str, Any],
        print_line: Callable[[str], object] = tqdm.write,
        budget: Budget | None = None,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.model = model
        self.optimiser = optimiser
        self.settings = settings
        self.folder = folder
        self.phase_names = list(phase_names)
        self.extra = dict(extra)
        self.device = next(model.parameters()).device
        self.precision = Precision(settings.precision, self.device)
        self.carried = CarriedState(batch_dim=batch_dim_of(model)) if settings.carry else None
        # Before the stepper, which hangs itself on the model that the average copies.
        self.average = None if settings.averaging is None else WeightAverage(model, settings.averaging)
        log = RunLog if self.ranks.is_main else NoLog
        self.log = log(folder, print_line=print_line, tensorboard=settings.tensorboard)
        self.stepper = Stepper(
            model,
            optimiser,
            self.precision,
            clip_norm=settings.clip_norm,
            carried=self.carried,
            budget=budget,
            skip_not_finite=settings.skip_not_finite,
            say=self.log.say,
            ranks=self.ranks,
        )
        self.progress = Progress()
        self.meter = PeakMeter(self.device)
        self.waiting = WaitingTime()
        self._saved_at = time.monotonic()
        self._loaded_from = folder

    @property
    def best_model(self) -> VideoModel:
        """The model that is validated: with the average of the weights where there is one."""
        return self.model if self.average is None else self.average.model

    def fit(self, clips: Sequence[Clip], val_videos: Sequence[Video]) -> None:
        """Train to the last epoch, from where `progress` stands.

        After a first SIGINT or SIGTERM the step in progress is finished and last.pt saved; then Stopped is raised, a
        KeyboardInterrupt. Raises TrainingError, with the clip named, where a loss or a gradient is not finite.
        """
        share_random_states(self.ranks, self.device)
        with catch_signals() as request, self.log.open(self.progress.step, self.progress.records):
            try:
                with out_of_memory_explained(lambda: f"after step {self.progress.step}"):
                    while self.progress.epoch < self.settings.num_epochs:
                        self._train_epoch(clips, request)
                        self._finish_epoch(val_videos, request)
            except Stopped as stop:
                if not stop.at_once:
                    self.save()
                raise

    def save(self) -> None:
        """Save all that the run consists of as last.pt; where that fails, TrainingError, and the old one stays.

        To be called on all ranks; one of them writes.
        """
        state = self._state()
        if self.ranks.is_main:
            with writing_into(self.folder, f"the snapshot of step {self.progress.step}"):
                save_last(self.folder, state)
        self._saved_at = time.monotonic()

    def load(self, state: Mapping[str, Any], path: Path) -> None:
        """Go on from a snapshot, loaded from `path`; raise SnapshotError where it is that of another model."""
        load_weights(self.model, state.get("trained_model", state["model"]), path)
        with belonging(path):
            load_optimiser_state(self.optimiser, state["optimiser"])
            self.precision.load_state_dict(state["scaler"])
            if self.average is not None:
                self.average.load(state["model"], state["num_averaged"])
            if self.carried is not None:
                self.carried.load_state_dict(state["carried"], device=self.device)
            self.progress = Progress.from_dict(state["progress"])
            write_random_states(state["random_states"])
        self._loaded_from = path

    def load_best(self) -> None:
        """Give the model the weights of the best epoch; those of the last where no epoch could be validated."""
        if self.progress.best_epoch is not None:
            weights = load_snapshot(self.folder / BEST, keys=("model",))["model"] if self.ranks.is_main else {}
            self.model.load_state_dict(self.ranks.share(weights))
        else:
            self.model.load_state_dict(self.best_model.state_dict())

    def _state(self) -> dict[str, Any]:
        """Collect a snapshot; see Note 1. `model` holds the weights to predict with."""
        trained = {"trained_model": self.model.state_dict()} if self.average is not None else {}
        return {
            "model": self.best_model.state_dict(),
            **trained,
            "num_averaged": 0 if self.average is None else self.average.num_updates,
            "optimiser": self.optimiser.state_dict(),
            "scaler": self.precision.state_dict(),
            "carried": {} if self.carried is None else gather_lanes(self.carried.state_dict(), self.ranks),
            "progress": asdict(self.progress),
            "random_states": read_random_states(),
            **self.extra,
        }

    def _train_epoch(self, clips: Sequence[Clip], request: StopRequest) -> None:
        """Do the steps of an epoch that are not done yet."""
        settings, progress = self.settings, self.progress
        chosen = {"seed": settings.seed, "epoch": progress.epoch}
        batches = order_clips(clips, order=settings.order, batch_size=settings.batch_size, **chosen)
        shares = [take_share(batch, self.ranks) for batch in batches]
        steps = [shares[k : k + settings.accumulate] for k in range(0, len(shares), settings.accumulate)]
        if progress.step_in_epoch > len(steps):
            raise SnapshotError(
                f"{self._loaded_from} is no snapshot of this run: it stands after step {progress.step_in_epoch} of an "
                f"epoch of {len(steps)} steps"
            )
        to_do = shares[progress.step_in_epoch * settings.accumulate :]
        loader = clip_loader(
            [share.clips for share in to_do],
            spans=[share.spans for share in to_do],
            **chosen,
            augmentation=settings.augmentation,
            device=self.device,
            num_workers=settings.num_workers,
            waiting=self.waiting,
        )
        loaded = self.waiting.over(loader)
        bar = progress_bar(
            total=len(steps),
            initial=progress.step_in_epoch,
            desc=f"epoch {progress.epoch + 1}/{settings.num_epochs}",
            unit="step",
            leave=False,
            dynamic_ncols=True,
        )

        def describe() -> str:
            at = progress.step_in_epoch
            clips = [clip for step in steps[at : at + 2] for share in step for clip in share.clips]
            return f"step {progress.step + 1} was done, and the next loaded: {name_clips(clips)}"

        with bar, explain_dead_workers(describe):
            for step in steps[progress.step_in_epoch :]:
                row = self._step(step, islice(loaded, len(step)), len(steps) * settings.num_epochs)
                self.log.step(row)
                bar.set_postfix_str(describe_step(row), refresh=False)
                bar.update()
                self._stop_or_save(request)

    def _stop_or_save(self, request: StopRequest) -> None:
        """After a step: raise Stopped where a signal asked any rank to stop, and save now and then."""
        minutes = self.settings.save_minutes
        is_due = minutes is not None and time.monotonic() - self._saved_at >= 60 * minutes
        stop, save = self.ranks.any_of([bool(request), is_due])
        if stop:
            raise Stopped(request.number or signal.SIGTERM)
        if save:
            self.save()

    def _step(self, shares: Sequence[Share], loaded: Iterator[Sequence[Clip]], num_steps: int) -> dict[str, Any]:
        """Do one optimiser step over batches of whole clips, and return its row for steps.csv."""
        progress, settings, started = self.progress, self.settings, time.perf_counter()
        self.meter.start()
        factor = learning_rate_factor(progress.step, num_steps, warmup=settings.warmup, shape=settings.schedule)
        set_learning_rate(self.optimiser, settings.lr * factor)
        outcome = self.stepper.run(shares, loaded, f"in step {progress.step + 1} (epoch {progress.epoch + 1})")
        if self.average is not None and not outcome.skipped:
            self.average.update(self.model)
        progress.step += 1
        progress.step_in_epoch += 1
        step = Totals.of_step(outcome, seconds=time.perf_counter() - started)
        step.waiting_seconds, step.peak_bytes = self.waiting.take(), self.meter.read() or 0
        progress.of_epoch.add(step)
        progress.of_run.add(step)
        return describe_row(progress, step, outcome, lr=settings.lr * factor)

    def _finish_epoch(self, val_videos: Sequence[Video], request: StopRequest) -> None:
        """Validate, save and report."""
        model, ranks = self.best_model, self.ranks
        share_buffers(model, ranks)
        predictions = predict_videos(
            model, val_videos, window=self.settings.validation_window, before_each=request.check, ranks=ranks
        )
        accuracy = score(predictions, len(self.phase_names)).accuracy_mean
        record, is_best = self.progress.finish_epoch(accuracy, lr=learning_rate(self.optimiser))
        state = self._state()
        if is_best and ranks.is_main:
            with writing_into(self.folder, f"the snapshot of epoch {self.progress.epoch}"):
                save_snapshot(self.folder / BEST, state)
        self.save()
        draws = self.settings.tensorboard and ranks.is_main
        pictures = draw_validation(self.folder, predictions, self.phase_names) if draws else {}
        self.log.epoch(self.progress.records, pictures)
        self.log.say(describe_epoch(record, self.settings.num_epochs, is_best=is_best))

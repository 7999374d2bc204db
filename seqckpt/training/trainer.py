"""The training loop: steps over clips, epochs with validation, a snapshot after each.

    for each epoch:  for each batch of clips:  loss = model(frames, targets);  loss.backward();  optimiser.step()
                     validate;  save last.pt, and best.pt if it is the best so far;  write metrics.csv

A step is exact over its clips; what the model does to save memory is its own affair. Nothing that is logged or saved
holds a graph: losses are Python floats as soon as a step is over.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from tqdm import tqdm

from seqckpt.data import Augmentation, Clip, Video, WaitingTime, clip_loader, order_clips
from seqckpt.errors import TrainingError
from seqckpt.memory import PeakMeter
from seqckpt.models import VideoModel
from seqckpt.progress import progress_bar
from seqckpt.training.budget import Budget, is_out_of_memory, run_within
from seqckpt.training.evaluation import predict_videos, score
from seqckpt.training.interrupt import InterruptFlag, catch_interrupt
from seqckpt.training.optimiser import learning_rate_factor
from seqckpt.training.records import Progress, Totals, describe_epoch, describe_step
from seqckpt.training.snapshot import load_snapshot, save_snapshot
from seqckpt.training.tables import write_table

__all__ = ["TrainSettings", "Trainer"]

_STEP_COLUMNS = (
    *("step", "epoch", "loss", "lr", "gradient_norm", "frames_per_second", "peak_memory_bytes"),
    "waiting_share",
)


@dataclass(frozen=True)
class TrainSettings:
    """How to train; `lr` is the highest learning rate, `warmup` the share of steps in which it rises to that.

    `order` is that of the clips, "shuffled" or "sequential" (lanes; state is not carried along them yet).
    """

    num_epochs: int
    batch_size: int
    lr: float
    warmup: float
    clip_norm: float | None
    seed: int
    validation_window: int
    order: str = "shuffled"
    augmentation: Augmentation = field(default_factory=Augmentation)
    num_workers: int = 0


class Trainer:
    """Train `model` on clips and write into `folder`: last.pt, best.pt, metrics.csv (epochs) and steps.csv (steps).

    `extra` is saved in every snapshot (names of the phases, the config's text). `print_line` takes the line that is
    written after each epoch. `budget` watches the first step, see Budget.
    """

    def __init__(
        self,
        model: VideoModel,
        optimiser: Optimizer,
        settings: TrainSettings,
        *,
        folder: Path,
        num_phases: int,
        extra: Mapping[str, Any],
        print_line: Callable[[str], object] = tqdm.write,
        budget: Budget | None = None,
    ) -> None:
        self.model = model
        self.optimiser = optimiser
        self.settings = settings
        self.folder = folder
        self.num_phases = num_phases
        self.extra = dict(extra)
        self.print_line = print_line
        self.budget = budget
        self.device = next(model.parameters()).device
        self.progress = Progress()
        self.meter = PeakMeter(self.device)
        self.waiting = WaitingTime()
        self._predicted: list[Tensor] = []
        model.head.collect = self._collect  # type: ignore[assignment]

    def fit(self, clips: Sequence[Clip], val_videos: Sequence[Video]) -> None:
        """Train to the last epoch.

        After a first Ctrl-C the step in progress is finished and last.pt saved; then KeyboardInterrupt is raised.
        Raises TrainingError, with the clip named, where a loss or a gradient is not finite.
        """
        with catch_interrupt() as interrupted:
            while self.progress.epoch < self.settings.num_epochs:
                self._train_epoch(clips, interrupted)
                if not interrupted:
                    self._finish_epoch(val_videos)
                if interrupted:
                    self.save("last.pt")
                    raise KeyboardInterrupt

    def save(self, name: str) -> None:
        """Save everything that a run consists of as a snapshot in the folder."""
        state = {
            "model": self.model.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "progress": asdict(self.progress),
            "random_state": torch.get_rng_state(),
            **self.extra,
        }
        save_snapshot(self.folder / name, state)

    def load_best(self) -> None:
        """Give the model the weights of the best epoch; those of the last stay where no epoch could be validated."""
        if self.progress.best_epoch is not None:
            self.model.load_state_dict(load_snapshot(self.folder / "best.pt", device=self.device)["model"])

    def _train_epoch(self, clips: Sequence[Clip], interrupted: InterruptFlag) -> None:
        settings, progress = self.settings, self.progress
        chosen = {"seed": settings.seed, "epoch": progress.epoch}
        batches = order_clips(clips, order=settings.order, batch_size=settings.batch_size, **chosen)
        loader = clip_loader(
            batches,
            **chosen,
            augmentation=settings.augmentation,
            device=self.device,
            num_workers=settings.num_workers,
            waiting=self.waiting,
        )
        title = f"epoch {progress.epoch + 1}/{settings.num_epochs}"
        with (
            open(self.folder / "steps.csv", "a", newline="") as file,
            progress_bar(total=len(batches), desc=title, unit="step", leave=False, dynamic_ncols=True) as bar,
        ):
            table = csv.DictWriter(file, fieldnames=_STEP_COLUMNS, lineterminator="\n")
            if progress.step == 0:
                table.writeheader()
            for batch in self.waiting.over(loader):
                row = self._step(batch, len(batches) * settings.num_epochs)
                table.writerow(row)
                bar.set_postfix_str(describe_step(row), refresh=False)
                bar.update()
                if interrupted:
                    break

    def _step(self, clips: Sequence[Clip], num_steps: int) -> dict[str, Any]:
        """Do one optimiser step over whole clips, and return its row for steps.csv."""
        progress, loading_seconds, started = self.progress, self.waiting.take(), time.perf_counter()
        self.meter.start()
        self.model.train()
        lr = self.settings.lr * learning_rate_factor(progress.step, num_steps, warmup=self.settings.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = lr

        with nullcontext() if self.budget is None else self.budget.watching(self.device, self.print_line):
            loss_value = self._run_within_memory(clips)
            norm = self._clip_gradients()
            self._check_finite("gradient", norm, clips)
            self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)

        progress.step += 1
        progress.step_in_epoch += 1
        peak_bytes = self.meter.read()
        step = self._count([clip.targets for clip in clips], loss_value)
        step.seconds, step.peak_bytes = loading_seconds + time.perf_counter() - started, peak_bytes or 0
        step.waiting_seconds = loading_seconds + self.waiting.take()
        progress.of_epoch.add(step)
        progress.of_run.add(step)
        speed = step.num_frames / step.seconds
        share = step.waiting_seconds / step.seconds
        values = (progress.step, progress.epoch + 1, loss_value, lr, norm, speed, peak_bytes, share)
        return dict(zip(_STEP_COLUMNS, values, strict=True))

    def _run_within_memory(self, clips: Sequence[Clip]) -> float:
        try:
            return run_within(
                self.budget,
                lambda: self._forward_and_backward(clips),
                start_again=lambda: self.optimiser.zero_grad(set_to_none=True),
                device=self.device,
                say=self.print_line,
            )
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise TrainingError(
                f"memory ran out in step {self.progress.step + 1}, on {_name(clips)}: {str(error).splitlines()[0]}\n"
                "Give memory.budget (such as memory.budget=8GiB, or auto), lower it, or lower memory.chunk_size, "
                "train.batch_size or data.clip_length"
            ) from error

    def _forward_and_backward(self, clips: Sequence[Clip]) -> float:
        self._predicted.clear()
        loss, _ = self.model([clip.frames for clip in clips], [clip.targets for clip in clips])
        loss_value = loss.item()
        self._check_finite("loss", loss_value, clips)
        loss.backward()
        return loss_value

    def _collect(self, logits: Tensor) -> None:
        self._predicted.append(logits.argmax(dim=-1).cpu())

    def _count(self, targets: Sequence[Tensor], loss: float) -> Totals:
        predicted = torch.cat(self._predicted, dim=1)
        num_labelled = sum(int((target >= 0).sum()) for target in targets)
        return Totals(
            loss=loss * num_labelled,
            num_labelled=num_labelled,
            num_right=sum(
                int((row[: len(target)] == target).sum()) for row, target in zip(predicted, targets, strict=True)
            ),
            num_frames=sum(len(target) for target in targets),
        )

    def _clip_gradients(self) -> float:
        limit = float("inf") if self.settings.clip_norm is None else self.settings.clip_norm
        return torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()

    def _check_finite(self, what: str, value: float, clips: Sequence[Clip]) -> None:
        if value - value != 0:  # nan or infinite
            raise TrainingError(
                f"the {what} became {value} in step {self.progress.step + 1} (epoch {self.progress.epoch + 1}), on "
                f"{_name(clips)}. Lower train.lr or train.clip_norm; snapshots of finished epochs are in {self.folder}"
            )

    def _finish_epoch(self, val_videos: Sequence[Video]) -> None:
        """Validate, save and report."""
        progress, totals = self.progress, self.progress.of_epoch
        predictions = predict_videos(self.model, val_videos, window=self.settings.validation_window)
        accuracy = score(predictions, self.num_phases).accuracy_mean
        progress.epoch += 1
        progress.step_in_epoch = 0
        # An undefined accuracy (no label anywhere) is never the best; of equal ones the later is.
        is_best = accuracy >= (0.0 if progress.best_accuracy is None else progress.best_accuracy)
        if is_best:
            progress.best_epoch, progress.best_accuracy = progress.epoch, accuracy
        record = {
            "epoch": progress.epoch,
            "step": progress.step,
            "train_loss": totals.loss / max(1, totals.num_labelled),
            "train_accuracy": totals.num_right / max(1, totals.num_labelled),
            "val_accuracy": accuracy,
            "lr": self.optimiser.param_groups[0]["lr"],
            "frames_per_second": totals.num_frames / totals.seconds,
            "peak_memory_bytes": totals.peak_bytes or None,
            "waiting_share": totals.waiting_seconds / totals.seconds,
        }
        progress.records.append(record)
        progress.of_epoch = Totals()
        if is_best:
            self.save("best.pt")
        self.save("last.pt")
        write_table(self.folder / "metrics.csv", progress.records)
        self.print_line(describe_epoch(record, self.settings.num_epochs, is_best=is_best))


def _name(clips: Sequence[Clip]) -> str:
    return ", ".join(f"{clip.video.video_id} frames {clip.start} to {clip.stop}" for clip in clips)

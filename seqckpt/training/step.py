"""One optimiser step: forward and backward over its batches of clips, then clipping and the update.

    for each batch:  loss = mean over the batch's labelled frames;  (loss * its share of the step's frames).backward()
    unscale, clip, check that all is finite, update

The shares make the sum over batches the mean over all labelled frames of the step, weighted as the criterion weighs
them: the same gradient as all clips in one batch. Of several ranks each does this with its own clips of each batch;
parallel_model.py says what becomes of the sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from seqckpt.data import IGNORE_INDEX, Clip
from seqckpt.errors import TrainingError
from seqckpt.models import VideoModel
from seqckpt.training.budget import Budget, out_of_memory_explained, run_within
from seqckpt.training.carried_state import CarriedState
from seqckpt.training.parallel_model import (
    own_random_numbers,
    parallelise,
    without_reduction,
    without_statistics,
)
from seqckpt.training.precision import Precision
from seqckpt.training.ranks import Ranks
from seqckpt.training.sharing import Share

__all__ = ["Outcome", "Stepper", "name_clips"]

_MOST_LEFT_OUT = 50  # steps in a row; fp16 needs fewer to find its scale


@dataclass
class Outcome:
    """What a step came to: plain numbers. `skipped` says why no update was made, where none was."""

    loss: float = 0.0
    gradient_norm: float = float("nan")
    num_labelled: int = 0
    num_right: int = 0
    num_frames: int = 0
    skipped: str = ""
    not_finite: list[Clip] = field(default_factory=list)


class Stepper:
    """Does optimiser steps on `model`.

    Args:
        clip_norm: longest gradient; None sets no limit.
        carried: hands the recurrent state on along lanes.
        budget: watches the first step's memory; `say` takes what it says.
        skip_not_finite: leave a step out whose loss or gradient is not finite, rather than raise.
        ranks: the processes that do the steps together, each with its share; a budget is for one alone.
    """

    def __init__(
        self,
        model: VideoModel,
        optimiser: Optimizer,
        precision: Precision,
        *,
        clip_norm: float | None = None,
        carried: CarriedState | None = None,
        budget: Budget | None = None,
        skip_not_finite: bool = False,
        say: Callable[[str], object] = print,
        ranks: Ranks | None = None,
    ) -> None:
        self.model = model
        self.optimiser = optimiser
        self.precision = precision
        self.clip_norm = clip_norm
        self.carried = carried
        self.budget = budget
        self.skip_not_finite = skip_not_finite
        self.say = say
        self._num_left_out = 0
        self.ranks = ranks or Ranks()
        self._step_model = parallelise(model, self.ranks)
        self._predicted: list[Tensor] = []
        model.head.collect = self._collect  # type: ignore[assignment]

    def run(self, shares: Sequence[Share], loaded: Iterable[Sequence[Clip]], where: str) -> Outcome:
        """Do one step over shares of batches, whose clips `loaded` yields with their frames; `where` says which it is.

        What is returned is that of all ranks together.

        Raises TrainingError, with the clips named and no weight changed, where loss or gradient is not finite, where
        memory runs out, or where too many steps in a row were left out.
        """
        clips = [clip for share in shares for clip in share.batch]
        buffers = [buffer.clone() for buffer in self.model.buffers()] if self.skip_not_finite else []
        self.model.train()
        with nullcontext() if self.budget is None else self.budget.watching(self.precision.device, self.say):
            outcome = self._run_within_memory(shares, loaded, f"{where}, on {name_clips(clips)}")
            self._add_up(outcome)
            self._update(outcome, f"{where}, on {self._name_culprits(outcome) or name_clips(clips)}")
        self.optimiser.zero_grad(set_to_none=True)
        self._num_left_out = self._num_left_out + 1 if outcome.skipped else 0
        if outcome.skipped:
            self._undo(outcome, buffers)
        return outcome

    def _run_within_memory(self, shares: Sequence[Share], loaded: Iterable[Sequence[Clip]], where: str) -> Outcome:
        lanes = {} if self.carried is None else dict(self.carried.lanes)
        if self.budget is not None and self.budget.is_open:
            loaded = list(loaded)  # it may have to be run again

        def start_again() -> None:
            self.optimiser.zero_grad(set_to_none=True)
            if self.carried is not None:
                self.carried.lanes = lanes

        with out_of_memory_explained(lambda: where):
            return run_within(
                self.budget,
                lambda: self._accumulate(shares, loaded),
                start_again=start_again,
                device=self.precision.device,
                say=self.say,
            )

    def _accumulate(self, shares: Sequence[Share], loaded: Iterable[Sequence[Clip]]) -> Outcome:
        """Add up the gradients of all batches, each with its share of the total weight."""
        outcome = Outcome()
        total = self.weigh([clip for share in shares for clip in share.batch])
        for k, (share, clips) in enumerate(zip(shares, loaded, strict=True)):
            weight = (self.weigh(clips) / total if total else 1.0) if share.counts else 0.0
            with (
                nullcontext() if k == len(shares) - 1 else without_reduction(self._step_model),
                nullcontext() if share.counts else without_statistics(self.model),
            ):
                loss = self._forward(clips) if share.counts else self._run_model(clips, None)[0]
                if share.counts:
                    self._count(clips, loss.item(), weight, outcome)
                self.precision.backward(loss * (weight * self.ranks.num_replicas))
        return outcome

    def _add_up(self, outcome: Outcome) -> None:
        """Make this rank's part of a step's numbers those of the whole step."""
        sums = self.ranks.add_up([outcome.loss, outcome.num_labelled, outcome.num_right, outcome.num_frames])
        outcome.loss = sums[0]
        outcome.num_labelled, outcome.num_right, outcome.num_frames = map(round, sums[1:])

    def _name_culprits(self, outcome: Outcome) -> str:
        """Name the clips, of any rank, whose loss is not finite; nothing where the whole step's is."""
        if math.isfinite(outcome.loss):
            return ""
        return ", ".join(dict.fromkeys(name for name in self.ranks.gather(name_clips(outcome.not_finite)) if name))

    def _update(self, outcome: Outcome, where: str) -> None:
        """Clip the gradients and update the weights; note the norm in `outcome`, and why if nothing was updated."""
        self.precision.unscale(self.optimiser)
        limit = float("inf") if self.clip_norm is None else self.clip_norm
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), limit).item()
        outcome.gradient_norm = norm
        if not math.isfinite(outcome.loss) or not (math.isfinite(norm) or self.precision.skips_overflow):
            what, value = ("gradient", norm) if math.isfinite(outcome.loss) else ("loss", outcome.loss)
            outcome.skipped = f"the {what} became {value} {where}"
            if not self.skip_not_finite:
                raise TrainingError(
                    f"{outcome.skipped}. Lower train.lr or train.clip_norm; or let train.on_nan=skip leave such steps "
                    "out. A snapshot, where there is one, is from before it: resume= goes on from there"
                )
            self.precision.leave_out()
            return
        if not math.isfinite(norm):
            outcome.skipped = f"the gradients overflowed fp16 {where}"
        self.precision.step(self.optimiser)

    def _undo(self, outcome: Outcome, buffers: Sequence[Tensor]) -> None:
        """Let nothing of a step that was left out stay: not in running statistics, not in carried states."""
        self.say(f"step left out: {outcome.skipped}")
        with torch.no_grad():
            for buffer, before in zip(self.model.buffers(), buffers, strict=False):
                buffer.copy_(before)
        if self.carried is not None:
            self.carried.forget(outcome.not_finite)
        if self._num_left_out >= _MOST_LEFT_OUT:
            raise TrainingError(
                f"{_MOST_LEFT_OUT} steps in a row were left out, so nothing is learnt any more; the last: "
                f"{outcome.skipped}. Lower train.lr or train.clip_norm, and look at the frames of the clips named"
            )

    def weigh(self, clips: Sequence[Clip]) -> float:
        """Return what a mean over these clips' labelled frames divides by: their number, or the sum of weights."""
        labels = torch.cat([clip.targets for clip in clips])
        labels = labels[labels != IGNORE_INDEX]
        weight = getattr(self.model.head.get_submodule("criterion"), "weight", None)
        return float(len(labels) if weight is None else weight.detach().cpu().double()[labels].sum())

    def _forward(self, clips: Sequence[Clip]) -> Tensor:
        loss, state = self._run_model(clips, None if self.carried is None else self.carried.gather(clips))
        if self.carried is not None:
            self.carried.keep(clips, state)
        return loss

    def _run_model(self, clips: Sequence[Clip], state: Any) -> tuple[Tensor, Any]:
        self._predicted.clear()
        frames, targets = [clip.frames for clip in clips], [clip.targets for clip in clips]
        with self.precision.autocast(), own_random_numbers(self.ranks, self.precision.device):
            return self._step_model(frames, targets, state)

    def _collect(self, logits: Tensor) -> None:
        self._predicted.append(logits.argmax(dim=-1).cpu())

    def _count(self, clips: Sequence[Clip], loss: float, weight: float, outcome: Outcome) -> None:
        if not math.isfinite(loss):
            outcome.not_finite += clips
        outcome.loss += loss * weight
        predicted = torch.cat(self._predicted, dim=1)
        for row, clip in zip(predicted, clips, strict=True):
            outcome.num_frames += len(clip)
            outcome.num_labelled += int((clip.targets != IGNORE_INDEX).sum())
            outcome.num_right += int((row[: len(clip)] == clip.targets).sum())


def name_clips(clips: Iterable[Clip]) -> str:
    return ", ".join(f"{clip.video.video_id} frames {clip.start} to {clip.stop}" for clip in clips)

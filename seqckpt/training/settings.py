"""How a run trains: plain numbers and names."""

from __future__ import annotations

from dataclasses import dataclass, field

from seqckpt.data import Augmentation

__all__ = ["TrainSettings"]


@dataclass(frozen=True)
class TrainSettings:
    """How to train.

    Args:
        num_epochs: how often every clip is seen.
        batch_size: clips that go through the model together.
        accumulate: batches that one step adds up; the last step of an epoch may have fewer.
        lr, warmup, schedule: see `learning_rate_factor`.
        clip_norm: longest gradient; None: no limit.
        seed: of the order of clips and of augmentation.
        validation_window: frames that go through the model together in validation.
        order: of the clips, "shuffled" or "sequential" (lanes).
        carry: hand the recurrent state on from clip to clip of a video; needs sequential order.
        precision: "float32", "bf16" or "fp16".
        averaging: decay of the average of the weights that is validated and saved as the best; None: no average.
        skip_not_finite: leave a step out whose loss or gradient is not finite, rather than stop.
        save_minutes: how often last.pt is saved within an epoch; None: only after each.
    """

    num_epochs: int
    batch_size: int
    lr: float
    warmup: float
    clip_norm: float | None
    seed: int
    validation_window: int
    accumulate: int = 1
    schedule: str = "cosine"
    order: str = "shuffled"
    carry: bool = False
    augmentation: Augmentation = field(default_factory=Augmentation)
    num_workers: int = 0
    precision: str = "float32"
    averaging: float | None = None
    skip_not_finite: bool = False
    save_minutes: float | None = None
    tensorboard: bool = False

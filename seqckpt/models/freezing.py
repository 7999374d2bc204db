"""Freezing the first stages of an encoder: what is pretrained and general stays as it is."""

from __future__ import annotations

from torch import nn

from seqckpt.errors import UsageError
from seqckpt.models.batch_norm import apply_batch_norm_policy

__all__ = ["freeze_until"]


def freeze_until(encoder: nn.Sequential, stage: str) -> None:
    """Stop training the stages of an encoder up to and with the one of that name ("layer2"); "all" freezes it whole.

    Their parameters get no gradient, and their batch norm uses its stored statistics and never moves them, also after
    `model.train()`. The engine then neither keeps nor replays them. Names are those of `encoder.named_children()`,
    dots instead of underscores allowed. Raises UsageError, with the names there are, for an unknown one.
    """
    names = [name for name, _ in encoder.named_children()]
    wanted = names[-1] if stage == "all" else stage.replace(".", "_")
    if wanted not in names:
        raise UsageError(f"the encoder has no stage {stage!r}: expected all, or one of {', '.join(names)}")
    for name in names[: names.index(wanted) + 1]:
        child = apply_batch_norm_policy(encoder.get_submodule(name), "frozen")
        setattr(encoder, name, child.requires_grad_(False))

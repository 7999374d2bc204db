"""Mixed precision: autocast around forward, and for fp16 one scaled loss, one unscale and one update per step."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from seqckpt.errors import TrainingError

__all__ = ["Precision"]

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_SMALLEST_SCALE = 2.0**-10


class Precision:
    """How a step computes: "float32", or matrix products and convolutions in "bf16" or "fp16" under autocast.

    Weights, gradients, sums and the loss stay float32. fp16 has a narrow range, so its loss is multiplied by a factor
    (GradScaler) that halves when gradients overflow and grows while they do not; a step that overflows is left out.
    Micikevicius et al., "Mixed precision training" (2018).

    Use, once per step: `backward` for each loss, `unscale`, then anything with the gradients, then `step`.
    """

    def __init__(self, name: str, device: torch.device) -> None:
        self.name = name
        self.device = device
        self.scaler = torch.amp.GradScaler(device.type, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[None]:
        """Return the context for forward; backward does not need it."""
        dtype = _DTYPES.get(self.name)
        return torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)

    def backward(self, loss: Tensor) -> None:
        self.scaler.scale(loss).backward()

    def unscale(self, optimiser: Optimizer) -> None:
        """Make the gradients those of the loss itself, before they are looked at or clipped."""
        self.scaler.unscale_(optimiser)

    @property
    def skips_overflow(self) -> bool:
        """Whether a step with infinite gradients is a matter of the scale, and simply left out."""
        return self.scaler.is_enabled()

    def step(self, optimiser: Optimizer) -> None:
        """Step with the unscaled gradients, or leave the step out where they overflowed, and adapt the scale.

        Raises TrainingError where gradients overflow however small the scale is.
        """
        self.scaler.step(optimiser)
        self.scaler.update()
        if self.scaler.is_enabled() and self.scaler.get_scale() < _SMALLEST_SCALE:
            raise TrainingError(
                f"gradients overflow fp16 even when the loss is scaled by {self.scaler.get_scale():g}; use "
                "train.precision=bf16, or lower train.lr"
            )

    def leave_out(self) -> None:
        """End a step whose gradients were unscaled and are not to be used."""
        if self.scaler.is_enabled():
            self.scaler.update()

    def state_dict(self) -> dict[str, Any]:
        return self.scaler.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up the scale of a snapshot; one of a run without scaling leaves it as it is."""
        if state and self.scaler.is_enabled():
            self.scaler.load_state_dict(dict(state))

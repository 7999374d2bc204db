"""What a worker holds: a model and one training step of it, to be timed, weighed and compared.

Peaks are the allocator's record over the step's start, gradients being None there. Two figures: with the parameters'
gradients, and without them, which is the most before the first gradient appears, or afterwards less all gradients.
The latter is exact where a step's gradients, or the sums that become them, are all there at the peak: as for every way
that replays pieces, from the first piece's backward on. Otherwise (plain runs) it is too low by at most their bytes.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.memory import AllocationRecord, time_step

__all__ = ["Subject", "give_back", "relative_error"]

_FIRST_GRADIENT = "first gradient"


class Subject:
    """A step (forward and backward, gradients into `.grad`) over named parameters.

    With `gives_back`, memory that a step has freed goes back to the system after it, so that workers which wait for
    their turn hold none; where steps take milliseconds, fetching it again would be most of the time.
    """

    def __init__(
        self, step: Callable[[], Any], parameters: Mapping[str, nn.Parameter], *, gives_back: bool = True
    ) -> None:
        self._step = step
        self._gives_back = gives_back
        self._parameters = dict(parameters)
        self._device = next(iter(self._parameters.values())).device

    def time(self) -> float:
        """Seconds of one step."""
        self._clear()
        seconds = time_step(self._step, self._device)
        self._clear()
        if self._gives_back:
            give_back()
        return seconds

    def peak(self) -> dict[str, Any]:
        """`peak_bytes` of one step without the parameters' gradients, `with_gradients_bytes`, `gradient_bytes`; and its
        `seconds`, which recording makes somewhat longer.
        """
        self._clear()
        seen: list[bool] = []
        with AllocationRecord(self._device) as record:

            def mark(_: Tensor) -> None:
                if not seen:
                    seen.append(True)
                    record.mark(_FIRST_GRADIENT)

            handles = [p.register_post_accumulate_grad_hook(mark) for p in self._parameters.values() if p.requires_grad]
            seconds = time_step(self._step, self._device)
            for handle in handles:
                handle.remove()
        gradients = sum(p.grad.nbytes for p in self._parameters.values() if p.grad is not None)
        before = max(i.peak_bytes for i in record.intervals if i.name != _FIRST_GRADIENT)
        after = max((i.peak_bytes for i in record.intervals if i.name == _FIRST_GRADIENT), default=0)
        self._clear()
        if self._gives_back:
            give_back()
        return {
            "peak_bytes": max(before, after - gradients),
            "with_gradients_bytes": record.peak_bytes,
            "gradient_bytes": gradients,
            "seconds": seconds,
        }

    def parameter_bytes(self) -> int:
        """Bytes of the parameters."""
        return sum(p.nbytes for p in self._parameters.values())

    def write_gradients(self, path: str) -> None:
        """Take a step and write the gradients, for others to be compared with."""
        torch.save(self._gradients(), path)

    def gradient_error(self, path: str) -> float:
        """Take a step; how far its gradients are from those written: see `relative_error`."""
        return relative_error(self._gradients(), torch.load(Path(path), weights_only=True))

    def _gradients(self) -> dict[str, Tensor]:
        self._clear()
        self._step()
        found = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in self._parameters.items()
        }
        self._clear()
        return found

    def _clear(self) -> None:
        for parameter in self._parameters.values():
            parameter.grad = None


def relative_error(gradients: Mapping[str, Tensor], reference: Mapping[str, Tensor]) -> float:
    """The largest of all parameters' errors: 2-norm of the difference over 2-norm of the reference; nan if one is.

    >>> one = {"weight": torch.tensor([3.0, 4.0])}
    >>> relative_error({"weight": torch.tensor([3.0, 9.0])}, one), relative_error(one, one)
    (1.0, 0.0)
    """
    if gradients.keys() != reference.keys():
        raise ValueError(f"gradients of {sorted(gradients)} cannot be compared with those of {sorted(reference)}")
    errors = []
    for name, wanted in reference.items():
        length = wanted.double().norm().item()
        error = (gradients[name].double() - wanted.double()).norm().item()
        errors.append(error / length if length else error)
    return math.nan if any(map(math.isnan, errors)) else max(errors)


def give_back() -> None:
    """Give memory that the C library keeps for later back to the system, where that can be asked for."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    except (OSError, AttributeError):
        return

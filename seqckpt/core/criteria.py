"""Criteria taken apart: each as a sum over elements and the number that its mean divides by, so that segments add up.

The mean of segment means is not the mean. A criterion of the whole sequence is `sum(elements) / normaliser`; both are
sums over segments. For cross entropy with class weights the normaliser is the sum of the targets' weights over the
frames that are not ignored; for soft targets the number of frames; for element-wise losses the number of elements.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqckpt.core.surroundings import is_replaying

__all__ = ["SplitCriterion", "TemporalSmoothing", "as_modules", "split_criterion"]

_FUNCTIONS: dict[Any, Callable[[], nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.nll_loss: nn.NLLLoss,
    F.mse_loss: nn.MSELoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}


class SplitCriterion:
    """One criterion with an element-wise form.

    `parts(logits, targets, mask)` gives the sum over the elements of a segment, and the segment's share of the
    normaliser (no gradient). `mean(total, normaliser)` makes the criterion's value of both; 0 where nothing counts.
    `num_previous` is the number of frames before a segment whose logits the criterion needs as well.
    """

    def __init__(self, criterion: Any) -> None:
        criterion = as_modules(criterion)
        self.reduction = getattr(criterion, "reduction", None)
        if self.reduction not in ("mean", "sum"):
            raise TypeError(
                f"criterion {_name(criterion)} cannot be computed segment by segment: it has no element-wise form. "
                'Expected an attribute `reduction` of "mean" or "sum" which, set to "none", makes it return one loss '
                "per element; or several such criteria: a list (summed), or a dict, one for each decoder output"
            )
        self.criterion = criterion
        self.num_previous = int(getattr(criterion, "num_previous", 0))
        self.elementwise = copy.copy(criterion)
        self.elementwise.reduction = "none"
        forward = getattr(type(criterion), "forward", None)
        self.class_last = forward in (nn.CrossEntropyLoss.forward, nn.NLLLoss.forward)
        self.trusted = getattr(forward, "__module__", "").startswith(("torch.nn.", __name__))

    def parts(self, logits: Any, targets: Any, mask: Tensor | None, num_frames: int) -> tuple[Tensor, Tensor]:
        """Sum and share of the normaliser of `num_frames` frames, counted over batch and time."""
        if isinstance(logits, Tensor) and logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # a softmax in half precision overflows
        if self.class_last:
            return self._cross_entropy(logits, targets, mask)
        elements = self.elementwise(logits, targets)
        if not self.trusted and not is_replaying():
            self._verify(elements, logits, targets, num_frames)
        if mask is None:
            return elements.sum(), elements.new_tensor(elements.numel())
        weight = mask.to(elements.dtype).reshape(mask.shape + (1,) * (elements.dim() - mask.dim())).expand_as(elements)
        return torch.where(weight > 0, elements, 0).sum(), weight.sum()

    def _cross_entropy(self, logits: Tensor, targets: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        criterion = self.criterion
        rows = logits.reshape(-1, logits.shape[-1])
        if targets.is_floating_point():
            elements = self.elementwise(rows, targets.reshape(-1, targets.shape[-1]))
            if mask is None:
                return elements.sum(), elements.new_tensor(elements.numel())
            return torch.where(mask.reshape(-1), elements, 0).sum(), mask.sum().to(elements.dtype)
        if mask is not None:
            targets = targets.masked_fill(~mask, criterion.ignore_index)
        targets = targets.reshape(-1)
        counted = targets != criterion.ignore_index
        if criterion.weight is None:
            normaliser = counted.sum().to(rows.dtype)
        else:
            normaliser = criterion.weight[targets.masked_fill(~counted, 0)].masked_fill(~counted, 0).sum().detach()
        return self.elementwise(rows, targets).sum(), normaliser

    def _verify(self, elements: Any, logits: Any, targets: Any, num_frames: int) -> None:
        """A criterion of the user's own must have elements for every frame, and their mean (sum) must be its own."""
        shape = tuple(elements.shape) if isinstance(elements, Tensor) else type(elements).__name__
        if isinstance(shape, str) or not shape or (self.num_previous == 0 and elements.numel() % num_frames):
            raise TypeError(
                f'criterion {_name(self.criterion)} cannot be computed segment by segment: with reduction "none" it '
                f"returned {shape} for {num_frames} frames; expected a tensor with one or more elements per frame"
            )
        with torch.no_grad():
            own = self.criterion(logits, targets)
            sum_or_mean = elements.mean() if self.reduction == "mean" else elements.sum()
        if elements.numel() and not torch.allclose(own, sum_or_mean, rtol=1e-3, atol=1e-6, equal_nan=True):
            raise TypeError(
                f"criterion {_name(self.criterion)} cannot be computed segment by segment: its {self.reduction} "
                f"({float(own):.6g}) is not the {self.reduction} of its elements ({float(sum_or_mean):.6g}), so its "
                'normaliser is not known. Use reduction="sum" and divide outside, or a criterion whose mean is plain'
            )

    def mask_of(self, mask: Tensor | None) -> Tensor | None:
        """A window's mask (B, T) for its elements: each counts if its frame and the previous ones it needs all do."""
        if mask is None or self.num_previous == 0:
            return mask
        num_elements = max(mask.shape[1] - self.num_previous, 0)
        return torch.stack([mask.narrow(1, i, num_elements) for i in range(self.num_previous + 1)]).all(0)

    def mean(self, total: Tensor, normaliser: Tensor) -> Tensor:
        if self.reduction == "sum":
            return total
        return total / torch.where(normaliser == 0, torch.ones_like(normaliser), normaliser)


def split_criterion(criterion: Any) -> list[tuple[str | None, SplitCriterion]]:
    """Pairs of (the decoder's output that it reads, or None for all of it; a criterion), to be summed."""
    if isinstance(criterion, (Mapping, nn.ModuleDict)):
        return [(name, split) for name, inner in criterion.items() for _, split in split_criterion(inner)]
    if isinstance(criterion, (Sequence, nn.ModuleList)) and not isinstance(criterion, str):
        return [pair for inner in criterion for pair in split_criterion(inner)]
    return [(None, SplitCriterion(criterion))]


def as_modules(criterion: Any) -> Any:
    """The same criterion in a form that a module registers: its class weights and parameters belong to the model."""
    if isinstance(criterion, Mapping):
        named = {name: as_modules(inner) for name, inner in criterion.items()}
        return nn.ModuleDict(named) if all(isinstance(module, nn.Module) for module in named.values()) else named
    if isinstance(criterion, Sequence) and not isinstance(criterion, str):
        modules = [as_modules(inner) for inner in criterion]
        return nn.ModuleList(modules) if all(isinstance(module, nn.Module) for module in modules) else modules
    known = next((make for function, make in _FUNCTIONS.items() if criterion is function), None)
    return criterion if known is None else known()


def _name(criterion: Any) -> str:
    return getattr(criterion, "__name__", type(criterion).__name__)


class TemporalSmoothing(nn.Module):
    """Truncated squared difference of neighbouring frames' log-probabilities: MS-TCN's smoothing loss.

    `forward(logits (B, T, C), targets (B, T))`; the earlier frame of each pair is detached; differences are clipped at
    `threshold`; pairs with an ignored frame count nothing. A pair across a cut counts once: it needs one previous
    frame. Farha & Gall, MS-TCN: Multi-Stage Temporal Convolutional Network for Action Segmentation (CVPR 2019); their
    weight: 0.15.
    """

    num_previous = 1

    def __init__(
        self, weight: float = 0.15, *, threshold: float = 4.0, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__()
        self.weight, self.threshold, self.ignore_index, self.reduction = weight, threshold, ignore_index, reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        log_probabilities = logits.log_softmax(-1)
        difference = log_probabilities[:, 1:] - log_probabilities[:, :-1].detach()
        elements = self.weight * difference.square().clamp(max=self.threshold**2)
        ignored = (targets[:, 1:] == self.ignore_index) | (targets[:, :-1] == self.ignore_index)
        elements = elements.masked_fill(ignored.unsqueeze(-1), 0)
        if self.reduction == "none":
            return elements
        return elements.sum() if self.reduction == "sum" else elements.mean()

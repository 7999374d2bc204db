"""Weights of classes in the loss, from how often each class occurs."""

from __future__ import annotations

import torch
from torch import Tensor

from seqckpt.errors import DataError

__all__ = ["inverse_frequency"]


def inverse_frequency(counts: Tensor) -> Tensor:
    """Return weights (K,), float32, from frame counts (K,): N / (K * n_c) for class c of n_c frames, N in all.

    A class without a frame has the weight 0, never infinity: nothing can be learnt of it, and nothing is. Classes as
    frequent as the average weigh 1. Raises DataError where no class has a frame.

    >>> inverse_frequency(torch.tensor([5, 0, 3]))
    tensor([0.5333, 0.0000, 0.8889])
    """
    if int(counts.sum()) == 0:
        raise DataError("no frame of the training videos has a label, so class weights cannot be computed from them")
    weights = counts.sum() / (len(counts) * counts.clamp(min=1).double())
    return torch.where(counts > 0, weights, torch.zeros_like(weights)).float()

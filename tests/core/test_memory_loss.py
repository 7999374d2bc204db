"""The memory of the language model's loss is that of one segment's logits, by the allocator's own record."""

from __future__ import annotations

import pytest
import torch
from measures import peak_bytes, saved_bytes
from torch import Tensor, nn

from seqckpt import SegmentedLoss


def batch(num_steps: int, vocabulary: int, num_hidden: int = 16) -> tuple[nn.Linear, Tensor, Tensor]:
    decoder = nn.Linear(num_hidden, vocabulary)
    hidden = torch.randn(1, num_steps, num_hidden, requires_grad=True)
    return decoder, hidden, torch.randint(vocabulary, (1, num_steps))


def peaks(num_steps: int, vocabulary: int, segment_length: int) -> tuple[float, int]:
    """Peak bytes of forward and backward, in units of one segment's logits; and a segment's bytes."""
    decoder, hidden, targets = batch(num_steps, vocabulary)
    head = SegmentedLoss(decoder, nn.CrossEntropyLoss(), segment_length)
    head(hidden, targets).backward()  # gradients are allocated from now on
    logits = 4 * segment_length * vocabulary
    weights = 2 * sum(4 * p.numel() for p in decoder.parameters())  # a sum of gradients, and its next term
    rows = 2 * 4 * hidden.numel()  # d(hidden), summed into hidden.grad
    return (peak_bytes(lambda: head(hidden, targets).backward()) - weights - rows) / logits, logits


# Cross entropy itself holds logits, their log-softmax and one gradient of them at once; plain torch does likewise for
# the whole sequence.
COPIES = 3.3


@pytest.mark.parametrize("num_steps", [200, 800])
def test_peak_is_that_of_one_segment(num_steps: int) -> None:
    in_segments, _ = peaks(num_steps, vocabulary=2000, segment_length=20)
    assert in_segments < COPIES


def test_plain_loss_holds_all_logits() -> None:
    """What the measure shows for the undivided loss: several times all logits."""
    decoder, hidden, targets = batch(800, 2000)

    def step() -> None:
        nn.functional.cross_entropy(decoder(hidden).flatten(0, 1), targets.flatten()).backward()

    step()
    assert peak_bytes(step) > 2 * 4 * 800 * 2000


def test_between_forward_and_backward_one_segment_is_saved() -> None:
    """The last segment's graph is kept, and of the others nothing but hidden and targets."""
    decoder, hidden, targets = batch(800, 2000)
    head = SegmentedLoss(decoder, nn.CrossEntropyLoss(), 20)
    saved = saved_bytes(lambda: head(hidden, targets), hidden, targets, *decoder.parameters())
    assert saved < 2 * 4 * 20 * 2000


@pytest.mark.slow
def test_language_model_of_33278_words() -> None:
    """T = 2,000, as in the word language model: 266 MB of logits are never there; 2.7 MB are, a few times over."""
    in_segments, logits = peaks(2000, vocabulary=33_278, segment_length=20)
    assert in_segments < COPIES
    assert logits == 2_662_240

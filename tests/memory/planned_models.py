"""Small pipelines of every kind that the planner is for, each with a batch of clips, and the peak of a real step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from seqckpt.core import ChunkedEncoder, Schedule, SegmentedLoss, SegmentedRNN
from seqckpt.memory import AllocationRecord
from seqckpt.models import (
    FrameTransform,
    NoRecurrence,
    PerFrame,
    PlainLoss,
    SmallEncoder,
    VideoModel,
    apply_batch_norm_policy,
    build_encoder,
)

__all__ = ["PIPELINES", "Parts", "Uncut", "bytes_of", "make_clips", "make_pipeline", "measured_peak"]

NUM_PHASES = 5


class Branching(nn.Module):
    """A forward that torch.fx can trace: 6 calls in a row, one of them a residual branch."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.branch = nn.Conv2d(8, 8, 3, padding=1)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.project = nn.Linear(16, 12)

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) -> (n, 12)."""
        x = torch.relu(self.stem(x))
        x = torch.relu(self.branch(x) + x)
        return self.project(self.down(x).relu().mean((2, 3)))


class Uncut(Branching):
    """The same, but its forward asks for a value: it cannot be traced, and is one stage."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, 3, H, W) -> (n, 12)."""
        return super().forward(x if bool((x == x).all()) else x.nan_to_num())


class Parts(nn.Module):
    """Three parts in a row, for frames that are one tensor (B, T, C, H, W): what a user's own model may look like."""

    def __init__(self, encoder: nn.Module, rnn: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.rnn, self.head = encoder, rnn, head

    def forward(self, frames: Tensor, targets: Tensor) -> tuple[Tensor, Any]:
        """Return the loss and the state at the end."""
        hidden, state = self.rnn(self.encoder(frames))
        return self.head(hidden, targets), state


@dataclass
class Kind:
    """A pipeline: encoder, recurrent network, lengths of clips, size of images; `stacked`: frames are one tensor;
    `fuse`: as ChunkedEncoder's."""

    encoder: Callable[[], tuple[nn.Module, int]]
    rnn: str = "lstm"
    lengths: tuple[int, ...] = (180,)
    size: int = 32
    stacked: bool = False
    fuse: bool = False


def _resnet(policy: str, frozen: int = 0) -> tuple[nn.Module, int]:
    encoder = apply_batch_norm_policy(build_encoder("resnet18"), policy)
    for stage in list(encoder.children())[:frozen]:
        stage.requires_grad_(False)
    return encoder, 512


PIPELINES: dict[str, Kind] = {
    "small": Kind(lambda: (SmallEncoder(16, width=4), 16)),
    "gru": Kind(lambda: (SmallEncoder(16, width=4), 16), rnn="gru"),
    "no recurrence": Kind(lambda: (SmallEncoder(16, width=4), 16), rnn="none"),
    "clips": Kind(lambda: (SmallEncoder(16, width=4), 16), lengths=(90, 20, 61)),
    "one tensor": Kind(lambda: (SmallEncoder(16, width=4), 16), lengths=(60, 60, 60), stacked=True),
    "traced": Kind(lambda: (Branching(), 12)),
    "uncut": Kind(lambda: (Uncut(), 12)),
    "resnet18": Kind(lambda: _resnet("frozen"), lengths=(48,)),
    "fused": Kind(lambda: _resnet("frozen"), lengths=(48,), fuse=True),
    "fused, frozen front": Kind(lambda: _resnet("frozen", 5), lengths=(48,), fuse=True),
    "frozen front": Kind(lambda: _resnet("frozen", 5), lengths=(48,)),  # up to layer1
    "group norm": Kind(lambda: _resnet("group"), lengths=(48,)),
}


def make_clips(kind: Kind) -> tuple[Any, Any]:
    """Frames and targets of a batch."""
    frames = [torch.randint(256, (n, 3, kind.size, kind.size), dtype=torch.uint8) for n in kind.lengths]
    targets = [torch.randint(NUM_PHASES, (n,)) for n in kind.lengths]
    targets[0][:2] = -100
    return (torch.stack(frames), torch.stack(targets)) if kind.stacked else (frames, targets)


def make_pipeline(kind: Kind, *, plain: bool = False) -> nn.Module:
    """The pipeline in chunks and segments, or its plain twin; the same weights from the same random state."""
    encoder, num_features = kind.encoder()
    classes: dict[str, Any] = {"lstm": nn.LSTM, "gru": nn.GRU}
    is_recurrent = kind.rnn in classes
    rnn = classes[kind.rnn](num_features, 24, batch_first=True) if is_recurrent else NoRecurrence()
    decoder, criterion = nn.Linear(24 if is_recurrent else num_features, NUM_PHASES), nn.CrossEntropyLoss()
    whole: Any = Parts if kind.stacked else VideoModel
    if plain:
        return whole(PerFrame(encoder, transform=FrameTransform()), rnn, PlainLoss(decoder, criterion))
    return whole(
        ChunkedEncoder(encoder, 25, transform=FrameTransform(), fuse=kind.fuse),
        SegmentedRNN(rnn, 50) if is_recurrent else rnn,
        SegmentedLoss(decoder, criterion, 50),
    )


def bytes_of(tensors: Any) -> int:
    """Bytes of tensors."""
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, Tensor))


def measured_peak(
    model: nn.Module, sample: Sequence[Any], schedule: Schedule | None, *, optimiser: Optimizer | None = None
) -> int:
    """Bytes at the peak of a whole step by the allocator's record, with all that is there before; grads end as None."""
    if schedule is not None:
        schedule.apply(model)

    def step() -> None:
        model(*sample)[0].backward()
        if optimiser is not None:
            optimiser.step()

    model.zero_grad(set_to_none=True)
    if optimiser is not None and not optimiser.state:
        step()
        model.zero_grad(set_to_none=True)
    with AllocationRecord(next(model.parameters()).device) as record:
        step()
    model.zero_grad(set_to_none=True)
    state = [] if optimiser is None else [t for held in optimiser.state.values() for t in held.values()]
    return record.peak_bytes + bytes_of([*model.parameters(), *model.buffers(), *sample[0], *state])

"""What is planned for: a batch of clips, and a model made of three parts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.errors import UsageError

__all__ = ["Pipeline", "Sample"]


class Sample:
    """A batch of clips as the model takes it: frames and targets, (B, T, ...) or lists with one entry for each clip."""

    def __init__(self, frames: Any, targets: Any) -> None:
        self.frames, self.targets = frames, targets
        self.lengths = [len(clip) for clip in frames]
        if not self.lengths or 0 in self.lengths:
            raise UsageError(f"a sample of clips of {self.lengths} frames: expected one or more, none of them empty")

    def cut(self, num_steps: int) -> Sample:
        """As if the longest clip had so many steps, and the others their share; where that is more, gone through again.

        Clips of unequal lengths stay unequal: what is packed costs less than what is padded.
        """
        lengths = self._shares(num_steps)
        frames = [_tile([clip], length) for clip, length in zip(self.frames, lengths, strict=True)]
        return self._with(frames, lengths)

    def stretched(self, num_steps: int) -> Sample:
        """As `cut`, where nobody looks at the frames: the first one of each clip again and again, in no memory."""
        lengths = self._shares(num_steps)
        if isinstance(self.frames, Tensor):
            targets = [_tile([target], num_steps) for target in self.targets]
            first = self.frames[:, :1]
            return Sample(first.expand(-1, num_steps, *first.shape[2:]), torch.stack(targets))
        firsts = [clip[0:1] for clip in self.frames]
        return self._with([one.expand(n, *one.shape[1:]) for one, n in zip(firsts, lengths, strict=True)], lengths)

    def _shares(self, num_steps: int) -> list[int]:
        longest = max(self.lengths)
        return [max(1, round(num_steps * length / longest)) for length in self.lengths]

    def _with(self, frames: list[Tensor], lengths: list[int]) -> Sample:
        targets = [_tile([target], length) for target, length in zip(self.targets, lengths, strict=True)]
        if isinstance(self.frames, Tensor):
            return Sample(torch.stack(frames), torch.stack(targets))
        return Sample(frames, targets)

    def rows(self, num_rows: int) -> Tensor:
        """So many frames of the clips, one after the other."""
        return _tile(self.frames, num_rows)


def _tile(clips: Any, num_rows: int) -> Tensor:
    parts: list[Tensor] = []
    missing = num_rows
    while missing:
        for clip in clips:
            parts.append(clip[0 : min(len(clip), missing)])
            missing -= len(parts[-1])
            if not missing:
                break
    return torch.cat(parts)


class Pipeline(nn.Module):
    """Encoder, recurrent network and loss in a row, for those who have the parts and no model around them."""

    def __init__(self, encoder: nn.Module, rnn: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.rnn, self.head = encoder, rnn, head

    def forward(self, frames: Any, targets: Any) -> tuple[Tensor, Any]:
        """Return the loss of frames (B, T, C, H, W) and targets (B, T, ...), and the state at the end."""
        hidden, state = self.rnn(self.encoder(frames))
        return self.head(hidden, targets), state

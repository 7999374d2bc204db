"""The way of the data in one forward: frames -> features -> hidden -> loss, and the plain parts to compare with.

`VideoModel` neither knows nor asks whether its parts work in chunks and segments. With `PerFrame`, the bare
recurrent network and `PlainLoss` it is the undivided reference of a run; with the engine's parts, which take the same
arguments and have the same `state_dict` keys, it computes the same numbers in less memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils._pytree import tree_map_only

from seqckpt.errors import UsageError
from seqckpt.transparent import hide_in_state_dict

__all__ = ["IGNORE_INDEX", "NoRecurrence", "PerFrame", "PlainLoss", "VideoModel"]

IGNORE_INDEX = -100


class VideoModel(nn.Module):
    """A per-frame encoder, a recurrent network over time and a head that computes the loss.

    `encoder(list of clips) -> list of features (t_i, D)`, `rnn(x (B, T, D), state) -> (hidden (B, T, H), state)` with
    `batch_first`, `head(hidden, targets (B, T)) -> scalar` with the child `head.decoder`.

    With `truncate` the state is detached every so many time steps in training (truncated back-propagation through time,
    Williams & Peng, 1990): the same outputs, but the gradient of a frame's loss ends where its stretch begins. Raises
    UsageError for a network in both directions, which has no state to cut.
    """

    def __init__(self, encoder: nn.Module, rnn: nn.Module, head: nn.Module, *, truncate: int | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.rnn = rnn
        self.head = head
        self.truncate = truncate
        if truncate is not None and getattr(_core(rnn), "bidirectional", False):
            raise UsageError(f"truncate={truncate}: a bidirectional network has no state that could be cut in time")

    @property
    def is_bidirectional(self) -> bool:
        """Whether some network over time reads frames from the end too, by torch's attribute of that name."""
        return any(getattr(module, "bidirectional", False) for module in self.rnn.modules())

    @property
    def core(self) -> nn.Module:
        """The network over time itself, without what drives it in segments or compiles it."""
        return _core(self.rnn)

    def forward(self, frames: Sequence[Any], targets: Sequence[Tensor], state: Any = None) -> tuple[Tensor, Any]:
        """Return the loss over a batch of clips, a scalar, and the recurrent state at the end of the clips.

        `frames`: one clip per entry, uint8 (t_i, C, H, W) or a FrameSource. `targets`: one LongTensor (t_i,) each, -100
        where a frame has no label. Clips may differ in length; padding changes neither the loss nor any gradient. The
        state is that at each clip's own end with nn.LSTM, nn.GRU and nn.RNN, in one or both directions. Another core
        would be given padded features: clips of several lengths are refused (UsageError) unless it has an attribute
        `is_causal = True`; its state for a shorter clip has then run on over the padding.
        """
        lengths = _check_lengths(frames, targets)
        features = self.encoder(frames)
        hidden, state = self._run_rnn(features, lengths, state)
        padded = pad_sequence([target.to(hidden.device) for target in targets], True, IGNORE_INDEX)
        return self.head(hidden, padded), state

    def predict(self, frames: Sequence[Any], state: Any = None) -> tuple[list[Tensor], Any]:
        """Return logits (t_i, K) for each clip, and the state at the end. Call it in eval mode, under `no_grad`."""
        lengths = [len(clip) for clip in frames]
        features = self.encoder(frames)
        hidden, state = self._run_rnn(features, lengths, state)
        decoder = self.head.get_submodule("decoder")
        return [decoder(row[:length]) for row, length in zip(hidden, lengths, strict=True)], state

    def _run_rnn(self, features: Sequence[Tensor], lengths: list[int], state: Any) -> tuple[Tensor, Any]:
        padded = pad_sequence(list(features), batch_first=True)
        is_causal = getattr(_core(self.rnn), "is_causal", False)
        if len(set(lengths)) > 1 and not is_causal:
            _refuse_padding(_core(self.rnn), lengths)
        if self.truncate is not None and self.training:
            return self._run_truncated(padded, state)
        if len(set(lengths)) == 1 or is_causal:
            return self.rnn(padded, state)
        # Packing keeps padding out of the backward direction, and makes each state the one at its clip's own end.
        packed = pack_padded_sequence(padded, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        hidden, state = self.rnn(packed, state)
        return pad_packed_sequence(hidden, batch_first=True)[0], state

    def _run_truncated(self, padded: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Padding comes last, so that it changes no output that counts; the state runs on over it."""
        parts = []
        for stretch in padded.split(cast(int, self.truncate), dim=1):
            hidden, state = self.rnn(stretch, tree_map_only(Tensor, Tensor.detach, state))
            parts.append(hidden)
        return torch.cat(parts, dim=1), state


def _check_lengths(frames: Sequence[Any], targets: Sequence[Tensor]) -> list[int]:
    lengths = [len(clip) for clip in frames]
    if not lengths or lengths != [len(target) for target in targets] or min(lengths) == 0:
        raise UsageError(
            f"clips of {lengths} frames came with targets of {[len(target) for target in targets]} frames: expected "
            "at least one clip, as many targets as frames in each, and no empty clip"
        )
    return lengths


def _refuse_padding(core: nn.Module, lengths: list[int]) -> None:
    if isinstance(core, nn.RNNBase):  # torch's, or one that can be given a PackedSequence as torch's are
        return
    raise UsageError(
        f"clips of {lengths} frames came in one batch, and the network over time, a {type(core).__name__}, is not told "
        "where the padding of the shorter ones begins: its results would depend on it. Give clips of one length "
        "(train.batch_size=1), or, where no result depends on later frames, say so by an attribute `is_causal = True`"
    )


def _core(rnn: nn.Module) -> nn.Module:
    """Return the network inside SegmentedRNN and torch.compile's wrapper."""
    core = getattr(rnn, "core", rnn)
    return getattr(core, "_orig_mod", core)


class PerFrame(nn.Module):
    """Encode all frames at once: the plain twin of ChunkedEncoder, with the encoder's own `state_dict` keys.

    Takes a tensor (B, T, C, H, W) and returns (B, T, ...); or a list of clips, each a tensor (t_i, C, H, W) or a
    FrameSource (`len(source)`, `source[a:b]`), and returns a list of (t_i, ...). `transform` turns rows of stored
    frames into rows of floats. Keeps the activations of all B * T frames.
    """

    def __init__(self, encoder: nn.Module, *, transform: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.encoder = encoder
        self.transform = transform
        hide_in_state_dict(self, "encoder")

    def forward(self, frames: Tensor | Sequence[Any]) -> Any:
        """Encode a batch of clips; one call of the encoder."""
        if isinstance(frames, Tensor):
            num_clips, num_frames = frames.shape[:2]
            return self._encode(frames.flatten(0, 1)).unflatten(0, (num_clips, num_frames))
        clips = [clip[0 : len(clip)] for clip in frames]
        return list(self._encode(torch.cat(clips)).split([len(clip) for clip in clips]))

    def _encode(self, rows: Tensor) -> Tensor:
        return self.encoder(rows if self.transform is None else self.transform(rows))


class NoRecurrence(nn.Module):
    """In the place of a recurrent network: hidden states are the features, each frame by itself."""

    is_causal = True

    def forward(self, x: Any, state: Any = None) -> tuple[Any, None]:
        """Return `x` as it is, and no state."""
        return x, None


class PlainLoss(nn.Module):
    """`criterion(decoder(hidden), targets)` over the whole sequence: the plain twin of SegmentedLoss.

    Classes come last, logits (B, T, K) and targets (B, T); cross entropy is given them as rows, so that its mean runs
    over all labelled frames of the batch, weighted as torch does. Half-precision logits are cast to float32 first.
    Where no frame counts (all ignored, or of weight 0) loss and gradient are 0; torch's mean would be nan.
    `collect`, if given, is called with the detached logits. Keeps the logits of all frames.
    """

    def __init__(
        self, decoder: nn.Module, criterion: nn.Module, *, collect: Callable[[Tensor], object] | None = None
    ) -> None:
        super().__init__()
        self.decoder = decoder
        self.criterion = criterion
        self.collect = collect

    def forward(self, hidden: Tensor, targets: Tensor) -> Tensor:
        """Return the loss, a scalar, from hidden states (B, T, H) and targets (B, T)."""
        logits = self.decoder(hidden)
        if self.collect is not None:
            self.collect(logits.detach())
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()
        if not isinstance(self.criterion, nn.CrossEntropyLoss):
            return self.criterion(logits, targets)
        rows = logits.flatten(0, -2)
        if targets.is_floating_point():  # a distribution over the classes for each frame
            return self.criterion(rows, targets.flatten(0, -2))
        if not _any_counts(self.criterion, targets):
            return (rows * 0).sum()
        return self.criterion(rows, targets.flatten())


def _any_counts(criterion: nn.CrossEntropyLoss, targets: Tensor) -> bool:
    counted = targets[targets != criterion.ignore_index]
    if criterion.weight is not None:
        return bool(criterion.weight[counted].sum() > 0)
    return counted.numel() > 0

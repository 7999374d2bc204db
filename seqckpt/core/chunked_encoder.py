"""A per-frame encoder run in chunks of frames, its activations forgotten but for those worth keeping.

A chunk's frames go through up to three parts of the encoder (Loop in replay.py):

    frames --transform--> [frozen stages] --> [forgotten stages] --> [kept stages] --> features
                          run once, output     replayed in            graph kept
                          stored               backward               until backward

Which parts there are follows from the encoder (stages without trainable parameters in front) and from `keep`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from seqckpt.core.closures import modules_of, trains
from seqckpt.core.cuts import balanced_spans, check_length
from seqckpt.core.frame_rows import FrameRows, FrameSource
from seqckpt.core.fused_layers import Folded, FusedConv
from seqckpt.core.graph_stages import GraphStage, fold_all
from seqckpt.core.replay import Loop, replay_loop
from seqckpt.core.stages import Stage, find_stages, fused_stages
from seqckpt.errors import ReplayError
from seqckpt.transparent import hide_in_state_dict

__all__ = ["ChunkedEncoder", "FrameSource", "Keep", "check_lengths", "pad_clips"]


@dataclass(frozen=True)
class Keep:
    """What of an encoder's graph is kept between forward and backward rather than replayed.

    Args:
        depth: the number of last stages whose graphs are kept for every chunk: late stages cost few bytes for the
            time that they save. Stages are the children of an nn.Sequential, those of nn.Sequentials inside it
            counted one by one, or the calls in a forward that torch.fx can trace; `ChunkedEncoder.stages` lists them.
            2.5 means 2 stages of every chunk, and of the last half of the chunks a third one.
        chunks: the number of last chunks kept whole; the first one is free, since its graph and any other chunk's
            replay are never alive together.
        frozen: whether stages in front that nothing trains are run once and their output stored (True), or replayed
            like the rest (False), which costs their time but not the bytes of that output.
    """

    depth: float = 0
    chunks: int = 1
    frozen: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.depth, float):
            check_length(self.depth, "keep.depth", at_least=0)
        elif not 0 <= self.depth < float("inf"):
            raise ValueError(f"keep.depth is {self.depth}; expected a number of stages of at least 0")
        check_length(self.chunks, "keep.chunks")


class ChunkedEncoder(nn.Module):
    """A per-frame encoder over all frames of clips, in the memory of one chunk.

    Args:
        encoder: a module from rows (n, C, H, W) to (n, ...), or nested outputs (a dict of features) with n rows each.
        chunk_size: the most frames that go through it at once, counted over batch and time together. Chunks are
            balanced: 33 frames in chunks of 16 become 11 + 11 + 11.
        keep: what is kept rather than replayed; see Keep. `depth` needs an encoder that can be cut in stages.
        transform: applied to a chunk's frames first, in the chunk (to float, normalisation, augmentation); must not
            change them in place. Random numbers may come from torch, Python, numpy, or generators that it holds.
        fuse: run each convolution together with the frozen batch norm, the residual addition and the ReLU behind it
            (fused_layers.py), which saves a half to two thirds of the activations' memory, and time. The same function
            and gradients to rounding, where False is bitwise. Needs an encoder that torch.fx can trace, and batch
            norm that uses stored statistics (`apply_batch_norm_policy(encoder, "frozen")`). Its stages are others.
            Under no_grad the layers run as they are.
        check_replay: compare the values of every replay with the first run's; for debugging.

    `forward(frames)` takes a tensor (B, T, C, H, W) of any dtype and returns features (B, T, ...); with `lengths` (B
    numbers), only the first of each clip's frames are encoded, and the rest of its features are zero. Or it takes a
    list of clips of different lengths, tensors (t, C, H, W) or FrameSources, and returns a list of (t, ...).
    Gradients go to the encoder, and to frames that require them. `state_dict()` has the encoder's own keys.

    Exactness: bitwise that of a plain loop over the same chunks (with `fuse` to rounding); to rounding that of the
    undivided encoder, unless batch norm is in training mode, which in chunks is another function (statistics per
    chunk). Memory: frames, features, one chunk's activations, and what `keep` says. Time: forward twice for all but the
    last chunk; once where nothing is to be trained.

    >>> cnn = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    >>> encoder = ChunkedEncoder(cnn, chunk_size=16, transform=lambda frames: frames.float() / 255)
    >>> frames = torch.randint(256, (2, 50, 3, 16, 16), dtype=torch.uint8)
    >>> encoder(frames).shape
    torch.Size([2, 50, 8])
    """

    def __init__(
        self,
        encoder: nn.Module,
        chunk_size: int,
        *,
        keep: Keep | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        fuse: bool = False,
        check_replay: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(encoder, nn.Module):
            raise TypeError(f"encoder is a {type(encoder).__name__}; expected a module from (n, C, H, W) to (n, ...)")
        self.encoder = encoder
        self.chunk_size = chunk_size
        self.fuse = fuse
        self.keep = keep or Keep()
        self.transform = transform
        if isinstance(transform, nn.Module) and transform.state_dict() and hasattr(encoder, "transform"):
            raise ValueError(
                "both the encoder and ChunkedEncoder have a `transform` with a state: rename the encoder's"
            )
        self.check_replay = check_replay
        hide_in_state_dict(self, "encoder")

    @property
    def chunk_size(self) -> int:
        return self._chunk_size

    @chunk_size.setter
    def chunk_size(self, value: int) -> None:
        self._chunk_size = check_length(value, "chunk_size")

    @property
    def keep(self) -> Keep:
        return self._keep

    @keep.setter
    def keep(self, value: Keep) -> None:
        num_stages = len(self.stages) if value.depth else 0
        if value.depth > (num_stages if num_stages > 1 else 0):
            kind = f"can be cut in {num_stages} stages" if num_stages > 1 else "cannot be cut in stages"
            raise ValueError(
                f"keep.depth is {value.depth}, but the encoder {kind}; lower it, or hand in an nn.Sequential of stages"
            )
        self._keep = value

    @property
    def stages(self) -> Sequence[Stage]:
        """The parts that `keep.depth` counts: what the transform returns goes through them one after the other."""
        return self._fused_stages() if self.fuse else find_stages(self.encoder, trace=True)

    def extra_repr(self) -> str:
        return f"chunk_size={self.chunk_size}, keep={self.keep}" + (", fuse=True" if self.fuse else "")

    def forward(self, frames: Tensor | Sequence[FrameSource], lengths: Sequence[int] | Tensor | None = None) -> Any:
        if isinstance(frames, Tensor) and lengths is None:
            if frames.dim() < 3:
                raise ValueError(f"frames of shape {tuple(frames.shape)}: expected (B, T, ...), or a list of (t, ...)")
            if 0 in frames.shape[:2]:
                raise ValueError(
                    f"frames of shape {tuple(frames.shape)}: expected one or more clips, none of them empty"
                )
            features = self._encode(frames.flatten(0, 1))
            return tree_map(lambda rows: _unflattened(rows, frames.shape[:2]), features)
        if isinstance(frames, Tensor):
            clips = [clip[:length] for clip, length in zip(frames, check_lengths(lengths, frames), strict=True)]
            return tree_map(lambda *rows: pad_clips(rows, frames.shape[1]), *self(clips))
        clips = list(frames)
        if not clips or not all(len(clip) for clip in clips):
            raise ValueError(
                f"clips of {[len(clip) for clip in clips]} frames: expected one or more, none of them empty"
            )
        if any(isinstance(clip, Tensor) and clip.requires_grad for clip in clips):
            features = self._encode(torch.cat([clip[:] for clip in clips]))
        else:
            features = self._encode(FrameRows(clips))
        sizes = [len(clip) for clip in clips]
        flat, spec = tree_flatten(features)
        parts = [rows.split(sizes) if isinstance(rows, Tensor) else [rows] * len(sizes) for rows in flat]
        return [tree_unflatten([of_leaf[i] for of_leaf in parts], spec) for i in range(len(sizes))]

    def _encode(self, rows: Tensor | FrameRows) -> Any:
        """Features of rows of frames; (n, C, H, W) to (n, ...)."""
        spans = balanced_spans(len(rows), self.chunk_size)
        before_encoder = isinstance(rows, Tensor) and rows.requires_grad
        before_encoder |= self.transform is not None and trains(self.transform)
        stages, num_untrained = self._stages(before_encoder)
        num_frozen = num_untrained if self.keep.frozen else 0
        first_kept = self._first_kept(len(stages), num_untrained, len(spans))
        frozen, any_kept = stages[:num_frozen], min(first_kept) < len(stages)
        _refuse_unequal_sync_batch_norm(self.encoder, len(spans))

        fused = fold_all(stages) if self._is_fusing else {}
        weights, spec = tree_flatten(list(fused.values()))

        def through(stages: Sequence[Stage], x: Any, weights: Sequence[Tensor]) -> Any:
            return _through(stages, x, dict(zip(fused, tree_unflatten(weights, spec), strict=True)))

        def load(k: int, x: Any) -> Tensor:
            x = rows.read(*spans[k]) if isinstance(rows, FrameRows) else x[0]
            return x if self.transform is None else self.transform(x)

        def run(k: int, x: Any, state: Any, weights: Sequence[Tensor]) -> tuple[Any, Any]:
            return through(stages[num_frozen : first_kept[k]], x if frozen else load(k, x), weights), None

        def finish(k: int, y: Any, weights: Sequence[Tensor]) -> Any:
            return through(stages[first_kept[k] :], y, weights)

        loop = Loop(
            run=run,
            name="chunk",
            spans=spans,
            prepare=(lambda k, x, weights: through(frozen, load(k, x), weights)) if frozen else None,
            finish=finish if any_kept else None,
            weights=weights,
            modules=[self.encoder, *([] if self.transform is None else modules_of(self.transform))],
            functions=[] if self.transform is None else [self.transform],
            num_kept=self.keep.chunks,
            check=self.check_replay,
        )
        return replay_loop(loop, (rows,) if isinstance(rows, Tensor) else (), None)[0]

    def _stages(self, trains_before: bool) -> tuple[list[Stage], int]:
        """The encoder's stages, and how many in front nothing trains; the encoder itself if it is not cut."""
        if self.fuse and not self._is_fusing:
            return [self.encoder], 0
        if self.fuse:
            stages: list[Stage] = list(self._fused_stages())
        else:
            stages = list(find_stages(self.encoder, trace=self.keep.depth > 0))
        num_untrained = 0
        if not trains_before:
            trained = [any(p.requires_grad for p in stage.parameters()) for stage in stages]
            num_untrained = trained.index(True) if True in trained else 0
            if not any(True for stage in stages[:num_untrained] for _ in stage.parameters()):
                num_untrained = 0  # nothing but reshaping: its output costs more than its time
        if len(stages) == 1 and self.keep.depth:
            raise ValueError(
                f"keep.depth is {self.keep.depth}, but the encoder, as it is now, cannot be cut in stages: hooks on "
                "it, or a forward that depends on values, forbid it"
            )
        if not (self.fuse or self.keep.depth or (num_untrained and self.keep.frozen)):
            return [self.encoder], 0  # whole: with its own hooks, or compiled
        return stages, num_untrained

    @property
    def _is_fusing(self) -> bool:
        """Without gradients there is nothing to save, and tracing would cost more than a few frames' encoding."""
        return self.fuse and torch.is_grad_enabled()

    def _fused_stages(self) -> Sequence[GraphStage]:
        stages = fused_stages(self.encoder)
        if not stages:
            raise ValueError(
                "fuse=True, but no convolution of the encoder, as it is now, can be fused with what follows it: batch "
                "norm must use stored statistics (apply_batch_norm_policy(encoder, 'frozen')), and hooks, "
                "torch.compile, or a forward that depends on values forbid it; leave fuse out otherwise"
            )
        return stages

    def _first_kept(self, num_stages: int, num_untrained: int, num_chunks: int) -> list[int]:
        """For each chunk, the stage from which on its graph is kept; stages that nothing trains in front have none."""
        depth, rest = divmod(self.keep.depth, 1)
        num_forgotten = max(0, num_chunks - self.keep.chunks)
        first_deeper = num_forgotten - round(rest * num_forgotten)
        return [
            max(num_stages - int(depth) - (k >= first_deeper and rest > 0), num_untrained) for k in range(num_chunks)
        ]


def _unflattened(rows: Any, shape: torch.Size) -> Any:
    return rows.unflatten(0, shape) if isinstance(rows, Tensor) else rows


def _through(stages: Sequence[Stage], x: Any, folded: Mapping[FusedConv, Folded]) -> Any:
    for stage in stages:
        x = stage(x, folded) if folded and isinstance(stage, GraphStage) else stage(x)
    return x


def check_lengths(lengths: Any, frames: Tensor) -> list[int]:
    values = [int(length) for length in lengths]
    if len(values) != frames.shape[0]:
        raise ValueError(f"{len(values)} lengths for a batch of {frames.shape[0]} clips")
    for i, length in enumerate(values):
        if not 1 <= length <= frames.shape[1]:
            raise ValueError(f"lengths[{i}] is {length}; expected 1 to {frames.shape[1]}, the frames that the clip has")
    return values


def pad_clips(rows: Sequence[Any], num_steps: int) -> Any:
    """Clips of rows (t, ...) as one tensor (B, num_steps, ...), with zeros behind; what is no tensor, once."""
    if not isinstance(rows[0], Tensor):
        return rows[0]
    return torch.stack([nn.functional.pad(r, (0, 0) * (r.dim() - 1) + (0, num_steps - len(r))) for r in rows])


def _refuse_unequal_sync_batch_norm(encoder: nn.Module, num_chunks: int) -> None:
    """SyncBatchNorm communicates in every chunk: all ranks need equally many, or they would hang."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    names = [n for n, m in encoder.named_modules() if isinstance(m, nn.SyncBatchNorm) and m.training]
    if not names:
        return
    counts: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(counts, num_chunks)
    if len(set(counts)) > 1:
        raise ReplayError(
            f"SyncBatchNorm layers {names} would wait for ever: the ranks have {counts} chunks of frames. Give every "
            "rank clips of equal length, or freeze batch norm, or convert it to group norm"
        )

"""Random per-frame encoders, in ChunkedEncoder, Checkpointed and checkpoint_sequential, against the plain run.

ChunkedEncoder is held against a plain loop over the same chunks, the others against one plain call.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils._pytree import tree_map

from seqckpt import Checkpointed, ChunkedEncoder, checkpoint_sequential
from seqckpt.core import Keep

from .awkward_layers import AuxiliaryLoss, CachedWeight
from .comparison import Case, main, weighted_sum
from .draws import Draw
from .frames import FORMATS, draw_frames, flat, joined, plain_chunks, read_clips
from .random_encoders import freeze, make_encoder, set_modes
from .steps import take_step

__all__ = ["make_encoder_case"]

FORMS = ("batch", "lengths", "clips", "Checkpointed", "checkpoint_sequential")


def _noisy(rows: Tensor) -> Tensor:
    return rows * 0.9 + 0.1 * torch.rand(rows.shape, dtype=rows.dtype)


def _shifted(rows: Tensor) -> Tensor:
    return rows.roll(1, -1)


_TRANSFORMS: dict[str, Any] = {"none": None, "noise": _noisy, "shift": _shifted, "module": nn.Dropout(0.2)}


def _contiguous_gradient(module: nn.Module, args: Any, y: Tensor) -> None:
    """torch's batch norm in eval mode gives wrong gradients for one row whose gradient has other strides (2.14.1)."""
    if y.requires_grad:
        y.register_hook(torch.Tensor.contiguous)


class _Attack:
    """One encoder, its frames, and how both are run."""

    def __init__(self, draw: Draw) -> None:
        dims = draw.one("dims", {"2d": 2, "1d": 1, "3d": 3}, (7, 1.5, 1.5))
        self.form = draw.one("form", FORMS, (6, 1, 1.5, 2, 1.5))
        chunked = self.form in FORMS[:3]
        self.precision = draw.one("precision", ("float64", "float32", "autocast", "float64 frames"), (8, 1, 1, 0.2))
        self.fuse = chunked and draw.chance("fuse", 0.18)
        in_channels = draw.number(1, 3)
        encoder = make_encoder(draw, dims, in_channels, fuse=self.fuse)
        self.encoder = encoder.to(torch.float64 if self.precision == "float64" else torch.float32)
        if dims in FORMATS and draw.chance("channels-last weights", 0.1):
            self.encoder.to(memory_format=FORMATS[dims])
        set_modes(draw, self.encoder)
        if self.fuse and self.precision == "float32":  # in another layout, where dropout draws other masks
            self.encoder.eval()
            if "block: torch's numbers" in draw.ingredients:
                self.encoder.double()
                self.precision = "float64"
        freeze(draw, self.encoder)
        self._draw_frames(draw, in_channels, {1: (7,), 2: (5, 6), 3: (3, 4, 4)}[dims])
        self.copies = "first layer: in place" in draw.ingredients  # the engine leaves the caller's frames as they are
        self.transform, self.depth, self.keep = None, "0", {}
        self.hooks: list[Any] = []
        self.num_segments = draw.number(1, 4)
        if chunked:
            self.transform = draw.one("transform", _TRANSFORMS, (8, 1, 1, 0.5))
            self.depth = draw.one("keep.depth", ("0", "1", "half", "all", "fraction"), (5, 1, 1, 1, 1))
            self.keep["chunks"] = draw.one("keep.chunks", {"1": 1, "2": 2, "5": 5}, (4, 1, 1))
            self.keep["frozen"] = not draw.chance("keep.frozen=False", 0.3)
        parametrized = "parametrized" in draw.ingredients
        self.cached = draw.one("cached()", ("no", "forward", "step"), (8, 1, 1)) if parametrized else "no"
        self.take = take_step(draw, self.encoder, self.leaf)

    def _draw_frames(self, draw: Draw, channels: int, size: tuple[int, ...]) -> None:
        batch, time = draw.number(1, 3), draw.number(1, 5)
        self.chunk_size = draw.random.choice([1, 2, draw.number(1, batch * time + 1)])
        draw.ingredients += ["chunk of 1"] * (self.chunk_size == 1) + ["batch of 1"] * (batch == 1)
        dtype = torch.float32 if self.precision in ("float32", "autocast") else torch.float64
        self.leaf, self.view = draw_frames(draw, (batch, time, channels, *size), dtype)
        self.leaf.requires_grad_(draw.chance("frames with gradient", 0.4))
        self.lengths = [draw.number(1, time) for _ in range(batch)]

    def chunked_encoder(self) -> ChunkedEncoder:
        made = ChunkedEncoder(self.encoder, self.chunk_size, transform=self.transform, fuse=self.fuse)
        num_stages = len(made.stages) if self.depth != "0" else 0
        depths = {"1": 1, "half": num_stages // 2, "all": num_stages, "fraction": 0.37 * num_stages}
        made.keep = Keep(depth=depths.get(self.depth, 0), **self.keep)
        return made

    def plain(self, rows: Tensor) -> Any:
        torch.clear_autocast_cache()  # or the chunks' gradients of a weight are added in bfloat16
        rows = rows.clone() if self.copies else rows
        return self.encoder(rows if self.transform is None else self.transform(rows))

    def plain_run(self, frames: Tensor) -> Any:
        if self.fuse and not self.hooks:  # only here: layers with hooks cannot be fused
            norms = [m for m in self.encoder.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
            self.hooks = [norm.register_forward_hook(_contiguous_gradient) for norm in norms]
        rows = frames.flatten(0, 1)
        if self.form not in FORMS[:3]:
            return self.plain(rows)
        if self.form == "batch":
            return plain_chunks(self.plain, lambda a, b: rows[a:b], len(rows), self.chunk_size)
        clips = [clip[:n] for clip, n in zip(frames, self.lengths, strict=True)]
        clips = [torch.cat(clips)] if frames.requires_grad else clips
        return plain_chunks(self.plain, partial(read_clips, clips), sum(self.lengths), self.chunk_size)

    def checkpointed_run(self, frames: Tensor) -> Any:
        if self.form == "Checkpointed":
            return Checkpointed(self.encoder)(frames.flatten(0, 1))
        if self.form == "checkpoint_sequential":
            return checkpoint_sequential(_layers(self.encoder), frames.flatten(0, 1), segments=self.num_segments)
        if self.form == "batch":
            return tree_map(flat, self.chunked_encoder()(frames))
        if self.form == "lengths":
            return tree_map(self._without_padding, self.chunked_encoder()(frames, self.lengths))
        return joined(self.chunked_encoder()([clip[:n] for clip, n in zip(frames, self.lengths, strict=True)]))

    def _without_padding(self, leaf: Any) -> Any:
        return (
            joined([row[:n] for row, n in zip(leaf, self.lengths, strict=True)]) if isinstance(leaf, Tensor) else leaf
        )

    def run(self, checkpointed: bool, leaf: Tensor) -> tuple[Any, Tensor]:
        with ExitStack() as stack:
            if self.precision == "autocast":
                stack.enter_context(torch.autocast("cpu", dtype=torch.bfloat16))
            if self.cached == "forward":
                stack.enter_context(parametrize.cached())
            results = (self.checkpointed_run if checkpointed else self.plain_run)(self.view(leaf))
        auxiliary = [m.loss for m in self.encoder.modules() if isinstance(m, AuxiliaryLoss) and m.loss is not None]
        return results, sum(auxiliary, weighted_sum(results))

    def step(self, checkpointed: bool) -> Any:
        for module in self.encoder.modules():
            if isinstance(module, CachedWeight):
                module.new_step()
        with parametrize.cached() if self.cached == "step" else nullcontext():
            return self.take(partial(self.run, checkpointed))


def make_encoder_case(draw: Draw) -> Case:
    attack = _Attack(draw)
    tolerance = {"float64": 1e-12, "autocast": 1e-2}.get(attack.precision, 1e-5)
    return Case(attack.encoder, attack.step, {"frames": attack.leaf}, tolerance, attack.precision == "float64 frames")


def _layers(encoder: nn.Module) -> Any:
    if isinstance(encoder, nn.Sequential):
        return encoder
    return list(encoder.blocks) if encoder.kind == "loop" else [encoder]


if __name__ == "__main__":
    sys.exit(main(make_encoder_case, __doc__ or ""))

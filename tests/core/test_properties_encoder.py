"""ChunkedEncoder under settings that nobody thought of: hypothesis against the plain loop over the same chunks.

HYPOTHESIS_PROFILE=long searches through thousands.
"""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from reference import hold_against
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from seqckpt import ChunkedEncoder
from seqckpt.core import Keep

NUM_STAGES = 6
NUM_EXAMPLES = max(150, settings().max_examples)  # beyond CI's 50: each takes about 20 ms


class Pair(nn.Module):
    """A last stage with nested outputs."""

    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"mean": x.mean((2, 3)), "more": [x, x.amax((2, 3)).long()]}


@st.composite
def encoders(draw: st.DrawFn) -> nn.Sequential:
    inplace = draw(st.booleans())
    norm = draw(st.sampled_from([nn.BatchNorm2d(4), nn.BatchNorm2d(4, momentum=None), nn.GroupNorm(2, 4)]))
    act = draw(st.sampled_from([nn.ReLU(inplace=inplace), nn.LeakyReLU(0.3, inplace=inplace), nn.Identity()]))
    over_act = inplace and isinstance(act, nn.Identity)  # torch refuses to overwrite a ReLU's result, plain too
    stages = [
        nn.Conv2d(2, 4, 2),
        norm,
        act,
        nn.Sequential(nn.Dropout(draw(st.sampled_from([0.0, 0.4])), inplace=over_act), nn.Conv2d(4, 3, 2)),
        nn.Tanh(),
        Pair() if draw(st.booleans()) else nn.Flatten(),
    ]
    if draw(st.booleans()):
        stages.insert(0, nn.Hardtanh(-0.5, 0.5, inplace=inplace))
        stages[-2:] = [nn.Sequential(*stages[-2:])]
    for stage in stages:
        stage.requires_grad_(draw(st.sampled_from([True, True, False])))
        stage.train(draw(st.sampled_from([True, True, False])))
    for p in stages[0].parameters():
        torch.nn.init.uniform_(p, -1, 1)
    return nn.Sequential(*stages)


def noisy(rows: Tensor) -> Tensor:
    return rows.to(torch.get_default_dtype()) / 255 + torch.rand(rows.shape, dtype=torch.get_default_dtype())


def plain_rows(encoder: nn.Module, rows: Tensor, chunk_size: int, transform: Any) -> Any:
    num_chunks = -(-len(rows) // chunk_size)
    sizes = [len(rows) * (k + 1) // num_chunks - len(rows) * k // num_chunks for k in range(num_chunks)]
    outputs = [encoder(part.clone() if transform is None else transform(part)) for part in rows.split(sizes)]
    return tree_map(lambda *parts: torch.cat(parts), *outputs)


@settings(max_examples=NUM_EXAMPLES)
@given(
    encoder=encoders(),
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=3),
    chunk_size=st.integers(1, 12),
    depth=st.one_of(st.integers(0, NUM_STAGES), st.floats(0, NUM_STAGES)),
    chunks=st.integers(1, 4),
    keep_frozen=st.booleans(),
    kind=st.sampled_from(["batch", "batch with gradient", "lengths", "clips", "clips with gradient", "bytes"]),
    dtype=st.sampled_from([torch.float64, torch.float32]),
)
def test_cannot_be_told_from_the_plain_loop(
    encoder: nn.Sequential,
    lengths: list[int],
    chunk_size: int,
    depth: float,
    chunks: int,
    keep_frozen: bool,
    kind: str,
    dtype: torch.dtype,
) -> None:
    """Bitwise: outputs, gradients, buffers, random state; whatever the settings."""
    wants_gradient = "gradient" in kind
    assume(wants_gradient or any(p.requires_grad for p in encoder.parameters()))
    encoder = encoder.to(dtype)
    keep = Keep(depth=min(depth, len(encoder)), chunks=chunks, frozen=keep_frozen)
    transform = (lambda rows: noisy(rows).to(dtype)) if kind == "bytes" else None
    cut = {"keep": keep, "transform": transform}
    if kind == "bytes":
        inputs = [torch.randint(256, (n, 2, 4, 4), dtype=torch.uint8) for n in lengths]
    else:
        inputs = [torch.randn(n, 2, 4, 4, dtype=dtype, requires_grad=wants_gradient) for n in lengths]
    batched = kind.startswith("batch") or kind == "lengths"
    if batched:
        longest = max(lengths)
        inputs = [torch.randn(len(lengths), longest, 2, 4, 4, dtype=dtype, requires_grad=wants_gradient)]

    def plain(m: nn.Module, *inputs: Tensor) -> Any:
        if kind == "lengths":
            rows = torch.cat([clip[:n] for clip, n in zip(inputs[0], lengths, strict=True)])
        else:
            rows = inputs[0].flatten(0, 1) if batched else torch.cat(inputs)
        return plain_rows(m, rows, chunk_size, transform)

    def run(m: nn.Module, *inputs: Tensor) -> Any:
        chunked = ChunkedEncoder(m, chunk_size, **cut)
        if kind == "lengths":
            padded = chunked(inputs[0], lengths)
            return tree_map(lambda t: torch.cat([r[:n] for r, n in zip(t, lengths, strict=True)]), padded)
        if batched:
            return tree_map(lambda t: t.flatten(0, 1), chunked(inputs[0]))
        return tree_map(lambda *clips: torch.cat(clips), *chunked(list(inputs)))

    hold_against(plain, run, encoder, inputs)

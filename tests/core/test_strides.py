"""What a replay is handed lies in memory as what the first run was handed.

Dropout draws its mask in the order of memory. Where a dimension has one entry its stride is arbitrary, and a copy or a
view of one frame in channels_last is easily no longer in channels_last: the mask is then another, the loss right, and
every gradient off by its own size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from reference import hold_against
from torch import Tensor, nn

from seqckpt import Checkpointed, ChunkedEncoder, checkpoint_sequential, checkpointed_scan
from seqckpt.core import Keep
from seqckpt.core.handover import HandOver

DIMENSIONS = {3: nn.Conv1d, 4: nn.Conv2d, 5: nn.Conv3d}
NORMS = {3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}


def network(dim: int, dtype: torch.dtype) -> nn.Sequential:
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for width, following in ((3, 8), (8, 8), (8, 8)):
        layers += [DIMENSIONS[dim](width, following, 3, padding=1), NORMS[dim](following), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers).to(dtype)


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The same values, with other strides."""
    if layout == "channels last":
        return x.movedim(1, -1).contiguous().movedim(-1, 1)
    if layout == "sliced":
        return torch.stack([x, x], -1)[..., 0]
    if layout == "expanded":
        return x[..., :1].expand(x.shape)
    if layout == "transposed":
        return x.transpose(-1, -2).contiguous().transpose(-1, -2)
    return x


def cut_in_two(module: nn.Sequential, x: Tensor) -> Tensor:
    return checkpoint_sequential(module, x, segments=2)


def behind_a_frozen_stem(module: nn.Sequential, x: Tensor) -> Tensor:
    return ChunkedEncoder(module, 1, keep=Keep(depth=2))(x.unsqueeze(0))[0]


WAYS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "Checkpointed": lambda module, x: Checkpointed(module)(x),
    "checkpoint_sequential": cut_in_two,
    "ChunkedEncoder": lambda module, x: ChunkedEncoder(module, 1)(x.unsqueeze(0))[0],
    "ChunkedEncoder with kept stages": behind_a_frozen_stem,
    "checkpointed_scan": lambda module, x: checkpointed_scan(lambda x, s: (module(x), s), x, None, 1, time_dim=0)[0],
}


@pytest.mark.parametrize("num_rows", [1, 2])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("layout", ["channels last", "sliced", "expanded", "transposed"])
@pytest.mark.parametrize("dim", [3, 4, 5])
@pytest.mark.parametrize("way", WAYS)
def test_masks_are_those_of_the_first_run(way: str, dim: int, layout: str, requires_grad: bool, num_rows: int) -> None:
    def given(x: Tensor) -> Tensor:
        return laid_out(x, layout).unsqueeze(0).flatten(0, 1) if "Chunked" in way else laid_out(x, layout)

    def plain(module: nn.Module, x: Tensor) -> Tensor:
        rows = given(x)
        in_pieces = way not in ("Checkpointed", "checkpoint_sequential")
        return torch.cat([module(part) for part in rows.split(1)]) if in_pieces else module(rows)

    x = torch.randn(num_rows, 3, *[6] * (dim - 2), dtype=torch.float64, requires_grad=requires_grad)
    hold_against(plain, lambda module, x: WAYS[way](module, laid_out(x, layout)), network(dim, torch.float64), [x])


def test_one_row_in_single_precision() -> None:
    """The case that was seen: (1, 3, 16, 16) in channels_last, three blocks with Dropout(0.3)."""
    x = torch.randn(1, 3, 16, 16).to(memory_format=torch.channels_last).requires_grad_()

    def kept_layout(module: nn.Module, x: Tensor) -> Tensor:
        return module(x.to(memory_format=torch.channels_last))

    hold_against(kept_layout, lambda module, x: kept_layout(Checkpointed(module), x), network(4, torch.float32), [x])


@pytest.mark.parametrize("frozen", [True, False])
def test_what_a_frozen_stem_returns(frozen: bool) -> None:
    class ChannelsLast(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 3, 1).double().requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            return self.conv(x).movedim(1, -1).contiguous().movedim(-1, 1)

    hold_against(
        lambda module, x: torch.cat([module(part) for part in x.split(1)]),
        lambda module, x: ChunkedEncoder(module, 1, keep=Keep(frozen=frozen))(x.unsqueeze(0))[0],
        nn.Sequential(ChannelsLast(), *network(4, torch.float64)),
        [torch.randn(3, 3, 5, 5, dtype=torch.float64)],
    )


def test_a_state_of_one_row() -> None:
    class Core(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.dropout = nn.Conv2d(4, 4, 3, padding=1).double(), nn.Dropout(0.3)

        def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
            state = self.dropout(self.conv(state) + x[:, 0]).movedim(1, -1).contiguous().movedim(-1, 1)
            return state.unsqueeze(1), state

    def plain(core: nn.Module, x: Tensor, state: Tensor) -> Tensor:
        outputs = []
        for part in x.split(1, 1):
            y, state = core(part, state)
            outputs.append(y)
        return torch.cat(outputs, 1)

    x, state = torch.randn(1, 5, 4, 6, 6, dtype=torch.float64), torch.randn(1, 4, 6, 6, dtype=torch.float64)
    hold_against(
        lambda core, x, s: plain(core, x, laid_out(s, "channels last")),
        lambda core, x, s: checkpointed_scan(core, x, laid_out(s, "channels last"), 1)[0],
        Core(),
        [x, state.requires_grad_()],
    )


def test_a_saved_tensor_hook_that_lays_tensors_out_anew() -> None:
    """Such as torch.autograd.graph.save_on_cpu, which brings every tensor back in the default layout."""

    def run(module: nn.Module, x: Tensor) -> Tensor:
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t.contiguous(), lambda t: t):
            return module(laid_out(x, "channels last"))

    hold_against(
        lambda module, x: module(laid_out(x, "channels last")),
        lambda module, x: run(Checkpointed(module), x),
        network(4, torch.float64),
        [torch.randn(2, 3, 6, 6, dtype=torch.float64)],
    )


X = torch.arange(120.0).reshape(4, 6, 5)


@pytest.mark.parametrize("copies", [False, True])
@pytest.mark.parametrize(
    "x",
    [
        X,
        X.permute(2, 0, 1),
        X[:, ::2],
        X.expand(3, 4, 6, 5),
        X[:1].expand(4, 6, 5),
        torch.arange(10.0).unfold(0, 4, 1),
        X.unfold(1, 3, 2),
        X[1:2],
        X[:, :, 2:3],
        X[:1].movedim(1, -1),
        torch.tensor(3.0),
        torch.empty(0, 3),
    ],
    ids=lambda x: f"{tuple(x.shape)} {x.stride()}",
)
def test_what_is_handed_on_has_the_strides_of_what_was_given(x: Tensor, copies: bool) -> None:
    hand_over = HandOver(safe=not copies)
    (handed,) = hand_over.of(0, [x], beside_graph=False)
    assert torch.equal(handed, x)
    assert handed.stride() == x.stride()
    assert not x.numel() or (handed.data_ptr() == x.data_ptr()) == (not copies)


def test_features_lie_as_the_chunks_do() -> None:
    """As torch.cat would lay them out: dropout behind the encoder draws its mask in that order."""
    conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
    frames = torch.randn(2, 3, 3, 9, 9)
    rows = frames.flatten(0, 1).to(memory_format=torch.channels_last)
    expected = torch.cat([conv(part) for part in rows.split(2)]).unflatten(0, (2, 3))
    encoder = ChunkedEncoder(conv, 2, transform=lambda x: x.to(memory_format=torch.channels_last))
    assert encoder(frames).stride() == expected.stride()

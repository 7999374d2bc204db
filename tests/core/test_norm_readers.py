"""Running statistics that the model itself reads: a replay must see what the first run saw."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from reference import hold_against
from torch import Tensor, nn

from seqckpt import Checkpointed, ChunkedEncoder
from seqckpt.core.norm_readers import NormReaders
from seqckpt.errors import ReplayError

X = torch.randn(1, 9, 3, 4, 4, dtype=torch.float64)


class Renorm(nn.Module):
    """Batch renorm, by a norm of torch's own inside."""

    def __init__(self, read: Callable[[nn.BatchNorm2d], Tensor]) -> None:
        super().__init__()
        self.norm, self.read = nn.BatchNorm2d(3).double(), read
        self.linear = nn.Linear(48, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        before = self.read(self.norm)
        y = self.norm(x) * before.view(-1, 1, 1)
        return self.linear((y + self.read(self.norm).view(-1, 1, 1)).flatten(1))


class Subclass(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        assert self.running_var is not None
        return super().forward(x) / self.running_var.sqrt().view(-1, 1, 1)


READS: dict[str, Callable[[nn.BatchNorm2d], Tensor]] = {
    "the running mean": lambda norm: norm.running_mean.clone(),
    "the running variance": lambda norm: norm.running_var.sqrt(),
    "the number of batches": lambda norm: 1 + norm.num_batches_tracked.double(),
    "all buffers": lambda norm: dict(norm.named_buffers())["running_var"].clone(),
    "the state_dict": lambda norm: norm.state_dict()["running_mean"].clone(),
}


@pytest.mark.parametrize("read", READS)
def test_statistics_that_are_read(read: str) -> None:
    hold_against(
        lambda m, x: torch.cat([m(part) for part in x[0].split(3)]),
        lambda m, x: ChunkedEncoder(m, 3)(x)[0],
        Renorm(READS[read]),
        [X],
    )
    hold_against(
        lambda m, x: m(x[0]) + m(x[0] * 2),
        lambda m, x: Checkpointed(m)(x[0]) + Checkpointed(m)(x[0] * 2),
        Renorm(READS[read]),
        [X],
    )


def test_a_subclass_that_reads_its_own() -> None:
    hold_against(
        lambda m, x: torch.cat([m(part) for part in x[0].split(3)]),
        lambda m, x: ChunkedEncoder(m, 3)(x)[0],
        nn.Sequential(Subclass(3), nn.Flatten(), nn.Linear(48, 2)).double(),
        [X],
    )


def test_statistics_that_nothing_reads_are_not_kept_for_each_piece() -> None:
    module = nn.Sequential(
        nn.BatchNorm2d(3), nn.SyncBatchNorm(3).eval(), nn.InstanceNorm2d(3, track_running_stats=True)
    )
    readers = NormReaders(list(module.modules()))
    buffers = [dict(m._buffers) for m in module]
    with readers.watching():
        module(torch.randn(2, 3, 4, 4))
    assert not readers.read
    assert [{n: id(b) for n, b in m._buffers.items()} for m in module] == [
        {n: id(b) for n, b in before.items()} for before in buffers
    ]
    assert all(type(m._buffers) is dict for m in module)
    with readers.watching():
        assert module[0].running_mean is not None
    assert readers.read == {(module[0], "running_mean")}
    copy.deepcopy(module)


def test_statistics_that_only_a_later_piece_reads_are_refused() -> None:
    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.calls = nn.BatchNorm2d(3).double(), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            y = self.norm(x)
            return y * self.norm.running_var.view(-1, 1, 1) if self.calls == 2 else y

    with pytest.raises(ReplayError, match="running_var of a BatchNorm2d is read by the model in chunk 2 of 3"):
        ChunkedEncoder(Late(), 3)(X)

"""Two processes under DDP, over gloo on this machine: the gradients of one process on both videos, reduced once."""

from __future__ import annotations

import copy
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from test_pipeline import Cut, Plain, make_clip
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from seqckpt import ChunkedEncoder
from seqckpt.core import Keep
from seqckpt.errors import ReplayError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")


def build() -> tuple[Plain, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The same model and the same two videos in every process; equally many frames, since each mean counts alike."""
    torch.manual_seed(5)
    plain = Plain().double()
    return plain, [make_clip(30), make_clip(30)]


WAYS = [(keep, find_unused) for keep in (Keep(), Keep(depth=2)) for find_unused in (False, True)]


def train_every_way(rank: int) -> list[dict[str, Any]]:
    return [train_two_steps(rank, *way) for way in WAYS]


def train_two_steps(rank: int, keep: Keep, find_unused_parameters: bool) -> dict[str, Any]:
    plain, clips = build()
    ddp = DistributedDataParallel(Cut(plain, 7, 8, keep), find_unused_parameters=find_unused_parameters)
    names = {id(p): name for name, p in plain.named_parameters()}
    reductions: Counter[str] = Counter()

    def counting(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with classes, not with text
        reductions.update(names[id(p)] for p in bucket.parameters())
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(None, counting)
    optimiser = torch.optim.SGD(ddp.parameters(), lr=0.1)
    gradients, counts = [], []
    for _ in range(2):  # buckets are rebuilt after the first step
        optimiser.zero_grad()
        reductions.clear()
        ddp(*clips[rank])[0].backward()
        gradients.append({name: p.grad.clone() for name, p in plain.named_parameters()})
        counts.append(dict(reductions))
        optimiser.step()
    return {"gradients": gradients, "counts": counts, "state": copy.deepcopy(plain.state_dict())}


def alone() -> list[dict[str, torch.Tensor]]:
    plain, clips = build()
    optimiser = torch.optim.SGD(plain.parameters(), lr=0.1)
    gradients = []
    for _ in range(2):
        optimiser.zero_grad()
        for clip in clips:
            (plain(*clip)[0] / 2).backward()
        gradients.append({name: p.grad.clone() for name, p in plain.named_parameters()})
        optimiser.step()
    return gradients


def test_two_processes_train_as_one(tmp_path: Path) -> None:
    """Cases 57, 58: several chunks and segments share each weight, which is ready, and reduced, once."""
    expected_steps = alone()
    for way, results in zip(WAYS, zip(*run_ranks(train_every_way, tmp_path), strict=True), strict=True):
        for step, expected in enumerate(expected_steps):
            for name, grad in expected.items():
                a, b = (result["gradients"][step][name] for result in results)
                assert torch.equal(a, b), (way, name)
                assert (a - grad).abs().max() < 1e-10, (way, name)  # float64, the undivided model in one process
            for result in results:
                assert result["counts"][step] == dict.fromkeys(expected, 1), way
        first, second = (result["state"] for result in results)
        assert all(torch.equal(first[name], second[name]) for name in first), way


def accumulate_without_sync(rank: int) -> list[torch.Tensor]:
    plain, clips = build()
    ddp = DistributedDataParallel(Cut(plain, 7, 8))
    with ddp.no_sync():
        (ddp(*clips[rank])[0] / 2).backward()
    (ddp(*clips[1 - rank])[0] / 2).backward()
    return [p.grad.clone() for p in plain.parameters()]


def test_accumulation_under_no_sync(tmp_path: Path) -> None:
    """Case 58: each rank sees both videos in two pieces; one reduction, at the second."""
    a, b = run_ranks(accumulate_without_sync, tmp_path)
    expected = list(alone()[0].values())
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    assert all((x - y).abs().max() < 1e-10 for x, y in zip(a, expected, strict=True))


def meet_sync_batch_norm(rank: int) -> str:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4))
    frames = torch.zeros(1, (8, 12)[rank], 3, 8, 8)
    try:
        ChunkedEncoder(encoder, 4)(frames)
    except ReplayError as error:
        return str(error)
    return "no error"


def test_sync_batch_norm_with_unequal_chunks_is_refused_not_waited_for(tmp_path: Path) -> None:
    """Case 60: ranks with 2 and 3 chunks would wait for each other's statistics for ever."""
    for message in run_ranks(meet_sync_batch_norm, tmp_path):
        assert "SyncBatchNorm layers ['1'] would wait for ever: the ranks have [2, 3] chunks" in message

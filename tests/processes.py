"""Work done in several processes of this machine that know each other, over gloo."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

TIMEOUT_SECONDS = 90  # for processes that wait for each other; nothing is measured by it


def find_free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def run_ranks(work: Callable[..., Any], folder: Path, *args: Any, num_ranks: int = 2) -> list[Any]:
    """What `work(rank, *args)` returns in each of the processes."""
    multiprocessing.set_forkserver_preload(["torch", "seqckpt"])  # imported once, not in every process
    processes = mp.start_processes(
        _process,
        (find_free_port(), str(folder), num_ranks, work, args),
        nprocs=num_ranks,
        join=False,
        start_method="forkserver",
    )
    try:
        done = processes.join(timeout=TIMEOUT_SECONDS)
        while not done:
            assert any(p.exitcode == 0 for p in processes.processes), "the processes wait for each other"
            done = processes.join(timeout=TIMEOUT_SECONDS)
    finally:
        for process in processes.processes:
            if process.is_alive():
                process.kill()
    return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(num_ranks)]


def _process(
    rank: int, port: int, folder: str, num_ranks: int, work: Callable[..., Any], args: tuple[Any, ...]
) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=num_ranks,
        timeout=timedelta(seconds=TIMEOUT_SECONDS),
    )
    try:
        torch.save(work(rank, *args), Path(folder) / f"{rank}.pt")
    finally:
        dist.destroy_process_group()

"""Work done in several processes of this machine that know each other, over gloo."""

from __future__ import annotations

import multiprocessing
import os
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
    """What `work(rank, *args)` returns in each of the processes, which have met."""
    return _run(_meet, work, folder, args, num_ranks)


def run_launched(work: Callable[..., Any], folder: Path, *args: Any, num_ranks: int = 2) -> list[Any]:
    """What `work(*args)` returns in each of the processes, which know what torchrun would tell them."""
    return _run(_only_run, work, folder, args, num_ranks)


def _run(begin: Callable[..., Any], work: Callable[..., Any], folder: Path, args: Any, num_ranks: int) -> list[Any]:
    folder.mkdir(exist_ok=True)
    multiprocessing.set_forkserver_preload(["torch", "seqckpt"])  # imported once, not in every process
    processes = mp.start_processes(
        _process,
        (find_free_port(), str(folder), num_ranks, begin, work, args),
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
    rank: int, port: int, folder: str, num_ranks: int, begin: Callable[..., Any], work: Any, args: Any
) -> None:
    torch.set_num_threads(1)
    # A loader's workers, too, would begin at a server of their own, and import all anew.
    multiprocessing.set_start_method("fork", force=True)
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": num_ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    torch.save(begin(rank, work, args), Path(folder) / f"{rank}.pt")


def _meet(rank: int, work: Callable[..., Any], args: Any) -> Any:
    dist.init_process_group("gloo", timeout=timedelta(seconds=TIMEOUT_SECONDS))
    try:
        return work(rank, *args)
    finally:
        dist.destroy_process_group()


def _only_run(rank: int, work: Callable[..., Any], args: Any) -> Any:
    return work(*args)

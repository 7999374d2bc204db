"""This process among those that torchrun started: which it is, and what it asks of the others.

    torchrun --nproc-per-node 4 train.py ... distributed.frame_parallel=2

                 frame 0   frame 1
    replica 0    rank 0    rank 1      each replica has clips of its own, each of its ranks a share of their frames
    replica 1    rank 2    rank 3

A `Ranks` is one process alone where nothing was started by torchrun: then all of this costs nothing, and callers need
not ask. Everything that waits for others is a method here, but for the two exchanges of a step: DDP's sum of gradients
and FrameParallel's features.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from seqckpt.errors import LostContactError, UsageError
from seqckpt.launch import launched_as

__all__ = ["Ranks", "join_ranks"]

T = TypeVar("T")

_PATIENCE = timedelta(days=7)  # where one rank decodes videos or saves, and the others have nothing to do


@dataclass(frozen=True)
class Ranks:
    """This process, and how many there are of what.

    Args:
        rank: its number, from 0; `local_rank` on its machine.
        world_size: the number of all processes.
        num_frame_ranks: how many of them share the frames of the same clips.
        timeout_seconds: how long a step waits for other processes before it is an error.
        mesh: the processes as replicas x frame ranks; None where there is one process.
        patient: a group of all processes, which waits for days.
    """

    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    num_frame_ranks: int = 1
    timeout_seconds: float = 0.0
    mesh: DeviceMesh | None = None
    patient: Any = None

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and talks to people."""
        return self.rank == 0

    @property
    def replica(self) -> int:
        return self.rank // self.num_frame_ranks

    @property
    def num_replicas(self) -> int:
        return self.world_size // self.num_frame_ranks

    @property
    def frame_rank(self) -> int:
        return self.rank % self.num_frame_ranks

    def add_up(self, values: Sequence[float]) -> list[float]:
        """Return the sums of numbers over the replicas, the same on every rank; within a replica they are equal."""
        if self.world_size == 1:
            return list(values)
        own = torch.tensor(values, dtype=torch.float64) * (self.frame_rank == 0)
        dist.all_reduce(own)
        return own.tolist()

    def any_of(self, flags: Sequence[bool]) -> list[bool]:
        """Say of each flag whether it is set on any rank; the answer is the same on every rank."""
        if self.world_size == 1:
            return list(flags)
        numbers = torch.tensor(flags, dtype=torch.float64)
        dist.all_reduce(numbers)
        return [number > 0 for number in numbers.tolist()]

    def gather(self, value: T) -> list[T]:
        """Return every rank's value, in the order of ranks; waits for the slowest."""
        if self.world_size == 1:
            return [value]
        values: list[Any] = [None] * self.world_size
        dist.all_gather_object(values, value, group=self.patient)
        return values

    def share(self, value: T) -> T:
        """Return rank 0's value; waits for it."""
        if self.world_size == 1:
            return value
        values = [value if self.is_main else None]
        dist.broadcast_object_list(values, src=0, group=self.patient)
        return values[0]  # type: ignore[return-value]

    @contextmanager
    def first_of_machine(self) -> Iterator[None]:
        """Do something on one process of each machine first: the others then find what it has left there."""
        if self.local_rank:
            self.wait()
        yield
        if not self.local_rank:
            self.wait()

    def wait(self) -> None:
        """Wait until every rank is here."""
        if self.world_size > 1:
            dist.barrier(group=self.patient)

    @contextmanager
    def named_if_lost(self) -> Iterator[None]:
        """Turn what torch raises where another process is gone, or does not come, into a LostContactError."""
        try:
            yield
        except RuntimeError as error:
            if self.world_size == 1 or not _is_lost_contact(error):
                raise
            raise LostContactError(
                f"rank {self.rank} of {self.world_size} lost contact with another: that one ended, or took longer than "
                f"distributed.timeout_seconds={self.timeout_seconds:g}. What it had to say stands near this; an end "
                "without a word (signal 9) is often the machine's, out of memory. Go on with resume=auto, on any "
                "number of processes"
            ) from error


@contextmanager
def join_ranks(device: torch.device, *, frame_parallel: int, timeout_seconds: float) -> Iterator[Ranks]:
    """Meet the other processes that torchrun started, and part from them at the end; alone, do nothing.

    `frame_parallel` ranks share the frames of the same clips; the number of processes must be a multiple of it.
    Raises UsageError where it is not.
    """
    launched = launched_as()
    if launched.world_size % frame_parallel:
        raise UsageError(
            f"distributed.frame_parallel={frame_parallel} with {launched.world_size} process(es): expected a multiple "
            f"of {frame_parallel} of them; start with torchrun --nproc-per-node {frame_parallel} train.py ..."
        )
    if launched.world_size == 1:
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    timeout = timedelta(seconds=timeout_seconds)
    dist.init_process_group(timeout=timeout)  # gloo for what is on the CPU, NCCL for what is on GPUs
    shape = (launched.world_size // frame_parallel, frame_parallel)
    mesh = init_device_mesh(device.type, shape, mesh_dim_names=("replica", "frame"))
    dist.set_timeout(timeout, mesh.get_group("frame"))
    yield Ranks(
        **vars(launched),
        num_frame_ranks=frame_parallel,
        timeout_seconds=timeout_seconds,
        mesh=mesh,
        patient=dist.new_group(backend="gloo", timeout=_PATIENCE),
    )
    gc.collect()  # a model in DDP holds groups, whose threads must not outlive the interpreter: it would abort then
    dist.destroy_process_group()  # not after an error: NCCL would wait for what the others never did


def _is_lost_contact(error: RuntimeError) -> bool:
    if isinstance(error, (dist.DistBackendError, dist.DistNetworkError)):
        return True
    words = ("connection closed by peer", "connection reset", "timed out waiting", "broken pipe", "gloo")
    return any(word in str(error).lower() for word in words)

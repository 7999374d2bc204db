"""What the tests count and measure: calls of a module, bytes that autograd saves, bytes alive in the allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from weakref import WeakSet

import torch
from torch import Tensor, nn

__all__ = ["Calls", "count_calls", "kept_bytes", "peak_bytes", "saved_bytes"]


@dataclass
class Calls:
    """The rows of every call of a module, in order."""

    rows: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.rows)


@contextmanager
def count_calls(module: nn.Module) -> Iterator[Calls]:
    """Record every forward of a module while the context lasts."""
    calls = Calls()
    handle = module.register_forward_pre_hook(lambda _, args: calls.rows.append(len(args[0])))
    try:
        yield calls
    finally:
        handle.remove()


class _Saved:
    """What autograd holds in a saved tensor's place; gone when the graph lets go of it."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor.detach()  # an output of the graph, kept with its history, would keep the graph


def saved_bytes(forward: Callable[[], object], *apart: Tensor) -> int:
    """Bytes of all storages that autograd holds after `forward`, each storage once, without those of `apart`."""
    without = {t.untyped_storage().data_ptr() for t in apart}
    alive: WeakSet[_Saved] = WeakSet()

    def pack(tensor: Tensor) -> _Saved:
        alive.add(saved := _Saved(tensor))
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved.tensor):
        result = forward()
    storages = [saved.tensor.untyped_storage() for saved in alive]
    sizes = {storage.data_ptr(): storage.nbytes() for storage in storages if storage.data_ptr() not in without}
    del result
    return sum(sizes.values())


def peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes that the CPU's allocator had out at once during `step`, beyond those at its start."""
    return max(_bytes_out(step), default=0)


def kept_bytes(step: Callable[[], object]) -> int:
    """Bytes that the CPU's allocator has out after `step`, whose result is dropped, beyond those at its start."""
    return [0, *_bytes_out(step)][-1]


def _bytes_out(step: Callable[[], object]) -> list[int]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    return list(accumulate(e.nbytes() for e in sorted(events, key=lambda e: e.start_ns())))

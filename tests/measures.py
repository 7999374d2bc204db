"""What the tests count and measure: calls of a module, bytes that autograd saves, bytes alive in the allocator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

__all__ = ["Calls", "count_calls", "peak_bytes", "saved_bytes"]


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


def saved_bytes(forward: Callable[[], object], *apart: Tensor) -> int:
    """Bytes of all storages that autograd saves in `forward`, each storage once, without those of `apart`."""
    without = {t.untyped_storage().data_ptr() for t in apart}
    sizes: dict[int, int] = {}
    alive = []  # so that no address is used twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in without:
            sizes[storage.data_ptr()] = storage.nbytes()
            alive.append(storage)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = forward()
    del result
    return sum(sizes.values())


def peak_bytes(step: Callable[[], object]) -> int:
    """The most bytes that the CPU's allocator had out at once during `step`, beyond those at its start."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        step()
    now = peak = 0
    assert profile.profiler is not None
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        now += event.nbytes()
        peak = max(peak, now)
    return peak

"""The states of the generators of random numbers that a function may draw from, taken and put back together.

torch's own are not enough: stochastic depth and augmentation draw from Python's `random`, from numpy's global
generator, or from a generator of their own. Whatever of these a piece drew from in its first run is set back for its
replay, which then draws the same numbers.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.core.generators import generators_of

__all__ = ["RandomStates"]


@dataclass(frozen=True)
class _Source:
    read: Callable[[], Any]
    write: Callable[[Any], Any]
    draw: Callable[[], Any]  # one number


class RandomStates:
    """The random states of torch's CPU generator, the accelerators named, Python, numpy, and of generators of modules.

    Args:
        devices: accelerators whose generators count.
        owners: modules and functions whose own generators count.
        torch_only: leave Python's and numpy's global generators out, where nothing but torch's layers runs.

    >>> states = RandomStates([])
    >>> before = states.read()
    >>> numbers = torch.rand(()), random.random()
    >>> states.write(before)
    >>> numbers == (torch.rand(()), random.random())
    True
    """

    def __init__(
        self,
        devices: Iterable[torch.device],
        owners: Iterable[nn.Module | Callable[..., Any]] = (),
        *,
        torch_only: bool = False,
    ) -> None:
        self.devices = sorted(devices, key=str)
        self.sources = [_Source(torch.get_rng_state, torch.set_rng_state, lambda: torch.rand(()))]
        self.sources += [_of_device(device) for device in self.devices]
        if not torch_only:
            self.sources.append(_Source(random.getstate, random.setstate, random.random))
            if "numpy" in sys.modules:
                numpy = sys.modules["numpy"].random
                self.sources.append(_Source(lambda: numpy.get_state(legacy=False), numpy.set_state, numpy.random))
        self.sources += [_of_generator(generator) for generator in generators_of(owners)]

    def read(self) -> list[Any]:
        """One state per generator; 5 KB for torch's and Python's, 2.5 KB for numpy's, a few bytes for CUDA."""
        return [source.read() for source in self.sources]

    def write(self, states: Sequence[Any]) -> None:
        for source, state in zip(self.sources, states, strict=True):
            source.write(state)

    @staticmethod
    def differ(some: Sequence[Any], others: Sequence[Any]) -> bool:
        """Whether numbers were drawn between two readings."""
        return not all(_same(a, b) for a, b in zip(some, others, strict=True))

    def seed(self, seed: int) -> None:
        """Seed the global generators, of these devices alone; torch.manual_seed would seed those of all devices."""
        torch.default_generator.manual_seed(seed)
        for device in self.devices:
            kind = torch.get_device_module(device.type)
            with kind.device(device):
                kind.manual_seed(seed)
        random.seed(seed)
        if "numpy" in sys.modules:
            sys.modules["numpy"].random.seed(seed % 2**32)

    def advance(self, some: Sequence[Any], others: Sequence[Any]) -> None:
        """Draw one number from torch's CPU generator, and from each other whose two states given differ."""
        for i, (source, a, b) in enumerate(zip(self.sources, some, others, strict=True)):
            if i == 0 or not _same(a, b):
                source.draw()


def _of_device(device: torch.device) -> _Source:
    kind: Any = torch.get_device_module(device.type)
    index = () if device.type == "mps" else (device,)
    return _Source(
        lambda: kind.get_rng_state(*index),
        lambda state: kind.set_rng_state(state, *index),
        lambda: torch.rand((), device=device),
    )


def _of_generator(generator: Any) -> _Source:
    if isinstance(generator, torch.Generator):
        draw = lambda: torch.rand((), generator=generator, device=generator.device)  # noqa: E731
        return _Source(generator.get_state, generator.set_state, draw)
    if isinstance(generator, random.Random):
        return _Source(generator.getstate, generator.setstate, generator.random)
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
    return _Source(lambda: bits.state, lambda state: setattr(bits, "state", state), bits.random_raw)


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    if hasattr(a, "tobytes"):  # an array of numpy's
        return bool(a.tobytes() == b.tobytes())
    return bool(a == b)

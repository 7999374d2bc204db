"""What a replay must find as its first run found it, and must leave as it is now.

Four things decide what a function of tensors computes beside its arguments: random states, autocast, the train/eval
mode of modules, and module buffers. Each has a small class here that records it around the first run and puts it back
around the replay. torch.utils.checkpoint restores the first two; the other two are why this file exists:

- *Buffers.* Batch norm updates its running statistics in every forward; a replay must not. And a module whose output
  depends on a buffer that it changes (the vectors of a spectral norm, a step counter) must see, in the replay, the
  value that the first run saw. So buffers that a first run changed are set back to that value for the replay, and
  after all replays every buffer is what it was before them, however many there were (none, one, several, nested
  ones).
- *Modes.* `model.eval()` between forward and backward would make the replay another function.

Note 1. Buffers are written through `.data`, which does not count as an in-place change for autograd: a tensor saved by
another graph stays valid, as it would in the plain run, where no replay writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["AutocastState", "BufferGuard", "ModeGuard", "RandomStates", "accelerators_of", "is_replaying", "replaying"]

_thread = local()


def is_replaying() -> bool:
    """Whether the code that asks is being replayed in backward, for layers with side effects (counters, logs).

    >>> is_replaying()
    False
    """
    return getattr(_thread, "depth", 0) > 0


@contextmanager
def replaying() -> Iterator[None]:
    """Mark what runs inside as a replay."""
    _thread.depth = getattr(_thread, "depth", 0) + 1
    try:
        yield
    finally:
        _thread.depth -= 1


def accelerators_of(tensors: Iterable[Any]) -> set[torch.device]:
    """The devices of the tensors given that have a random state of their own (not the CPU, not meta)."""
    return {t.device for t in tensors if isinstance(t, Tensor) and t.device.type not in ("cpu", "meta")}


class RandomStates:
    """The random states of the CPU and of the accelerators named, taken together."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        self.devices = sorted(devices, key=str)

    def read(self) -> list[Tensor]:
        """One state per generator; 5 KB for the CPU, a few bytes for CUDA."""
        return [torch.get_rng_state(), *(_generator(d).get_rng_state(*_index(d)) for d in self.devices)]

    def write(self, states: Sequence[Tensor]) -> None:
        torch.set_rng_state(states[0])
        for device, state in zip(self.devices, states[1:], strict=True):
            _generator(device).set_rng_state(state, *_index(device))


def _generator(device: torch.device) -> Any:
    return torch.get_device_module(device.type)


def _index(device: torch.device) -> tuple[torch.device, ...]:
    return () if device.type == "mps" else (device,)


class AutocastState:
    """The autocast settings of the CPU and of the device types named, as they stand when this is made."""

    def __init__(self, devices: Iterable[torch.device]) -> None:
        types = {"cpu", *(device.type for device in devices)}
        self.settings = {
            kind: (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in sorted(types)
            if torch.amp.is_autocast_available(kind)
        }
        self.cache_enabled = torch.is_autocast_cache_enabled()

    @contextmanager
    def restored(self) -> Iterator[None]:
        with ExitStack() as stack:
            for kind, (enabled, dtype) in self.settings.items():
                if enabled or torch.is_autocast_enabled(kind):
                    stack.enter_context(
                        torch.autocast(kind, dtype=dtype, enabled=enabled, cache_enabled=self.cache_enabled)
                    )
            yield

    @contextmanager
    def own_casts(self) -> Iterator[None]:
        """Casts of weights belong to the graph that is made inside: none is taken from, or left to, another graph."""
        if not any(enabled for enabled, _ in self.settings.values()):
            yield
            return
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()


class ModeGuard:
    """The mode of every submodule at the time of the first run, for the replay to run in: train or eval, and which
    parameters were frozen. One that is thawed before backward gets no gradient, as in the plain run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modes = [(module, module.training) for root in modules for module in root.modules()]
        self.frozen = [p for root in modules for p in root.parameters() if not p.requires_grad]

    @contextmanager
    def restored(self) -> Iterator[None]:
        changed = [(module, mode) for module, mode in self.modes if module.training != mode]
        thawed = [parameter for parameter in self.frozen if parameter.requires_grad]
        for module, mode in changed:
            module.training = mode
        for parameter in thawed:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for module, mode in changed:
                module.training = not mode
            for parameter in thawed:
                parameter.requires_grad_(True)


class BufferGuard:
    """Which buffers the first run changes, what they were before each piece of it, and their restoration.

    Use: `before_piece()` and `after_piece()` around every piece of the first run; `replaying(k)` around the replay of
    piece k; `untouched()` around all replays together. Cost: one copy of the buffers during the first run; per piece, a
    copy of those that change, save batch norm's running statistics, which no training-mode output depends on.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        slots = {
            (id(module), name): (module, name, buffer)
            for root in modules
            for module in root.modules()
            for name, buffer in module._buffers.items()
            if buffer is not None
        }
        self.slots = list(slots.values())
        self.initial = [buffer.detach().clone() for _, _, buffer in self.slots]
        self.marks = [_mark(buffer) for _, _, buffer in self.slots]
        self.changing: list[int] = []  # slots that some piece changed and whose value enters the output
        self.values: list[list[Tensor]] = []  # per piece: values before it, of the first len(values[k]) changing slots
        self.compared = False

    def before_piece(self) -> None:
        self.values.append([_current(self.slots[i]).detach().clone() for i in self.changing])

    def after_piece(self) -> None:
        for i, (module, name, _) in enumerate(self.slots):
            if i in self.changing or _only_tracks(module):
                continue
            now = module._buffers[name]
            changed = now is None or _mark(now) != self.marks[i]
            if changed or not (self.compared or torch.equal(now, self.initial[i])):  # type: ignore[arg-type]
                self.changing.append(i)
                for values in self.values:  # it had its initial value before this piece and before all earlier ones
                    values.append(self.initial[i])
        self.compared = True

    def end_first_run(self) -> None:
        """Let go of the copy that found the changes."""
        self.initial = []

    @contextmanager
    def replaying(self, piece: int) -> Iterator[None]:
        for i, value in zip(self.changing, self.values[piece] if self.changing else (), strict=True):
            module, name, original = self.slots[i]
            module._buffers[name] = original
            original.data.copy_(value)  # see Note 1
        yield

    @contextmanager
    def untouched(self) -> Iterator[None]:
        now = [(module, name, module._buffers[name]) for module, name, _ in self.slots]
        now += [(module, name, buffer) for module, name, buffer in self.slots if module._buffers[name] is not buffer]
        values = [None if buffer is None else buffer.detach().clone() for _, _, buffer in now]
        try:
            yield
        finally:
            for (module, name, buffer), value in reversed(list(zip(now, values, strict=True))):
                module._buffers[name] = buffer
                if buffer is not None and value is not None:
                    buffer.data.copy_(value)  # see Note 1


def _only_tracks(module: nn.Module) -> bool:
    """Whether this is one of torch's own norms in training mode: it updates statistics that its output does not use."""
    return isinstance(module, _NormBase) and module.training and type(module).__module__.startswith("torch.nn.")


def _mark(buffer: Tensor) -> tuple[int, int]:
    return id(buffer), buffer._version


def _current(slot: tuple[nn.Module, str, Tensor]) -> Tensor:
    module, name, original = slot
    buffer = module._buffers[name]
    return original if buffer is None else buffer

"""What a replay must find as its first run found it, and must leave as it is now.

Four things decide what a function of tensors computes beside its arguments: random states, autocast, the train/eval
mode of modules, and module buffers. Each has a small class here that records it around the first run and puts it back
around the replay (random states: random_states.py). torch.utils.checkpoint restores the first two; the other two are
why this file exists:

- *Buffers.* Batch norm updates its running statistics in every forward; a replay must not. And a module whose output
  depends on a buffer that it changes (the vectors of a spectral norm, a step counter) must see, in the replay, the
  value that the first run saw. So buffers that a first run changed are set back to that value for the replay, and
  after all replays every buffer is what it was before them, however many there were (none, one, several, nested
  ones).
- *Modes.* `model.eval()` between forward and backward would make the replay another function.

  What a norm of torch's own tracks in training mode does not enter its own output, and is not kept for each piece,
  unless something else in the model reads it (batch renorm, a warm-up by the number of batches): norm_readers.py.

Note 1. Buffers are written through `.data`, which does not count as an in-place change for autograd: a tensor saved by
another graph stays valid, as it would in the plain run, where no replay writes anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import local
from typing import Any

import torch
from torch import Tensor, nn

from seqckpt.core.norm_readers import NormReaders, buffers_of
from seqckpt.errors import ReplayError

__all__ = ["AutocastState", "BufferGuard", "ModeGuard", "accelerators_of", "is_replaying", "replaying"]

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
        self.is_enabled = any(enabled for enabled, _ in self.settings.values())

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
        if not self.is_enabled:
            yield
            return
        torch.clear_autocast_cache()
        try:
            yield
        finally:
            torch.clear_autocast_cache()


class ModeGuard:
    """What modules were at the time of the first run, for the replay to run with: train or eval, which tensors their
    parameters were (`torch.func.functional_call` puts others there for one call), and which of them were frozen. One
    that is thawed before backward gets no gradient, as in the plain run."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modes = [(module, module.training) for root in modules for module in root.modules()]
        slots = ((module, name, p) for module, _ in self.modes for name, p in module._parameters.items())
        self.parameters = [(module, name, p) for module, name, p in slots if p is not None]
        self.frozen = [p for _, _, p in self.parameters if not p.requires_grad]

    @contextmanager
    def restored(self) -> Iterator[None]:
        changed = [(module, mode) for module, mode in self.modes if module.training != mode]
        thawed = [parameter for parameter in self.frozen if parameter.requires_grad]
        known = ((m, name, p, m._parameters[name]) for m, name, p in self.parameters if name in m._parameters)
        replaced = [(module, name, p, now) for module, name, p, now in known if now is not p]
        for module, mode in changed:
            module.training = mode
        for parameter in thawed:
            parameter.requires_grad_(False)
        for module, name, parameter, _ in replaced:
            module._parameters[name] = parameter
        try:
            yield
        finally:
            for module, mode in changed:
                module.training = not mode
            for parameter in thawed:
                parameter.requires_grad_(True)
            for module, name, _, now in replaced:
                module._parameters[name] = now


class BufferGuard:
    """Which buffers the first run changes, what they were before each piece of it, and their restoration.

    Use: `before_piece()` and `after_piece()` around every piece of the first run, `watching_readers()` around its
    functions; `replaying(k)` around the replay of piece k; `untouched()` around all replays together. Cost: one copy of
    the buffers during the first run; per piece, a copy of those that change, save batch norm's running statistics
    where nothing but batch norm looks at them.

    A buffer may also be None, come up in a forward, or get another tensor of another shape.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self.modules = list({id(module): module for root in modules for module in root.modules()}.values())
        self.slots: list[tuple[nn.Module, str, Any]] = []  # module, name, and the buffer it had at first
        self.initial: list[Any] = []
        self.marks: list[tuple[int, int]] = []
        for module in self.modules:
            for name, buffer in buffers_of(module):
                self._take_in(module, name, buffer)
        self.changing: list[int] = []  # slots that some piece changed and whose value enters the output
        self.values: list[list[Any]] = []  # per piece: values before it, of the first len(values[k]) changing slots
        self.compared = False
        self.readers = NormReaders(self.modules)

    def watching_readers(self) -> AbstractContextManager[None]:
        return self.readers.watching()

    def _take_in(self, module: nn.Module, name: str, buffer: Any) -> None:
        self.slots.append((module, name, buffer))
        self.initial.append(_copy(buffer))
        self.marks.append(_mark(buffer))

    def before_piece(self) -> None:
        self.values.append([_copy(_read(*self.slots[i][:2])) for i in self.changing])

    def after_piece(self, where: str) -> None:
        for module, name in self._names() - {(module, name) for module, name, _ in self.slots}:
            self._take_in(module, name, _ABSENT)
        for i, (module, name, _) in enumerate(self.slots):
            if i in self.changing or self.readers.only_tracks(module, name):
                continue
            now = _read(module, name)
            if self.compared and self.readers.is_tracked(module, name):
                raise ReplayError(
                    f"the {name} of a {type(module).__name__} is read by the model in {where}, and was not in the "
                    "pieces before, so its value was not kept: read it in every piece, or in none"
                )
            if _mark(now) != self.marks[i] or not (self.compared or _equal(now, self.initial[i])):
                self.changing.append(i)
                for values in self.values:  # it had its initial value before this piece and before all earlier ones
                    values.append(self.initial[i])
        self.compared = True

    def _names(self) -> set[tuple[nn.Module, str]]:
        return {(module, name) for module in self.modules for name, _ in buffers_of(module)}

    def end_first_run(self) -> None:
        """Let go of the copy that found the changes."""
        self.initial = []

    @contextmanager
    def replaying(self, piece: int) -> Iterator[None]:
        for i, value in zip(self.changing, self.values[piece] if self.changing else (), strict=True):
            module, name, original = self.slots[i]
            if _alike(original, value):
                _put(module, name, original)
                original.data.copy_(value)  # see Note 1
            else:
                _put(module, name, _copy(value))
        yield

    @contextmanager
    def untouched(self) -> Iterator[None]:
        names = self._names()
        now = [(module, name, _read(module, name)) for module, name in names]
        tensors = {id(t): t for _, _, t in (*now, *self.slots) if isinstance(t, Tensor)}.values()
        values = [t.detach().clone() for t in tensors]
        try:
            yield
        finally:
            for module, name in self._names() - names:
                _put(module, name, _ABSENT)
            for module, name, buffer in now:
                _put(module, name, buffer)
            for tensor, value in zip(tensors, values, strict=True):
                tensor.data.copy_(value)  # see Note 1


_ABSENT = object()
"""In the place of a buffer that its module does not have (yet)."""


def _read(module: nn.Module, name: str) -> Any:
    return dict(buffers_of(module)).get(name, _ABSENT)


def _put(module: nn.Module, name: str, buffer: Any) -> None:
    if buffer is not _ABSENT:
        module._buffers[name] = buffer
    elif name in module._buffers:
        del module._buffers[name]


def _copy(buffer: Any) -> Any:
    return buffer.detach().clone() if isinstance(buffer, Tensor) else buffer


def _alike(a: Any, b: Any) -> bool:
    return isinstance(a, Tensor) and isinstance(b, Tensor) and a.shape == b.shape and a.dtype == b.dtype


def _equal(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if _alike(a, b) else a is b


def _mark(buffer: Any) -> tuple[int, int]:
    return id(buffer), buffer._version if isinstance(buffer, Tensor) else 0

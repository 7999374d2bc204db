"""Who reads what torch's norms track: nobody but the norm itself, as a rule, and then no replay needs it.

Batch norm in training mode updates running statistics that its own output does not depend on. A model may read them
all the same: batch renorm divides by them, a schedule counts batches by them. Whether it does is seen by what it does:
while a piece runs for the first time, each norm's dict of buffers is one that notes who asks.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules import batchnorm, instancenorm
from torch.nn.modules.batchnorm import _NormBase

__all__ = ["NormReaders", "buffers_of"]

_OWN_FILES = frozenset({batchnorm.__file__, instancenorm.__file__})


class NormReaders:
    """The norms among modules, and which of their buffers something else has read in the pieces so far."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        is_compiled = any(m._compiled_call_impl is not None or hasattr(m, "_orig_mod") for m in modules)
        self.norms = [m for m in modules if _is_own_norm(m)]
        self.watched = () if is_compiled else self.norms  # torch.compile would look at the dicts, and compile again
        self.read: set[tuple[nn.Module, str]] = set()

    def is_tracked(self, module: nn.Module, name: str) -> bool:
        """Whether this is a buffer that a norm of torch's own updates and does not use."""
        return module in self.norms and module.training

    def only_tracks(self, module: nn.Module, name: str) -> bool:
        return self.is_tracked(module, name) and (module, name) not in self.read

    @contextmanager
    def watching(self) -> Iterator[None]:
        watched = [(module, module._buffers, _Watched(module, self.read)) for module in self.watched if module.training]
        for module, _, buffers in watched:
            module.__dict__["_buffers"] = buffers
        try:
            yield
        finally:
            for module, own, buffers in watched:
                own.clear()
                own.update(dict.items(buffers))
                module.__dict__["_buffers"] = own


class _Watched(dict[str, Any]):
    """A norm's buffers, which notes those that are read from outside of torch's norms."""

    def __init__(self, module: nn.Module, read: set[tuple[nn.Module, str]]) -> None:
        super().__init__(buffers_of(module))
        self.module, self.read = module, read

    def __getitem__(self, name: str) -> Any:
        asks = sys._getframe(2)  # behind nn.Module.__getattr__
        if asks.f_code.co_filename not in _OWN_FILES:
            self.read.add((self.module, name))
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.read.add((self.module, name))
        return super().get(name, default)

    def items(self) -> Any:
        self.read.update((self.module, name) for name in self)
        return super().items()

    def values(self) -> Any:
        self.read.update((self.module, name) for name in self)
        return super().values()


def buffers_of(module: nn.Module) -> Iterable[tuple[str, Any]]:
    """Names and buffers of a module, its children's not, without being noted."""
    buffers: Any = module._buffers
    return dict.items(buffers) if isinstance(buffers, dict) else buffers.items()  # scripted modules have no dict


def _is_own_norm(module: nn.Module) -> bool:
    return isinstance(module, _NormBase) and type(module).__module__.startswith("torch.nn.")

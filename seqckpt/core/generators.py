"""Generators of random numbers that modules and functions hold: those that a replay has to set back beside the global
ones.

Stochastic depth and augmentation are often written with a generator of their own: an attribute, a closure's, a global
of the file that the class stands in. Found is what can be reached from the module or function in a few steps through
attributes, containers, closures and the globals that code names. What cannot be found so is noticed in the replay, by
its results (replay_check.py).
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache, partial
from itertools import chain
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

__all__ = ["generators_of"]

_MAX_DEPTH = 4
_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.Tensor, torch.dtype, torch.device)
_LIBRARIES = frozenset({"torch", "torchvision", "numpy", "random", "math", "functools", "itertools", "einops", "timm"})
"""Packages whose functions are not looked into: they draw from the global generators, or from one that is given."""


def generators_of(owners: Iterable[nn.Module | Callable[..., Any]]) -> list[Any]:
    """The generators (random.Random, torch.Generator, numpy's) that modules and functions hold, each once.

    >>> layer = nn.Dropout(0.5)
    >>> layer.generator = torch.Generator()
    >>> generators_of([layer]) == [layer.generator]
    True
    """
    search = _Search()
    for owner in owners:
        search.look_at(owner, _MAX_DEPTH)
    return search.found


def _kinds() -> tuple[type, ...]:
    kinds: list[type] = [random.Random, torch.Generator]
    if "numpy" in sys.modules:
        numpy = sys.modules["numpy"].random
        kinds += [numpy.Generator, numpy.RandomState, numpy.BitGenerator]
    return tuple(kinds)


class _Search:
    def __init__(self) -> None:
        self.kinds = _kinds()
        self.found: list[Any] = []
        self.seen: set[int] = set()

    def look_at(self, value: Any, depth: int) -> None:
        if isinstance(value, _PLAIN) or depth < 0 or id(value) in self.seen:
            return
        self.seen.add(id(value))
        if isinstance(value, random.SystemRandom):  # has no state to set back
            return
        if isinstance(value, self.kinds):
            self.found.append(value)
        elif isinstance(value, nn.Module):
            for module in value.modules():
                self._look_into_module(module, depth)
        elif isinstance(value, (list, tuple, set, frozenset)):
            self._look_at_all(value, depth - 1)
        elif isinstance(value, dict):
            self._look_at_all(value.values(), depth - 1)
        elif isinstance(value, partial):
            self._look_at_all((value.func, value.args, value.keywords), depth)
        elif isinstance(value, MethodType):
            self._look_at_all((value.__self__, value.__func__), depth)
        elif isinstance(value, FunctionType):
            self._look_into_function(value, depth)
        elif _is_foreign(type(value)) and hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)):
            self._look_at_all(value.__dict__.values(), depth - 1)
            self._look_into_class(type(value), depth - 1)

    def _look_at_all(self, values: Iterable[Any], depth: int) -> None:
        for value in list(values):
            self.look_at(value, depth)

    def _look_into_module(self, module: nn.Module, depth: int) -> None:
        self.seen.add(id(module))
        for name, value in module.__dict__.items():
            if not isinstance(value, _PLAIN) and name not in ("_parameters", "_buffers", "_modules"):
                self.look_at(value, depth - 1)
        self._look_into_class(type(module), depth - 1)

    def _look_into_class(self, kind: type, depth: int) -> None:
        if kind in self.seen:
            return
        self.seen.add(kind)  # type: ignore[arg-type]
        for base in kind.__mro__:
            if _is_foreign(base):
                self._look_at_all(vars(base).values(), depth)

    def _look_into_function(self, function: FunctionType, depth: int) -> None:
        if not _is_foreign(function):
            return
        for cell in function.__closure__ or ():
            try:
                self.look_at(cell.cell_contents, depth - 1)
            except ValueError:  # noqa: PERF203 - not filled yet
                continue
        self._look_at_all((function.__defaults__, function.__kwdefaults__), depth)
        names = _names(function.__code__)
        for name in names:
            value = function.__globals__.get(name)
            if isinstance(value, ModuleType):
                if _is_foreign(value):
                    self._look_at_all((value.__dict__[n] for n in names if n in value.__dict__), depth - 1)
            elif isinstance(value, type):
                continue
            else:
                self.look_at(value, depth - 1)


def _is_foreign(thing: Any) -> bool:
    """Whether a class, function or module stands outside of the libraries that are known."""
    where = thing.__name__ if isinstance(thing, ModuleType) else getattr(thing, "__module__", None)
    package = str(where).partition(".")[0]
    return package not in _LIBRARIES and package not in sys.builtin_module_names


@lru_cache(maxsize=4096)
def _names(code: CodeType) -> tuple[str, ...]:
    """The globals and attributes that a function's code names, those of functions inside it too."""
    inner = (const for const in code.co_consts if isinstance(const, CodeType))
    return (*code.co_names, *chain.from_iterable(map(_names, inner)))

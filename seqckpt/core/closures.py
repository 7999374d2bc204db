"""Which modules and trainable tensors a function uses, as far as the function shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

__all__ = ["modules_of", "trains"]


def modules_of(function: Callable[..., Any]) -> list[nn.Module]:
    """The modules that a callable is, is a method of, holds as partial arguments, or closes over; each once.

    >>> layer = nn.Linear(2, 2)
    >>> modules_of(lambda x: layer(x)) == [] or modules_of(partial(layer)) == [layer]
    True
    """
    found: dict[int, nn.Module] = {}
    for value in _reachable(function):
        if isinstance(value, nn.Module):
            found.setdefault(id(value), value)
    return list(found.values())


def trains(function: Callable[..., Any]) -> bool:
    """Whether a callable is, holds or closes over anything trainable: a module's parameter, or a tensor by itself.

    >>> import torch
    >>> trains(nn.Linear(2, 2)), trains(nn.ReLU()), trains(partial(torch.add, torch.ones(1, requires_grad=True)))
    (True, False, True)
    """
    return any(
        value.requires_grad if isinstance(value, Tensor) else any(p.requires_grad for p in value.parameters())
        for value in _reachable(function)
    )


def _reachable(value: Any, depth: int = 3) -> Iterator[Any]:
    if isinstance(value, (nn.Module, Tensor)):
        yield value
    elif depth == 0:
        return
    elif isinstance(value, partial):
        for part in (value.func, *value.args, *value.keywords.values()):
            yield from _reachable(part, depth - 1)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from _reachable(part, depth - 1)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _reachable(part, depth - 1)
    elif callable(value):
        yield from _reachable(getattr(value, "__self__", None), depth - 1)
        for cell in getattr(value, "__closure__", None) or ():
            try:
                content = cell.cell_contents
            except ValueError:  # not filled yet
                continue
            yield from _reachable(content, depth - 1)

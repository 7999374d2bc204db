"""Parametrized weights under `torch.nn.utils.parametrize.cached()`, which are computed once for all that is inside.

The cache is one for the process: a weight that a piece's first run computes, without a graph, would be handed to all
pieces behind it, and its gradient be lost. So the weights are computed in front of the loop, in the graph around it, as
in the plain run; each piece gets them as it gets any other weights of a loop, and finds them in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from seqckpt.core.replay import Loop

__all__ = ["with_cached_parameters"]

_cache: Any = parametrize  # whose `_cache_enabled` and `_cache` are the only way to it


def with_cached_parameters(loop: Loop) -> Loop:
    """The loop itself where the cache is off or nothing is parametrized, or one that takes the weights in."""
    if not _cache._cache_enabled or loop.closed:
        return loop
    modules = {m: None for root in loop.modules for m in root.modules() if parametrize.is_parametrized(m)}
    if not modules:
        return loop
    noting = _Noting(_cache._cache)
    with _caching(noting):
        cached = [getattr(m, name) for m in modules for name in m.parametrizations]  # type: ignore[union-attr]
    _cache._cache.update(noting)
    num_own = len(loop.weights)

    def inside(function: Callable[..., Any] | None) -> Callable[..., Any] | None:
        if function is None:
            return None

        def call(*args: Any) -> Any:
            *others, weights = args
            with _caching(dict(zip(noting.keys_asked, weights[num_own:], strict=True))):
                return function(*others, weights[:num_own])

        return call

    return replace(
        loop,
        run=inside(loop.run),  # type: ignore[arg-type]
        prepare=inside(loop.prepare),
        finish=inside(loop.finish),
        weights=[*loop.weights, *cached],
    )


class _Noting(dict[Any, Any]):
    """A cache that notes what it is asked for: a copied module asks by the identity of the one that it was copied from,
    which nobody else knows."""

    def __init__(self, values: dict[Any, Any]) -> None:
        super().__init__(values)
        self.keys_asked: list[Any] = []

    def get(self, key: Any, default: Any = None) -> Any:
        self.keys_asked.append(key)
        return super().get(key, default)


@contextmanager
def _caching(values: dict[Any, Tensor]) -> Iterator[None]:
    before = _cache._cache_enabled, _cache._cache
    _cache._cache_enabled, _cache._cache = 1, values
    try:
        yield
    finally:
        _cache._cache_enabled, _cache._cache = before

"""Sequential models, checkpointed in segments that are cut where memory says, not where the count of modules says.

torch.utils.checkpoint.checkpoint_sequential gives every segment equally many modules, although one early convolution
can hold more than all later layers together, and with `segments=1` it checkpoints nothing without saying so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map

from seqckpt.core.closures import modules_of
from seqckpt.core.cuts import check_length
from seqckpt.core.random_states import RandomStates
from seqckpt.core.replay import Loop, replay_loop
from seqckpt.core.surroundings import BufferGuard, accelerators_of, replaying
from seqckpt.partition import partition
from seqckpt.units import format_bytes, parse_bytes

__all__ = ["checkpoint_sequential"]

_measured: WeakKeyDictionary[nn.Module, dict[Any, tuple[list[int], list[int]]]] = WeakKeyDictionary()


def checkpoint_sequential(
    modules: nn.Sequential | Iterable[Callable[..., Any]],
    x: Any,
    *,
    segments: int | None = None,
    memory: int | str | None = None,
) -> Any:
    """Run modules one after the other, keeping only what lies between segments of them.

    Args:
        modules: an nn.Sequential or a list of modules (or functions); each is called with the result of the one
            before, a tuple being handed on as several arguments.
        x: the input, a tuple for several, nested or not.
        segments: into how many to cut, at most; or
        memory: bytes (or "500MiB") that activations may take: the fewest segments that keep within it are used.

    The cuts make the largest segment as small as possible, by bytes that autograd saves in each module: measured in one
    forward when the modules meet a new input shape, and remembered. The last of several segments is not replayed,
    since its activations are needed at once; a single segment is replayed as a whole.

    Memory: the tensors between segments, and the activations of one segment. Time: one more forward, but for the last
    segment. Raises ValueError if both or neither of `segments` and `memory` are given, or `memory` cannot be met.

    >>> model = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    >>> x = torch.randn(8, 4)
    >>> torch.equal(checkpoint_sequential(model, x, segments=2), model(x))
    True
    """
    layers = list(modules)
    if (segments is None) == (memory is None):
        raise ValueError(f"segments={segments}, memory={memory}: give one of the two")
    if not layers:
        return x
    if not torch.is_grad_enabled():
        return _run(layers, x)
    saved, between = _measure(layers, x)
    if segments is not None:
        cuts = partition(saved, check_length(segments, "segments"))[1]
    else:
        cuts = _cuts_within(saved, between, parse_bytes(memory))  # type: ignore[arg-type]
    bounds = list(pairwise([0, *cuts, len(layers)]))
    for start, stop in bounds:
        part = layers[start:stop]
        if stop == len(layers) and len(bounds) > 1:
            return _run(part, x)
        owners = [module for layer in part for module in modules_of(layer)]
        run = partial(_run_piece, part)
        x, _ = replay_loop(Loop(run=run, name="segment", modules=owners, functions=part, num_kept=0), x, None)
    return x


def _run_piece(layers: Sequence[Callable[..., Any]], k: int, x: Any, state: Any, weights: Any) -> tuple[Any, Any]:
    return _run(layers, x), state


def _run(layers: Sequence[Callable[..., Any]], x: Any) -> Any:
    for layer in layers:
        x = layer(*x) if isinstance(x, tuple) else layer(x)
    return x


def _cuts_within(saved: list[int], between: list[int], budget: int) -> list[int]:
    """The fewest cuts whose boundaries and largest part fit; `between[i]` is what lies before layer i."""
    needs = []
    for num_parts in range(1, len(saved) + 1):
        largest, cuts = partition(saved, num_parts)
        needs.append(largest + sum(between[cut] for cut in cuts))
        if needs[-1] <= budget:
            return cuts
    raise ValueError(
        f"memory={format_bytes(budget)} cannot be met: the least that segments need is {format_bytes(min(needs))}"
    )


def _measure(layers: list[Callable[..., Any]], x: Any) -> tuple[list[int], list[int]]:
    """Bytes that autograd saves in each layer, and bytes of each layer's input; buffers and random states stay."""
    owners = [module for layer in layers for module in modules_of(layer)]
    tensors = [t for t in tree_flatten(x)[0] if isinstance(t, Tensor)]
    state = tuple((m.training, *(p.requires_grad for p in m.parameters())) for m in owners)
    key = (tuple(map(id, layers)), state, tuple((t.shape, t.dtype, t.requires_grad) for t in tensors))
    cache = _measured.setdefault(owners[0], {}) if owners else {}
    if key not in cache:
        random = RandomStates(accelerators_of(tensors), layers)
        states = random.read()
        with BufferGuard(owners).untouched(), replaying():
            weights = {p.untyped_storage().data_ptr() for m in owners for p in m.parameters()}
            cache[key] = _saved_bytes(layers, x, weights)
        random.write(states)
    return cache[key]


def _saved_bytes(layers: list[Callable[..., Any]], x: Any, parameters: set[int]) -> tuple[list[int], list[int]]:
    """Each storage counts once, in the layer that saves it first; parameters and the first input are there anyhow."""
    saved, between = [], []
    known = set(_storages(x)) | parameters
    for layer in layers:
        between.append(sum(_storages(x).values()))
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor, sizes: dict[int, int] = sizes) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor.detach()  # a layer's own output, kept with its history, would keep its graph for ever

        with torch.enable_grad():
            handed = tree_map(_inner, x)
            copies = zip(_storages(handed), _storages(x), strict=True)
            known |= {copy for copy, original in copies if original in known}
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
                y = _run([layer], handed)
        saved.append(sum(size for storage, size in sizes.items() if storage not in known))
        x = tree_map(lambda t: t.detach() if isinstance(t, Tensor) else t, y)
        known = parameters | {storage for storage in _storages(x) if storage in sizes or storage in known}
        del y, handed  # from here on, what was saved and is not handed on leaves its address to others
    return saved, between


def _storages(values: Any) -> dict[int, int]:
    tensors = [t for t in tree_flatten(values)[0] if isinstance(t, Tensor)]
    return {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}


def _inner(value: Any) -> Any:
    """A tensor in the middle of a graph, as a layer would get it: one that works in place may write into it."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().requires_grad_(value.is_floating_point() or value.is_complex()).clone()

"""Tensors with a history that a module keeps as an attribute: what of them can be made right, and the rest refused.

A cache (`if self.cached is None: self.cached = torch.tanh(self.weight)`), an auxiliary loss (`self.loss = ...`), a hook
that collects features: in the plain run such a tensor is part of the one graph. Here the piece that makes it runs
without a graph, so its gradient would be lost, silently. So after each piece of the first run

- an attribute that holds a new tensor which has a history in the plain run gets, in its place, the same values with a
  history that says so: a backward through it, or a later piece's graph that reaches it, is an error with its name;
- what was there before (None) is noted, and put there for the replay, which then makes the tensor anew, in its graph.

Whether a tensor made without a graph would have a history is seen by running the piece once more, with one. That is
remembered for each module, so it is done in the first step only, and only where a module keeps tensors at all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from seqckpt.errors import ReplayError

__all__ = ["KeptTensors", "refuse_kept"]

_REGISTRIES = frozenset(name for name in nn.Module().__dict__ if name != "training")
_ABSENT = object()
_known: WeakKeyDictionary[nn.Module, dict[Any, bool]] = WeakKeyDictionary()


class _Slot(NamedTuple):
    """Where a tensor is kept: in `holder[key]`, which belongs to an attribute of a module."""

    holder: Any
    key: Any
    module: nn.Module
    attribute: str


class KeptTensors:
    """Those of one replay loop.

    Use: `before_piece()` and `after_piece()` around each piece of the first run, `replaying(k)` around its replay, and
    `untouched()` around all of them.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        named = ((name, m) for root in modules for name, m in root.named_modules())
        self.names = {m: name or type(m).__name__ for name, m in named if _may_keep(m)}
        self.modules = modules
        self.known: set[int] = set()
        self.alive: list[Tensor] = []  # those known, so that no other gets their address
        self.former: dict[int, list[tuple[_Slot, Any]]] = {}  # per piece: slots that held no tensor before it
        self.contents: list[tuple[Any, Any]] = []
        self._note(slot.holder[slot.key] for slot in self._slots())

    def before_piece(self) -> None:
        """Look at what the holders contain."""
        self.contents = [(holder, _contents(holder)) for holder in self._holders()]

    def after_piece(self, k: int, run_with_graph: Callable[[], Any] | None) -> None:
        """Put an end to the histories of the tensors kept since; `run_with_graph` where the piece ran without one."""
        new = [slot for slot in self._slots() if id(slot.holder[slot.key]) not in self.known]
        if not new:
            return
        before = {id(holder): contents for holder, contents in self.contents}
        former = [(slot, _get(before.get(id(slot.holder)), slot.key)) for slot in new]
        self.former[k] = [(slot, value) for slot, value in former if not isinstance(value, Tensor)]
        if run_with_graph is None:
            with_history = [slot.holder[slot.key].requires_grad for slot in new]
        else:
            with_history = self._learn(k, new, run_with_graph)
        for slot, has_history in zip(new, with_history, strict=True):
            if has_history:
                slot.holder[slot.key] = _Kept.apply(
                    slot.holder[slot.key].detach().requires_grad_(), self._describe(slot)
                )
        self._note(slot.holder[slot.key] for slot in new)

    def _learn(self, k: int, new: Sequence[_Slot], run_with_graph: Callable[[], Any]) -> list[bool]:
        num_trained = sum(p.requires_grad for root in self.modules for p in root.parameters())
        facts = [_known.setdefault(slot.module, {}) for slot in new]
        keys = [(slot.attribute, slot.module.training, num_trained) for slot in new]
        if not all(key in known for key, known in zip(keys, facts, strict=True)):
            for key, known in zip(keys, facts, strict=True):
                known.setdefault(key, False)
            with self.untouched(), self.replaying(k):
                graph = run_with_graph()
                for slot in self._slots():
                    tensor = slot.holder[slot.key]
                    if id(tensor) not in self.known and tensor.requires_grad:
                        _known.setdefault(slot.module, {})[slot.attribute, slot.module.training, num_trained] = True
                del graph
        return [known[key] for key, known in zip(keys, facts, strict=True)]

    @contextmanager
    def replaying(self, k: int) -> Iterator[None]:
        """Take the tensors that piece k made out of their places."""
        for slot, value in reversed(self.former.get(k, ())):
            _put(slot.holder, slot.key, value)
        yield

    @contextmanager
    def untouched(self) -> Iterator[None]:
        """Put the tensors that are kept now back afterwards."""
        holders = self._holders()
        contents = [_contents(holder) for holder in holders]
        kept = {id(holder): {slot.key for slot in self._slots() if slot.holder is holder} for holder in holders}
        try:
            yield
        finally:
            for holder, values in zip(holders, contents, strict=True):
                if isinstance(holder, dict):
                    now = {key for key, value in holder.items() if _keeps(value)}
                    for key in now | kept[id(holder)] | {key for key, value in values.items() if _keeps(value)}:
                        _put(holder, key, values.get(key, _ABSENT))
                elif kept[id(holder)] or any(isinstance(value, Tensor) for value in holder):
                    holder.clear()
                    holder.extend(values)

    def _note(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            self.known.add(id(tensor))
            self.alive.append(tensor)

    def _describe(self, slot: _Slot) -> str:
        return f"{self.names[slot.module]}.{slot.attribute}"

    def _slots(self) -> list[_Slot]:
        """All places that hold a tensor of floats now."""
        return [
            _Slot(holder, key, module, attribute or str(key))
            for module in self.names
            for attribute, holder in _holders_of(module)
            for key, value in _items(holder)
            if isinstance(value, Tensor) and not isinstance(value, nn.Parameter) and value.is_floating_point()
        ]

    def _holders(self) -> list[Any]:
        return [holder for module in self.names for _, holder in _holders_of(module)]


def refuse_kept(node: Any) -> None:
    """Raise ReplayError for a node in a graph that is a kept tensor's end."""
    name = getattr(node, "name_of_kept_tensor", None)
    if name is not None:
        raise ReplayError(_message(name))


class _Kept(torch.autograd.Function):
    """A tensor that a checkpointed module kept: with a history, but none that leads anywhere."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str) -> Tensor:
        ctx.name_of_kept_tensor = name
        return tensor.data

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        raise ReplayError(_message(ctx.name_of_kept_tensor))


def _message(name: str) -> str:
    return (
        f"{name} is a tensor that a checkpointed module keeps, computed from what is trained, and a gradient should go "
        "through it from outside of the piece that made it, where it has no way back. Return it as an output (with one "
        "row for each row of the input, for an encoder), or compute it anew where it is used"
    )


def _may_keep(module: nn.Module) -> bool:
    """torch's and torchvision's own layers keep none, unless a hook writes them."""
    is_own = type(module).__module__.partition(".")[0] not in ("torch", "torchvision")
    return is_own or bool(module._forward_hooks or module._forward_pre_hooks)


def _holders_of(module: nn.Module) -> Iterator[tuple[str, Any]]:
    """What of a module can hold tensors: its own attributes, containers among them, and what its hooks close over."""
    yield "", module.__dict__
    for name, value in module.__dict__.items():
        if isinstance(value, (list, dict, deque)) and name not in _REGISTRIES:
            yield name, value
    for hook in (*module._forward_pre_hooks.values(), *module._forward_hooks.values()):
        for value in _held_by(hook):
            if isinstance(value, (list, dict, deque)):
                yield "(its hook)", value


def _held_by(function: Any) -> Iterator[Any]:
    if isinstance(function, partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    owner = getattr(function, "__self__", function)
    if not isinstance(owner, nn.Module) and hasattr(owner, "__dict__"):
        yield owner.__dict__
        yield from owner.__dict__.values()
    for cell in getattr(function, "__closure__", None) or ():
        try:
            yield cell.cell_contents
        except ValueError:  # noqa: PERF203 - not filled yet
            continue


def _items(holder: Any) -> list[tuple[Any, Any]]:
    return [*(holder.items() if isinstance(holder, dict) else enumerate(holder))]


def _contents(holder: Any) -> Any:
    return dict(holder) if isinstance(holder, dict) else list(holder)


def _keeps(value: Any) -> bool:
    """Whether this is a tensor, or a container with one in it."""
    if isinstance(value, (list, deque)):
        return any(isinstance(inner, Tensor) for inner in value)
    if isinstance(value, dict):
        return any(isinstance(inner, Tensor) and not isinstance(inner, nn.Parameter) for inner in value.values())
    return isinstance(value, Tensor)


def _get(contents: Any, key: Any) -> Any:
    if isinstance(contents, dict):
        return contents.get(key, _ABSENT)
    return contents[key] if contents is not None and key < len(contents) else _ABSENT


def _put(holder: Any, key: Any, value: Any) -> None:
    if value is not _ABSENT:
        if isinstance(holder, dict) or key < len(holder):
            holder[key] = value
    elif isinstance(holder, dict):
        holder.pop(key, None)
    elif key < len(holder):
        del holder[key]

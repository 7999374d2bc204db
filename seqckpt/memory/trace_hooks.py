"""Listening to a training step without touching it: which module runs when, what autograd saves, when gradients come.

Three kinds of hooks, none of which sits on a module: the engine, for one, does another thing with an encoder that has
hooks of its own.

- torch's hooks common to all modules give the begin and end of each forward. Modules of other models, running in other
  threads, are let pass.
- Saved-tensor hooks see what autograd is handed. They give back a detached alias, since an output of a graph that is
  kept with its history keeps the graph; when the alias is dropped, the storage is no longer held.
- Hooks after the accumulation of a gradient, on each parameter, give the time from which its gradient is there.

What happens in backward needs no hook: the profiler records each node of the graph with the number that it got in
forward (trace_assembly.py).

Storages are told apart by weak references: while one is held, no other storage gets the same address as an object.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.modules import module as torch_module
from torch.utils._pytree import tree_flatten

from seqckpt.core.surroundings import is_replaying

__all__ = ["ForwardCall", "StepRecorder", "is_plain_row"]

_PLAIN = (bool, int, float, str, type(None))


@dataclass
class ForwardCall:
    """One forward of one module, as the hooks saw it; times in nanoseconds since 1970.

    Nodes of the autograd graph that it made have sequence numbers from `first_node` up to, not including, `end_node`.
    """

    module: nn.Module
    name: str
    is_replay: bool
    parent: int | None
    begin: int = 0
    end: int = 0
    first_node: int = 0
    end_node: int = 0
    saved_bytes: int = 0
    saves: dict[int, None] = field(default_factory=dict)
    input_storage: int | None = None
    output_storage: int | None = None
    follows: bool = False
    shares_arguments: bool = False
    result_node: int | None = None
    last_child: int | None = None
    before: int | None = None  # the call before it in the same parent
    result: tuple[ReferenceType[Tensor], int] | None = None  # and its version then
    arguments: list[Any] = field(default_factory=list)  # all but the first, in a form that keeps no tensor alive


class StepRecorder:
    """Everything that hooks tell of one step: `calls` in order of their begin, and two lists of (time, bytes) changes.

    Args:
        names: the modules to follow, by name; a module with two names has the first.
        known: tensors that are there anyhow, parameters and inputs, and are not counted where autograd saves them.
    """

    def __init__(self, names: dict[nn.Module, str], known: Iterable[Tensor]) -> None:
        self.names = names
        self.calls: list[ForwardCall] = []
        self.activation_changes: list[tuple[int, int]] = []
        self.gradient_changes: list[tuple[int, int]] = []
        self.storage_bytes: list[int] = []
        self.in_backward = False
        self._open: list[int] = []
        self._storages: dict[int, tuple[StorageWeakRef, int]] = {}
        self._num_held: dict[int, int] = {}
        self._known = {self.storage_of(tensor) for tensor in known}
        self.storage_bytes = [0] * len(self.storage_bytes)  # they are there anyhow

    @contextmanager
    def listening(self, parameters: Iterable[Tensor]) -> Iterator[None]:
        handles: list[Any] = [
            torch_module.register_module_forward_pre_hook(self._begin),
            torch_module.register_module_forward_hook(self._end, with_kwargs=True, always_call=True),
        ]
        before = [(p, p._post_accumulate_grad_hooks) for p in parameters]
        try:
            handles += [p.register_post_accumulate_grad_hook(self._accumulated) for p, _ in before]
            with torch.autograd.graph.saved_tensors_hooks(self._pack, _unpack):
                yield
        finally:
            for handle in handles:
                handle.remove()
            torch_module._global_forward_hooks_with_kwargs.pop(handles[1].id, None)
            for parameter, hooks in before:
                parameter._post_accumulate_grad_hooks = hooks

    def storage_of(self, tensor: Tensor) -> int | None:
        """The number of a tensor's storage; None where it has none that is known (sparse, wrapped)."""
        if tensor.layout is not torch.strided or type(tensor).__torch_dispatch__ is not Tensor.__torch_dispatch__:
            return None
        storage = tensor.untyped_storage()
        known = self._storages.get(storage._cdata)
        if known is None:
            known = StorageWeakRef(storage), len(self.storage_bytes)
            self._storages[storage._cdata] = known
            self.storage_bytes.append(storage.nbytes())
        return known[1]

    # ---------------------------------------------------------------- modules

    def _begin(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        name = self.names.get(module)
        if name is None:
            return
        parent = self._open[-1] if self._open else None
        call = ForwardCall(module, name, self.in_backward or is_replaying(), parent)
        if parent is not None:
            call.before, self.calls[parent].last_child = self.calls[parent].last_child, len(self.calls)
        if args and isinstance(args[0], Tensor):
            call.input_storage = self.storage_of(args[0])
            given = None if call.before is None else self.calls[call.before].result
            call.follows = given is not None and given[0]() is args[0] and given[1] == _version(args[0])
        self._open.append(len(self.calls))
        self.calls.append(call)
        call.first_node = torch.autograd._get_sequence_nr()
        call.begin = time.time_ns()

    def _end(self, module: nn.Module, args: tuple[Any, ...], *kwargs_and_result: Any) -> None:
        end = time.time_ns()
        *kwargs, result = kwargs_and_result  # without keyword arguments where forward raised an exception
        if module not in self.names or not self._open:
            return
        position = self._open.pop()
        call = self.calls[position]
        call.end, call.end_node = end, torch.autograd._get_sequence_nr()
        call.arguments = _identify((args[1:], kwargs))
        if isinstance(result, Tensor):
            call.result = ref(result), _version(result)
            call.output_storage = self.storage_of(result)
            call.result_node = None if result.grad_fn is None else result.grad_fn._sequence_nr()
        if call.follows and call.arguments:
            assert call.before is not None
            call.follows = call.shares_arguments = _are_same(call.arguments, self.calls[call.before].arguments)

    def end_forward(self, consumers: dict[int, set[int]]) -> None:
        """What comes now is backward, and runs of modules in it are replays.

        `consumers`: for each node of the graph the nodes that take its results. A result that others take as well as
        the next call is not that call's alone. Where no graph shows it, the parent's kind must: an nn.Sequential.
        """
        self.in_backward = True
        for call in self.calls:
            if call.follows:
                parent, before = self.calls[call.parent], self.calls[call.before]  # type: ignore[index]
                if before.result_node is None:
                    call.follows = is_plain_row(parent.module)
                else:
                    takers = consumers.get(before.result_node, set())
                    call.follows = all(call.first_node <= node < call.end_node for node in takers)

    # ---------------------------------------------------------------- autograd

    def _pack(self, tensor: Tensor) -> _Held:
        storage = self.storage_of(tensor)
        held = _Held(tensor.detach())
        if storage is None or storage in self._known:
            return held
        call = self.calls[self._open[-1]] if self._open else None
        if call is not None:
            call.saves[storage] = None
        count = self._num_held.get(storage, 0)
        self._num_held[storage] = count + 1
        held.recorder, held.storage = self, storage
        if count == 0:
            num_bytes = self.storage_bytes[storage]
            self.activation_changes.append((time.time_ns(), num_bytes))
            if call is not None:
                call.saved_bytes += num_bytes
        return held

    def release(self, storage: int) -> None:
        """Autograd has let go of one hold on a storage."""
        self._num_held[storage] -= 1
        if self._num_held[storage] == 0:
            self.activation_changes.append((time.time_ns(), -self.storage_bytes[storage]))

    def _accumulated(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.gradient_changes.append((time.time_ns(), parameter.grad.untyped_storage().nbytes()))


class _Held:
    """What autograd holds in a saved tensor's place; tells the recorder when it is dropped."""

    __slots__ = ("recorder", "storage", "tensor")

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.recorder: StepRecorder | None = None
        self.storage = -1

    def __del__(self) -> None:
        if self.recorder is not None:
            self.recorder.release(self.storage)


def is_plain_row(module: nn.Module) -> bool:
    """Whether a module does nothing but call its children one after the other."""
    is_row = isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward
    return is_row and "forward" not in module.__dict__


def _unpack(held: _Held) -> Tensor:
    return held.tensor


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _identify(arguments: Any) -> list[Any]:
    """What arguments are, so that the same ones are known again: plain values, and what stands for objects."""
    leaves = tree_flatten(arguments)[0]
    return [ref(x) if isinstance(x, Tensor) else x if isinstance(x, _PLAIN) else id(x) for x in leaves]


def _are_same(arguments: list[Any], others: list[Any]) -> bool:
    return len(arguments) == len(others) and all(
        a() is b() is not None if isinstance(a, ReferenceType) and isinstance(b, ReferenceType) else a == b
        for a, b in zip(arguments, others, strict=True)
    )

"""What a training step does to memory: one forward and backward, recorded module by module."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from seqckpt.core.graph import find_leaves
from seqckpt.core.surroundings import accelerators_of
from seqckpt.errors import UsageError
from seqckpt.memory.allocated import recorded_events
from seqckpt.memory.as_found import as_found, without_gradients
from seqckpt.memory.trace_assembly import assemble
from seqckpt.memory.trace_hooks import StepRecorder
from seqckpt.memory.trace_records import MemoryTrace, TraceTotals

__all__ = ["trace_memory"]


def trace_memory(
    model: nn.Module,
    *args: Any,
    loss: Callable[[Any], Tensor] | None = None,
    optimiser: torch.optim.Optimizer | None = None,
    **kwargs: Any,
) -> MemoryTrace:
    """Run one forward and backward of `model(*args, **kwargs)` and record what it does to memory.

    Args:
        loss: from the model's result to the scalar that backward starts from; a module is traced with the model. None:
            the result itself, or its first element, where that is a scalar (a VideoModel's loss), otherwise the sum
            over all floating-point tensors of the result.
        optimiser: its state is counted in the totals; it makes no step.

    The step begins with gradients of None, as after `optimiser.zero_grad()`; bytes are those above its start. Each run
    of a module becomes one ModuleCall, forward and backward; runs of a module in backward are marked as replays.

    Model, gradients, buffers, random states (torch's and Python's) and hooks are afterwards as they were, also after an
    exception. A module of torch.jit is one call. On CUDA seconds are those of kernels, by where they were started.

    Memory: some hundred bytes for each operator. Time: less than that of the step itself. Raises UsageError if the loss
    is no scalar with a gradient, if a profiler is running already, if tensors lie on several accelerators, or for a
    model that torch.compile has compiled, whose code the hooks would break up.

    >>> model = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 1))
    >>> trace = trace_memory(model, torch.randn(100, 4))
    >>> [(row.module, row.saved_bytes) for row in trace.top_activation_producers(1)]
    [('1', 102400)]
    """
    modules = [model, *([loss] if isinstance(loss, nn.Module) else [])]
    names = _name(modules)
    held = [*chain.from_iterable(chain(m.parameters(), m.buffers()) for m in modules)]
    given = [leaf for leaf in tree_flatten((args, kwargs))[0] if isinstance(leaf, Tensor)]
    device = _device_of([*held, *given])
    parameters = list({id(p): p for m in modules for p in m.parameters() if p.requires_grad}.values())
    recorder = StepRecorder(names, [*held, *given])
    with ExitStack() as stack:
        stack.enter_context(as_found(modules, [*held, *given]))
        gradients = stack.enter_context(without_gradients([*parameters, *given]))
        events = stack.enter_context(recorded_events(kernels=device.type == "cuda"))
        stack.enter_context(recorder.listening(parameters))
        stack.enter_context(torch.enable_grad())
        begin = _now(device)
        result = model(*args, **kwargs)
        value = _find_loss(result) if loss is None else loss(result)
        _check_loss(value)
        recorder.end_forward(_count_consumers(value))
        gradients(find_leaves([value]))
        value.backward()
        end = _now(device)
        gradient_bytes = sum(p.grad.untyped_storage().nbytes() for p in parameters if p.grad is not None)
        del result, value
        stack.pop_all().close()
        calls, timeline = assemble(recorder, events, device, begin, end)
    held_by_optimiser = [] if optimiser is None else tree_flatten(list(optimiser.state.values()))[0]
    most = max(timeline, key=lambda moment: moment.peak_bytes)
    totals = TraceTotals(
        peak_bytes=most.peak_bytes,
        peak_seconds=most.peak_seconds,
        peak_module=most.module,
        peak_phase=most.phase,
        peak_in_replay=most.is_replay,
        parameter_bytes=_sum_bytes(p for m in modules for p in m.parameters()),
        buffer_bytes=_sum_bytes(b for m in modules for b in m.buffers()),
        gradient_bytes=gradient_bytes,
        optimiser_bytes=_sum_bytes(held_by_optimiser),
        activation_bytes=most.activation_bytes,
        temporary_bytes=most.peak_bytes - most.activation_bytes - most.gradient_bytes,
        seconds=(end - begin) / 1e9,
    )
    return MemoryTrace(
        device=str(device),
        calls=tuple(calls),
        timeline=tuple(timeline),
        totals=totals,
        storage_bytes=tuple(recorder.storage_bytes),
    )


def _name(modules: list[nn.Module]) -> dict[nn.Module, str]:
    """Names of all modules; refuses compiled ones."""
    names = {module: name for name, module in modules[0].named_modules()}
    for module in modules[1:]:
        for name, child in module.named_modules(prefix="loss"):
            names.setdefault(child, name)
    for module, name in names.items():
        if hasattr(module, "_orig_mod") or getattr(module, "_compiled_call_impl", None) is not None:
            raise UsageError(
                f"{name or 'the model'} is compiled: trace the plain model, before torch.compile; compiled code takes "
                "other memory, and has no modules left to name"
            )
    return names


def _device_of(tensors: Iterable[Tensor]) -> torch.device:
    accelerators = accelerators_of(tensors)
    if len(accelerators) > 1:
        raise UsageError(
            f"the model and its arguments lie on {', '.join(sorted(map(str, accelerators)))}: memory is traced on one "
            "device; trace each part of the model by itself"
        )
    return accelerators.pop() if accelerators else torch.device("cpu")


def _now(device: torch.device) -> int:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.time_ns()


def _find_loss(result: Any) -> Tensor:
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    if isinstance(first, Tensor) and first.numel() == 1:
        return first
    leaves = [t for t in tree_flatten(result)[0] if isinstance(t, Tensor) and t.is_floating_point()]
    if not leaves:
        raise UsageError(
            f"the model returned a {type(result).__name__} without floating-point tensors: give trace_memory a "
            "loss=..., a function from the model's result to a scalar"
        )
    return torch.stack([leaf.float().sum() for leaf in leaves]).sum() if len(leaves) > 1 else leaves[0].sum()


def _check_loss(value: Any) -> None:
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.requires_grad:
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        without = " without a gradient" if isinstance(value, Tensor) and not value.requires_grad else ""
        raise UsageError(
            f"the loss is {what}{without}: expected a scalar that depends on something trainable; see loss=... of "
            "trace_memory"
        )


def _count_consumers(loss: Tensor) -> dict[int, set[int]]:
    """For each node of a graph, by its number, the numbers of the nodes that take its results."""
    consumers: dict[int, set[int]] = {}
    stack = [loss.grad_fn]
    seen = set(stack)
    while stack:
        node = stack.pop()
        assert node is not None
        for following, _ in node.next_functions:
            if following is None:
                continue
            consumers.setdefault(following._sequence_nr(), set()).add(node._sequence_nr())
            if following not in seen:
                seen.add(following)
                stack.append(following)
    return consumers


def _sum_bytes(tensors: Iterable[Any]) -> int:
    storages = {id(t): t for t in tensors if isinstance(t, Tensor)}
    return sum(t.numel() * t.element_size() for t in storages.values())

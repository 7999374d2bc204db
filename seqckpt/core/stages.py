"""The row of stages that an encoder can be cut into: what `Keep.depth` counts.

An nn.Sequential is a row by construction, and so are the plain nn.Sequentials inside it: their children are stages too,
since finer cuts leave more to choose from (layer1 to layer4 of a ResNet are 4 stages, their blocks 8 to 50). Any other
encoder is traced by torch.fx, down to the modules that its `forward` calls: wherever only one value goes from what
was run to what is still to run, there is a cut. The traced stages call the encoder's own modules.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, Protocol

import torch
from torch import Tensor, fx, nn

from seqckpt.core.fused_layers import is_frozen_norm
from seqckpt.core.fusion import fuse_graph
from seqckpt.core.graph_stages import GraphStage, cut_graph, writes_into_input
from seqckpt.core.random_states import RandomStates
from seqckpt.core.surroundings import AutocastState, accelerators_of

__all__ = ["Stage", "find_stages", "fused_stages"]


class Stage(Protocol):
    """A part of an encoder that is called with what the part before it returned; a module, or part of a traced one."""

    def __call__(self, x: Any) -> Any: ...

    def parameters(self) -> Iterator[nn.Parameter]: ...


def find_stages(encoder: nn.Module, *, trace: bool = False) -> Sequence[Stage]:
    """Return the stages whose calls, one after the other, are a call of the encoder; [encoder] if it cannot be cut.

    `trace`: whether an encoder that is no nn.Sequential is traced, in its present mode. Its `forward` runs once for
    that without data, which costs milliseconds. What is compiled or has hooks is never cut, since they would not run.

    >>> block = nn.Sequential(nn.Conv2d(8, 8, 3), nn.ReLU())
    >>> len(find_stages(nn.Sequential(nn.Conv2d(3, 8, 3), block, nn.Flatten())))
    4
    """
    if _is_row(encoder):
        return list(_walk(encoder))
    if not trace or not _is_plain(encoder):
        return [encoder]
    return _trace(encoder) or [encoder]


def _is_plain(module: nn.Module) -> bool:
    """Whether calling the module is calling its forward, and no more."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module).__call__ is nn.Module.__call__ and module._compiled_call_impl is None and not any(hooks)


def _is_row(module: nn.Module) -> bool:
    return isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward and _is_plain(module)


def _walk(row: nn.Module) -> Iterator[nn.Module]:
    """The children of a row, and those of the rows among them; one used twice counts twice."""
    for stage in row._modules.values():
        if stage is not None and len(stage._modules) and _is_open(stage):
            yield from _walk(stage)
        elif stage is not None:
            yield stage


def _is_open(module: nn.Module) -> bool:
    """Whether a module inside an encoder is cut further."""
    return _is_row(module) and not any(writes_into_input(child) for child in module._modules.values())


def fused_stages(encoder: nn.Module) -> list[GraphStage]:
    """Return the encoder's stages with layers fused where they can be, in their present modes; see fusion.py.

    Its forward and those of its blocks run once for that without data. Empty where no layer can be fused.

    >>> norm = nn.BatchNorm2d(8).eval()
    >>> len(fused_stages(nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())))
    3
    """
    if not _is_plain(encoder):
        return []
    inside = [module for module in encoder.modules() if _has_forward_of_calls(module)]
    graph = _trace_forward(encoder, inside)
    if graph is None:  # one of the blocks depends on values: look into those that do not
        inside = [module for module in inside if module is encoder or _trace_forward(module, [module]) is not None]
        graph = _trace_forward(encoder, inside)
    if graph is None or not fuse_graph(graph, {name: m for name, m in encoder.named_modules() if _is_plain(m)}):
        return []
    return cut_graph(encoder, graph)


def _has_forward_of_calls(module: nn.Module) -> bool:
    """Whether a module may be made of others, rather than be a layer."""
    return len(module._modules) > 0 and _is_plain(module) and not is_frozen_norm(module)


class _Tracer(fx.Tracer):
    """Goes into the encoder's own forward and rows inside it, and into `wrapped` modules, but into no other."""

    def __init__(self, wrapped: Sequence[nn.Module], witness: _Witness) -> None:
        super().__init__()
        self.wrapped, self.witness = wrapped, witness

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        if any(m is module for module in self.wrapped):
            return False
        return not _is_open(m)

    def create_arg(self, a: Any) -> Any:
        if isinstance(a, Tensor) and not any(a is own for own in chain(self.root.parameters(), self.root.buffers())):
            raise TypeError("a tensor made in forward: fx would write it into the encoder")
        return super().create_arg(a)

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if self.witness.modes() != self.witness.modes_before:
            raise TypeError("a call in a mode that forward entered, which the graph would not enter")
        return super().create_node(*args, **kwargs)


class _Witness:
    """What a traced forward can change beside its result; afterwards all of that is as it was.

    Args:
        modules: those whose own forward runs.
        devices: with random states that it might use.
    """

    def __init__(self, modules: Sequence[nn.Module], devices: set[torch.device]) -> None:
        self.devices, self.random_states = devices, RandomStates(devices, modules)
        self.modes_before = self.modes()
        self.random_before = self.random_states.read()
        values = [value for module in modules for value in module.__dict__.values()]
        dicts = [*(module.__dict__ for module in modules), *(value for value in values if isinstance(value, dict))]
        self.dicts = [(held, dict(held)) for held in dicts]
        self.lists = [(held, list(held)) for held in values if isinstance(held, list)]
        buffers = [buffer for module in modules for buffer in module._buffers.values() if buffer is not None]
        self.buffers = [(buffer, buffer._version, buffer.detach().clone()) for buffer in buffers]

    def modes(self) -> tuple[Any, ...]:
        """What torch does otherwise under a context manager."""
        autocast = AutocastState(self.devices)
        return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast.settings

    def restore(self) -> bool:
        """Put everything back; True if there was nothing to put back."""
        changed = self.random_states.differ(self.random_before, self.random_states.read())
        if changed:
            self.random_states.write(self.random_before)
        for held, before in self.dicts:
            if held.keys() != before.keys() or any(held[name] is not before[name] for name in before):
                changed = True
                held.clear()
                held.update(before)
        for values, former in self.lists:
            if len(values) != len(former) or any(a is not b for a, b in zip(values, former, strict=True)):
                changed = True
                values[:] = former
        for buffer, version, value in self.buffers:
            if buffer._version != version:
                changed = True
                buffer.data.copy_(value)
        return not changed


def _trace_forward(encoder: nn.Module, wrapped: Sequence[nn.Module]) -> fx.Graph | None:
    """The graph of a forward's calls; None where it is more than these, or none can be had.

    What is no call on tensors stands in the graph as it was once. So it is traced twice: a number drawn from somewhere,
    or the time of day, is another then, and the encoder is not cut.
    """
    graph = _trace_once(encoder, wrapped)
    again = None if graph is None else _trace_once(encoder, wrapped)
    return graph if graph is not None and again is not None and _are_equal(graph, again) else None


def _trace_once(encoder: nn.Module, wrapped: Sequence[nn.Module]) -> fx.Graph | None:
    witness = _Witness([encoder, *wrapped], accelerators_of(encoder.parameters()))
    graph: fx.Graph | None = None
    try:
        graph = _Tracer(wrapped, witness).trace(encoder)
    except Exception:  # whatever a forward makes of a placeholder: it depends on values, so there is no row
        pass
    finally:
        is_alone = witness.restore()
    return graph if is_alone else None


def _are_equal(graph: fx.Graph, other: fx.Graph) -> bool:
    """Whether two graphs are the same calls with the same constants."""
    if len(graph.nodes) != len(other.nodes):
        return False
    place = {node: i for i, node in enumerate(graph.nodes)} | {node: i for i, node in enumerate(other.nodes)}
    return all(
        (a.op, a.target) == (b.op, b.target) and _is_same((a.args, a.kwargs), (b.args, b.kwargs), place)
        for a, b in zip(graph.nodes, other.nodes, strict=True)
    )


def _is_same(a: Any, b: Any, place: Mapping[fx.Node, int]) -> bool:
    if isinstance(a, fx.Node) and isinstance(b, fx.Node):
        return place[a] == place[b]
    if type(a) is not type(b):
        return False
    if isinstance(a, (tuple, list)):
        return len(a) == len(b) and all(_is_same(x, y, place) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(_is_same(a[key], b[key], place) for key in a)
    if isinstance(a, slice):
        return _is_same((a.start, a.stop, a.step), (b.start, b.stop, b.step), place)
    return a is b or bool(a == b) or (a != a and b != b)


def _trace(encoder: nn.Module) -> list[Stage] | None:
    wrapped: list[nn.Module] = []
    while True:
        graph = _trace_forward(encoder, wrapped)
        if graph is None:
            return None
        calls = [node for node in graph.nodes if node.op.startswith("call_")]
        if len(calls) != 1 or calls[0].op != "call_module":
            stages = cut_graph(encoder, graph)
            return list(stages) if len(stages) > 1 else None
        inner = encoder.get_submodule(calls[0].target)
        if not _is_plain(inner) or type(inner).__module__.startswith("torch.nn"):
            return None
        wrapped.append(inner)  # the encoder does nothing but call this one: look inside

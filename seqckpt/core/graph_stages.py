"""Parts of a traced forward as stages: consecutive calls, run on the encoder's own modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import fx, nn

from seqckpt.core.fused_layers import Folded, FusedConv

__all__ = ["FoldedStage", "GraphStage", "cut_graph", "fold_all", "writes_into_input"]


def writes_into_input(module: Any) -> bool:
    """Whether it is a layer that says so; inside nested rows and traced forwards it is not parted from its input."""
    return getattr(module, "inplace", False) is True


def cut_graph(encoder: nn.Module, graph: fx.Graph) -> list[GraphStage]:
    """Cut the graph's calls wherever a single value crosses; none if there is no single value that goes in."""
    used = [node for node in graph.nodes if node.op == "placeholder" and node.users]
    calls = [node for node in graph.nodes if node.op.startswith("call_")]
    (output,) = graph.find_nodes(op="output")
    if len(used) != 1:
        return []
    position = {node: i for i, node in enumerate([*calls, output])}
    last_use = {node: max((position[user] for user in node.users), default=-1) for node in (used[0], *calls)}
    stages: list[GraphStage] = []
    part: list[fx.Node] = []
    source = used[0]
    for i, node in enumerate(calls):
        part.append(node)
        alive = [value for value in (used[0], *calls[: i + 1]) if last_use[value] > i]
        if alive != [node] or (i + 1 < len(calls) and _writes(encoder, calls[i + 1])):
            continue
        is_last = i + 1 == len(calls)
        stages.append(GraphStage(encoder, source, part, output.args[0] if is_last else node))
        source, part = node, []
    if part:  # several values make up the output
        stages.append(GraphStage(encoder, source, part, output.args[0]))
    return stages


def fold_all(stages: Sequence[Any]) -> dict[FusedConv, Folded]:
    """What each fused convolution in these stages computes with, with a graph to the parameters."""
    return {fused: fused.fold() for stage in stages if isinstance(stage, GraphStage) for fused in stage.fused()}


def _writes(encoder: nn.Module, node: fx.Node) -> bool:
    if node.op == "call_module":
        return writes_into_input(encoder.get_submodule(str(node.target)))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.kwargs.get("inplace") is True or (name.endswith("_") and not name.endswith("__"))


class GraphStage:
    """Some consecutive calls of a traced encoder, run on the encoder's own modules."""

    def __init__(self, encoder: nn.Module, source: fx.Node, calls: Sequence[fx.Node], result: Any) -> None:
        self.encoder, self.source, self.calls, self.result = encoder, source, list(calls), result
        fetched = {value for node in calls for value in node.all_input_nodes if value.op == "get_attr"}
        self.constants = {node: str(node.target) for node in fetched}
        last_use = {value: node for node in self.calls for value in node.all_input_nodes}
        returned: list[fx.Node] = []
        fx.node.map_arg(result, returned.append)
        self.last_use = {value: node for value, node in last_use.items() if value not in (source, *returned)}

    def __call__(self, x: Any, folded: Mapping[FusedConv, Folded] | None = None) -> Any:
        """Run the calls; `folded`: what the fused convolutions among them have folded already."""
        values: dict[fx.Node, Any] = {self.source: x}
        values |= {node: _get(self.encoder, path) for node, path in self.constants.items()}
        for node in self.calls:
            args: Any = fx.node.map_arg(node.args, values.__getitem__)
            kwargs: Any = fx.node.map_arg(node.kwargs, values.__getitem__)
            if folded is not None and isinstance(node.target, FusedConv):
                kwargs = {**kwargs, "folded": folded[node.target]}
            values[node] = self._function(node)(*args, **kwargs)
            for value in node.all_input_nodes:  # let go of what nothing needs any more, as the forward itself would
                if self.last_use.get(value) is node:
                    values.pop(value, None)
            del args, kwargs
        return fx.node.map_arg(self.result, values.__getitem__)

    def _function(self, node: fx.Node) -> Callable[..., Any]:
        if node.op == "call_module":
            return self.encoder.get_submodule(str(node.target))
        if node.op == "call_method":
            name = str(node.target)
            return lambda x, *args, **kwargs: getattr(x, name)(*args, **kwargs)
        assert callable(node.target)
        return node.target

    def fused(self) -> Iterator[FusedConv]:
        """The fused convolutions among the calls."""
        return (node.target for node in self.calls if isinstance(node.target, FusedConv))

    def folded(self) -> FoldedStage:
        """The stage as it runs in a step, where everything is folded once, in front."""
        return FoldedStage(self)

    def parameters(self) -> Iterator[nn.Parameter]:
        for node in self.calls:
            if node.op == "call_module":
                yield from self.encoder.get_submodule(str(node.target)).parameters()
            elif isinstance(node.target, FusedConv):
                yield from node.target.parameters()
        for path in self.constants.values():
            if isinstance(value := _get(self.encoder, path), nn.Parameter):
                yield value


class FoldedStage:
    """A stage with what its fused convolutions compute with: leaves of their own, in the place of the parameters."""

    def __init__(self, stage: GraphStage) -> None:
        self.stage = stage
        self.by_call = {
            fused: tuple(t.detach().requires_grad_(t.requires_grad) for t in fused.fold()) for fused in stage.fused()
        }

    def __call__(self, x: Any) -> Any:
        return self.stage(x, self.by_call)

    def parameters(self) -> Iterator[Any]:
        replaced = {id(p) for fused in self.by_call for p in fused.parameters()}
        yield from (p for p in self.stage.parameters() if id(p) not in replaced)
        for tensors in self.by_call.values():
            yield from tensors


def _get(encoder: nn.Module, path: str) -> Any:
    owner, _, name = path.rpartition(".")
    return getattr(encoder.get_submodule(owner), name)

"""Finds, in a traced encoder, what can be run as one fused layer (fused_layers.py), and puts those in the place of it.

    conv -> frozen batch norm -> (+ residual) -> relu      any of the three behind the convolution may be missing
    (relu) -> max pool                                     the pool goes first, where the ReLU is not needed elsewhere

A layer is taken in only if nothing else looks at what it returns and it is plain: torch's own class, without hooks or
parametrizations. Everything else stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn import functional

from seqckpt.core.fused_layers import FusedConv, FusedPool, is_frozen_norm

__all__ = ["fuse_graph"]

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")
_RECTIFIERS = (functional.relu, torch.relu, torch.relu_, "relu", "relu_")


def fuse_graph(graph: fx.Graph, modules: Mapping[str, nn.Module]) -> int:
    """Replace calls in the graph by fused ones; `modules`: those without hooks, by name. Returns how many there are."""
    num_fused = 0
    for node in list(graph.nodes):
        if node.op == "call_module" and type(modules.get(node.target)) in _CONVOLUTIONS:
            num_fused += _fuse_conv(graph, node, modules)
    graph.lint()
    return num_fused


def _fuse_conv(graph: fx.Graph, node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    conv: Any = modules[str(node.target)]
    if conv.padding_mode != "zeros" or isinstance(conv.padding, str) or len(node.args) != 1 or node.kwargs:
        return False
    row, norm, residual = [node], None, None
    following = _only_user(node)
    if following is not None and is_frozen_norm(layer := modules.get(str(following.target), nn.Identity())):
        norm = layer
        row.append(following)
    following = _only_user(row[-1])
    if following is not None and (other := _added(following, row[-1])) is not None:
        residual = other
        row.append(following)
    last = row[-1]
    following = _only_user(last)
    rectifies = following is not None and _is_relu(following, modules)
    if rectifies:
        assert following is not None
        row.append(following)
        if residual is None and (pool := _pool_behind(following, modules)) is not None:
            row.append(pool)
    if len(row) == 1:
        return False
    args = (node.args[0],) if residual is None else (node.args[0], residual)
    has_pool = rectifies and row[-1].target in modules and isinstance(modules[str(row[-1].target)], nn.MaxPool2d)
    with graph.inserting_before(row[-1]):
        fused = graph.call_function(FusedConv(conv, norm, rectifies and not has_pool), args)
        if has_pool:
            pool_layer: Any = modules[str(row[-1].target)]
            fused = graph.call_function(FusedPool(pool_layer), (fused,))
    row[-1].replace_all_uses_with(fused)
    for old in reversed(row):
        graph.erase_node(old)
    return True


def _only_user(node: fx.Node) -> fx.Node | None:
    return next(iter(node.users)) if len(node.users) == 1 else None


def _added(node: fx.Node, to: fx.Node) -> fx.Node | None:
    """What this call adds to `to`, where it is an addition that does not write into that other value."""
    if node.op not in ("call_function", "call_method") or node.target not in _ADDITIONS:
        return None
    if node.kwargs or len(node.args) != 2 or not all(isinstance(arg, fx.Node) for arg in node.args):
        return None
    first, second = node.args
    if first is second or (first is not to and node.target in (operator.iadd, "add_")):
        return None
    return second if first is to else first  # type: ignore[return-value]


def _is_relu(node: fx.Node, modules: Mapping[str, nn.Module]) -> bool:
    if node.op == "call_module":
        return type(modules.get(str(node.target))) is nn.ReLU
    return node.op in ("call_function", "call_method") and node.target in _RECTIFIERS


def _pool_behind(node: fx.Node, modules: Mapping[str, nn.Module]) -> fx.Node | None:
    following = _only_user(node)
    if following is None or following.op != "call_module":
        return None
    pool: Any = modules.get(str(following.target))
    return following if type(pool) is nn.MaxPool2d and not pool.return_indices else None

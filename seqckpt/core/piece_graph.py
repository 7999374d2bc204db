"""The graph of one piece of a replay loop: the leaves that it starts from, what came out, and its backward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._pytree import TreeSpec, tree_unflatten

from seqckpt.core.graph import GradientSums

__all__ = ["PieceGraph", "as_leaf", "detached", "is_differentiable", "needs_grad"]


@dataclass
class PieceGraph:
    """The graph of one piece: the leaves it starts from, and what came out."""

    x: list[Any]
    state: list[Any]
    y: list[Any]
    new_state: list[Any]
    y_spec: TreeSpec
    new_state_spec: TreeSpec

    def flat_results(self) -> list[Any]:
        return [*self.y, *self.new_state]

    def results(self) -> tuple[Any, Any]:
        """What came out, nested, without the graph."""
        return (
            tree_unflatten([detached(t) for t in self.y], self.y_spec),
            tree_unflatten([detached(t) for t in self.new_state], self.new_state_spec),
        )

    def backward(self, grads: Sequence[Tensor | None], sums: GradientSums) -> list[Tensor | None]:
        """Run one graph backward from the gradients of its results to those of its own leaves; once only.

        The engine is handed the graph's ends rather than the results, and these are let go of: what no backward
        needs is not in memory while the graph is worked off.
        """
        roots = self._take_roots(grads)
        leaves = [*self.x, *self.state]
        if not roots:
            return [None] * len(leaves)
        wanted = [t for t in leaves if needs_grad(t)]
        got = iter(sums.add([edge for edge, _ in roots], [grad for _, grad in roots], wanted))
        return [next(got) if needs_grad(t) else None for t in leaves]

    def _take_roots(self, grads: Sequence[Tensor | None]) -> list[tuple[GradientEdge, Tensor]]:
        """The ends of the graph that have a gradient, and the results let go of."""
        results, self.y, self.new_state = self.flat_results(), [], []
        pairs = zip(results, grads, strict=True)
        return [(get_gradient_edge(t), grad) for t, grad in pairs if grad is not None and needs_grad(t)]


def needs_grad(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad


def is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())


def detached(leaf: Any) -> Any:
    return leaf.detach() if isinstance(leaf, Tensor) else leaf


def as_leaf(value: Any, trainable: bool) -> Any:
    return value.detach().requires_grad_(trainable) if isinstance(value, Tensor) else value

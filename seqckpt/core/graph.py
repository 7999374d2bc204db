"""Autograd graphs as data: which leaves one reaches, and running sums of leaf gradients over several graphs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, _engine_run_backward

from seqckpt.core.kept_tensors import refuse_kept
from seqckpt.errors import ReplayError

__all__ = ["GradientSums", "find_leaves", "newest_node"]


def newest_node() -> int:
    """The sequence number of the newest autograd node of this thread: nodes made from now on have larger ones."""
    with torch.enable_grad():
        node = torch.zeros((), requires_grad=True).view(()).grad_fn
    assert node is not None
    return node._sequence_nr()


def find_leaves(outputs: Iterable[Any], older_than: int | None = None) -> list[Tensor]:
    """All leaf tensors that the graphs of `outputs` reach, each once; about 1 us per node.

    Raises ReplayError if a tensor is met that a checkpointed module has kept (kept_tensors.py), or a node with a
    sequence number up to `older_than`: the graph then goes on into one that was there before.
    """
    leaves: list[Tensor] = []
    stack = [t.grad_fn for t in outputs if isinstance(t, Tensor) and t.grad_fn is not None]
    leaves += [t for t in outputs if isinstance(t, Tensor) and t.requires_grad and t.grad_fn is None]
    seen = set(stack)
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):  # AccumulateGrad
            leaves.append(node.variable)
            continue
        refuse_kept(node)
        if older_than is not None and node._sequence_nr() <= older_than:
            raise ReplayError(
                f"the function to be replayed uses a tensor that was computed outside of it (by {node.name()}) and "
                "needs a gradient; hand it in as an input or as part of the state, so that its gradient has a way back"
            )
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                stack.append(following)
    return leaves


class GradientSums:
    """Sums of the gradients of `targets` (leaves) over several `torch.autograd.grad` calls; see replay.py, Notes 1
    and 2.

    As a context manager it sets the targets' own hooks aside and puts them back. `add(roots, root_grads, inputs)`
    runs one graph backward, adds the targets' gradients up in `values` (None where none came), and returns those of
    `inputs`. It is `torch.autograd.grad` without its comparison of every root's shape with that of its gradient, which
    took 3 to 5 % of a step with a tiny encoder.
    """

    def __init__(self, targets: Sequence[Tensor]) -> None:
        self.targets = list(targets)
        self.values: list[Tensor | None] = [None] * len(self.targets)
        self.own_hooks: list[Any] = []
        self.thawed: list[Tensor] = []

    def __enter__(self) -> GradientSums:
        for i, target in enumerate(self.targets):
            if not target.requires_grad:  # frozen since the first run: the plain graph would still have its gradient
                target.requires_grad_(True)
                self.thawed.append(target)
            self.own_hooks.append(target._backward_hooks)
            target._backward_hooks = None
            target.register_hook(self._collector(i))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for target, hooks in zip(self.targets, self.own_hooks, strict=True):
            target._backward_hooks = hooks
        for target in self.thawed:
            target.requires_grad_(False)

    def _collector(self, i: int) -> Any:
        def collect(grad: Tensor | None) -> Tensor | None:
            if grad is None:  # the graph reaches this weight, and no gradient does: c_n's loss and weight_hr, say
                return None
            value = self.values[i]
            if value is None or grad.layout != torch.strided or value.layout != torch.strided:
                # A copy: autograd may hand the same tensor to several weights, and to the caller.
                self.values[i] = grad.clone() if value is None else grad
            else:
                value.data = grad  # the root gradient that the engine still holds lets its memory go at once
            return grad.new_zeros(()).expand_as(grad) if grad.layout == torch.strided else None

        return collect

    def add(
        self, roots: Sequence[GradientEdge], root_grads: Sequence[Tensor | None], inputs: Sequence[Tensor]
    ) -> list[Any]:
        seeded = [(t, value) for t, value in zip(self.targets, self.values, strict=True) if value is not None]
        try:
            grads = _engine_run_backward(
                (*roots, *(t for t, _ in seeded)),
                (*root_grads, *(value for _, value in seeded)),
                False,  # retain_graph
                False,  # create_graph
                (*inputs, *self.targets),
                True,  # allow_unused
                accumulate_grad=False,
            )
        except RuntimeError as error:
            if "use_reentrant=True" not in str(error):
                raise
            raise ReplayError(
                "inside of a checkpointed part torch.utils.checkpoint is used with use_reentrant=True, which works "
                "with a plain backward() only: give use_reentrant=False there, or leave that checkpoint out"
            ) from error
        return list(grads[: len(inputs)])

"""The record of one replay loop: its first run, its node in the autograd graph, and its replays (see replay.py)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_map, tree_unflatten

from seqckpt.core.graph import GradientSums, find_leaves, newest_node
from seqckpt.core.handover import HandOver, share_memory, with_strides
from seqckpt.core.kept_tensors import KeptTensors
from seqckpt.core.piece_graph import PieceGraph, as_leaf, detached, is_differentiable, needs_grad
from seqckpt.core.random_states import RandomStates
from seqckpt.core.replay_check import ReplayComparison, replay_check_enabled, replays_are_compared
from seqckpt.core.replay_checksums import ReplayChecksums
from seqckpt.core.surroundings import AutocastState, BufferGuard, ModeGuard, accelerators_of, replaying
from seqckpt.errors import ReplayError

if TYPE_CHECKING:
    from seqckpt.core.replay import Loop

__all__ = ["Record", "needs_grad"]


class Record:
    """All that backward needs to know of the first run, and the replays themselves."""

    def __init__(self, loop: Loop, flat_inputs: list[Any], inputs_spec: TreeSpec, state: Any) -> None:
        self.loop = loop
        self.inputs, self.inputs_spec = flat_inputs, inputs_spec
        self.initial_state = tree_flatten(state)[0]
        self.differentiable_inputs = [needs_grad(t) for t in self.inputs]
        self.differentiable_state = [needs_grad(t) for t in self.initial_state]
        self.weights = [w.detach().requires_grad_(w.requires_grad) for w in loop.weights]
        self.leaves: list[Tensor] = list(
            {id(p): p for m in loop.modules for p in m.parameters() if p.requires_grad}.values()
        )
        of_modules = (t for m in loop.modules for t in chain(m.parameters(), m.buffers()))
        devices = accelerators_of(chain(flat_inputs, self.initial_state, loop.weights, of_modules)) | set(loop.devices)
        self.random = RandomStates(devices, (*loop.modules, *loop.functions), torch_only=loop.closed)
        self.autocast = AutocastState(devices)
        self.modes = ModeGuard(loop.modules)
        self.buffers = BufferGuard(loop.modules)
        self.kept_tensors = KeptTensors(() if loop.closed else loop.modules)
        self.random_before: list[list[Any] | None] = []  # None: the piece drew no numbers
        self.states: list[Any] = []  # before each piece
        self.prepared: list[Any] = []
        self.kept: dict[int, PieceGraph] = {}  # whole graphs of the last pieces
        self.finishes: dict[int, PieceGraph] = {}  # graphs of `finish` of the others
        self.comparison = ReplayComparison() if loop.check or replay_check_enabled() else None
        summed = self.comparison is None and replays_are_compared()
        self.checksums = ReplayChecksums(self.autocast.is_enabled) if summed else None
        self.handover_to_prepare = HandOver()
        self.handover = HandOver(safe=loop.closed)
        self.handover_of_state = HandOver(safe=loop.closed)
        self.handover_to_finish = HandOver()
        self.search_replays = not loop.closed and not (loop.num_kept and loop.modules)

    # ---------------------------------------------------------------- first run

    def first_run(self, k: int, piece: list[Any], state: Any) -> tuple[Any, Any]:
        """Run piece k and forget its activations, save where its graph is to be kept."""
        self.states.append(tree_map(detached, state))
        x = tree_unflatten(piece, self.inputs_spec)
        if self.loop.prepare is not None:
            with torch.set_grad_enabled(k == 0):  # nothing there is trained: no graph comes of it, or it is refused
                handed = self.handover_to_prepare.of(k, piece, beside_graph=False)
                x = self.loop.prepare(k, tree_unflatten(handed, self.inputs_spec), self.weights)
            if any(needs_grad(t) for t in tree_flatten(x)[0]):
                raise ReplayError(
                    f"the frozen part in front of {self.loop.describe(k)} uses trainable tensors that are not its "
                    "parameters; register them as parameters, or set keep=Keep(frozen=False)"
                )
            self.prepared.append(x)
        self.buffers.before_piece()  # a replay starts here: what `prepare` drew and changed is behind it
        self.kept_tensors.before_piece()
        random_before = self.random.read()
        keep = k >= self.loop.num_pieces - self.loop.num_kept
        newest = newest_node()
        has_graph = keep or self.loop.first_run_with_grad
        with self.buffers.watching_readers():
            if has_graph:
                graph = self.graph_of(k, x, self.states[k], finish=keep)
                if keep:
                    self.kept[k] = graph
                if keep or k == 0:
                    self.discover(graph, newest)
                y, state = graph.results()
            else:
                flat_x, x_spec = tree_flatten(x)
                flat_state, state_spec = tree_flatten(self.states[k])
                with torch.no_grad():
                    handed = self.handover.of(k, flat_x, beside_graph=False)
                    handed_state = self.handover_of_state.of(k, flat_state, beside_graph=False)
                    y, state = self.loop.run(
                        k, tree_unflatten(handed, x_spec), tree_unflatten(handed_state, state_spec), self.weights
                    )
                self.handover.learn(k)
                self.handover_of_state.learn(k)
            if not keep:
                self.remember(k, tree_flatten((y, state))[0])
            if self.loop.finish is not None and not keep:
                self.finishes[k] = graph = self.graph_of_finish(k, x, y)
                y, _ = graph.results()
        drew = self.random.differ(random_before, self.random.read())
        self.random_before.append(random_before if drew else None)
        for handover in (self.handover, self.handover_of_state, self.handover_to_finish):
            handover.is_random |= drew
        self.buffers.after_piece(self.loop.describe(k))
        self.kept_tensors.after_piece(k, None if has_graph else lambda: self.run_again(k))
        return y, state

    def remember(self, k: int, flat_results: list[Any]) -> None:
        if self.comparison is not None:
            self.comparison.remember(k, flat_results)
        if self.checksums is not None:
            self.checksums.remember(k, flat_results)

    def run_again(self, k: int) -> PieceGraph:
        """Piece k with a graph, in the middle of the first run, which goes on as if it had not been."""
        with self.buffers.untouched():
            return self.replay_once(k, finish=True)

    def graph_of(self, k: int, x: Any, state: Any, *, finish: bool) -> PieceGraph:
        """Run piece k in grad mode, from leaves of its own."""
        with torch.enable_grad(), self.autocast.own_casts():
            flat_x, x_spec = tree_flatten(x)
            if self.loop.prepare is None:
                flat_x = [as_leaf(t, wanted) for t, wanted in zip(flat_x, self.differentiable_inputs, strict=True)]
            flat_state, state_spec = tree_flatten(state)
            if k > 0:
                flat_state = [as_leaf(t, is_differentiable(t)) for t in flat_state]
            else:
                flat_state = [
                    as_leaf(t, wanted) for t, wanted in zip(flat_state, self.differentiable_state, strict=True)
                ]
            x = tree_unflatten(self.handover.of(k, flat_x, beside_graph=True), x_spec)
            state = tree_unflatten(self.handover_of_state.of(k, flat_state, beside_graph=True), state_spec)
            y, new_state = self.loop.run(k, x, state, self.weights)
            if finish and self.loop.finish is not None:
                y = self.loop.finish(k, self.handed_to_finish(k, y, flat_x), self.weights)
                self.handover_to_finish.learn(k)
            self.handover.learn(k)
            self.handover_of_state.learn(k)
        flat_y, y_spec = tree_flatten(y)
        flat_new_state, new_state_spec = tree_flatten(new_state)
        return PieceGraph(flat_x, flat_state, flat_y, flat_new_state, y_spec, new_state_spec)

    def handed_to_finish(self, k: int, y: Any, flat_x: list[Any]) -> Any:
        """What `run` has made is nobody else's; it may have made nothing, where all stages are kept."""
        flat, spec = tree_flatten(y)
        self.handover_to_finish.safe = not share_memory(flat, flat_x)
        return tree_unflatten(self.handover_to_finish.of(k, flat, beside_graph=True), spec)

    def graph_of_finish(self, k: int, x: Any, y: Any) -> PieceGraph:
        assert self.loop.finish is not None
        flat, spec = tree_flatten(y)
        flat = [as_leaf(t, is_differentiable(t)) for t in flat]
        with torch.enable_grad(), self.autocast.own_casts():
            y = self.handed_to_finish(k, tree_unflatten(flat, spec), tree_flatten(x)[0])
            finished, finished_spec = tree_flatten(self.loop.finish(k, y, self.weights))
        self.handover_to_finish.learn(k)
        return PieceGraph(flat, [], finished, [], finished_spec, tree_flatten(())[1])

    def discover(self, graph: PieceGraph, newest: int) -> None:
        """Take in the leaves that the function uses and nobody named; see replay.py, Note 3."""
        if self.loop.closed:
            return
        self.leaves += self.unknown_leaves(graph, newest)

    def unknown_leaves(self, graph: PieceGraph, newest: int | None = None) -> list[Tensor]:
        known = {id(t) for t in chain(self.weights, self.leaves, graph.x, graph.state)}
        return [leaf for leaf in find_leaves(graph.flat_results(), newest) if id(leaf) not in known]

    def end_first_run(self) -> bool:
        """Close the first run; whether anything here needs a gradient."""
        self.buffers.end_first_run()
        self.targets = [w for w in self.weights if w.requires_grad] + self.leaves
        self.versions = [t._version for t in self.targets]
        if self.comparison is not None:
            self.comparison.end_first_run(self.targets)
        return bool(self.targets) or any(self.differentiable_inputs) or any(self.differentiable_state)

    def connect(self, flat_outputs: list[Any], flat_state: list[Any]) -> list[Any]:
        """Make the node: the results of the first run become results of a graph."""
        self.num_outputs = len(flat_outputs)
        edges = [t for t in (*self.inputs, *self.initial_state, *self.loop.weights) if needs_grad(t)]
        stored = (self.inputs, self.states, self.prepared)
        self.strides = [_strides(t) for t in tree_flatten(stored)[0]]
        self.inputs, self.initial_state, self.states, self.prepared = [], [], [], []
        results = [detached(t) for t in (*flat_outputs, *flat_state)]
        return list(_ReplayLoop.apply(self, stored, results, *edges, *self.leaves))

    # ---------------------------------------------------------------- backward

    def backward(self, stored: Any, grads: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Gradients of inputs, initial state, weights and leaves, in the order of `connect`'s edges."""
        flat_stored, spec = tree_flatten(stored)
        flat_stored = [
            with_strides(t, strides) if isinstance(t, Tensor) else t
            for t, strides in zip(flat_stored, self.strides, strict=True)
        ]
        self.inputs, self.states, self.prepared = tree_unflatten(flat_stored, spec)
        del stored, flat_stored
        self.refuse_changed_weights()
        grad_outputs, grad_state = list(grads[: self.num_outputs]), list(grads[self.num_outputs :])
        grad_inputs: list[Tensor | None] = [None] * len(self.inputs)
        with (
            GradientSums(self.targets) as sums,
            self.modes.restored(),
            self.buffers.untouched(),
            self.kept_tensors.untouched(),
        ):
            for k in reversed(range(self.loop.num_pieces)):
                grad_y = [None if g is None else self.loop.cut(g, k) for g in grad_outputs]
                grad_x, grad_state = self.backward_piece(k, grad_y, grad_state, sums)
                self.write_rows(grad_inputs, k, grad_x)
        if self.checksums is not None:
            self.checksums.compare(self.loop.describe)
        self.inputs, self.states, self.prepared = [], [], []
        self.kept.clear()
        edges = zip([*grad_inputs, *grad_state], [*self.differentiable_inputs, *self.differentiable_state], strict=True)
        return [grad for grad, wanted in edges if wanted] + sums.values

    def backward_piece(
        self, k: int, grad_y: list[Tensor | None], grad_state: list[Tensor | None], sums: GradientSums
    ) -> tuple[list[Tensor | None], list[Tensor | None]]:
        """From the gradients of piece k's results to those of its inputs and of the state before it."""
        finish, graph = self.finishes.pop(k, None), self.kept.pop(k, None)
        if all(g is None for g in (*grad_y, *grad_state)):
            return [None] * len(self.inputs), [None] * len(tree_flatten(self.states[k])[0])
        has_finish = finish is not None
        if finish is not None:
            grad_y = finish.backward(grad_y, sums)
            finish = None  # what it started from is not needed while the rest is replayed
        if graph is None:
            graph = self.replay(k, finish=not has_finish)
        grads = graph.backward([*grad_y, *grad_state], sums)
        return grads[: len(graph.x)], grads[len(graph.x) :]

    def replay(self, k: int, *, finish: bool) -> PieceGraph:
        if self.comparison is not None and k in self.comparison.results:
            self.comparison.compare(k, self.loop.describe(k), lambda: self.replay_once(k, finish=False).flat_results())
        graph = self.replay_once(k, finish=finish)
        if self.checksums is not None and not (finish and self.loop.finish is not None):
            self.checksums.compare_later(k, self.loop.describe(k), graph.flat_results())
        if self.search_replays and (unknown := self.unknown_leaves(graph)):
            shapes = [tuple(t.shape) for t in unknown]
            raise ReplayError(
                f"{self.loop.describe(k)} uses trainable tensors of shape {shapes} that were not known in the first "
                "run, so their gradients have no way back; make them parameters of the module, or pass them as inputs"
            )
        return graph

    def replay_once(self, k: int, *, finish: bool) -> PieceGraph:
        """Run piece k again as it ran first, in grad mode."""
        x = self.prepared[k] if self.prepared else self.piece(k)
        before = self.random_before[k]
        now = None if before is None else self.random.read()
        with replaying(), self.autocast.restored(), self.buffers.replaying(k), self.kept_tensors.replaying(k):
            try:
                if before is not None:
                    self.random.write(before)
                return self.graph_of(k, x, self.states[k], finish=finish)
            finally:
                if now is not None:
                    self.random.write(now)

    def piece(self, k: int) -> Any:
        return tree_unflatten([self.loop.cut(t, k) for t in self.inputs], self.inputs_spec)

    def write_rows(self, wholes: list[Tensor | None], k: int, grads: list[Tensor | None]) -> None:
        """Put the gradients of piece k's rows in their place in the gradients of the whole inputs."""
        for i, wanted in enumerate(self.differentiable_inputs):
            if not wanted:
                continue
            if self.loop.spans is None:
                wholes[i] = grads[i]
                continue
            if wholes[i] is None and grads[i] is None:  # maybe no piece's: a weight in front then has none, not zeros
                continue
            if wholes[i] is None:
                is_first = k == self.loop.num_pieces - 1
                wholes[i] = (torch.empty_like if is_first else torch.zeros_like)(self.inputs[i])
            rows = self.loop.cut(wholes[i], k)
            rows.zero_() if grads[i] is None else rows.copy_(grads[i])

    def refuse_changed_weights(self) -> None:
        for target, version in zip(self.targets, self.versions, strict=True):
            if target._version != version:
                names = {id(p): name for m in self.loop.modules for name, p in m.named_parameters()}
                name = names.get(id(target), f"a weight of shape {tuple(target.shape)}")
                raise ReplayError(
                    f"{name} was changed in place between forward and backward (version {version}, now "
                    f"{target._version}), so the replay of the {self.loop.name}s would compute another function; call "
                    "backward before the optimiser's step or any other change"
                )


class _ReplayLoop(torch.autograd.Function):
    """The node; see replay.py. What it stores goes through autograd: version checks, saved-tensor hooks, release."""

    @staticmethod
    def forward(ctx: Any, record: Record, stored: Any, results: list[Any], *edges: Tensor) -> tuple[Any, ...]:
        flat, spec = tree_flatten(stored)
        ctx.save_for_backward(*(t for t in flat if isinstance(t, Tensor)))
        ctx.record, ctx.spec = record, spec
        ctx.flat = [None if isinstance(t, Tensor) else (t,) for t in flat]
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(t for t in results if isinstance(t, Tensor) and not is_differentiable(t)))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise ReplayError(
                "checkpointed parts compute no second derivatives (create_graph=True): run them unchunked and "
                "unsegmented for a double backward"
            )
        tensors = iter(ctx.saved_tensors)
        stored = tree_unflatten([next(tensors) if other is None else other[0] for other in ctx.flat], ctx.spec)
        return (None, None, None, *ctx.record.backward(stored, grads))


def _strides(value: Any) -> tuple[int, ...] | None:
    return value.stride() if isinstance(value, Tensor) and value.layout == torch.strided else None

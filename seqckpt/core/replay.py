"""The one primitive under everything: run pieces now without keeping activations, replay them identically in backward.

`replay_loop` runs a function over consecutive pieces of its inputs (chunks of frames, segments of time, or the one
piece of a checkpointed module), threading a state through, as **one autograd node for the whole loop**:

    inputs  initial state  weights           inputs, weights and the state are the node's only edges; the graph of a
        \\         |         /                piece exists while that piece is at work, first run or replay
         +---- ReplayLoop ----+
        /                     \\
    outputs (joined)       final state

Its backward takes d(outputs) and d(final state), goes through the pieces from last to first, replays each with its own
random states, autocast, modes and buffers (surroundings.py), and adds up the weights' gradients.

Why not torch.utils.checkpoint around every piece, which also composes? Measured on 2 busy CPU cores (ResNet-18,
T = 100, 112 px, five steps in turn, medians), this took 0.98x its time in chunks of 25 and 0.95x in chunks of 10, at
equal memory; and one node for the loop costs no host memory per frame, against 0.3-0.5 KB (T = 20,000 and 40,000, tiny
encoder, chunks of 25, growth of resident size). It also leaves torch's double update of buffers behind, and its early
stop, which is an exception thrown through the user's code. What torch's can and this cannot: a function that closes
over a tensor computed outside, by a graph of its own; that is refused with a message (Note 3).

Note 1. *Order of sums.* A weight's running sum enters the graph of the next replay as a root gradient of that weight,
so the engine continues the sum exactly as it would in one graph of all pieces: gradients are bitwise those of the
equally cut plain run, also where a piece uses a weight many times. A tensor hook takes the new sum out as soon as it
is ready, so one sum and one gradient of one weight are alive at a time, and not two gradients of all weights.

Note 2. *Hooks.* `autograd.grad` runs the hooks that users registered on a weight. In replays those are set aside: they
run once per step, on the whole gradient, when the outer graph accumulates it, as in the plain run. The same holds for
DDP's and for post-accumulate hooks: every weight receives one gradient per step.

Note 3. *Discovery.* Weights are the trainable parameters of the modules named, and every leaf that the graph of the
first piece run with gradients reaches. A tensor in the middle of another graph has no leaf to be found by: its graph
node is older than the run (sequence numbers), which is how it is noticed.

Source of the idea: Chen et al., Training Deep Nets with Sublinear Memory Cost (2016); for recurrent networks Gruslys et
al., Memory-Efficient Backpropagation Through Time (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from seqckpt.core.cached_parameters import with_cached_parameters
from seqckpt.core.handover import HandOver
from seqckpt.core.piece_graph import needs_grad
from seqckpt.core.record import Record
from seqckpt.core.surroundings import is_replaying
from seqckpt.errors import ReplayError

__all__ = ["Loop", "is_replaying", "replay_loop"]


@dataclass(kw_only=True)
class Loop:
    """What `replay_loop` runs, piece by piece, and how.

    A piece k goes through up to three functions, all called with the piece's number first:

    - `prepare(k, x, weights)`: once, without gradient; its result is stored and is what a replay starts from (a frozen
      stem);
    - `run(k, x, state, weights) -> (y, state)`: forgotten and replayed;
    - `finish(k, y, weights)`: once, with its graph kept until backward (late stages that are cheap to keep).

    Args:
        name: the piece's word in messages ("chunk").
        spans: the rows of every piece, in the order of running; None for one piece that is not cut.
        dim: the dimension that is cut.
        weights: tensors handed to all three; detached copies of them in replays, each with its own gradient.
        modules: those whose parameters, buffers and modes take part.
        functions: those that run inside and are no modules; the generators of random numbers that they hold count.
        devices: accelerators that the arguments do not show.
        num_kept: how many last pieces' graphs are kept rather than replayed.
        closed: a promise that `run` uses no trainable tensor beside those of inputs, state, weights and modules.
        first_run_with_grad: run the first run in grad mode and drop its graph, where kernels differ between the modes.
        check: compare values in every replay.
    """

    run: Callable[[int, Any, Any, Sequence[Tensor]], tuple[Any, Any]]
    name: str = "piece"
    spans: Sequence[tuple[int, int]] | None = None
    dim: int = 0
    prepare: Callable[[int, Any, Sequence[Tensor]], Any] | None = None
    finish: Callable[[int, Any, Sequence[Tensor]], Any] | None = None
    weights: Sequence[Tensor] = ()
    modules: Sequence[nn.Module] = ()
    functions: Sequence[Callable[..., Any]] = ()
    devices: Iterable[torch.device] = ()
    num_kept: int = 1
    closed: bool = False
    first_run_with_grad: bool = False
    check: bool = False

    def __post_init__(self) -> None:
        self.num_pieces = 1 if self.spans is None else len(self.spans)
        self.num_rows = 0 if self.spans is None else sum(stop - start for start, stop in self.spans)

    def cut(self, tensor: Any, k: int) -> Any:
        """The rows of piece k: a view. What is no tensor is handed on."""
        if self.spans is None or not isinstance(tensor, Tensor):
            return tensor
        start, stop = self.spans[k]
        return tensor.narrow(self.dim, start, stop - start)

    def describe(self, k: int) -> str:
        where = "" if self.spans is None else f" (rows {self.spans[k][0]} to {self.spans[k][1] - 1})"
        return f"{self.name} {k + 1} of {self.num_pieces}{where}"


def replay_loop(loop: Loop, inputs: Any, state: Any) -> tuple[Any, Any]:
    """Run a loop's pieces over `inputs`, and give back what they return, joined, and the final state.

    `inputs` and `state` are nested tuples, lists and dicts of tensors (other leaves are handed on as they are). Every
    tensor of `inputs` is cut along `loop.dim`, and every output must have as many rows as its piece. With `loop.spans`
    None, inputs and outputs stay whole. Where no gradient is wanted, each piece simply runs once.

    Memory: inputs, outputs, the state before each piece, what `prepare` returns, the graph of one piece. Time: each
    piece but the last `num_kept` runs twice.

    Raises ReplayError in backward if a weight was changed in place since the first run, if a replay differs (with
    `check`), or under `create_graph=True`.
    """
    flat_inputs, inputs_spec = tree_flatten(inputs)
    record = None
    if torch.is_grad_enabled():
        loop = with_cached_parameters(loop)
        known = _is_known_to_train(loop, flat_inputs, state)
        if not known and not loop.num_kept:
            return loop.run(0, inputs, state, loop.weights)  # in the plain graph, should it train something hidden
        if known or not loop.closed:  # what is not known may be found in the graph of the last piece
            record = Record(loop, flat_inputs, inputs_spec, state)
    outputs = _Joined(loop)
    handover = HandOver(safe=loop.closed)
    for k in range(loop.num_pieces):
        piece = [loop.cut(x, k) for x in flat_inputs]
        if record is None:
            with torch.no_grad():
                x = tree_unflatten(handover.of(k, piece, beside_graph=False), inputs_spec)
                x = x if loop.prepare is None else loop.prepare(k, x, loop.weights)
                y, state = loop.run(k, x, state, loop.weights)
                y = y if loop.finish is None else loop.finish(k, y, loop.weights)
                handover.learn(k)
        else:
            y, state = record.first_run(k, piece, state)
        outputs.put(k, y)
    flat_outputs, outputs_spec = outputs.joined()
    if record is None or not record.end_first_run():
        return tree_unflatten(flat_outputs, outputs_spec), state
    flat_state, state_spec = tree_flatten(state)
    results = record.connect(flat_outputs, flat_state)
    return (
        tree_unflatten(results[: len(flat_outputs)], outputs_spec),
        tree_unflatten(results[len(flat_outputs) :], state_spec),
    )


def _is_known_to_train(loop: Loop, flat_inputs: Sequence[Any], state: Any) -> bool:
    parameters = (p for module in loop.modules for p in module.parameters())
    return any(needs_grad(t) for t in (*flat_inputs, *tree_flatten(state)[0], *loop.weights, *parameters))


class _Joined:
    """Outputs of the pieces, each written into its rows of one tensor as it comes."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.flat: list[Any] = []
        self.spec: TreeSpec | None = None

    def put(self, k: int, y: Any) -> None:
        leaves, spec = tree_flatten(y)
        for leaf in leaves:
            if is_dataclass(leaf) and not isinstance(leaf, type):
                raise TypeError(
                    f"{self.loop.describe(k)} returned a {type(leaf).__name__}, a dataclass, whose tensors would lose "
                    "their gradient; return a tuple, list or dict, or register the class with pytree"
                )
        if self.spec is None:
            self.spec = spec
            self.flat = leaves if self.loop.spans is None else [self._whole(k, leaf) for leaf in leaves]
        elif spec != self.spec:
            raise ReplayError(f"{self.loop.describe(k)} returned {spec}, the first {self.loop.name} {self.spec}")
        if self.loop.spans is not None:
            for whole, leaf in zip(self.flat, leaves, strict=True):
                if not isinstance(leaf, Tensor):
                    if not _equal(whole, leaf):
                        raise ReplayError(
                            f"{self.loop.describe(k)} returned {leaf!r}, the first {self.loop.name} {whole!r}: what is "
                            "no tensor must be the same for all; return a tensor with one row for each row of the input"
                        )
                else:
                    self._check_rows(k, leaf)
                    rows = self.loop.cut(whole, k)
                    if rows.shape != leaf.shape or rows.dtype != leaf.dtype:
                        raise ReplayError(
                            f"{self.loop.describe(k)} returned {leaf.dtype} of shape {tuple(leaf.shape)}; expected "
                            f"{rows.dtype} of shape {tuple(rows.shape)}, as the first {self.loop.name} returned"
                        )
                    rows.copy_(leaf.detach())

    def _whole(self, k: int, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        self._check_rows(k, leaf)
        shape = list(leaf.shape)
        shape[self.loop.dim] = self.loop.num_rows
        whole = torch.empty(shape, dtype=leaf.dtype, device=leaf.device, memory_format=_memory_format(leaf))
        return whole if leaf.layout == torch.strided else leaf.new_empty(shape)

    def _check_rows(self, k: int, leaf: Tensor) -> None:
        start, stop = self.loop.spans[k]  # type: ignore[index]
        if leaf.dim() <= self.loop.dim or leaf.shape[self.loop.dim] != stop - start:
            raise ReplayError(
                f"{self.loop.describe(k)} returned a tensor of shape {tuple(leaf.shape)}; expected {stop - start} "
                f"rows in dimension {self.loop.dim}, one for each row of its input (an auxiliary loss: one value a row)"
            )

    def joined(self) -> tuple[list[Any], TreeSpec]:
        assert self.spec is not None
        return self.flat, self.spec


def _memory_format(leaf: Tensor) -> torch.memory_format:
    """That of the pieces, as torch.cat would choose it: what follows draws its dropout in the order of memory."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    wanted = formats.get(leaf.dim(), torch.contiguous_format)
    is_other = leaf.layout == torch.strided and not leaf.is_contiguous() and leaf.is_contiguous(memory_format=wanted)
    return wanted if is_other else torch.contiguous_format


def _equal(a: Any, b: Any) -> bool:
    try:
        return a is b or bool(a == b) or (a != a and b != b)
    except (TypeError, ValueError, RuntimeError):  # an array, or a class without ==
        return type(a) is type(b)

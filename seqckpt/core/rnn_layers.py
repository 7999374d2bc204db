"""torch's recurrent networks, segment by segment: nn.LSTM, nn.GRU, nn.RNN with all their options.

Where the network is one call of its kernel (one direction, no dropout at work), the core itself is called on every
segment. Otherwise its layers run one by one with their weights handed in: dropout between layers is then explicit, so
that the CPU and cuDNN replay it alike; a second direction is a second sweep, over reversed segments; parametrized
weights are computed once per call, outside, as in the plain network; and cuDNN, whose backward wants its training
mode, gets it without touching the core's.

Sequences are (T, B, D) here, or packed rows (N, D) with batch sizes per step: cut in time, both are cut in dimension 0.
In a packed segment only the first `batch_sizes[start]` sequences are at work; the states of the others wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from seqckpt.core.cuts import fixed_spans
from seqckpt.core.replay import Loop, replay_loop

__all__ = ["run_layers"]

State = tuple[Tensor, ...]  # (h,) or (h, c), each (layers, B, H)


def run_layers(
    core: nn.RNNBase, x: Tensor | PackedSequence, hx: Any, *, levels: Sequence[int], check: bool
) -> tuple[Any, Any]:
    """`core(x, hx)`, cut at `levels`; the same results, and the same errors before anything is computed."""
    if core.mode == "LSTM" and _device(x).type == "cpu" and torch.is_autocast_enabled("cpu"):
        dtype = next(core.parameters()).dtype
        with torch.autocast("cpu", enabled=False):
            hx = None if hx is None else tuple(s.to(dtype) for s in hx)
            return run_layers(core, x.to(dtype), hx, levels=levels, check=check)
    if _is_one_call(core):
        return _run(core, x, hx, levels, check)
    own = core.__dict__.get("forward")
    core.__dict__["forward"] = lambda x, hx=None: _run(core, x, hx, levels, check)
    try:  # with the core's hooks around it, such as those that compute a normalised weight
        return core(x) if hx is None else core(x, hx)
    finally:
        del core.__dict__["forward"]
        if own is not None:
            core.__dict__["forward"] = own


def _run(core: nn.RNNBase, x: Any, hx: Any, levels: Sequence[int], check: bool) -> tuple[Any, Any]:
    layout = _Layout(core, x)
    state = layout.initial_state(hx)
    rows = layout.rows
    masks = _draw_dropout_masks(core, rows)
    sweep = _Sweep(core, layout, levels, check)
    if not core.bidirectional:
        return layout.restore(*sweep.run(rows, masks, state, range(core.num_layers), reverse=False))
    finals = []
    for layer in range(core.num_layers):
        outputs = []
        for direction in (0, 1):
            i = 2 * layer + direction
            own = tuple(s[i : i + 1] for s in state)
            y, final = sweep.run(rows, masks[layer - 1 : layer] if layer else [], own, [i], reverse=direction == 1)
            outputs.append(y)
            finals.append(final)
        rows = torch.cat(outputs, -1)
    return layout.restore(rows, tuple(torch.cat(parts) for parts in zip(*finals, strict=True)))


def _device(x: Tensor | PackedSequence) -> torch.device:
    return x.data.device if isinstance(x, PackedSequence) else x.device


def _is_one_call(core: nn.RNNBase) -> bool:
    """Whether a segment can be one call of the core itself: nothing random, computed or reversed is inside.

    Weights are looked up among the parameters, since getting one that is parametrized would compute it.
    """
    names = [name for layer in core._all_weights for name in layer]
    own_weights = all(isinstance(core._parameters.get(name), nn.Parameter) for name in names)
    dropout = core.training and core.dropout > 0 and core.num_layers > 1
    return own_weights and not dropout and not core.bidirectional


def _has_hooks(core: nn.RNNBase) -> bool:
    return bool(core._forward_hooks or core._forward_pre_hooks)


class _Layout:
    """How the caller's input lies in rows, and how results go back into the caller's form."""

    def __init__(self, core: nn.RNNBase, x: Tensor | PackedSequence) -> None:
        self.core, self.packed = core, x if isinstance(x, PackedSequence) else None
        self.batch_sizes: Tensor | None = None
        self.unbatched = False
        if isinstance(x, PackedSequence):
            self.rows, self.batch_sizes = x.data, x.batch_sizes
            self.batch_size, self.num_steps = int(x.batch_sizes[0]), len(x.batch_sizes)
            sizes = x.batch_sizes.tolist()
            self.offsets = [0, *torch.tensor(sizes).cumsum(0).tolist()]
            return
        self.unbatched = x.dim() == 2
        self.transposed = core.batch_first and not self.unbatched
        self.rows = x.unsqueeze(1) if self.unbatched else x.transpose(0, 1) if self.transposed else x
        self.num_steps, self.batch_size = self.rows.shape[:2]
        self.offsets = list(range(self.num_steps + 1))

    def initial_state(self, hx: Any) -> State:
        """The state given, checked as the core checks it, or zeros."""
        core, rows = self.core, self.rows
        if hx is None:
            widths = [core.proj_size or core.hidden_size, core.hidden_size][: 2 if core.mode == "LSTM" else 1]
            num_states = core.num_layers * (2 if core.bidirectional else 1)
            state: State = tuple(rows.new_zeros(num_states, self.batch_size, width) for width in widths)
        else:
            state = tuple(hx) if core.mode == "LSTM" else (hx,)
            expected = 2 if self.unbatched else 3
            if any(s.dim() != expected for s in state):
                raise RuntimeError(
                    f"hx should be {expected}-D for an {'un' if self.unbatched else ''}batched input, got "
                    f"{', '.join(f'{s.dim()}-D' for s in state)}"
                )
            if self.unbatched:
                state = tuple(s.unsqueeze(1) for s in state)
        own_input = rows.transpose(0, 1) if self.packed is None and core.batch_first else rows
        hidden: Any = state if core.mode == "LSTM" else state[0]
        core.check_forward_args(own_input, hidden, self.batch_sizes)
        if self.packed is not None and self.packed.sorted_indices is not None and hx is not None:
            state = tuple(s.index_select(1, self.packed.sorted_indices) for s in state)
        return state

    def restore(self, rows: Tensor, state: State) -> tuple[Any, Any]:
        output: Any = rows
        if self.packed is not None:
            unsorted = self.packed.unsorted_indices
            output = PackedSequence(rows, self.packed.batch_sizes, self.packed.sorted_indices, unsorted)
            if unsorted is not None:
                state = tuple(s.index_select(1, unsorted) for s in state)
        elif self.unbatched:
            output, state = rows.squeeze(1), tuple(s.squeeze(1) for s in state)
        elif self.transposed:
            output = rows.transpose(0, 1)
        return output, state if self.core.mode == "LSTM" else state[0]


def _draw_dropout_masks(core: nn.RNNBase, rows: Tensor) -> list[Tensor]:
    """The masks of dropout between layers, as the core itself would draw them: layer by layer, for all steps; bool."""
    if not (core.training and core.dropout > 0 and core.num_layers > 1):
        return []
    width = (core.proj_size or core.hidden_size) * (2 if core.bidirectional else 1)
    shape = (*rows.shape[:-1], width)
    if core.dropout == 1:  # torch draws nothing then
        return [rows.new_zeros(shape, dtype=torch.bool)] * (core.num_layers - 1)
    return [rows.new_empty(shape).bernoulli_(1 - core.dropout).bool() for _ in range(core.num_layers - 1)]


class _Sweep:
    """Runs of some layers over all segments, in one direction of time."""

    def __init__(self, core: nn.RNNBase, layout: _Layout, levels: Sequence[int], check: bool) -> None:
        self.core, self.layout, self.levels, self.check = core, layout, levels, check
        self.weights = None if _is_one_call(core) else _weights_of(core)

    def run(
        self, rows: Tensor, masks: list[Tensor], state: State, layers: Sequence[int], *, reverse: bool
    ) -> tuple[Tensor, State]:
        """Layers `layers` (counting directions) over all steps; `masks` lie before all but the first, or before it."""
        direct = self.weights is None and not (rows.is_cuda and torch.is_grad_enabled() and not self.core.training)
        own_weights = _weights_of(self.core) if self.weights is None else self.weights
        per_layer = [] if direct else [own_weights[i] for i in layers]
        if rows.is_cuda and per_layer and (masks or self.core.bidirectional):
            for i, weights in zip(layers, per_layer, strict=True):
                _flatten_for_cudnn(self.core, i, weights)
        number = len(per_layer[0]) if per_layer else 0

        def run_steps(start: int, stop: int, x: Any, state: State, weights: Sequence[Tensor]) -> tuple[Any, State]:
            grouped = [list(weights[i : i + number]) for i in range(0, len(weights), number)] if number else None
            return self.run_steps(start, stop, x, state, grouped, reverse)

        def run_level(level: int, start: int, stop: int, x: Any, state: State, weights: Any) -> tuple[Any, State]:
            if level == len(self.levels):
                return run_steps(start, stop, x, state, weights)
            cuts = fixed_spans(start, stop, self.levels[level])
            cuts = cuts[::-1] if reverse else cuts
            offsets = self.layout.offsets
            loop = Loop(
                run=lambda k, x, state, weights: run_level(level + 1, *cuts[k], x, state, weights),
                name="segment",
                spans=[(offsets[a] - offsets[start], offsets[b] - offsets[start]) for a, b in cuts],
                weights=weights,
                modules=[self.core] if direct else [],
                closed=not (direct and _has_hooks(self.core)),
                first_run_with_grad=True,
                check=self.check,
            )
            return replay_loop(loop, x, state)

        flat = [w for weights in per_layer for w in weights]
        (y,), state = run_level(0, 0, self.layout.num_steps, (rows, *masks), state, flat)
        return y, state

    def run_steps(
        self,
        start: int,
        stop: int,
        x: tuple[Tensor, ...],
        state: State,
        weights: list[list[Tensor]] | None,
        reverse: bool,
    ) -> tuple[tuple[Tensor], State]:
        """Steps `start` to `stop`, whose rows are `x[0]`; x[1:] are the dropout masks of these rows."""
        rows, masks = x[0], list(x[1:])
        sizes = self.layout.batch_sizes
        sizes = None if sizes is None else sizes[start:stop]
        waiting: State = ()
        if sizes is not None and (at_work := int(sizes[0])) < state[0].shape[1]:
            waiting = tuple(s[:, at_work:] for s in state)
            state = tuple(s[:, :at_work] for s in state)
        order = None if not reverse or sizes is None else _reversed_rows(sizes)
        if reverse:
            rows, *masks = (t.flip(0) if order is None else t[order] for t in (rows, *masks))
        y, state = (
            self.call_core(rows, sizes, state)
            if weights is None
            else self.call_layers(rows, sizes, masks, state, weights)
        )
        if reverse:
            y = y.flip(0) if order is None else y[order]
        if waiting:
            state = tuple(torch.cat(parts, 1) for parts in zip(state, waiting, strict=True))
        return (y,), state

    def call_core(self, rows: Tensor, sizes: Tensor | None, state: State) -> tuple[Tensor, State]:
        hx = tuple(s.contiguous() for s in state) if self.core.mode == "LSTM" else state[0].contiguous()
        if sizes is not None:
            output, new = self.core(PackedSequence(rows, sizes), hx)
            y = output.data
        elif self.core.batch_first:
            y, new = self.core(rows.transpose(0, 1), hx)
            y = y.transpose(0, 1)
        else:
            y, new = self.core(rows, hx)
        return y, new if self.core.mode == "LSTM" else (new,)

    def call_layers(
        self, rows: Tensor, sizes: Tensor | None, masks: list[Tensor], state: State, weights: list[list[Tensor]]
    ) -> tuple[Tensor, State]:
        """Layers one by one, or all in one kernel call where nothing lies between them."""
        if not masks:
            return _call_kernel(self.core, rows, sizes, state, [w for layer in weights for w in layer], len(weights))
        finals = []
        first_mask = len(masks) - len(weights)  # -1 when the first layer has none before it
        for i, layer in enumerate(weights):
            if first_mask + i >= 0:
                rows = rows * _noise(masks[first_mask + i], self.core.dropout, rows.dtype)
            own = tuple(s[i : i + 1] for s in state)
            rows, final = _call_kernel(self.core, rows, sizes, own, layer, 1)
            finals.append(final)
        return rows, tuple(torch.cat(parts) for parts in zip(*finals, strict=True))


def _call_kernel(
    core: nn.RNNBase, rows: Tensor, sizes: Tensor | None, state: State, weights: list[Tensor], num_layers: int
) -> tuple[Tensor, State]:
    kernel = getattr(torch._VF, core.mode.lower())
    state = tuple(s.contiguous() for s in state)
    hx = state if core.mode == "LSTM" else state[0]
    train = core.training or torch.is_grad_enabled()
    if sizes is None:
        y, *new = kernel(rows, hx, weights, core.bias, num_layers, 0.0, train, False, False)
    else:
        y, *new = kernel(rows, sizes, hx, weights, core.bias, num_layers, 0.0, train, False)
    return y, tuple(new)


def _noise(mask: Tensor, dropout: float, dtype: torch.dtype) -> Tensor:
    noise = mask.to(dtype)
    return noise if dropout == 1 else noise.div_(1 - dropout)


def _reversed_rows(sizes: Tensor) -> Tensor:
    """For packed rows with these batch sizes: the row numbers that reverse every sequence in its own steps."""
    steps = torch.arange(len(sizes)).repeat_interleave(sizes)
    offsets = sizes.cumsum(0) - sizes
    lanes = torch.arange(int(sizes.sum())) - offsets[steps]
    lengths = torch.bincount(lanes)
    return offsets[lengths[lanes] - 1 - steps] + lanes


def _weights_of(core: nn.RNNBase) -> list[list[Tensor]]:
    """The weights of each layer (counting directions); computed, if they are, as often as the core's forward does."""
    names = [name for layer in core._all_weights for name in layer]
    if all(isinstance(core._parameters.get(name), nn.Parameter) for name in names):
        return [[getattr(core, name) for name in layer] for layer in core._all_weights]
    core._update_flat_weights()
    weights = iter(core._flat_weights)
    return [[next(weights) for _ in layer] for layer in core._all_weights]  # type: ignore[misc]


def _flatten_for_cudnn(core: nn.RNNBase, i: int, weights: list[Tensor]) -> None:
    """Lay one layer's weights in one piece of memory, once, so that cuDNN neither copies nor warns at every call."""
    last = weights[-1]
    end = max(w.data_ptr() + w.numel() * w.element_size() for w in weights)
    size = sum(w.numel() * w.element_size() for w in weights)
    one_piece = end - min(w.data_ptr() for w in weights) == size and last.untyped_storage().nbytes() == size
    if (
        one_piece
        or not all(isinstance(w, nn.Parameter) for w in weights)
        or not torch.backends.cudnn.is_acceptable(last)
    ):
        return
    layer = i // 2 if core.bidirectional else i
    below = (core.proj_size or core.hidden_size) * (2 if core.bidirectional else 1)
    input_size = core.input_size if layer == 0 else below
    mode = torch.backends.cudnn.rnn.get_cudnn_mode(core.mode)
    with torch.no_grad(), torch.cuda.device_of(last):
        torch._cudnn_rnn_flatten_weight(
            weights, len(weights), input_size, mode, core.hidden_size, core.proj_size, 1, False, False
        )

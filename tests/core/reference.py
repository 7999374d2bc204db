"""Plain runs by hand, which the engine is held against: no checkpoint, no replay, nothing of seqckpt.

`cut_run` is the equally cut plain run of torch's recurrent networks, `cut_scan` that of any other core: the same
kernels on the same shapes in the same order as the engine's, in one ordinary graph, so that equality with them is
bitwise. The undivided plain run is a call of the core itself. `hold_against` runs two functions from equal models and
random states, and compares everything that a training step could notice.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrize
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten, tree_unflatten

__all__ = [
    "CELLS",
    "Run",
    "assert_same",
    "cut_lengths",
    "cut_run",
    "cut_scan",
    "given_state",
    "hold_against",
    "leaves_of",
    "run_once",
    "sequence",
    "weighted_sum",
]

Lengths = Sequence[Any]  # of segments, in time order; a nested list is a segment of the level above


# ------------------------------------------------------------------ networks and what they are given

CELLS: dict[str, Callable[..., nn.RNNBase]] = {
    "lstm": nn.LSTM,
    "gru": nn.GRU,
    "rnn_tanh": nn.RNN,
    "rnn_relu": lambda *sizes, **options: nn.RNN(*sizes, nonlinearity="relu", **options),
}


def given_state(core: nn.RNNBase, batch_size: int) -> Any:
    """An initial state that requires a gradient, as the network takes it."""
    num_states = core.num_layers * (2 if core.bidirectional else 1)
    dtype = core.weight_ih_l0.dtype
    h = torch.randn(num_states, batch_size, core.proj_size or core.hidden_size, dtype=dtype, requires_grad=True)
    if core.mode != "LSTM":
        return h
    return h, torch.randn(num_states, batch_size, core.hidden_size, dtype=dtype, requires_grad=True)


def sequence(core: nn.RNNBase, num_steps: int, batch_size: int) -> Tensor:
    shape = (batch_size, num_steps) if core.batch_first else (num_steps, batch_size)
    return torch.randn(*shape, core.input_size, dtype=core.weight_ih_l0.dtype, requires_grad=True)


# ------------------------------------------------------------------ where the cuts are


def cut_lengths(num_steps: int, *levels: int) -> list[Any]:
    """Lengths of segments: `cut_lengths(7, 4, 2)` is `[[2, 2], [2, 1]]`."""
    lengths = [min(levels[0], num_steps - start) for start in range(0, num_steps, levels[0])]
    return [cut_lengths(length, *levels[1:]) for length in lengths] if levels[1:] else lengths


def _size(length: Any) -> int:
    return length if isinstance(length, int) else sum(map(_size, length))


# ------------------------------------------------------------------ the equally cut plain runs


def cut_scan(core: Callable[[Any, Any], Any], x: Any, state: Any, lengths: Lengths, *, time_dim: int = 1) -> Any:
    """Any core over segments, outputs joined: a loop, as everyone would write it first.

    Nested levels add up the weights' gradients of each outer segment by themselves (an alias of the weights for each),
    which is the order in which nested replays add.
    """
    flat, spec = tree_flatten(x)
    pieces = [t.split([_size(length) for length in lengths], time_dim) for t in flat]
    outputs = []
    for k, length in enumerate(lengths):
        piece = tree_unflatten([piece[k] for piece in pieces], spec)
        if isinstance(length, int):
            y, state = core(piece, state)
        else:
            y, state = cut_scan(_aliased(core), piece, state, length, time_dim=time_dim)
        flat_y, y_spec = tree_flatten(y)
        outputs.append(flat_y)
    return tree_unflatten([torch.cat(parts, time_dim) for parts in zip(*outputs, strict=True)], y_spec), state


def _aliased(core: Any) -> Any:
    """The same core with aliases of its weights, whose gradients are summed before they reach the weights."""
    if isinstance(core, nn.Module):
        return _Aliased(core, {name: p.view_as(p) for name, p in core.named_parameters()})
    return core.aliased()


def cut_run(core: nn.RNNBase, x: Tensor | PackedSequence, state: Any, lengths: Lengths) -> tuple[Any, Any]:
    """nn.LSTM, nn.GRU or nn.RNN over segments: the core itself where it can thread a state, else layer by layer."""
    dropout = core.training and core.dropout > 0 and core.num_layers > 1
    threads = not (core.bidirectional or dropout or parametrize.is_parametrized(core))
    if threads and isinstance(x, Tensor):
        return cut_scan(core, x, state, lengths, time_dim=int(core.batch_first and x.dim() == 3))
    rows, sizes, states = _as_rows(core, x, state)
    if threads:
        return _as_given(core, x, *_sweep([core], rows, sizes, [], states, lengths, reverse=False))
    directions = 2 if core.bidirectional else 1
    core._update_flat_weights()  # computes those that are parametrized, as often as the core's own forward does
    weights = iter(core._flat_weights)
    layers = [_one_layer(core, i, weights) for i in range(core.num_layers * directions)]
    width = (core.proj_size or core.hidden_size) * directions
    shape = (*rows.shape[:-1], width)
    noises = [_noise(rows, shape, core.dropout) for _ in range(core.num_layers - 1)] if dropout else []
    if not core.bidirectional:
        return _as_given(core, x, *_sweep(layers, rows, sizes, noises, states, lengths, reverse=False))
    finals = []
    for layer in range(core.num_layers):
        outputs = []
        noise = noises[layer - 1 : layer] if layer else []
        for i, reverse in ((2 * layer, False), (2 * layer + 1, True)):
            own = [s[i : i + 1] for s in states]
            y, final = _sweep([layers[i]], rows, sizes, noise, own, lengths, reverse=reverse)
            outputs.append(y)
            finals.append(final)
        rows = torch.cat(outputs, -1)
    return _as_given(core, x, rows, [torch.cat(parts) for parts in zip(*finals, strict=True)])


def _sweep(
    layers: Sequence[Any],
    rows: Tensor,
    sizes: list[int] | None,
    noises: list[Tensor],
    states: list[Tensor],
    lengths: Lengths,
    *,
    reverse: bool,
) -> tuple[Tensor, list[Tensor]]:
    """Some layers over all segments, in one direction. `rows` are (T, B, D), or packed, `sizes[t]` of them at step t.

    There are as many noises as layers if one lies before the first layer, or one less.
    """
    ends = list(accumulate(map(_size, lengths)))
    own = [None if sizes is None else sizes[end - _size(n) : end] for n, end in zip(lengths, ends, strict=True)]
    num_rows = [_size(n) if of_steps is None else sum(of_steps) for n, of_steps in zip(lengths, own, strict=True)]
    pieces = list(zip(lengths, own, *(t.split(num_rows) for t in (rows, *noises)), strict=True))
    outputs: list[Tensor] = []
    for length, own_sizes, x, *noise in reversed(pieces) if reverse else pieces:
        if not isinstance(length, int):
            aliases = [_aliased(layer) for layer in layers]
            y, states = _sweep(aliases, x, own_sizes, noise, states, length, reverse=reverse)
            outputs.append(y)
            continue
        at_work = states[0].shape[1] if own_sizes is None else own_sizes[0]
        turned = _turning(own_sizes, reverse)
        x, noise = turned(x), [turned(t) for t in noise]
        finals = []
        for i, layer in enumerate(layers):
            if i + len(noise) >= len(layers):
                x = x * noise[i + len(noise) - len(layers)]
            before = states if len(layers) == 1 else [s[i : i + 1] for s in states]
            hx = [s[:, :at_work].contiguous() for s in before]
            given = x if own_sizes is None else PackedSequence(x, torch.tensor(own_sizes))
            y, new = layer(given, tuple(hx) if len(hx) == 2 else hx[0])
            x = y if own_sizes is None else y.data
            finals.append(new if isinstance(new, tuple) else (new,))
        outputs.append(turned(x))
        new = [torch.cat(parts) for parts in zip(*finals, strict=True)]
        states = [torch.cat([a, b[:, at_work:]], 1) for a, b in zip(new, states, strict=True)]
    return torch.cat(outputs[::-1] if reverse else outputs), states


def _turning(sizes: list[int] | None, reverse: bool) -> Callable[[Tensor], Tensor]:
    """The function that makes every sequence of a segment run backwards in its own time; it is its own inverse."""
    if not reverse:
        return lambda rows: rows
    if sizes is None:
        return lambda rows: rows.flip(0)
    offsets = [sum(sizes[:t]) for t in range(len(sizes))]
    order = list(range(sum(sizes)))
    for lane in range(sizes[0]):
        steps = [t for t, size in enumerate(sizes) if size > lane]
        for here, there in zip(steps, reversed(steps), strict=True):
            order[offsets[here] + lane] = offsets[there] + lane
    return lambda rows: rows[order]


class _Aliased:
    """A network called with other weights than its own."""

    def __init__(self, network: nn.Module, weights: dict[str, Tensor]) -> None:
        self.network, self.weights = network, weights

    def __call__(self, x: Any, hx: Any) -> Any:
        return functional_call(self.network, self.weights, (x, hx))

    def aliased(self) -> _Aliased:
        return _Aliased(self.network, {name: w.view_as(w) for name, w in self.weights.items()})


def _one_layer(core: nn.RNNBase, i: int, weights: Iterator[Any]) -> _Aliased:
    """One layer of a network, in one direction, as a network of its own, with the next of the weights."""
    directions = 2 if core.bidirectional else 1
    width = core.input_size if i < directions else (core.proj_size or core.hidden_size) * directions
    options: dict[str, Any] = {"bias": core.bias, "device": "meta"}
    if core.mode == "LSTM":
        options["proj_size"] = core.proj_size
    elif core.mode != "GRU":
        options["nonlinearity"] = core.mode.removeprefix("RNN_").lower()
    kind = {"LSTM": nn.LSTM, "GRU": nn.GRU}.get(core.mode, nn.RNN)
    network = kind(width, core.hidden_size, **options).train(core.training)
    own = [name for name, _ in network.named_parameters()]
    return _Aliased(network, {name: next(weights) for name in own})


def _noise(rows: Tensor, shape: tuple[int, ...], dropout: float) -> Tensor:
    if dropout == 1:
        return rows.new_zeros(shape)
    return rows.new_empty(shape).bernoulli_(1 - dropout).div_(1 - dropout)


def _as_rows(core: nn.RNNBase, x: Any, state: Any) -> tuple[Tensor, list[int] | None, list[Tensor]]:
    """Input as (T, B, D) or packed rows, the batch sizes of the latter, and the initial state, (layers, B, H)."""
    sizes = None
    if isinstance(x, PackedSequence):
        rows, sizes, batch_size = x.data, x.batch_sizes.tolist(), int(x.batch_sizes[0])
    else:
        rows = x.unsqueeze(1) if x.dim() == 2 else x.transpose(0, 1) if core.batch_first else x
        batch_size = rows.shape[1]
    if state is None:
        widths = [core.proj_size or core.hidden_size] + [core.hidden_size] * (core.mode == "LSTM")
        num_states = core.num_layers * (1 + core.bidirectional)
        return rows, sizes, [rows.new_zeros(num_states, batch_size, width) for width in widths]
    states = list(state) if core.mode == "LSTM" else [state]
    if isinstance(x, PackedSequence) and x.sorted_indices is not None:
        states = [s[:, x.sorted_indices] for s in states]
    return rows, sizes, states if isinstance(x, PackedSequence) or x.dim() == 3 else [s.unsqueeze(1) for s in states]


def _as_given(core: nn.RNNBase, x: Any, rows: Tensor, states: list[Tensor]) -> tuple[Any, Any]:
    """Outputs and states in the form in which input and state were given."""
    if isinstance(x, PackedSequence):
        y: Any = PackedSequence(rows, x.batch_sizes, x.sorted_indices, x.unsorted_indices)
        if x.unsorted_indices is not None:
            states = [s[:, x.unsorted_indices] for s in states]
    else:
        y = rows.squeeze(1) if x.dim() == 2 else rows.transpose(0, 1) if core.batch_first else rows
        states = [s.squeeze(1) for s in states] if x.dim() == 2 else states
    return y, tuple(states) if core.mode == "LSTM" else states[0]


# ------------------------------------------------------------------ two runs, compared


@dataclass
class Run:
    """What one forward and backward left behind."""

    results: list[Any]
    gradients: dict[str, Tensor | None]
    buffers: dict[str, Tensor]
    random_state: Tensor
    result: Any


def leaves_of(results: Any) -> list[Any]:
    """The tensors and other leaves of nested results, in order; a PackedSequence is four of them."""
    return tree_flatten(results)[0]


def weighted_sum(results: Any) -> Tensor:
    """A loss that no two entries of the results enter alike."""
    generator = torch.Generator().manual_seed(99)
    terms = []
    for t in leaves_of(results):
        if isinstance(t, Tensor) and t.is_floating_point() and t.requires_grad:
            weight = torch.randn(t.shape, generator=generator, dtype=torch.float64).to(t)
            terms.append((t * weight).sum().double())
    return torch.stack(terms).sum()


def run_once(
    model: nn.Module,
    run: Callable[..., Any],
    inputs: Sequence[Any],
    *,
    loss: Callable[[Any], Tensor] = weighted_sum,
    seed: int = 1,
) -> Run:
    """`run(model, *inputs)`, a loss of it, and backward; inputs that require a gradient are copied."""
    flat, spec = tree_flatten(list(inputs))
    flat = [t.detach().clone().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t for t in flat]
    model.zero_grad()
    torch.manual_seed(seed)
    results = run(model, *tree_unflatten(flat, spec))
    loss(results).backward()
    gradients = {f"input {i}": t.grad for i, t in enumerate(flat) if isinstance(t, Tensor) and t.requires_grad}
    gradients |= {name: p.grad for name, p in model.named_parameters()}
    return Run(
        [t.detach() if isinstance(t, Tensor) else t for t in leaves_of(results)],
        gradients,
        {name: b.clone() for name, b in model.named_buffers()},
        torch.get_rng_state(),
        results,
    )


def assert_same(run: Run, twin: Run, *, tolerance: float | None = None) -> None:
    """Outputs, states, gradients, buffers and random state: bitwise, or with a tolerance relative to each tensor's
    largest entry (random states are always bitwise)."""
    assert len(run.results) == len(twin.results)
    for i, (a, b) in enumerate(zip(run.results, twin.results, strict=True)):
        _assert_equal(f"result {i}", a, b, tolerance)
    assert run.gradients.keys() == twin.gradients.keys()
    for name in twin.gradients:
        _assert_equal(f"gradient of {name}", run.gradients[name], twin.gradients[name], tolerance)
    assert run.buffers.keys() == twin.buffers.keys()
    for name in twin.buffers:
        _assert_equal(f"buffer {name}", run.buffers[name], twin.buffers[name], tolerance)
    assert torch.equal(run.random_state, twin.random_state), "the random state afterwards differs"


def _assert_equal(what: str, a: Any, b: Any, tolerance: float | None) -> None:
    if not isinstance(a, Tensor) or not isinstance(b, Tensor):
        assert type(a) is type(b), f"{what}: {a} and {b}"
        assert a == b, what
        return
    assert (a.shape, a.dtype) == (b.shape, b.dtype), f"{what}: {tuple(a.shape)} {a.dtype}, {tuple(b.shape)} {b.dtype}"
    if tolerance is None or not (a.is_floating_point() or a.is_complex()):
        wide = torch.complex128 if a.is_complex() else torch.float64
        difference = (a.to(wide) - b.to(wide)).abs().max() if a.numel() else 0
        assert torch.equal(a, b), f"{what} is not bitwise equal: differs by up to {difference}"
    elif a.numel():
        difference = float((a - b).abs().max())
        assert difference <= tolerance * max(1.0, float(b.abs().max())), f"{what} differs by up to {difference}"


def hold_against(
    twin: Callable[..., Any],
    run: Callable[..., Any],
    model: nn.Module,
    inputs: Sequence[Any],
    *,
    tolerance: float | None = None,
    loss: Callable[[Any], Tensor] = weighted_sum,
) -> Run:
    """Assert that `run(model, *inputs)` and `twin(model, *inputs)` cannot be told apart; returns the former's Run."""
    expected = run_once(copy.deepcopy(model), twin, inputs, loss=loss)
    got = run_once(copy.deepcopy(model), run, inputs, loss=loss)
    assert_same(got, expected, tolerance=tolerance)
    return got

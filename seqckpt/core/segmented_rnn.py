"""Recurrent networks checkpointed by segments of time: exact backpropagation through time in the memory of one segment.

torch has nothing of the kind: `torch.utils.checkpoint` around each segment is possible by hand, and its traps (states
inside tuples, packed sequences, dropout inside a fused kernel, both directions) are what this file is for.

Memory for T steps, B sequences, segments of k steps: the states before the T/k segments, and the activations of one
segment; least at k about sqrt(T * state bytes / activation bytes per step). Time: each segment but the last runs
forward twice, once more per nested level. Gruslys et al., Memory-Efficient Backpropagation Through Time (2016).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence
from torch.utils._pytree import tree_flatten

from seqckpt.core.closures import modules_of
from seqckpt.core.cuts import check_levels, fixed_spans
from seqckpt.core.replay import Loop, replay_loop
from seqckpt.core.rnn_layers import run_layers
from seqckpt.transparent import hide_in_state_dict

__all__ = ["Core", "SegmentedRNN", "checkpointed_scan"]


class Core(Protocol):
    """What SegmentedRNN drives beside nn.LSTM and its kin: a module called segment by segment.

    `state` is None for the first segment if the caller gave none, afterwards what the previous call returned: a
    tensor or nested tuples, lists, dicts of tensors. `y` has as many time steps as `x`; both may be nested.
    """

    def __call__(self, x: Any, state: Any) -> tuple[Any, Any]: ...


class SegmentedRNN(nn.Module):
    """A recurrent network, run and backpropagated in segments of time; everything else is as in the network itself.

    Args:
        core: an nn.LSTM, nn.GRU or nn.RNN with any of their options, or any module called as `core(x, state)`: Core.
        segment_length: time steps per segment, or lengths of nested levels such as `[250, 25]`: states are stored
            every 250 steps, and every 25 within the 250 that are being replayed.
        batch_first: for cores other than torch's: whether time is dimension 1 (the default, unless the core has an
            attribute `batch_first` that says otherwise) or 0.
        check_replay: compare the values of every replay with the first run's; for debugging.

    Called as `rnn(x, state=None)`; returns `(hidden, state)` exactly as the core would, PackedSequence and unbatched
    input included. `state_dict()` has the core's own keys. One graph, one `backward()`, with gradients to a given
    state too. The returned state has its history: `detach()` it before handing it to the next clip's call.

    Exactness: bitwise that of a plain loop over the same segments, and to rounding that of the undivided network
    (kernels round differently at other lengths). That includes dropout between layers: on the CPU its masks are those
    that nn.LSTM would draw from the same random state, whatever the segments and however many layers; they are drawn
    before the first segment and stored, one byte per hidden value. On CUDA, where the network's own masks come from
    inside cuDNN, they are equal from run to run and between first run and replay, but are other masks than cuDNN's.

    Under CPU autocast an nn.LSTM runs in float32: torch's own fails there on processors without bfloat16 kernels.
    Forward hooks registered on the core fire once per segment and replay; with dropout between layers, both
    directions or computed weights (parametrized, weight norm) the layers run one by one, and they fire once, on the
    whole sequence, as in the network itself. A
    subclass with a forward of its own is run as any other core is: not packed, and not in both directions.

    Raises TypeError or ValueError for a segment length that is not a whole number from 1 up, and the core's own
    errors for wrong inputs and states, before anything is computed.

    >>> lstm = nn.LSTM(8, 16, num_layers=2, batch_first=True)
    >>> rnn = SegmentedRNN(lstm, segment_length=50)
    >>> hidden, (h, c) = rnn(torch.randn(1, 500, 8))
    >>> torch.equal(hidden, lstm(torch.ones(1, 500, 8))[0]), hidden.shape
    (False, torch.Size([1, 500, 16]))
    """

    def __init__(
        self,
        core: nn.Module,
        segment_length: int | Sequence[int],
        *,
        batch_first: bool | None = None,
        check_replay: bool = False,
    ) -> None:
        super().__init__()
        self.segment_length = segment_length
        self.core = core
        self.check_replay = check_replay
        own = getattr(_uncompiled(core), "batch_first", None)
        if isinstance(_uncompiled(core), nn.RNNBase) and batch_first not in (None, own):
            raise ValueError(f"batch_first={batch_first} contradicts the core's own batch_first={own}; leave it out")
        self.batch_first = own if own is not None else batch_first is not False
        hide_in_state_dict(self, "core")

    @property
    def segment_length(self) -> int | Sequence[int]:
        return self._levels[0] if len(self._levels) == 1 else list(self._levels)

    @segment_length.setter
    def segment_length(self, value: int | Sequence[int]) -> None:
        self._levels = check_levels(value, "segment_length")

    def extra_repr(self) -> str:
        return f"segment_length={self.segment_length}"

    def forward(self, x: Any, state: Any = None) -> tuple[Any, Any]:
        core = _uncompiled(self.core)
        if not isinstance(core, nn.RNNBase) or type(core).forward not in _OWN_FORWARDS:
            _refuse_as_custom(core, x)
            return checkpointed_scan(
                self.core, x, state, self._levels, time_dim=int(self.batch_first), check_replay=self.check_replay
            )
        _check_state_type(core, state)
        if _is_empty(core, x):
            return core(x, state)  # for its own error
        return run_layers(core, x, state, levels=self._levels, check=self.check_replay)


def checkpointed_scan(
    run_segment: Callable[[Any, Any], tuple[Any, Any]],
    inputs: Any,
    state: Any,
    segment_length: int | Sequence[int],
    *,
    time_dim: int = 1,
    modules: Iterable[nn.Module] = (),
    devices: Iterable[torch.device] = (),
    check_replay: bool = False,
) -> tuple[Any, Any]:
    """Run a function over segments of time, threading a state through, with the activations of one segment in memory.

    Args:
        run_segment: called as `run_segment(inputs_of_segment, state)`; returns `(outputs, state)`. Outputs have as
            many time steps as the inputs. It may close over modules and trainable tensors; modules are found where it
            is a module, a module's method, a partial, or a closure over modules. Tensors computed outside must come
            in through `inputs` or `state`, else ReplayError says so.
        inputs: a tensor or nested tuples, lists, dicts of tensors, all with the same number of steps in `time_dim`.
        state: the initial state, nested likewise, or None.
        segment_length: steps per segment, or lengths of nested levels such as `[250, 25]`.
        time_dim: the dimension of time in inputs and outputs; 1 for (B, T, ...), 0 for (T, B, ...).
        modules: further modules whose buffers and modes the replay must respect.
        devices: accelerators that `run_segment` uses and the inputs do not show; their random states are restored too.
        check_replay: compare the values of every replay with the first run's.

    Returns outputs for all steps, nested as `run_segment` returns them, and the final state. Gradients flow to inputs,
    initial state, and every trainable tensor. Memory and time: see the module's docstring.

    >>> weight = torch.tensor(0.5, requires_grad=True)
    >>> def leaky_sum(x, state):
    ...     steps = []
    ...     for x_t in x.unbind(1):
    ...         state = weight * state + x_t
    ...         steps.append(state)
    ...     return torch.stack(steps, 1), state
    >>> y, last = checkpointed_scan(leaky_sum, torch.ones(2, 100, 3), torch.zeros(2, 3), segment_length=10)
    >>> y.sum().backward()
    >>> y.shape, weight.grad
    (torch.Size([2, 100, 3]), tensor(2328.))
    """
    levels = check_levels(segment_length, "segment_length")
    num_steps = _num_steps(inputs, time_dim)
    owners = [*modules_of(run_segment), *modules]

    def run_level(level: int, x: Any, state: Any) -> tuple[Any, Any]:
        if level == len(levels):
            return run_segment(x, state)
        loop = Loop(
            run=lambda k, x, state, _: run_level(level + 1, x, state),
            name="segment",
            spans=fixed_spans(0, _num_steps(x, time_dim), levels[level]),
            dim=time_dim,
            modules=owners,
            functions=[run_segment],
            devices=devices,
            first_run_with_grad=True,
            check=check_replay,
        )
        return replay_loop(loop, x, state)

    if num_steps == 0:
        return run_segment(inputs, state)
    return run_level(0, inputs, state)


def _num_steps(inputs: Any, time_dim: int) -> int:
    tensors = [t for t in tree_flatten(inputs)[0] if isinstance(t, Tensor)]
    sizes = {t.shape[time_dim] if t.dim() > time_dim else None for t in tensors}
    if len(sizes) != 1 or None in sizes:
        shapes = [tuple(t.shape) for t in tensors]
        raise ValueError(
            f"inputs of shapes {shapes}: expected tensors with equally many time steps in dimension {time_dim}"
        )
    return sizes.pop()  # type: ignore[return-value]


_OWN_FORWARDS = (nn.LSTM.forward, nn.GRU.forward, nn.RNN.forward)


def _refuse_as_custom(core: nn.Module, x: Any) -> None:
    """A core with a forward of its own is run segment by segment, forwards in time: refuse what cannot be run so."""
    if getattr(core, "bidirectional", False):
        raise ValueError(f"{type(core).__name__} is bidirectional, with a forward of its own: it cannot be cut in time")
    inner = [name for name, m in core.named_modules() if isinstance(m, nn.RNNBase) and m.bidirectional]
    if inner and not hasattr(core, "bidirectional"):
        raise ValueError(
            f"{type(core).__name__}.{inner[0]} is bidirectional: cut in time it would see the future of its segment "
            "only. Hand that network itself to SegmentedRNN; where it does not run over time, say so by an attribute "
            f"`bidirectional = False` of {type(core).__name__}"
        )
    if isinstance(x, PackedSequence):
        raise TypeError(f"{type(core).__name__} has a forward of its own: pad its input, PackedSequence cannot be cut")


def _uncompiled(core: nn.Module) -> nn.Module:
    """torch.compile leaves torch's recurrent kernels as they are: look through its wrapper."""
    return getattr(core, "_orig_mod", core)


def _check_state_type(core: nn.RNNBase, state: Any) -> None:
    if state is None:
        return
    if core.mode == "LSTM":
        if not (isinstance(state, (tuple, list)) and len(state) == 2 and all(isinstance(s, Tensor) for s in state)):
            raise TypeError(f"hx of an LSTM is a pair of tensors (h_0, c_0); got {_describe(state)}")
    elif not isinstance(state, Tensor):
        raise TypeError(f"hx of a {core.mode.split('_')[0]} is one tensor h_0; got {_describe(state)}")


def _describe(state: Any) -> str:
    if isinstance(state, Tensor):
        return f"one tensor of shape {tuple(state.shape)}"
    if isinstance(state, (tuple, list)):
        return f"a {type(state).__name__} of {len(state)}"
    return f"{type(state).__name__}"


def _is_empty(core: nn.RNNBase, x: Any) -> bool:
    if isinstance(x, PackedSequence):
        return False
    if not isinstance(x, Tensor) or x.dim() not in (2, 3):
        return True
    return x.shape[1 if core.batch_first and x.dim() == 3 else 0] == 0

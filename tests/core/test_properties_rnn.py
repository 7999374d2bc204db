"""SegmentedRNN under hypothesis: any combination of options, lengths and losses, against the two plain twins.

`ci` tries the same examples on every run; HYPOTHESIS_PROFILE=long searches anew through thousands.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from custom_cores import ConvLSTM, DiagonalStateSpace
from hypothesis import assume, given
from hypothesis import strategies as st
from reference import (
    CELLS,
    assert_same,
    cut_lengths,
    cut_run,
    cut_scan,
    given_state,
    hold_against,
    run_once,
    sequence,
    weighted_sum,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seqckpt import Checkpointed, SegmentedRNN

pytestmark = pytest.mark.timeout(3600)  # for the long profile

# Against the undivided network: float64 as promised. In float32 the promise is 1e-5 for usual sizes; a state that a
# relu network grows to hundreds, say, is compared relative to its largest entry, as everything is.
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}


@dataclass
class Example:
    cell: str
    options: dict[str, Any]
    sizes: tuple[int, int, int]
    training: bool
    frozen: list[str]
    levels: list[int]
    lengths: list[int]  # of the sequences in the batch
    with_state: bool
    x_grad: bool
    loss: str
    seed: int
    dtype: torch.dtype = torch.float64

    def core(self) -> nn.RNNBase:
        torch.manual_seed(self.seed)
        core = CELLS[self.cell](*self.sizes, **self.options).to(self.dtype).train(self.training)
        for name, parameter in core.named_parameters():
            parameter.requires_grad_(not any(name.startswith(prefix) for prefix in self.frozen))
        return core

    def inputs(self, core: nn.RNNBase) -> tuple[Tensor, Any]:
        x = sequence(core, max(self.lengths), len(self.lengths)).detach().requires_grad_(self.x_grad)
        return x, given_state(core, len(self.lengths)) if self.with_state else None

    def scalar(self, results: Any) -> Tensor:
        y, state = results
        if isinstance(y, PackedSequence):
            y = y.data
        last = state[-1] if isinstance(state, tuple) else state
        return weighted_sum({"all": (y, state), "outputs": y, "state": state, "last state": last}[self.loss])


@st.composite
def levels(draw: st.DrawFn) -> list[int]:
    return sorted(draw(st.sets(st.integers(1, 14), min_size=1, max_size=3)), reverse=True)


@st.composite
def examples(draw: st.DrawFn, *, dtype: torch.dtype = torch.float64, dropout: bool | None = None) -> Example:
    cell = draw(st.sampled_from(list(CELLS)))
    num_layers = draw(st.integers(2 if dropout else 1, 3))
    options: dict[str, Any] = {
        "bias": draw(st.booleans()),
        "batch_first": draw(st.booleans()),
        "bidirectional": draw(st.booleans()),
    }
    if num_layers > 1 and dropout is not False:
        options["dropout"] = draw(st.sampled_from([0.1, 0.5, 1.0] if dropout else [0.0, 0.0, 0.3]))
    hidden_size = draw(st.integers(2, 6))
    if cell == "lstm" and draw(st.booleans()):
        options["proj_size"] = draw(st.integers(1, hidden_size - 1))
    num_steps = draw(st.integers(1, 16))
    batch_size = draw(st.integers(1, 4))
    frozen = draw(st.sets(st.sampled_from(["weight_ih", "weight_hh", "weight_hh_l0", "bias", "weight_ih_l1"])))
    example = Example(
        cell=cell,
        options=options,
        sizes=(draw(st.integers(1, 5)), hidden_size, num_layers),
        training=draw(st.booleans()) or bool(dropout),
        frozen=sorted(frozen) if draw(st.booleans()) else [],
        levels=draw(levels()),
        lengths=[num_steps] * batch_size,
        with_state=draw(st.booleans()),
        x_grad=True,
        loss=draw(st.sampled_from(["all", "all", "outputs", "state", "last state"])),
        seed=draw(st.integers(0, 2**16)),
        dtype=dtype,
    )
    if example.with_state or not example.frozen:
        example.x_grad = draw(st.booleans())
    return example


def hold(example: Example, *, packed: bool = False) -> None:
    core = example.core()
    x, state = example.inputs(core)
    lengths = cut_lengths(max(example.lengths), *example.levels)

    def pack(x: Tensor) -> Any:
        if not packed:
            return x
        return pack_padded_sequence(x, torch.tensor(example.lengths), core.batch_first, enforce_sorted=False)

    def segmented(core: nn.RNNBase, x: Tensor, state: Any) -> Any:
        return SegmentedRNN(core, example.levels)(pack(x), state)

    def cut(core: nn.RNNBase, x: Tensor, state: Any) -> Any:
        return cut_run(core, pack(x), state, lengths)

    def undivided(core: nn.RNNBase, x: Tensor, state: Any) -> Any:
        return core(pack(x), state)

    run, twin, plain = (run_once(core, f, (x, state), loss=example.scalar) for f in (segmented, cut, undivided))
    assert_same(run, twin)
    assert_same(run, plain, tolerance=TOLERANCE[example.dtype])


@given(examples())
def test_padded(example: Example) -> None:
    hold(example)


@given(examples(dropout=True))
def test_dropout(example: Example) -> None:
    hold(example)


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")  # torch's own
@given(examples(dtype=torch.float32))
def test_float32(example: Example) -> None:
    hold(example)


@given(examples(), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_packed(example: Example, lengths: list[int]) -> None:
    example.lengths = lengths
    hold(example, packed=True)


@given(examples(dropout=True), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_packed_with_dropout(example: Example, lengths: list[int]) -> None:
    example.lengths = lengths
    hold(example, packed=True)


@given(examples())
def test_unbatched(example: Example) -> None:
    core = example.core()
    x, state = example.inputs(core)
    x = x[0] if core.batch_first else x[:, 0]
    if state is not None:
        state = tuple(s[:, 0] for s in state) if isinstance(state, tuple) else state[:, 0]
    lengths = cut_lengths(len(x), *example.levels)
    run, twin, plain = (
        run_once(core, f, (x.detach().requires_grad_(), state), loss=example.scalar)
        for f in (
            lambda core, x, state: SegmentedRNN(core, example.levels)(x, state),
            lambda core, x, state: cut_run(core, x, state, lengths),
            lambda core, x, state: core(x, state),
        )
    )
    assert_same(run, twin)
    assert_same(run, plain, tolerance=1e-10)


@given(levels(), st.integers(1, 16), st.integers(1, 3), st.booleans(), st.sampled_from(["conv", "diagonal"]))
def test_custom_cores(levels: list[int], num_steps: int, batch_size: int, x_grad: bool, name: str) -> None:
    core, shape = {"conv": (ConvLSTM(2, 2), (2, 3, 3)), "diagonal": (DiagonalStateSpace(3, 4), (3,))}[name]
    x = torch.randn(batch_size, num_steps, *shape, dtype=torch.float64, requires_grad=x_grad)
    hold_against(
        lambda core, x: cut_scan(core, x, None, cut_lengths(num_steps, *levels)),
        lambda core, x: SegmentedRNN(core, levels)(x),
        core.double(),
        (x,),
    )


LAYERS = {
    "linear": lambda: nn.Linear(4, 4),
    "frozen linear": lambda: nn.Linear(4, 4).requires_grad_(False),
    "relu in place": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.5),
    "batch norm": lambda: nn.BatchNorm1d(4),
    "cumulative batch norm": lambda: nn.BatchNorm1d(4, momentum=None),
    "spectral norm": lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)),
}


@st.composite
def networks(draw: st.DrawFn, depth: int = 2) -> tuple[str, ...]:
    names = st.sampled_from(list(LAYERS))
    parts = names if depth == 0 else st.one_of(names, names, networks(depth - 1))
    return tuple(draw(st.lists(parts, min_size=1, max_size=4)))


def build(network: Any, *, checkpointed: bool) -> nn.Module:
    if isinstance(network, str):
        return LAYERS[network]()
    parts = nn.Sequential(*(build(part, checkpointed=checkpointed) for part in network))
    return Checkpointed(parts) if checkpointed else parts


@given(networks(), st.booleans(), st.integers(1, 3), st.integers(0, 2**16))
def test_nested_checkpointed_modules(network: Any, training: bool, num_calls: int, seed: int) -> None:
    """Any nesting, called several times in one graph, some calls without backward."""
    plain, wrapped = (build(network, checkpointed=checkpointed).double() for checkpointed in (False, True))
    torch.manual_seed(seed)
    for parameter in plain.parameters():
        nn.init.normal_(parameter)
    wrapped.load_state_dict(plain.state_dict())
    x = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)

    def calls(model: nn.Module, x: Tensor) -> Any:
        results = [model(x * (k + 1)) for k in range(num_calls)]
        model(x)  # forward without backward
        return results

    try:
        runs = [run_once(plain.train(training), calls, (x,))]
    except RuntimeError as error:  # a ReLU in place where autograd allows none: not a network
        assume("inplace" not in str(error) and "in-place" not in str(error))
        raise
    runs.append(run_once(wrapped.train(training), calls, (x,)))
    for run in runs:
        run.gradients = {name.replace("module.", ""): grad for name, grad in run.gradients.items()}
        run.buffers = {name.replace("module.", ""): buffer for name, buffer in run.buffers.items()}
    # not bitwise: a weight's gradients are added up per module here, per call there
    assert_same(*runs, tolerance=1e-10)

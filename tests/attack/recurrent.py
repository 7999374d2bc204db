"""Random recurrent networks of torch's in SegmentedRNN, against the equally cut plain run or the undivided one."""

from __future__ import annotations

import sys
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import torch
from reference import CELLS, cut_lengths, cut_run, cut_scan, given_state
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seqckpt import SegmentedRNN

from .comparison import Case, main, weighted_sum
from .draws import Draw
from .steps import take_step

__all__ = ["make_recurrent_case"]

LAYOUTS = ("contiguous", "transposed", "expanded over batch", "expanded over time", "sliced in time", "sliced in width")


def _scale(module: nn.Module, args: Any, result: Any) -> Any:
    y, state = result
    return (y._replace(data=y.data * 1.1) if isinstance(y, PackedSequence) else y * 1.1), state


class OwnForward(nn.GRU):
    """A subclass that does something before torch's forward: any core, for SegmentedRNN."""

    def forward(self, x: Tensor, hx: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return super().forward(x * 0.5, hx)


class Wrapped(nn.Module):
    """A network inside a module, with layers around it that are run per segment."""

    def __init__(self, core: nn.RNNBase) -> None:
        super().__init__()
        self.core, self.batch_first = core, core.batch_first
        self.norm, self.dropout = nn.LayerNorm(core.input_size), nn.Dropout(0.3)

    def forward(self, x: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
        y, state = self.core(self.dropout(self.norm(x)), hx)
        return y.tanh(), state


class Model(nn.Module):
    """A layer before and one after the network, so that gradients go on from it."""

    def __init__(self, core: nn.Module, sizes: tuple[int, int, int], draw: Draw) -> None:
        super().__init__()
        self.before = nn.Linear(sizes[0], sizes[0]) if draw.chance("a layer before", 0.4) else nn.Identity()
        self.core = core
        self.after = (
            nn.Sequential(nn.ReLU(inplace=True), nn.Dropout(0.2))
            if draw.chance("in place behind", 0.2)
            else nn.Identity()
        )


def _make_core(draw: Draw, dtype: torch.dtype) -> tuple[nn.RNNBase, tuple[int, int, int]]:
    cell = draw.one("cell", tuple(CELLS), (4, 3, 2, 1))
    num_layers = draw.one("layers", {"1": 1, "2": 2, "3": 3})
    hidden_size = draw.number(2, 6)
    options: dict[str, Any] = {
        "bias": not draw.chance("no bias", 0.2),
        "batch_first": draw.chance("batch_first", 0.6),
        "bidirectional": draw.chance("bidirectional", 0.3),
    }
    if num_layers > 1 and draw.chance("dropout between layers", 0.4):
        options["dropout"] = draw.random.choice([0.2, 0.5, 1.0])
    if cell == "lstm" and draw.chance("proj_size", 0.25):
        options["proj_size"] = draw.number(1, hidden_size - 1)
    sizes = (draw.number(1, 5), hidden_size, num_layers)
    core = CELLS[cell](*sizes, **options).to(dtype)
    if num_layers > 1 and sizes[1] and draw.chance("tied weights", 0.06):
        core.weight_hh_l1 = core.weight_hh_l0
    kind = draw.one(
        "weights",
        ("as they are", "weight norm", "spectral norm", "old weight norm", "frozen in part", "hook", "all frozen"),
        (16, 1, 1, 1, 2, 1, 0.7),
    )
    if kind == "weight norm":
        parametrizations.weight_norm(core, "weight_hh_l0")
    elif kind == "spectral norm":
        parametrizations.spectral_norm(core, "weight_ih_l0")
    elif kind == "old weight norm":
        nn.utils.weight_norm(core, "weight_hh_l0")
    for i, parameter in enumerate(core.parameters()):
        if kind == "all frozen" or (kind == "frozen in part" and draw.random.random() < 0.5):
            parameter.requires_grad_(False)
        elif kind == "hook" and i % 2 == 0:
            parameter.register_hook(lambda g: g * 0.5)
    return core, sizes


class _Attack:
    def __init__(self, draw: Draw) -> None:
        self.precision = draw.one("precision", ("float64", "float32", "autocast"), (8, 1.5, 0.7))
        self.dtype = torch.float64 if self.precision == "float64" else torch.float32
        self.network, sizes = _make_core(draw, self.dtype)
        core: nn.Module = self.network
        self.kind = draw.one("core", ("torch's", "subclass", "wrapped"), (8, 0.7, 1))
        if self.network.bidirectional or (self.precision == "autocast" and self.network.mode == "LSTM"):
            self.kind = "torch's"
        if self.kind == "subclass":
            core = OwnForward(*sizes, batch_first=self.network.batch_first).to(self.dtype)
            self.network = core
        elif self.kind == "wrapped":
            core = Wrapped(self.network).to(self.dtype)
        if self.kind == "torch's" and draw.chance("forward hook that scales", 0.03):
            core.register_forward_hook(_scale)
        self.model = Model(core, sizes, draw).to(self.dtype)
        self.model.train(not draw.chance("eval", 0.15))
        levels = draw.random.sample(range(1, 15), draw.one("levels", {"1": 1, "2": 2, "3": 3}, (5, 2, 1)))
        self.levels = sorted(levels, reverse=True)
        draw.ingredients += ["segments of 1"] * (1 in levels)
        forms = ("padded", "unbatched", "packed", "packed, sorted")
        self.form = draw.one("form", forms, (5, 1, 1.5, 1)) if self.kind == "torch's" else "padded"
        self._draw_inputs(draw, sizes[0])
        cut = self.kind == "torch's" and draw.one("against", {"the cut run": True, "the whole run": False})
        # joined segments are laid out otherwise than one whole result, which dropout behind them would see
        uncut = {"weights: old weight norm", "in place behind", "precision: autocast"}
        self.cut = cut and not uncut & {*draw.ingredients}
        self.loss_of = draw.one("loss of", ("all", "outputs", "state"), (3, 1, 1))
        self.carried = draw.one("state carried", ("no", "with graph", "detached"), (6, 1, 1))
        norm = any(f"weights: {kind}" in draw.ingredients for kind in ("weight norm", "spectral norm"))
        self.cached = norm and draw.chance("cached()", 0.1)
        self.take = take_step(draw, self.model, self.leaf)

    def _draw_inputs(self, draw: Draw, width: int) -> None:
        batch, time = draw.number(1, 4), draw.number(1, 16)
        draw.ingredients += ["batch of 1"] * (batch == 1) + ["one step"] * (time == 1)
        kind = draw.one("layout", LAYOUTS, (5, 1, 1, 1, 1, 1))
        rows = self.network.batch_first
        shape = [batch, time, width] if rows else [time, batch, width]
        at_time = 1 if rows else 0
        self.view = lambda x: x
        if kind == "transposed":
            shape[:2] = shape[1::-1]
            self.view = lambda x: x.transpose(0, 1)
        elif kind.startswith("expanded"):
            dim = at_time if kind.endswith("time") else 1 - at_time
            full, shape[dim] = tuple(shape), 1
            self.view = lambda x: x.expand(full)
        elif kind == "sliced in time":
            shape[at_time] *= 2
            self.view = lambda x: x[:, ::2] if rows else x[::2]
        elif kind == "sliced in width":
            shape[2] += 3
            self.view = lambda x: x[..., 1 : width + 1]
        self.leaf = torch.randn(*shape, dtype=self.dtype).requires_grad_(draw.chance("input with gradient", 0.5))
        lengths = [draw.number(1, time) for _ in range(batch)]
        lengths[0] = time
        self.lengths = torch.tensor(sorted(lengths, reverse=True) if "sorted" in self.form else lengths)
        self.state, self.state_leaves = None, []
        kind = draw.one("state", ("none", "given", "without gradient", "expanded"), (3, 2, 1, 1))
        if kind != "none":
            self.state = given_state(self.network, batch)
            parts = list(self.state) if isinstance(self.state, tuple) else [self.state]
            if kind == "expanded":
                parts = [s[:, :1].detach().clone().requires_grad_() for s in parts]
            self.state_leaves = [s.detach() for s in parts] if kind == "without gradient" else parts
        self.batch = batch

    def given(self) -> Any:
        """The state as it is handed in: leaves, or views of them."""
        if self.state is None:
            return None
        parts = [s.expand(-1, self.batch, -1) for s in self.state_leaves]
        parts = [s[:, 0] for s in parts] if self.form == "unbatched" else parts
        return tuple(parts) if isinstance(self.state, tuple) else parts[0]

    def rnn(self, checkpointed: bool, x: Any, state: Any) -> Any:
        if checkpointed:
            return SegmentedRNN(self.model.core, self.levels)(x, state)
        if not self.cut and self.kind == "torch's":
            return self.model.core(x, state)
        steps = (
            max(self.lengths.tolist()) if isinstance(x, PackedSequence) else x.shape[1 if self._time_second(x) else 0]
        )
        lengths = cut_lengths(steps, *self.levels)
        if self.kind != "torch's":
            return cut_scan(self.model.core, x, state, lengths, time_dim=int(self.network.batch_first))
        return cut_run(self.network, x, state, lengths)

    def _time_second(self, x: Tensor) -> bool:
        return self.network.batch_first and x.dim() == 3

    def run(self, checkpointed: bool, leaf: Tensor) -> tuple[Any, Tensor]:
        # under autocast on a CPU, an LSTM runs in float32 here, and not at all plainly without kernels for it
        wanted = self.precision == "autocast" and self.network.mode != "LSTM"
        autocast = torch.autocast("cpu", dtype=torch.bfloat16) if wanted else nullcontext()
        with autocast:
            x = self.model.before(self.view(leaf))
            if self.form == "unbatched":
                x = x[0] if self.network.batch_first else x[:, 0]
            elif self.form.startswith("packed"):
                x = pack_padded_sequence(
                    x, self.lengths, self.network.batch_first, enforce_sorted="sorted" in self.form
                )
            y, state = self.rnn(checkpointed, x, self.given())
            results = [self._after(y), state]
            if self.carried != "no":
                handed = torch.utils._pytree.tree_map(torch.Tensor.detach, state) if "det" in self.carried else state
                y, state = self.rnn(checkpointed, x, handed)
                results += [self._after(y), state]
        counted = {"outputs": results[::2], "state": results[1::2]}.get(self.loss_of, results)
        return results, weighted_sum(counted)

    def _after(self, y: Any) -> Tensor:
        return self.model.after(y.data if isinstance(y, PackedSequence) else y)

    def step(self, checkpointed: bool) -> Any:
        with ExitStack() as stack:
            if self.cached:
                stack.enter_context(parametrize.cached())
            return self.take(partial(self.run, checkpointed))


def make_recurrent_case(draw: Draw) -> Case:
    attack = _Attack(draw)
    tolerance = {"float64": 1e-12, "float32": 1e-5}.get(attack.precision, 5e-2)
    inputs = {"x": attack.leaf} | {f"state {i}": s for i, s in enumerate(attack.state_leaves)}
    return Case(attack.model, attack.step, inputs, tolerance)


if __name__ == "__main__":
    sys.exit(main(make_recurrent_case, __doc__ or ""))

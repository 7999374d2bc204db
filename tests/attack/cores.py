"""Random recurrent cores of one's own in SegmentedRNN and checkpointed_scan, against a plain loop over the segments."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from custom_cores import ConvLSTM, DiagonalStateSpace
from reference import cut_lengths
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.checkpoint import checkpoint

from seqckpt import Checkpointed, SegmentedRNN, checkpointed_scan

from .awkward_layers import COUNTERS, CachedWeight, Counter, in_place_layer
from .comparison import Case, main, weighted_sum
from .draws import Draw
from .random_layers import random_layer, torch_noise
from .steps import take_step

__all__ = ["make_core_case"]

WIDTH = 4


class Cell(nn.Module):
    """A step h' = f(x_t, h) with layers that were drawn, and a loop over steps around it."""

    def __init__(self, draw: Draw) -> None:
        super().__init__()
        self.into, self.back = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        kind = draw.one(
            "layer",
            (
                *(
                    "nothing",
                    "dropout",
                    "batch norm",
                    "in place",
                    "random numbers",
                    "torch's numbers",
                    "counter",
                    "cache",
                ),
                *("Checkpointed", "torch checkpoint", "layer norm"),
            ),
            (4, 2, 1, 3, 0.6, 1, 0.4, 0.3, 0.5, 0.7, 1),
        )
        self.nested = kind == "torch checkpoint"
        self.layer: nn.Module = {
            "dropout": lambda: nn.Dropout(0.4),
            "batch norm": lambda: nn.BatchNorm1d(WIDTH),
            "in place": lambda: in_place_layer(draw, 1),
            "random numbers": lambda: random_layer(draw, WIDTH),
            "torch's numbers": lambda: torch_noise(draw, WIDTH),
            "counter": lambda: Counter(draw.one("counter", COUNTERS, (1, 1, 1, 0.5, 0.3))),
            "cache": lambda: CachedWeight(WIDTH),
            "Checkpointed": lambda: Checkpointed(nn.Sequential(nn.Dropout(0.3), nn.ELU(inplace=True))),
            "torch checkpoint": lambda: nn.Sequential(nn.Dropout(0.3), nn.ELU()),
            "layer norm": lambda: nn.LayerNorm(1),
        }.get(kind, nn.Identity)()
        if draw.chance("weight norm", 0.06):
            parametrizations.weight_norm(self.back)
        elif draw.chance("spectral norm", 0.05):
            parametrizations.spectral_norm(self.into)
        if draw.chance("tied weights", 0.05) and not hasattr(self.back, "parametrizations"):
            self.back = self.into

    def step(self, x_t: Tensor, h: Tensor) -> Tensor:
        y = (self.into(x_t) + self.back(h)).unsqueeze(-1)
        y = checkpoint(self.layer, y, use_reentrant=False) if self.nested else self.layer(y)
        return y.squeeze(-1).tanh()


class Plain(Cell):
    """The state is one tensor."""

    def forward(self, x: Tensor, h: Any) -> Any:
        h = x.new_zeros(len(x), WIDTH) if h is None else h
        steps = []
        for x_t in x.unbind(1):
            h = self.step(x_t, h)
            steps.append(h)
        return torch.stack(steps, 1), h


class Nested(Cell):
    """States and outputs are nested, with numbers, None and whole numbers among them."""

    def forward(self, x: Tensor, state: Any) -> Any:
        if state is None:
            state = {"h": [x.new_zeros(len(x), WIDTH)], "mean": (None, 0), "count": torch.zeros((), dtype=torch.int64)}
        h, (mean, age), count = state["h"][0], state["mean"], state["count"]
        steps = []
        for x_t in x.unbind(1):
            h = self.step(x_t, h) + (0 if mean is None else 0.1 * mean)
            steps.append(h)
        y = torch.stack(steps, 1)
        mean = y.mean(1)
        state = {"h": [h], "mean": (mean, age + x.shape[1]), "count": count + x.shape[1]}
        return {"y": y, "more": (y * 2, [y.argmax(-1)])}, state


class Changing(Cell):
    """Writes into the state that it is given, or into its input."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.kind = draw.one("writes into", ("state", "input", "both", "state's slice", "from the second segment on"))

    def forward(self, x: Tensor, h: Any) -> Any:
        first = h is None
        h = x.new_zeros(len(x), WIDTH) if first else h
        if self.kind in ("state", "both"):
            h.mul_(0.5)
        if self.kind in ("input", "both"):
            x.add_(0.3)
        if self.kind == "state's slice":
            h[:, 0] = 0.1
        if self.kind == "from the second segment on" and not first:
            h.mul_(0.5)
        steps = []
        for x_t in x.unbind(1):
            h = self.step(x_t, h)
            steps.append(h)
        return torch.stack(steps, 1), h


class HandingOn(Cell):
    """Hands on what it was given: the input as output, the state as it is, one tensor twice, or views."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        kinds = ("input as output", "state unchanged", "state twice", "a view of the output", "a view of the input")
        self.kind = draw.one("hands on", kinds)

    def forward(self, x: Tensor, h: Any) -> Any:
        pair = x.new_zeros(len(x), WIDTH) if h is None else h
        own = pair[0] if isinstance(pair, tuple) else pair
        steps = []
        state = own
        for x_t in x.unbind(1):
            state = self.step(x_t, state)
            steps.append(state)
        y = torch.stack(steps, 1)
        if self.kind == "input as output":
            return (x, y), state
        if self.kind == "state unchanged":
            return y, own
        if self.kind == "state twice":
            return y, (state, state)
        return y, y[:, -1] if self.kind == "a view of the output" else x[:, -1]


class Memory(Cell):
    """Attends over what it has seen: the state grows, or is cut to a window, with its graph or without."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.kind = draw.one("memory", ("grows", "window", "detached"))

    def forward(self, x: Tensor, keys: Any) -> Any:
        new = self.into(x)
        keys = new if keys is None else torch.cat([keys, new], 1)
        y = F.scaled_dot_product_attention(self.back(x), keys, keys)
        y = self.layer(y.transpose(1, 2)).transpose(1, 2)
        kept = keys if self.kind == "grows" else keys[:, -3:]
        return y, kept.detach() if self.kind == "detached" else kept


class Gru(Cell):
    """torch's cell in a loop; zoneout by Python's or torch's numbers, or none."""

    def __init__(self, draw: Draw) -> None:
        super().__init__(draw)
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.zoneout = draw.one("zoneout", ("none", "torch", "Python's random source"), (4, 1, 0.5))

    def forward(self, x: Tensor, h: Any) -> Any:
        h = x.new_zeros(len(x), WIDTH) if h is None else h
        steps = []
        for x_t in x.unbind(1):
            new = self.cell(self.layer(self.into(x_t).unsqueeze(-1)).squeeze(-1), h) + 0.1 * self.back(h)
            if self.zoneout == "torch":
                new = torch.where(torch.rand_like(h) < 0.2, h, new)
            elif self.zoneout != "none" and random.random() < 0.3:
                new = h
            h = new
            steps.append(h)
        return torch.stack(steps, 1), h


def _leaky(draw: Draw) -> nn.Module:
    class Loose(nn.Module):
        """Its step is a function that closes over a parameter which no module owns by itself."""

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.linspace(0.2, 0.8, WIDTH))
            weight = self.weight
            self.function = lambda x_t, h: (weight * h + x_t).tanh()

        def forward(self, x: Tensor, h: Any) -> Any:
            h = x.new_zeros(len(x), WIDTH) if h is None else h
            steps = []
            for x_t in x.unbind(1):
                h = self.function(x_t, h)
                steps.append(h)
            return torch.stack(steps, 1), h

    return Loose()


CORES: dict[str, Callable[[Draw], nn.Module]] = {
    "plain": Plain,
    "nested": Nested,
    "changing": Changing,
    "handing on": HandingOn,
    "memory": Memory,
    "GRU cell": Gru,
    "closure": _leaky,
    "ConvLSTM": lambda draw: ConvLSTM(WIDTH, 2),
    "state space": lambda draw: DiagonalStateSpace(WIDTH, 3),
}


def _scan(core: Callable[[Any, Any], Any], x: Any, state: Any, lengths: list[Any], time_dim: int) -> Any:
    """The plain loop, inputs copied where a core writes into them; sums of nested levels are to rounding."""
    outputs, start = [], 0
    for length in lengths:
        piece = tree_map(lambda t, n=length, a=start: t.narrow(time_dim, a, n), x)
        y, state = core(piece, state)
        start += length
        flat, spec = tree_flatten(y)
        outputs.append(flat)
    joined = [torch.cat(parts, time_dim) for parts in zip(*outputs, strict=True)]
    return torch.utils._pytree.tree_unflatten(joined, spec), state


def _flat_lengths(lengths: list[Any]) -> list[int]:
    return [n for part in lengths for n in (_flat_lengths(part) if isinstance(part, list) else [part])]


class _Attack:
    def __init__(self, draw: Draw) -> None:
        self.dtype = draw.one("precision", {"float64": torch.float64, "float32": torch.float32}, (8, 1))
        self.name = draw.one("core", tuple(CORES), (4, 3, 3, 3, 2, 2, 1, 1, 1))
        self.core = CORES[self.name](draw).to(self.dtype)
        self.before = nn.Linear(WIDTH, WIDTH).to(self.dtype) if draw.chance("a layer before", 0.4) else nn.Identity()
        self.model = nn.ModuleList([self.before, self.core])
        self.model.train(not draw.chance("eval", 0.1))
        for parameter in self.core.parameters():
            parameter.requires_grad_(not draw.chance("frozen", 0.05))
        batch, time = draw.number(1, 3), draw.number(1, 12)
        draw.ingredients += ["batch of 1"] * (batch == 1)
        levels = draw.random.sample(range(1, 10), draw.one("levels", {"1": 1, "2": 2, "3": 3}, (5, 2, 1)))
        self.levels = sorted(levels, reverse=True)
        self.lengths = _flat_lengths(cut_lengths(time, *self.levels))
        self.form = draw.one("form", ("SegmentedRNN", "scan", "scan of a function", "scan of a partial", "time first"))
        self.space = (3, 3) if self.name == "ConvLSTM" else ()
        self._draw_input(draw, (batch, time, WIDTH, *self.space))
        self.state_leaf = self._draw_state(draw, batch)
        self.loss_of = draw.one("loss of", ("all", "outputs", "state"), (3, 1, 1))
        self.take = take_step(draw, self.model, self.leaf)

    def _draw_input(self, draw: Draw, shape: tuple[int, ...]) -> None:
        kind = draw.one(
            "layout",
            ("contiguous", "expanded over batch", "expanded over time", "sliced", "transposed"),
            (5, 1, 1, 1, 1),
        )
        self.view: Callable[[Tensor], Tensor] = lambda x: x
        full = shape
        if kind.startswith("expanded"):
            dim = 0 if kind.endswith("batch") else 1
            self.view, shape = (lambda x: x.expand(full)), (*shape[:dim], 1, *shape[dim + 1 :])
        elif kind == "sliced":
            self.view, shape = (lambda x: x[:, ::2]), (shape[0], 2 * shape[1], *shape[2:])
        elif kind == "transposed":
            self.view, shape = (lambda x: x.transpose(0, 1)), (shape[1], shape[0], *shape[2:])
        self.leaf = torch.randn(*shape, dtype=self.dtype).requires_grad_(draw.chance("input with gradient", 0.5))
        self.full = full

    def _draw_state(self, draw: Draw, batch: int) -> Tensor | None:
        if self.name in ("nested", "memory", "ConvLSTM", "state space"):
            return None
        kind = draw.one("state", ("none", "given", "without gradient", "expanded"), (3, 2, 1, 1))
        if kind == "none":
            return None
        shape = (1 if kind == "expanded" else batch, WIDTH)
        return torch.randn(*shape, dtype=self.dtype).requires_grad_(kind != "without gradient")

    def given(self) -> Tensor | None:
        """The state handed in; a copy where the core writes into it, since torch forbids that for a leaf."""
        if self.state_leaf is None:
            return None
        state = self.state_leaf.expand(self.full[0], -1)
        return state * 1 if self.name == "changing" else state

    def run(self, checkpointed: bool, leaf: Tensor) -> tuple[Any, Tensor]:
        x = self.view(leaf)
        x = x if self.space else self.before(x)
        results = (self._checkpointed if checkpointed else self._plain)(x, self.given())
        y, state = results
        counted = {"outputs": y, "state": state}.get(self.loss_of, results)
        return results, weighted_sum(counted)

    def _plain(self, x: Tensor, state: Any) -> Any:
        if self.name == "changing":
            x = x.clone()  # the engine leaves the caller's input as it is
        return _scan(self._called, x, state, self.lengths, 1)

    def _called(self, x: Any, state: Any) -> Any:
        return self.core(x, state)

    def _checkpointed(self, x: Tensor, state: Any) -> Any:
        levels = self.levels
        if self.form == "SegmentedRNN":
            return SegmentedRNN(self.core, levels)(x, state)
        if self.form == "scan of a partial":
            return checkpointed_scan(partial(_call, self.core), x, state, levels)
        if self.form == "time first":
            y, state = checkpointed_scan(_time_first(self.core), x.transpose(0, 1), state, levels, time_dim=0)
            return tree_map(lambda t: t.transpose(0, 1), y), state
        core = self.core
        return checkpointed_scan(core if self.form == "scan" else lambda x, h: core(x, h), x, state, levels)

    def step(self, checkpointed: bool) -> Any:
        for module in self.model.modules():
            if isinstance(module, CachedWeight):
                module.new_step()
        return self.take(partial(self.run, checkpointed))


def _call(core: nn.Module, x: Any, state: Any) -> Any:
    return core(x, state)


def _time_first(core: nn.Module) -> Callable[[Any, Any], Any]:
    def run(x: Tensor, state: Any) -> Any:
        y, state = core(x.transpose(0, 1), state)
        return tree_map(lambda t: t.transpose(0, 1), y), state

    return run


def make_core_case(draw: Draw) -> Case:
    attack = _Attack(draw)
    inputs = {"x": attack.leaf} | ({} if attack.state_leaf is None else {"state": attack.state_leaf})
    return Case(attack.model, attack.step, inputs, 1e-12 if attack.dtype == torch.float64 else 1e-5)


if __name__ == "__main__":
    sys.exit(main(make_core_case, __doc__ or ""))

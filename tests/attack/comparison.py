"""One case run plainly and checkpointed, everything compared that a training step could notice; and the command line.

Outcomes:

- "bitwise", "to rounding": right. To rounding is 1e-12 of the largest entry in float64, or what the case says.
- "refused": an error that the library itself raises, with its message.
- "WRONG": something differs, and nothing was said.
- "error": an error that is not the library's own, where the plain run has none.
- "plain fails": the plain run fails as well (or its loss is not finite); not counted.
"""

from __future__ import annotations

import argparse
import linecache
import os
import random
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

import seqckpt

from .draws import Draw, seed_all

__all__ = ["KINDS", "Case", "Report", "attack", "build", "main", "weighted_sum"]

KINDS = ("bitwise", "to rounding", "refused", "WRONG", "error", "plain fails")
_PACKAGE = os.path.dirname(seqckpt.__file__)


@dataclass
class Case:
    """What is run: `step(checkpointed)` runs forward and backward, and returns all results, the loss first.

    `same_message`: where the plain run fails, the checkpointed one must fail with the same words.
    """

    model: nn.Module
    step: Callable[[bool], Any]
    inputs: dict[str, Tensor]
    tolerance: float = 1e-12
    same_message: bool = False


@dataclass
class Report:
    """Outcomes of some cases, and how often each ingredient was drawn with which outcome."""

    outcomes: Counter[str] = field(default_factory=Counter)
    coverage: dict[str, Counter[str]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def add(self, number: int, kind: str, message: str, ingredients: list[str]) -> str:
        self.outcomes[kind] += 1
        for name in {*ingredients}:
            self.coverage.setdefault(name, Counter())[kind] += 1
        line = f"case {number}: {kind}: {message}"
        if kind in ("WRONG", "error"):
            self.failures.append(line)
        return line

    def lines(self) -> Iterator[str]:
        counted = sum(self.outcomes.values()) - self.outcomes["plain fails"]
        yield f"{counted} cases counted: " + ", ".join(f"{self.outcomes[kind]} {kind}" for kind in KINDS)
        width = max(map(len, self.coverage), default=0)
        yield f"{'ingredient':{width}} {'drawn':>7} " + " ".join(f"{kind:>11}" for kind in KINDS)
        for name, counts in sorted(self.coverage.items()):
            numbers = " ".join(f"{counts[kind] or '':>11}" for kind in KINDS)
            yield f"{name:{width}} {sum(counts.values()):>7} {numbers}"


def attack(make: Callable[[Draw], Case], seed: int, number: int) -> tuple[str, str, list[str]]:
    """Outcome, message and ingredients of one case."""
    case, draw = build(make, seed, number)
    if isinstance(case, Exception):
        return "plain fails", f"cannot be built: {case}", draw.ingredients
    plain = _run(case, draw, checkpointed=False)
    twin, twin_draw = build(make, seed, number)
    assert isinstance(twin, Case)
    assert draw.ingredients == twin_draw.ingredients
    ours = _run(twin, twin_draw, checkpointed=True)
    if isinstance(plain, Exception):
        if case.same_message and str(plain) != str(ours):
            return "error", f"another message than the plain run's: {_first_line(ours)}", draw.ingredients
        return "plain fails", _first_line(plain), draw.ingredients
    if not all(t.isfinite().all() for name, t in plain.items() if name == "result 0"):
        return "plain fails", "its loss is not finite", draw.ingredients
    if isinstance(ours, Exception):
        return "refused" if _is_ours(ours) else "error", _first_line(ours), draw.ingredients
    kind, message = _compare(plain, ours, case.tolerance)
    if kind == "WRONG" and not _is_deterministic(make, seed, number, plain, case.tolerance):
        return "plain fails", "it does not repeat itself", draw.ingredients
    return kind, message, draw.ingredients


def _is_deterministic(make: Callable[[Draw], Case], seed: int, number: int, plain: dict[str, Any], off: float) -> bool:
    """Whether another plain run gives the same; a kernel that reads memory that nobody wrote does not."""
    case, draw = build(make, seed, number)
    assert isinstance(case, Case)
    again = _run(case, draw, checkpointed=False)
    return not isinstance(again, Exception) and _compare(plain, again, off)[0] != "WRONG"


def build(make: Callable[[Draw], Case], seed: int, number: int) -> tuple[Case | Exception, Draw]:
    draw = Draw(seed, number)
    seed_all(draw.seed % 2**31)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return make(draw), draw
    except (ValueError, TypeError, RuntimeError, NotImplementedError) as error:
        return error, draw


def _run(case: Case, draw: Draw, *, checkpointed: bool) -> dict[str, Any] | Exception:
    """All that is left after a step, by name; or the error that ended it."""
    seed_all(draw.seed % 2**31 + 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = case.step(checkpointed)
    except Exception as error:
        return error
    found: dict[str, Any] = {f"result {i}": _kept(leaf) for i, leaf in enumerate(tree_flatten(results)[0])}
    found |= {f"gradient of {name}": p.grad for name, p in case.model.named_parameters()}
    found |= {f"gradient of input {name}": x.grad for name, x in case.inputs.items()}
    found |= {f"buffer {name}": buffer for name, buffer in case.model.named_buffers()}
    numpy_state = np.random.get_state()  # noqa: NPY002 - the global generator is what is compared
    found["torch's random state"] = torch.get_rng_state()
    found["Python's random state"] = random.getstate()
    found["NumPy's random state"] = (numpy_state[1].tobytes(), *numpy_state[2:])
    for name, generator in draw.generators.items():
        found[f"state of {name}"] = _state(generator)
    return found


def _kept(leaf: Any) -> Any:
    return leaf.detach().clone() if isinstance(leaf, Tensor) else leaf


def _state(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.Generator):
        return str(generator.bit_generator.state)
    return str(generator.get_state()) if isinstance(generator, np.random.RandomState) else generator.getstate()


def _compare(plain: dict[str, Any], ours: dict[str, Any], tolerance: float) -> tuple[str, str]:
    if plain.keys() != ours.keys():
        return "WRONG", f"other results: {sorted(plain.keys() ^ ours.keys())[:4]}"
    gradients = [t for name, t in plain.items() if name.startswith("gradient") and t is not None and t.numel()]
    largest = max((float(g.detach().abs().max()) for g in gradients), default=0.0)
    worst, kind = "", "bitwise"
    for name, a in plain.items():
        b = ours[name]
        if a is None and name.startswith("gradient of input") and isinstance(b, Tensor) and not b.any():
            continue  # zeros for nothing: no one takes a step with the gradient of an input
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            if type(a) is not type(b) or a != b:
                return "WRONG", f"{name}: {_brief(b)} instead of {_brief(a)}"
            continue
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return "WRONG", f"{name}: {tuple(b.shape)} {b.dtype} instead of {tuple(a.shape)} {a.dtype}"
        if torch.equal(a.nan_to_num(), b.nan_to_num()):
            continue
        if not (a.is_floating_point() or a.is_complex()):
            return "WRONG", f"{name} differs"
        floor = largest * 1e-3 if name.startswith("gradient") else 0.1  # what is zero but for rounding
        off = float((a - b).abs().max()) / max(float(a.abs().max()), floor)
        if not off <= tolerance:
            return "WRONG", f"{name} is off by {off:.2g} of its largest entry"
        kind, worst = "to rounding", f"{name}, {off:.2g}"
    return kind, worst


def _brief(value: Any) -> str:
    return f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)[:40]


def _first_line(error: Any) -> str:
    if not isinstance(error, Exception):
        return "no error"
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:230]}"


def _is_ours(error: Exception) -> bool:
    """Whether a statement of the library raised it; what torch or Python raised for the library is not."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return last.filename.startswith(_PACKAGE) and linecache.getline(last.filename, last.lineno or 0).strip().startswith(
        "raise "
    )


def weighted_sum(results: Any) -> Tensor:
    """A loss that no two entries of the results enter alike; of a fixed generator, so that no random state moves."""
    generator = torch.Generator().manual_seed(99)
    terms = []
    for t in tree_flatten(results)[0]:
        if isinstance(t, Tensor) and (t.is_floating_point() or t.is_complex()):
            t = torch.view_as_real(t) if t.is_complex() else t
            weight = torch.randn(t.shape, generator=generator, dtype=torch.float64)
            terms.append((t.double() * weight).sum())
    return torch.stack(terms).sum()


def main(make: Callable[[Draw], Case], description: str) -> int:
    """The command line that the attacks share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=1000, help="how many (default 1000)")
    parser.add_argument("--start", type=int, default=0, help="number of the first case")
    parser.add_argument("--without", default="", help="skip cases with an ingredient that contains one of these, a,b,c")
    parser.add_argument("-v", "--verbose", action="store_true", help="a line for every case, and its ingredients")
    options = parser.parse_args()
    torch.set_num_threads(1)
    unwanted = [word for word in options.without.split(",") if word]
    report, began = Report(), time.monotonic()
    print(f"seed {options.seed}, cases {options.start} to {options.start + options.cases - 1}")
    for number in range(options.start, options.start + options.cases):
        if unwanted:
            names = build(make, options.seed, number)[1].ingredients
            if any(word in name for word in unwanted for name in names):
                continue
        kind, message, ingredients = attack(make, options.seed, number)
        line = report.add(number, kind, message, ingredients)
        if options.verbose or kind in ("WRONG", "error"):
            print(line, *([f"  {', '.join(ingredients)}"] if options.verbose else []), sep="\n", flush=True)
    print(*report.lines(), sep="\n")
    print(f"seed {options.seed}: {time.monotonic() - began:.0f} s")
    return 1 if report.failures else 0


if __name__ == "__main__":
    sys.exit("run one of the attacks: python -m tests.attack.encoders")

"""Case lm: the checkpointing tutorial's word language model; how long a sequence fits within a cap of memory.

Published for it: 8,100 steps instead of 800, in 1.03 times the time, by a recipe whose gradients are wrong (peers.py
says how). Two LSTM layers of 200, an embedding of 200, 33,278 words, batches of 20; no dropout, so that gradients can
be compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from seqckpt.bench.capped import Comparison, compare_within_cap
from seqckpt.bench.case import Case, Settings, read_bytes
from seqckpt.bench.hardware import default_device
from seqckpt.bench.report import Report
from seqckpt.bench.subject import Subject
from seqckpt.core import SegmentedLoss, SegmentedRNN
from seqckpt.progress import progress_bar

__all__ = ["LM", "build_language_model"]


def build_language_model(
    *, way: str, size: int, vocabulary: int, width: int, batch: int, segment: int, dtype: str = "float32"
) -> Subject:
    """A subject for sequences of `size` steps: "plain", "ours" or "recipe"."""
    torch.manual_seed(0)
    model = nn.ModuleDict(
        {
            "embedding": nn.Embedding(vocabulary, width),
            "rnn": nn.LSTM(width, width, num_layers=2),
            "decoder": nn.Linear(width, vocabulary),
        }
    ).to(device=default_device(), dtype=getattr(torch, dtype))
    words = torch.randint(vocabulary, (size + 1, batch), generator=torch.Generator().manual_seed(1))
    words = words.to(default_device())
    make = {"plain": _plain, "ours": _ours, "recipe": _recipe}[way]
    return Subject(make(model, words[:-1], words[1:], segment), dict(model.named_parameters()))


def _plain(model: Any, words: Tensor, targets: Tensor, segment: int) -> Callable[[], None]:
    def step() -> None:
        hidden, _ = model["rnn"](model["embedding"](words))
        functional.cross_entropy(model["decoder"](hidden).flatten(0, 1), targets.flatten()).backward()

    return step


def _ours(model: Any, words: Tensor, targets: Tensor, segment: int) -> Callable[[], None]:
    rnn = SegmentedRNN(model["rnn"], 5 * segment)
    head = SegmentedLoss(model["decoder"], nn.CrossEntropyLoss(), segment, batch_first=False)

    def step() -> None:
        hidden, _ = rnn(model["embedding"](words))
        head(hidden, targets).backward()

    return step


def _recipe(model: Any, words: Tensor, targets: Tensor, segment: int) -> Callable[[], None]:
    """As the tutorial has it: slices of the whole input, reentrant; a backward for each piece's mean."""

    def run_slice(start: int) -> Callable[..., Any]:
        def custom_forward(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden, (h, c) = model["rnn"](x[start : start + 5 * segment], (h, c))
            return hidden, h, c

        return custom_forward

    def step() -> None:
        x = model["embedding"](words)
        h = c = x.new_zeros(2, x.shape[1], x.shape[2])
        outputs = []
        for start in range(0, len(x), 5 * segment):
            hidden, h, c = checkpoint(run_slice(start), x, h, c, use_reentrant=True)
            outputs.append(hidden)
        whole = torch.cat(outputs)
        detached = whole.detach().requires_grad_()
        noted: dict[str, Tensor] = {}
        detached.register_hook(lambda grad: noted.update(last=grad))
        for part, wanted in zip(detached.split(segment), targets.split(segment), strict=True):
            functional.cross_entropy(model["decoder"](part).flatten(0, 1), wanted.flatten()).backward()
        whole.backward(noted["last"])

    return step


def run_lm(settings: Settings, report: Report) -> None:
    """Find the longest sequences, and time equal work."""
    common = {name: settings[name] for name in ("vocabulary", "width", "batch", "segment")}
    segment = settings["segment"]
    ways = {
        "plain": {"way": "plain", **common},
        f"ours: segments of {5 * segment}, loss segments of {segment}": {"way": "ours", **common},
        "tutorial's recipe, the same segments": {"way": "recipe", **common},
    }
    comparison = Comparison(
        title=f"word language model, vocabulary {settings['vocabulary']:,}, batch {settings['batch']}",
        size_name="number of steps",
        build=build_language_model,
        ways=ways,
        first=(settings["shortest"], 2 * settings["shortest"]),
        error_size=4 * segment,
        most_ratio=settings["most_ratio"],
    )
    total = len(ways) * (3 + settings["steps"])
    with progress_bar(total=total, desc="lm", unit="step") as bar:

        def tick(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        compare_within_cap(comparison, read_bytes("cap", settings["cap"]), settings, report, tick=tick)


LM = Case(
    "lm",
    "the tutorial's word language model: the longest sequence within a cap of memory, and the time of equal work",
    run_lm,
    settings={
        "cap": "2GiB",
        "vocabulary": 33_278,
        "width": 200,
        "batch": 20,
        "segment": 10,
        "shortest": 40,
        "most_ratio": 12.0,
        "steps": 3,
    },
    quick={"cap": "48MiB", "vocabulary": 2000, "width": 32, "batch": 10, "steps": 1, "most_ratio": 10.0},
    least={"most_ratio": 1, "steps": 0},
    check=lambda settings: read_bytes("cap", settings["cap"]),
)

"""Random decoders and criteria in SegmentedLoss, against the plain criterion of the whole sequence."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seqckpt import SegmentedLoss
from seqckpt.core.criteria import TemporalSmoothing

from .comparison import Case, main
from .draws import Draw
from .random_layers import random_layer, torch_noise
from .steps import take_step

__all__ = ["make_loss_case"]

WIDTH, CLASSES = 4, 3


# ------------------------------------------------------------------ criteria


class Focal(nn.Module):
    """A criterion of one's own, with a learnable weight, in the form that SegmentedLoss asks for."""

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction
        self.sharpness = nn.Parameter(torch.tensor(1.5))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        p = logits.softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        elements = -((1 - p) ** self.sharpness) * p.log()
        return {"none": elements, "mean": elements.mean(), "sum": elements.sum()}[self.reduction]


class Pairwise(nn.Module):
    """Differences of frames two apart: needs two previous frames."""

    num_previous = 2

    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        elements = (logits[:, 2:] - logits[:, :-2]).square().sum(-1) + logits[:, 1:-1].abs().sum(-1)
        return {"none": elements, "mean": elements.mean(), "sum": elements.sum()}[self.reduction]


Made = tuple[nn.Module, str]  # a criterion, and its targets: "classes", "soft", "floats", "bits", "signs"


def _cross_entropy(draw: Draw, reduction: str) -> Made:
    options: dict[str, Any] = {"reduction": reduction}
    if draw.chance("class weights", 0.4):
        options["weight"] = torch.rand(CLASSES, dtype=torch.float64) + 0.1
    if draw.chance("label smoothing", 0.3):
        options["label_smoothing"] = 0.1
    if draw.chance("soft targets", 0.2):
        return nn.CrossEntropyLoss(**options), "soft"
    if draw.chance("ignore_index", 0.4):
        options["ignore_index"] = draw.random.choice([-100, 0, 2])
    return nn.CrossEntropyLoss(**options), "classes"


def _bits(draw: Draw, reduction: str) -> Made:
    weight = torch.rand(CLASSES, dtype=torch.float64) + 0.2 if draw.chance("pos_weight", 0.4) else None
    scale = torch.rand(CLASSES, dtype=torch.float64) if draw.chance("weight of classes", 0.2) else None
    return nn.BCEWithLogitsLoss(scale, pos_weight=weight, reduction=reduction), "bits"


CRITERIA: dict[str, Callable[[Draw, str], Made]] = {
    "cross entropy": _cross_entropy,
    "BCE with logits": _bits,
    "MSE": lambda draw, r: (nn.MSELoss(reduction=r), "floats"),
    "L1": lambda draw, r: (nn.L1Loss(reduction=r), "floats"),
    "smooth L1": lambda draw, r: (nn.SmoothL1Loss(reduction=r, beta=0.5), "floats"),
    "Huber": lambda draw, r: (nn.HuberLoss(reduction=r), "floats"),
    "Poisson": lambda draw, r: (nn.PoissonNLLLoss(reduction=r), "bits"),
    "KL divergence": lambda draw, r: (nn.KLDivLoss(reduction=r), "soft"),
    "soft margin": lambda draw, r: (nn.SoftMarginLoss(reduction=r), "signs"),
    "hinge embedding": lambda draw, r: (nn.HingeEmbeddingLoss(reduction=r), "signs"),
    "multilabel soft margin": lambda draw, r: (nn.MultiLabelSoftMarginLoss(reduction=r), "bits"),
    "NLL": lambda draw, r: (nn.NLLLoss(reduction=r, ignore_index=draw.random.choice([-100, 1])), "classes"),
    "focal": lambda draw, r: (Focal(r), "classes"),
    "pairwise": lambda draw, r: (Pairwise(r), "floats"),
    "temporal smoothing": lambda draw, r: (TemporalSmoothing(0.15, reduction=r), "classes"),
}


def _targets(kind: str, shape: tuple[int, ...], criterion: nn.Module, draw: Draw) -> Tensor:
    if kind == "classes":
        targets = torch.randint(CLASSES, shape)
        ignore = getattr(criterion, "ignore_index", None)
        if ignore is not None and draw.chance("ignored frames", 0.5):
            targets = torch.where(torch.rand(shape) < 0.3, torch.full_like(targets, ignore), targets)
        return targets
    floats = torch.randn(*shape, CLASSES, dtype=torch.float64)
    made = {"soft": floats.softmax(-1), "bits": (floats > 0).double(), "signs": floats.sign()}
    return made.get(kind, floats)


def _plain_loss(
    criterion: nn.Module, logits: Tensor, targets: Tensor, mask: Tensor | None, batch_first: bool
) -> Tensor:
    """The whole sequence's loss, as one writes it without segments."""
    if getattr(criterion, "num_previous", 0):
        logits, targets = (
            t if batch_first else t.transpose(0, 1) if logits.dim() > 2 else t[None] for t in (logits, targets)
        )
        return criterion(logits, targets)
    if isinstance(criterion, (nn.CrossEntropyLoss, nn.NLLLoss, nn.MultiLabelSoftMarginLoss)):
        logits = logits.reshape(-1, CLASSES)
        targets = targets.reshape(-1, *targets.shape[-1:]) if targets.is_floating_point() else targets.reshape(-1)
    if mask is None:
        return criterion(logits, targets)
    rows, wanted = logits.reshape(-1, CLASSES)[mask.reshape(-1)], targets.reshape(mask.numel(), -1)[mask.reshape(-1)]
    return criterion(rows, wanted if targets.is_floating_point() else wanted.squeeze(-1))


# ------------------------------------------------------------------ decoders


class Rows(nn.Module):
    """A layer over (n, C, 1), as per-frame layers of encoders take it, applied to (..., C)."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.reshape(-1, x.shape[-1], 1)).view(x.shape)


class Several(nn.Module):
    def __init__(self, heads: dict[str, nn.Module]) -> None:
        super().__init__()
        self.heads = nn.ModuleDict(heads)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {name: head(x) for name, head in self.heads.items()}


def _decoder(draw: Draw) -> nn.Module:
    layers: list[nn.Module] = []
    kind = draw.one(
        "decoder",
        ("linear", "deep", "in place first", "random numbers", "torch's numbers", "identity"),
        (5, 3, 1, 0.4, 1, 0.3),
    )
    if kind == "in place first":
        layers += [draw.random.choice([nn.ReLU(inplace=True), nn.Dropout(0.3, inplace=True), nn.ELU(inplace=True)])]
    if kind in ("deep", "in place first"):
        layers += [nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(inplace=True), nn.Dropout(0.3)]
    elif kind == "random numbers":
        layers.append(Rows(random_layer(draw, WIDTH)))
    elif kind == "torch's numbers":
        layers.append(Rows(torch_noise(draw, WIDTH)))
    last = nn.Linear(WIDTH, CLASSES)
    if draw.chance("weight norm", 0.08):
        parametrizations.weight_norm(last)
    return nn.Sequential(*layers, last)


# ------------------------------------------------------------------ the case


class _Attack:
    def __init__(self, draw: Draw) -> None:
        self.dtype = draw.one("precision", {"float64": torch.float64, "float32": torch.float32}, (8, 1))
        batch, time = draw.number(1, 3), draw.number(1, 12)
        self.form = draw.one("form", ("batch first", "time first", "unbatched", "packed"), (5, 1.5, 1.5, 1))
        self.shape = {"time first": (time, batch), "unbatched": (time,)}.get(self.form, (batch, time))
        self.batch_first = self.form != "time first"
        self.segment_length = draw.random.choice([1, draw.number(1, time + 1), draw.number(1, time + 1)])
        names = draw.one("criteria", ("one", "a list", "a dict"), (6, 1, 1))
        self.parts: dict[str, tuple[nn.Module, Tensor]] = {}
        for i in range(1 if names == "one" else 2):
            reduction = draw.one("reduction", ("mean", "sum"), (2, 1))
            if i == 0 or names == "a dict":
                criterion, kind = draw.one("criterion", CRITERIA, (8, 2, *[1] * (len(CRITERIA) - 2)))(draw, reduction)
                targets = _targets(kind, self.shape, criterion, draw)
            else:  # of a list, all read the same targets
                criterion = (
                    TemporalSmoothing(reduction=reduction) if kind == "classes" else nn.L1Loss(reduction=reduction)
                )
            self.parts[f"head{i}"] = criterion, targets
        self.names = names
        decoder = Several({name: _decoder(draw) for name in self.parts}) if names == "a dict" else _decoder(draw)
        criteria = {name: criterion for name, (criterion, _) in self.parts.items()}
        before = nn.Linear(WIDTH, WIDTH) if draw.chance("a layer before", 0.5) else nn.Identity()
        self.model = nn.ModuleDict({"before": before, "decoder": decoder, "criteria": nn.ModuleDict(criteria)})
        self.model.to(self.dtype).train(not draw.chance("eval", 0.1))
        if draw.chance("frozen decoder", 0.1):
            decoder.requires_grad_(False)
        self._draw_hidden(draw)
        previous = any(getattr(criterion, "num_previous", 0) for criterion in criteria.values())
        maskable = names != "a list" and self.form in ("batch first", "time first", "unbatched") and not previous
        self.mask = torch.rand(self.shape) < 0.7 if maskable and draw.chance("mask", 0.25) else None
        self.lengths = torch.tensor([time, *[draw.number(1, time) for _ in range(batch - 1)]])
        self.collects = draw.chance("collect", 0.2)
        self.take = take_step(draw, self.model, self.leaf)

    def _draw_hidden(self, draw: Draw) -> None:
        kind = draw.one("layout", ("contiguous", "expanded", "sliced", "transposed"), (5, 1, 1, 1))
        shape = (*self.shape, WIDTH)
        self.view: Callable[[Tensor], Tensor] = lambda x: x
        if kind == "expanded":
            self.view, shape = partial(torch.Tensor.expand, size=shape), (1, *shape[1:])
        elif kind == "sliced":
            self.view, shape = (lambda x: x[..., 1:-1]), (*shape[:-1], WIDTH + 2)
        elif kind == "transposed":
            self.view, shape = (lambda x: x.transpose(0, -1)), (WIDTH, *shape[1:-1], shape[0])
        self.leaf = torch.randn(*shape, dtype=self.dtype).requires_grad_(draw.chance("hidden with gradient", 0.5))

    def _target(self, name: str) -> Tensor:
        targets = self.parts[name][1]
        return targets.to(self.dtype) if targets.is_floating_point() else targets

    def _pack(self, x: Tensor) -> PackedSequence:
        return pack_padded_sequence(x, self.lengths, batch_first=True, enforce_sorted=False)

    def run(self, checkpointed: bool, leaf: Tensor) -> tuple[Any, Tensor]:
        hidden: Any = self.model["before"](self.view(leaf))
        targets = {name: self._target(name) for name in self.parts}
        if self.form == "packed":
            hidden, targets = self._pack(hidden), {name: self._pack(t) for name, t in targets.items()}
        if not checkpointed:
            return self._plain_run(hidden, targets)
        criteria: Any = {name: criterion for name, (criterion, _) in self.parts.items()}
        if self.names != "a dict":
            criteria = [*criteria.values()] if self.names == "a list" else criteria["head0"]
            targets = targets["head0"]
        seen: list[Any] = []
        loss = SegmentedLoss(
            self.model["decoder"],
            criteria,
            self.segment_length,
            collect=seen.append if self.collects else None,
            batch_first=self.batch_first,
        )(hidden, targets, self.mask)
        dim = 0 if self.form in ("packed", "time first", "unbatched") else 1
        joined = torch.utils._pytree.tree_map(lambda *parts: torch.cat(parts, dim), *seen) if seen else None
        return joined, loss

    def _plain_run(self, hidden: Any, targets: Any) -> tuple[Any, Tensor]:
        if isinstance(hidden, PackedSequence):
            hidden, targets = hidden.data, {name: t.data for name, t in targets.items()}
        logits = self._decode(hidden)
        terms = []
        for name, (criterion, _) in self.parts.items():
            own = logits[name] if isinstance(logits, dict) else logits
            batch_first = self.batch_first and own.dim() > 2
            terms.append(_plain_loss(criterion, own, targets[name], self.mask, batch_first))
        collected = torch.utils._pytree.tree_map(torch.Tensor.detach, logits) if self.collects else None
        return collected, torch.stack(terms).sum()

    def _decode(self, hidden: Tensor) -> Any:
        """The decoder over segments, so that it draws the same random numbers."""
        dim = 0 if self.form in ("packed", "time first", "unbatched") else 1
        parts = [self.model["decoder"](part.clone()) for part in hidden.split(self.segment_length, dim)]
        return torch.utils._pytree.tree_map(lambda *leaves: torch.cat(leaves, dim), *parts)

    def step(self, checkpointed: bool) -> Any:
        return self.take(partial(self.run, checkpointed))


def make_loss_case(draw: Draw) -> Case:
    attack = _Attack(draw)
    return Case(attack.model, attack.step, {"hidden": attack.leaf}, 1e-12 if attack.dtype == torch.float64 else 1e-5)


if __name__ == "__main__":
    sys.exit(main(make_loss_case, __doc__ or ""))

"""SegmentedLoss against the whole-sequence criterion, and against the equally cut plain loop."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from measures import count_calls
from reference import Run, hold_against, run_once
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence
from torch.utils.flop_counter import FlopCounterMode

from seqckpt import SegmentedLoss
from seqckpt.core import TemporalSmoothing
from seqckpt.errors import ReplayError

ROUNDING = 1e-10  # float64: segment sums are added in another order than one sum over all frames
B, T, H, C = 2, 23, 6, 5
LENGTHS = [1, 7, 23, 99]


def hidden(*shape: int) -> Tensor:
    return torch.randn(*(shape or (B, T)), H, dtype=torch.float64, requires_grad=True)


def classes(*shape: int, ignored: bool = False, index: int = -100) -> Tensor:
    targets = torch.randint(C, shape or (B, T))
    return targets.masked_fill(torch.rand(targets.shape) < 0.4, index) if ignored else targets


def weights() -> Tensor:
    return torch.tensor([1.0, 0.3, 2.0, 0.0, 4.0], dtype=torch.float64)


class Model(nn.Module):
    """A decoder and a criterion, whichever way they are run."""

    def __init__(self, criterion: Any, decoder: nn.Module | None = None) -> None:
        super().__init__()
        self.decoder = decoder or nn.Sequential(nn.Dropout(0.3), nn.Linear(H, C)).double()
        self.criterion = criterion


def whole(model: Model, hidden: Tensor, targets: Any) -> Tensor:
    """torch's own use of a class criterion: one call, all frames in rows."""
    logits = model.decoder(hidden)
    soft = targets.is_floating_point()
    return model.criterion(logits.flatten(0, -2), targets.flatten(0, -2) if soft else targets.flatten())


def elementwise(model: Model, hidden: Tensor, targets: Any) -> Tensor:
    return model.criterion(model.decoder(hidden), targets)


def segmented(segment_length: int, **options: Any) -> Callable[..., Tensor]:
    def run(model: Model, hidden: Any, targets: Any, *mask: Tensor) -> Tensor:
        return SegmentedLoss(model.decoder, model.criterion, segment_length, **options)(hidden, targets, *mask)

    return run


def agree(
    plain: Callable[..., Tensor], model: Model, *inputs: Any, segment_length: int = 7, run: Any = None, **options: Any
) -> Run:
    """Value and gradients of the whole-sequence criterion, dropout switched off (its masks depend on the cut)."""
    return hold_against(plain, run or segmented(segment_length, **options), model.eval(), inputs, tolerance=ROUNDING)


# ------------------------------------------------------------------ equal to the criterion of the whole sequence


@pytest.mark.parametrize("segment_length", LENGTHS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("index", [None, -100, 3, 255])
def test_cross_entropy(
    segment_length: int, reduction: str, smoothing: float, weighted: bool, index: int | None
) -> None:
    """Case 44: T is no multiple of the segment, and segments differ in how many frames count and how much."""
    criterion = nn.CrossEntropyLoss(
        weights() if weighted else None,
        ignore_index=-100 if index is None else index,
        label_smoothing=smoothing,
        reduction=reduction,
    )
    targets = classes(ignored=index is not None, index=index or 0)
    agree(whole, Model(criterion), hidden(), targets, segment_length=segment_length)


@pytest.mark.parametrize("segment_length", LENGTHS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_soft_targets(segment_length: int, reduction: str, weighted: bool, smoothing: float) -> None:
    criterion = nn.CrossEntropyLoss(weights() if weighted else None, reduction=reduction, label_smoothing=smoothing)
    soft = torch.rand(B, T, C, dtype=torch.float64).softmax(-1)
    agree(whole, Model(criterion), hidden(), soft, segment_length=segment_length)


@pytest.mark.parametrize(
    "criterion",
    [
        nn.BCEWithLogitsLoss(),
        nn.BCEWithLogitsLoss(pos_weight=weights(), reduction="sum"),
        nn.BCEWithLogitsLoss(weights(), pos_weight=weights() + 1),
        nn.MSELoss(),
        nn.L1Loss(reduction="sum"),
        nn.SmoothL1Loss(beta=0.3),
        nn.HuberLoss(),
        nn.PoissonNLLLoss(),
        nn.KLDivLoss(reduction="sum"),
        nn.SoftMarginLoss(),
        nn.MultiLabelSoftMarginLoss(weights()),
        F.mse_loss,
        F.binary_cross_entropy_with_logits,
    ],
    ids=lambda c: getattr(c, "__name__", str(c)),
)
def test_elementwise_criteria(criterion: Any) -> None:
    targets = torch.rand(B, T, C, dtype=torch.float64)
    agree(elementwise, Model(criterion), hidden(), targets)


@pytest.mark.parametrize("criterion", [nn.NLLLoss(weights()), nn.NLLLoss(reduction="sum", ignore_index=2)])
def test_negative_log_likelihood(criterion: nn.Module) -> None:
    decoder = nn.Sequential(nn.Linear(H, C), nn.LogSoftmax(-1)).double()
    agree(whole, Model(criterion, decoder), hidden(), classes())


class Renamed(nn.CrossEntropyLoss):
    """A subclass that leaves forward as it is."""


def test_subclass_of_cross_entropy_has_its_convention() -> None:
    agree(whole, Model(Renamed(weights())), hidden(), classes(ignored=True))


@pytest.mark.parametrize("shape", [(T,), (1, T), (3, T), (B, 1)])
def test_shapes_of_hidden(shape: tuple[int, ...]) -> None:
    agree(whole, Model(nn.CrossEntropyLoss(weights())), hidden(*shape), classes(*shape, ignored=True))


def test_time_first() -> None:
    agree(whole, Model(nn.CrossEntropyLoss(weights())), hidden(T, B), classes(T, B, ignored=True), batch_first=False)


@pytest.mark.parametrize("targets_packed", [True, False])
def test_packed_hidden(targets_packed: bool) -> None:
    padded, targets = hidden(3, 9), classes(3, 9)
    lengths = torch.tensor([4, 9, 1])
    rows = [torch.arange(9) < n for n in lengths]

    def plain(model: Model, padded: Tensor, targets: Tensor) -> Tensor:
        logits = torch.cat([model.decoder(clip[own]) for clip, own in zip(padded, rows, strict=True)])
        return model.criterion(logits, torch.cat([clip[own] for clip, own in zip(targets, rows, strict=True)]))

    def packed(model: Model, padded: Tensor, targets: Tensor) -> Tensor:
        x, y = (pack_padded_sequence(t, lengths, True, enforce_sorted=False) for t in (padded, targets))
        assert isinstance(x, PackedSequence)
        return SegmentedLoss(model.decoder, model.criterion, 4)(x, y if targets_packed else y.data)

    agree(plain, Model(nn.CrossEntropyLoss(weights())), padded, targets, run=packed)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phase, self.tool = nn.Linear(H, C).double(), nn.Linear(H, 3).double()

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"phase": self.phase(x), "tool": self.tool(x)}


def two_heads_apart(model: Model, hidden: Tensor, targets: dict[str, Tensor]) -> Tensor:
    logits = model.decoder(hidden)
    phase = F.cross_entropy(logits["phase"].flatten(0, 1), targets["phase"].flatten(), weights())
    tool = F.binary_cross_entropy_with_logits(logits["tool"], targets["tool"])
    smooth = TemporalSmoothing()(logits["phase"], targets["phase"])
    return phase + tool + smooth


def test_heads_with_summed_losses() -> None:
    """Case 26: a decoder that returns a dict keeps the gradients of both heads."""
    targets = {"phase": classes(ignored=True), "tool": torch.rand(B, T, 3, dtype=torch.float64).round()}
    criteria = {
        "phase": [nn.CrossEntropyLoss(weights()), TemporalSmoothing()],
        "tool": F.binary_cross_entropy_with_logits,
    }
    x = hidden()
    expected = run_once(Model(None, TwoHeads()), two_heads_apart, [x, targets])
    model = Model(None, TwoHeads())
    got = run_once(model, lambda m, *a: SegmentedLoss(m.decoder, criteria, 7)(*a), [x, targets])
    assert got.gradients.keys() == expected.gradients.keys()
    torch.manual_seed(0)
    agree(
        two_heads_apart,
        Model(None, TwoHeads()),
        x,
        targets,
        run=lambda m, *a: SegmentedLoss(m.decoder, criteria, 7)(*a),
    )


def test_list_of_criteria_is_summed_and_registered() -> None:
    def both(model: Model, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = model.decoder(hidden).flatten(0, 1)
        return F.cross_entropy(logits, targets.flatten(), weights()) + F.cross_entropy(logits, targets.flatten())

    criteria = [nn.CrossEntropyLoss(weights()), F.cross_entropy]
    agree(both, Model(None), hidden(), classes(), run=lambda m, *a: SegmentedLoss(m.decoder, criteria, 7)(*a))
    head = SegmentedLoss(nn.Linear(H, C), criteria, 7)
    assert "criterion.0.weight" in head.state_dict()
    assert head.to(torch.float16).criterion[0].weight.dtype == torch.float16


@pytest.mark.parametrize("criterion", [nn.CrossEntropyLoss(weights()), nn.CrossEntropyLoss(reduction="sum")], ids=str)
def test_mask_is_the_same_as_leaving_frames_out(criterion: nn.Module) -> None:
    lengths = [23, 9]
    mask = torch.stack([torch.arange(T) < n for n in lengths])

    def plain(model: Model, hidden: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        return model.criterion(model.decoder(hidden[mask]), targets[mask])

    agree(plain, Model(criterion), hidden(), classes(ignored=True), mask)
    agree(plain, Model(criterion), hidden(), torch.rand(B, T, C, dtype=torch.float64).softmax(-1), mask)


@pytest.mark.parametrize("criterion", [nn.MSELoss(), nn.BCEWithLogitsLoss(pos_weight=weights())], ids=str)
def test_mask_for_elementwise_criteria(criterion: nn.Module) -> None:
    mask = torch.rand(B, T) < 0.5

    def plain(model: Model, hidden: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        return model.criterion(model.decoder(hidden[mask]), targets[mask])

    agree(plain, Model(criterion), hidden(), torch.rand(B, T, C, dtype=torch.float64), mask)


def test_masked_frames_may_hold_anything() -> None:
    mask = torch.arange(T).expand(B, T) < 10
    x = hidden().detach()
    x[:, 15] = float("inf")
    head = SegmentedLoss(nn.Linear(H, C).double(), nn.MSELoss(), 7)
    loss = head(x.nan_to_num(posinf=1e308).mul(0.5), torch.zeros(B, T, C, dtype=torch.float64), mask)
    assert loss.isfinite()


# ------------------------------------------------------------------ bitwise equal to the equally cut loop


def cut_loop(segment_length: int) -> Callable[..., Tensor]:
    def run(model: Model, hidden: Tensor, targets: Tensor) -> Tensor:
        total = share = None
        for x, y in zip(hidden.split(segment_length, 1), targets.split(segment_length, 1), strict=True):
            rows = model.decoder(x).flatten(0, 1)
            part = F.cross_entropy(rows, y.flatten(), weights(), reduction="none").sum()
            counted = weights()[y.flatten().clamp(min=0)].masked_fill(y.flatten() == -100, 0).sum()
            total = part if total is None else total + part
            share = counted if share is None else share + counted
        return total / share

    return run


@pytest.mark.parametrize("segment_length", LENGTHS)
def test_bitwise_equal_to_the_equally_cut_loop(segment_length: int) -> None:
    """Dropout in the decoder included, and the random state afterwards."""
    model = Model(nn.CrossEntropyLoss(weights())).train()
    hold_against(cut_loop(segment_length), segmented(segment_length), model, [hidden(), classes(ignored=True)])


@pytest.mark.parametrize("factor", [1 / 3, 65536.0])
def test_scaled_loss_scales_gradients_exactly(factor: float) -> None:
    """Cases 54: gradient accumulation over 3 clips, and what a GradScaler does."""
    model = Model(nn.CrossEntropyLoss(weights())).train()
    hold_against(
        lambda *a: cut_loop(7)(*a) * factor,
        lambda *a: segmented(7)(*a) * factor,
        model,
        [hidden(), classes(ignored=True)],
    )


def test_accumulated_gradients_equal_plain() -> None:
    batches = [(hidden(), classes(ignored=True)) for _ in range(3)]

    def accumulate(run: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return lambda model, *a: torch.stack([run(model, x, y) / 3 for x, y in zip(a[::2], a[1::2], strict=True)]).sum()

    flat = [t for batch in batches for t in batch]
    agree(accumulate(whole), Model(nn.CrossEntropyLoss(weights())), *flat, run=accumulate(segmented(7)))


# ------------------------------------------------------------------ the cases' literal numbers


class PerFrame(nn.Module):
    """The frame's loss is the logit itself."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return {"none": lambda x: x, "mean": torch.mean, "sum": torch.sum}[self.reduction](logits)


def test_mean_of_segment_means_is_not_the_mean() -> None:
    """Case 44."""
    losses = torch.tensor([[1.0, 1, 1, 4, 4]], dtype=torch.float64, requires_grad=True)
    loss = SegmentedLoss(nn.Identity(), PerFrame(), 3)(losses.unsqueeze(-1), torch.zeros(1, 5))
    loss.backward()
    assert loss.item() == pytest.approx(2.2, abs=1e-15)
    assert torch.equal(losses.grad, torch.full((1, 5), 0.2, dtype=torch.float64))


def test_segments_without_a_label() -> None:
    """Case 46: the last segment counts nothing; plain per-segment means would be 0.7201, 3.0486 and nan."""
    logits = torch.tensor([[[2.0, 0], [0, 1], [0, 0], [3, 0], [0, 0]]], dtype=torch.float64, requires_grad=True)
    head = SegmentedLoss(nn.Identity(), nn.CrossEntropyLoss(ignore_index=-1), 2)
    loss = head(logits, torch.tensor([[0, 0, -1, 1, -1]]))
    loss.backward()
    counted = torch.tensor([-2.0, 1.0, 3.0], dtype=torch.float64)  # by how much the wrong class leads
    assert loss.item() == pytest.approx(float(counted.exp().log1p().mean()), rel=1e-12)
    assert loss.item() == pytest.approx(1.4962589, abs=2e-7)  # the case's digits are float32's
    assert logits.grad.isfinite().all()
    assert torch.equal(logits.grad[0, [2, 4]], torch.zeros(2, 2, dtype=torch.float64))


@pytest.mark.parametrize("weight", [None, weights()], ids=["plain", "weighted"])
@pytest.mark.parametrize("extra", [[], [TemporalSmoothing()]], ids=["", "smoothing"])
def test_clip_without_any_label_is_finite(weight: Tensor | None, extra: list[nn.Module]) -> None:
    x = hidden()
    head = SegmentedLoss(nn.Linear(H, C).double(), [nn.CrossEntropyLoss(weight), *extra], 7)
    loss = head(x, torch.full((B, T), -100))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(x.grad, torch.zeros_like(x))
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in head.parameters())


def test_labels_of_weight_zero_only_are_finite() -> None:
    """Case 48."""
    head = SegmentedLoss(nn.Linear(H, C).double(), nn.CrossEntropyLoss(weights()), 7)
    loss = head(hidden(), torch.full((B, T), 3))
    loss.backward()
    assert loss.item() == 0
    assert head.decoder.weight.grad.isfinite().all()


def test_mask_without_any_frame_is_finite() -> None:
    for criterion, targets in ((nn.CrossEntropyLoss(), classes()), (nn.MSELoss(), torch.zeros(B, T, C).double())):
        x = hidden()
        loss = SegmentedLoss(nn.Linear(H, C).double(), criterion, 7)(x, targets, torch.zeros(B, T, dtype=torch.bool))
        loss.backward()
        assert loss.item() == 0
        assert torch.equal(x.grad, torch.zeros_like(x))


def test_the_last_frames_count() -> None:
    """Case 50: 50 frames in segments of 7."""
    seen: list[Tensor] = []
    head = SegmentedLoss(nn.Linear(H, C).double(), nn.CrossEntropyLoss(), 7, collect=seen.append)
    x, targets = hidden(1, 50), classes(1, 50)
    loss = head(x, targets)
    targets[0, 49] = (targets[0, 49] + 1) % C
    assert float(head(x, targets).detach()) != loss.item()
    assert [len(s[0]) for s in seen[:8]] == [7] * 7 + [1]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_finite(dtype: torch.dtype) -> None:
    """Case 56: exp(100) overflows float16, so cross entropy must be computed in float32."""
    logits = torch.tensor([[[100.0, 0], [0, 100]]], dtype=dtype, requires_grad=True)
    loss = SegmentedLoss(nn.Identity(), nn.CrossEntropyLoss(), 1)(logits, torch.tensor([[0, 0]]))
    loss.backward()
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(50.0, rel=1e-6)  # (0 + 100) / 2 in float32
    assert logits.grad.isfinite().all()


def test_bfloat16_autocast() -> None:
    x, targets = hidden().detach().float().requires_grad_(), classes(ignored=True)
    head = SegmentedLoss(nn.Linear(H, C), nn.CrossEntropyLoss(weights().float()), 7)
    head(x, targets).backward()
    full = [head.decoder.weight.grad.clone(), x.grad.clone()]
    head.zero_grad()
    x.grad = None
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = head(x, targets)
        assert loss.dtype == torch.float32
        loss.backward()
    for got, expected in zip([head.decoder.weight.grad, x.grad], full, strict=True):
        assert torch.cosine_similarity(got.flatten(), expected.flatten(), 0) > 0.999


# ------------------------------------------------------------------ neighbours across a cut


@pytest.mark.parametrize("segment_length", LENGTHS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_smoothing_counts_pairs_across_cuts_once(segment_length: int, reduction: str) -> None:
    criterion = TemporalSmoothing(threshold=0.7, reduction=reduction)
    agree(elementwise, Model(criterion), hidden(), classes(ignored=True), segment_length=segment_length)


def test_smoothing_by_hand() -> None:
    logits = torch.tensor([[[0.0, 0], [2, 0], [2, 0], [0, 9]]], dtype=torch.float64)
    log_p = logits.log_softmax(-1)
    squares = (log_p[0, 1:] - log_p[0, :-1]).square().clamp(max=16)
    got = SegmentedLoss(nn.Identity(), TemporalSmoothing(), 2)(logits, torch.zeros(1, 4, dtype=torch.long))
    assert got.item() == pytest.approx(0.15 * float(squares.mean()), rel=1e-12)
    assert float(squares.max()) == 16  # the clip at 4 was at work


@pytest.mark.parametrize("layout", ["unbatched", "time first"])
def test_smoothing_in_other_layouts(layout: str) -> None:
    shape = (T,) if layout == "unbatched" else (T, B)

    def plain(model: Model, hidden: Tensor, targets: Tensor) -> Tensor:
        logits = model.decoder(hidden)
        logits, targets = (
            (logits[None], targets[None]) if layout == "unbatched" else (logits.mT.mT.transpose(0, 1), targets.T)
        )
        return model.criterion(logits, targets)

    agree(plain, Model(TemporalSmoothing()), hidden(*shape), classes(*shape, ignored=True), batch_first=False)


@pytest.mark.parametrize("segment_length", LENGTHS)
def test_smoothing_of_padded_clips_is_that_of_the_clips(segment_length: int) -> None:
    mask = torch.arange(T).expand(1, T) < 9

    def plain(model: Model, hidden: Tensor, targets: Tensor, mask: Tensor) -> Tensor:
        return model.criterion(model.decoder(hidden[:, :9]), targets[:, :9])

    agree(plain, Model(TemporalSmoothing()), hidden(1, T), classes(1, T), mask, segment_length=segment_length)


class SecondDifference(nn.Module):
    """A user's smoothing over three frames."""

    num_previous = 2

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        self.reduction = reduction

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        bend = (logits[:, 2:] - 2 * logits[:, 1:-1] + logits[:, :-2]).square()
        return {"none": lambda x: x, "mean": torch.mean, "sum": torch.sum}[self.reduction](bend)


@pytest.mark.parametrize("segment_length", LENGTHS)
def test_smoothing_over_three_frames(segment_length: int) -> None:
    agree(elementwise, Model(SecondDifference()), hidden(), classes(), segment_length=segment_length)


def test_smoothing_of_a_packed_sequence_is_refused() -> None:
    packed = pack_padded_sequence(hidden(3, 9), torch.tensor([9, 4, 1]), True)
    with pytest.raises(ValueError, match=r"PackedSequence keeps no|not adjacent in a PackedSequence"):
        SegmentedLoss(nn.Linear(H, C).double(), TemporalSmoothing(), 4)(packed, classes(14))


# ------------------------------------------------------------------ criteria of the user's own


class Focal(nn.Module):
    """Lin et al. 2017, with a reduction as torch's criteria have it."""

    def __init__(self, gamma: float = 2.0, reduction: str = "mean", counts: str = "all") -> None:
        super().__init__()
        self.gamma, self.reduction, self.counts = gamma, reduction, counts

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        nll = F.cross_entropy(logits.flatten(0, -2), targets.flatten(), reduction="none")
        elements = (1 - (-nll).exp()) ** self.gamma * nll
        if self.reduction == "none":
            return elements
        if self.reduction == "sum":
            return elements.sum()
        return elements.mean() if self.counts == "all" else elements.sum() / (targets != -100).sum()


@pytest.mark.parametrize("segment_length", LENGTHS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_focal_loss_of_the_users_own(segment_length: int, reduction: str) -> None:
    agree(elementwise, Model(Focal(reduction=reduction)), hidden(), classes(), segment_length=segment_length)


class Temperature(Focal):
    """A criterion with a parameter to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(0.3, dtype=torch.float64))

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return super().forward(logits * self.log_scale.exp(), targets)


@pytest.mark.parametrize("form", [lambda c: c, lambda c: [c], lambda c: {"only": c}], ids=["one", "list", "dict"])
def test_criterion_with_a_parameter_is_trained(form: Any) -> None:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(H, C).double()

        def forward(self, x: Tensor) -> Any:
            return self.linear(x)

    criterion = Temperature()
    named = isinstance(form(criterion), dict)
    decoder: Any = nn.Linear(H, C).double()
    x, y = hidden(), classes()
    plain = criterion(decoder(x), y)
    expected = torch.autograd.grad(plain, [criterion.log_scale, decoder.weight, x])
    if named:
        inner = decoder
        decoder = _Dict(inner)
        y = {"only": y}
    head = SegmentedLoss(decoder, form(criterion), 7)
    assert sum(p is criterion.log_scale for p in head.parameters()) == 1
    got = torch.autograd.grad(head(x, y), [criterion.log_scale, (inner if named else decoder).weight, x])
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=ROUNDING)


class _Dict(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"only": self.inner(x)}


def test_mean_over_counted_frames_is_refused_where_it_is_not_plain() -> None:
    """Also when the first segments are fully labelled, and only a later one shows it."""
    targets = classes(1, T)
    targets[0, 20] = -100
    head = SegmentedLoss(nn.Linear(H, C).double(), Focal(counts="labelled"), 7)
    with pytest.raises(
        TypeError, match=r"criterion Focal cannot be computed segment by segment: its mean .*normaliser"
    ):
        head(hidden(1, T), targets)


class IgnoresReduction(nn.Module):
    reduction = "mean"

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


class PerClip(nn.Module):
    reduction = "mean"

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        per_clip = logits.square().mean((1, 2))
        return per_clip if self.reduction == "none" else per_clip.mean()


class NoReduction(nn.Module):
    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        return logits.mean()


@pytest.mark.parametrize("criterion", [IgnoresReduction(), PerClip()], ids=str)
def test_criterion_without_elements_per_frame_is_refused(criterion: nn.Module) -> None:
    with pytest.raises(
        TypeError, match=r'with reduction "none" it returned .* expected a tensor with one or more elem'
    ):
        SegmentedLoss(nn.Linear(H, C).double(), criterion, 7)(hidden(), classes())


@pytest.mark.parametrize(
    "criterion",
    [
        NoReduction(),
        nn.CrossEntropyLoss(reduction="none"),
        nn.KLDivLoss(reduction="batchmean"),
        lambda logits, targets: logits.mean(),
        [nn.MSELoss(), NoReduction()],
        {"phase": NoReduction()},
        "cross_entropy",
        None,
    ],
    ids=["module", "none", "batchmean", "function", "list", "dict", "name", "nothing"],
)
def test_criterion_that_cannot_be_split_is_refused_at_construction(criterion: Any) -> None:
    with pytest.raises(TypeError, match=r"cannot be computed segment by segment.*Expected an attribute `reduction`"):
        SegmentedLoss(nn.Linear(H, C), criterion, 7)


# ------------------------------------------------------------------ what is run, counted


@pytest.mark.parametrize("segment_length", [7, 23])
def test_collect_gets_every_segment_once_in_order(segment_length: int) -> None:
    seen: list[Tensor] = []
    decoder = nn.Linear(H, C).double()
    head = SegmentedLoss(decoder, nn.CrossEntropyLoss(), segment_length, collect=seen.append)
    x = hidden()
    head(x, classes()).backward()
    assert [s.shape[1] for s in seen] == [min(segment_length, T - a) for a in range(0, T, segment_length)]
    assert not any(s.requires_grad for s in seen)
    torch.testing.assert_close(torch.cat(seen, 1), decoder(x).detach(), rtol=0, atol=ROUNDING)
    with torch.no_grad():
        head(x, classes())
    assert len(seen) == 2 * -(-T // segment_length)


def test_collect_gets_both_heads() -> None:
    seen: list[dict[str, Tensor]] = []
    targets = {"phase": classes(), "tool": torch.zeros(B, T, 3, dtype=torch.float64)}
    criteria = {"phase": nn.CrossEntropyLoss(), "tool": nn.BCEWithLogitsLoss()}
    SegmentedLoss(TwoHeads(), criteria, 7, collect=seen.append)(hidden(), targets).backward()
    assert [set(s) for s in seen] == [{"phase", "tool"}] * 4
    assert not any(t.requires_grad for s in seen for t in s.values())


def test_decoder_runs_twice_but_for_the_last_segment() -> None:
    decoder = nn.Linear(H, C).double()
    head = SegmentedLoss(decoder, nn.CrossEntropyLoss(), 7)
    with count_calls(decoder) as calls:
        loss = head(hidden(), classes())
        assert len(calls) == 4
        loss.backward()
    assert len(calls) == 7
    for grad_mode in (torch.no_grad, torch.inference_mode):
        with grad_mode(), count_calls(decoder) as calls:
            head(hidden().detach(), classes())
        assert len(calls) == 4


def test_flops_are_two_forwards_and_one_backward_without_the_last_segment() -> None:
    decoder, x, y = nn.Linear(H, C).double(), hidden(1, 20), classes(1, 20)
    with FlopCounterMode(display=False) as plain:
        decoder(x).sum().backward()
    with FlopCounterMode(display=False) as chunked:
        SegmentedLoss(decoder, nn.CrossEntropyLoss(), 8)(x, y).backward()
    forward = 2 * 20 * H * C
    last = 2 * 4 * H * C
    assert plain.get_total_flops() == 3 * forward
    assert chunked.get_total_flops() == 4 * forward - last


def test_frozen_decoder_hands_gradients_to_hidden() -> None:
    agree(whole, _frozen(Model(nn.CrossEntropyLoss())), hidden(), classes())


def _frozen(model: Model) -> Model:
    model.decoder.requires_grad_(False)
    return model


def test_no_gradient_wanted_at_all() -> None:
    model = _frozen(Model(nn.CrossEntropyLoss()))
    loss = SegmentedLoss(model.decoder, model.criterion, 7)(hidden().detach(), classes())
    assert not loss.requires_grad


def test_copies_and_state_dict() -> None:
    head = SegmentedLoss(nn.Linear(H, C), nn.CrossEntropyLoss(torch.ones(C)), 7)
    assert set(head.state_dict()) == {"decoder.weight", "decoder.bias", "criterion.weight"}
    x, y = hidden().detach().float(), classes()
    for twin in (copy.deepcopy(head), pickle.loads(pickle.dumps(head))):
        assert torch.equal(twin(x, y), head(x, y))


def test_autograd_grad_and_second_derivatives() -> None:
    head, x, y = SegmentedLoss(nn.Linear(H, C).double(), nn.CrossEntropyLoss(), 7), hidden(), classes()
    (grad,) = torch.autograd.grad(head(x, y), [x])
    head(x, y).backward()
    assert torch.equal(grad, x.grad)
    with pytest.raises(ReplayError, match="create_graph=True"):
        torch.autograd.grad(head(x, y), [x], create_graph=True)


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("wrong", [0, -1, None, 2.5, "7", True, [7]])
def test_wrong_segment_length_is_refused_at_construction(wrong: Any) -> None:
    """Case 33."""
    with pytest.raises((TypeError, ValueError), match=r"segment_length is .*expected a whole number of at least 1"):
        SegmentedLoss(nn.Linear(H, C), nn.CrossEntropyLoss(), wrong)


def test_lengths_that_do_not_match_are_refused() -> None:
    head = SegmentedLoss(nn.Linear(H, C).double(), nn.CrossEntropyLoss(), 7)
    with pytest.raises(ValueError, match=r"shape \(2, 22\) for a hidden of 23 steps: expected 23 in dimension 1"):
        head(hidden(), classes(B, T - 1))
    with pytest.raises(ValueError, match=r"shape \(2, 3\) for a hidden of 23 steps"):
        head(hidden(), classes(), torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match="no time steps"):
        head(hidden(B, 0), classes(B, 0))

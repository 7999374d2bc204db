"""Suggestions are the best there are, keep their word about memory, and change nothing but memory."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torchvision.models import densenet121, resnet18, resnet50

from seqckpt import find_best_reset_points, suggest_checkpoint_location, trace_memory
from seqckpt.core import Checkpointed
from seqckpt.errors import UsageError
from seqckpt.memory import MemoryTrace, apply_suggestions

SIZES = [10, 8, 8, 9, 7, 7, 5, 4, 4]


# -------------------------------------------------------------------- reset points


@pytest.mark.parametrize(("nb_checkpoints", "memory"), [(0, 62), (1, 35), (2, 24), (8, 10), (9, 10), (100, 10)])
def test_known_values(nb_checkpoints: int, memory: int) -> None:
    found, points = find_best_reset_points(SIZES, nb_checkpoints)
    assert found == memory
    assert len(points) <= nb_checkpoints
    assert largest_part(SIZES, points) == memory
    assert nb_checkpoints != 1 or points == [4]


def largest_part(sizes: list[int], points: list[int]) -> int:
    bounds = [0, *points, len(sizes)]
    return max((sum(sizes[a:b]) for a, b in pairwise(bounds)), default=0)


@given(st.lists(st.integers(0, 20), max_size=8), st.integers(0, 9))
def test_no_other_points_are_better(sizes: list[int], nb_checkpoints: int) -> None:
    memory, points = find_best_reset_points(sizes, nb_checkpoints)
    every = (list(c) for k in range(nb_checkpoints + 1) for c in combinations(range(1, len(sizes)), k))
    assert memory == largest_part(sizes, points) == min(largest_part(sizes, p) for p in every)
    assert len(points) <= nb_checkpoints
    assert points == sorted(set(points))
    assert all(0 < p < len(sizes) for p in points)


@given(st.lists(st.integers(0, 10**30), max_size=40), st.integers(0, 10))
def test_numbers_of_any_size(sizes: list[int], nb_checkpoints: int) -> None:
    memory, points = find_best_reset_points(sizes, nb_checkpoints)
    assert memory == largest_part(sizes, points)
    assert memory >= max(sizes, default=0)


def test_long_lists_and_numpys_integers() -> None:
    sizes = np.random.default_rng(0).integers(1_000_000, size=20_000, dtype=np.int32)
    memory, points = find_best_reset_points(list(sizes), 10)
    assert memory == largest_part([int(size) for size in sizes], points)
    assert type(memory) is int
    assert len(points) == 10


class Counted(int):
    """A size that counts how often it is added."""

    num_uses = 0

    def __index__(self) -> int:
        Counted.num_uses += 1
        return int(self)


@pytest.mark.parametrize("num_layers", [500, 1000, 2000])
def test_each_size_is_read_once(num_layers: int) -> None:
    Counted.num_uses = 0
    find_best_reset_points([Counted(k) for k in range(num_layers)], 10)
    assert Counted.num_uses == num_layers


@pytest.mark.parametrize(
    ("sizes", "nb_checkpoints", "error", "message"),
    [
        ([1, -2], 1, ValueError, r"activation_sizes\[1\] is -2"),
        ([1, 2.5], 1, TypeError, r"activation_sizes\[1\] is 2.5 \(float\)"),
        ([1], -1, ValueError, "nb_checkpoints is -1"),
        ([1], True, TypeError, "nb_checkpoints is True"),
    ],
)
def test_what_is_no_size(sizes: Any, nb_checkpoints: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find_best_reset_points(sizes, nb_checkpoints)


# -------------------------------------------------------------------- locations


def make_mlp(num_layers: int = 8, width: int = 32) -> nn.Sequential:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.Tanh()) for _ in range(num_layers)))


@pytest.fixture(scope="module")
def mlp_trace() -> MemoryTrace:
    torch.manual_seed(0)
    return trace_memory(make_mlp(), torch.randn(256, 32))


@pytest.mark.parametrize("num_skipped_layers", [0, 1, 15, 16, 17, 100])
@pytest.mark.parametrize("nb_checkpoints", [0, 1, 2, 15, 16, 17, 100])
def test_nothing_is_indexed_past_the_end(mlp_trace: MemoryTrace, nb_checkpoints: int, num_skipped_layers: int) -> None:
    suggestion = suggest_checkpoint_location(mlp_trace, nb_checkpoints, num_skipped_layers)
    assert suggestion.all_modules == [f"{k}.{i}" for k in range(8) for i in (0, 1)]
    assert len(suggestion.ranges) <= nb_checkpoints
    assert suggestion.max_memory <= mlp_trace.peak_bytes
    assert set(suggestion.split_modules) <= set(suggestion.all_modules[1:])
    checkpointed = [name for names in suggestion.ranges for name in names]
    assert checkpointed == [name for name in suggestion.all_modules[num_skipped_layers:] if name in checkpointed]
    if nb_checkpoints == 0 or num_skipped_layers >= 16:
        assert (suggestion.max_memory, suggestion.ranges) == (mlp_trace.peak_bytes, [])


def test_more_checkpoints_never_need_more_memory(mlp_trace: MemoryTrace) -> None:
    peaks = [suggest_checkpoint_location(mlp_trace, k).max_memory for k in range(10)]
    assert peaks[0] == mlp_trace.peak_bytes
    assert all(after <= before for before, after in pairwise(peaks))
    assert peaks[3] < 0.8 * peaks[0]


def test_the_last_layers_are_not_recomputed(mlp_trace: MemoryTrace) -> None:
    suggestion = suggest_checkpoint_location(mlp_trace, 2)
    assert "7.1" not in [name for names in suggestion.ranges for name in names]
    assert 0 < suggestion.recompute_seconds < sum(row.forward_seconds for row in mlp_trace.rows())
    assert "2 checkpoints" in suggestion.describe()


def test_wide_boundaries_are_avoided() -> None:
    """Cutting before a narrow layer keeps little; equal parts would cut at a wide one."""
    layers: list[nn.Module] = []
    for _ in range(6):
        layers += [nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 8), nn.Tanh()]
    trace = trace_memory(nn.Sequential(*layers), torch.randn(256, 8))
    suggestion = suggest_checkpoint_location(trace, 4)
    for names in suggestion.ranges:
        assert int(names[0]) % 4 == 0 or names[0] == "3"


class Skips(nn.Module):
    """b is no simple successor of a: a's result is used again."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Sequential(make_mlp(2), nn.Linear(32, 32)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        return self.c(self.b(x) + x)


class Between(Skips):
    """Something happens between a and b, in place: the tensor is the same, its values are not."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        x.mul_(2)
        return self.c(self.b(x))


@pytest.mark.parametrize("model", [Skips(), Between()], ids=["skip", "in place"])
def test_ranges_do_not_cross_what_is_no_row(model: nn.Module) -> None:
    x = torch.randn(64, 32)
    suggestion = suggest_checkpoint_location(trace_memory(model, x), 4)
    assert {"a", "b"} - {name[0] for name in suggestion.all_modules}
    suggestion = dataclasses.replace(suggestion, ranges=[suggestion.all_modules])
    check_same_gradients(model, lambda y: y.square().sum(), suggestion, x)


def test_a_model_that_is_no_row_and_a_trace_with_replays() -> None:
    x = torch.randn(4, 4)
    model = nn.Sequential(Checkpointed(nn.Linear(4, 4)))
    with pytest.raises(UsageError, match="shows replays"):
        suggest_checkpoint_location(trace_memory(model, x, loss=lambda y: y.sum()), 1)
    suggestion = suggest_checkpoint_location(trace_memory(nn.Linear(4, 4), x), 1)
    assert suggestion.all_modules == [""]


# -------------------------------------------------------------------- applied


def check_same_gradients(model: nn.Module, loss: Callable[[Any], Tensor], suggestion: Any, *args: Any) -> None:
    """Gradients and buffers of a step are bitwise the same with and without the suggestion applied."""
    state = copy.deepcopy(model.state_dict())
    found = []
    for is_applied in (False, True):
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        if is_applied:
            with apply_suggestions(model, suggestion):
                loss(model(*args)).backward()
        else:
            loss(model(*args)).backward()
        found.append({name: p.grad for name, p in model.named_parameters()} | dict(copy.deepcopy(model.state_dict())))
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def make_transformer() -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 12, norm=nn.LayerNorm(64), enable_nested_tensor=False), torch.randn(8, 64, 64)


MODELS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    "resnet50": lambda: (resnet50(num_classes=10), torch.randn(4, 3, 96, 96)),
    "densenet121": lambda: (densenet121(num_classes=10), torch.randn(4, 3, 64, 64)),
    "transformer": make_transformer,
}


@pytest.mark.parametrize("name", MODELS)
def test_the_measured_peak_is_the_one_foretold_and_gradients_stay(name: str) -> None:
    model, x = MODELS[name]()

    def loss(y: Tensor) -> Tensor:
        return y.square().mean()

    plain = trace_memory(model, x, loss=loss)
    for nb_checkpoints in (1, 4, 100):
        suggestion = suggest_checkpoint_location(plain, nb_checkpoints)
        assert suggestion.ranges
        with apply_suggestions(model, suggestion):
            measured = trace_memory(model, x, loss=loss)
        assert suggestion.max_memory == pytest.approx(measured.peak_bytes, rel=0.1)
        assert measured.peak_bytes < plain.peak_bytes
    check_same_gradients(model, loss, suggestion, x)


def test_a_mask_is_handed_to_every_layer() -> None:
    model, x = make_transformer()
    mask = nn.Transformer.generate_square_subsequent_mask(64)
    suggestion = suggest_checkpoint_location(trace_memory(model, x, mask, is_causal=True), 3)
    assert suggestion.shared_arguments == [f"layers.{k}" for k in range(1, 12)]
    masked = MaskedEncoder(model, mask)
    check_same_gradients(masked, lambda y: y.square().mean(), suggestion_in(suggestion), x)


class MaskedEncoder(nn.Module):
    def __init__(self, encoder: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.encoder, self.mask = encoder, mask

    def forward(self, x: Tensor) -> Tensor:
        return self.encoder(x, self.mask, is_causal=True)


def suggestion_in(suggestion: Any) -> Any:
    """The same, for the model as the child `encoder` of another."""
    changed = copy.deepcopy(suggestion)
    changed.ranges[:] = [[f"encoder.{name}" for name in names] for names in suggestion.ranges]
    changed.shared_arguments[:] = [f"encoder.{name}" for name in suggestion.shared_arguments]
    return changed


def test_a_half_frozen_encoder_keeps_its_word() -> None:
    model, x = resnet18(num_classes=10), torch.randn(4, 3, 64, 64)
    for part in (model.conv1, model.bn1, model.layer1):
        part.requires_grad_(False)
    plain = trace_memory(model, x)
    suggestion = suggest_checkpoint_location(plain, 3, num_skipped_layers=4)
    with apply_suggestions(model, suggestion):
        measured = trace_memory(model, x)
    assert suggestion.max_memory == pytest.approx(measured.peak_bytes, rel=0.1)
    check_same_gradients(model, lambda y: y.square().mean(), suggestion, x)


def test_the_model_stays_what_it_is_and_can_be_had_back(mlp_trace: MemoryTrace) -> None:
    model = make_mlp()
    keys, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    applied = apply_suggestions(model, suggest_checkpoint_location(mlp_trace, 3))
    assert (list(model.state_dict()), [name for name, _ in model.named_modules()]) == (keys, names)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        twin(torch.randn(256, 32)).sum().backward()
        assert all(p.grad is not None for p in twin.parameters())
        assert all(p.grad is None for p in model.parameters())
        assert any("forward" in module.__dict__ for module in twin.modules())
    applied.undo()
    applied.undo()
    assert not any("forward" in module.__dict__ for module in model.modules())

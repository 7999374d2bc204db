"""ChunkedEncoder against a plain loop over the same chunks (bitwise), and against the undivided encoder (rounding)."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from measures import count_calls
from reference import hold_against
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from seqckpt import ChunkedEncoder
from seqckpt.core import Keep, is_replaying
from seqckpt.errors import ReplayError

ROUNDING = 1e-10  # float64, another batch size: other kernels, sums in another order
KEEPS = [
    *(Keep(), Keep(chunks=2), Keep(chunks=99), Keep(depth=1), Keep(depth=4, chunks=2), Keep(depth=7)),
    *(Keep(depth=0.5), Keep(depth=2.5, chunks=2), Keep(depth=6.4)),
]


def conv_net() -> nn.Sequential:
    """Seven stages with batch norm and dropout; rows (n, 3, 8, 8) to (n, 5)."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Conv2d(4, 5, 3, stride=2),
        nn.Dropout(0.4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).double()


def float_frames(*shape: int, requires_grad: bool = False) -> Tensor:
    return torch.randn(*shape, 3, 8, 8, dtype=torch.float64, requires_grad=requires_grad)


def byte_frames(*shape: int) -> Tensor:
    return torch.randint(256, (*shape, 3, 8, 8), dtype=torch.uint8)


def to_float(frames: Tensor) -> Tensor:
    return frames.double() / 255


def noisy(frames: Tensor) -> Tensor:
    """An augmentation that draws from torch's generator."""
    return to_float(frames) + 0.1 * torch.randn(frames.shape, dtype=torch.float64)


def plain_rows(encoder: Callable[[Tensor], Any], rows: Tensor, chunk_size: int, transform: Any = None) -> Any:
    """The loop that everyone would write: as few chunks as `chunk_size` allows, of nearly equal sizes."""
    num_chunks = -(-len(rows) // chunk_size)
    sizes = [len(rows) * (k + 1) // num_chunks - len(rows) * k // num_chunks for k in range(num_chunks)]
    outputs = [encoder(part if transform is None else transform(part)) for part in rows.split(sizes)]
    return tree_map(lambda *parts: torch.cat(parts) if isinstance(parts[0], Tensor) else parts[0], *outputs)


def plain_batch(encoder: nn.Module, frames: Tensor, chunk_size: int, transform: Any = None) -> Any:
    rows = plain_rows(encoder, frames.flatten(0, 1), chunk_size, transform)
    return tree_map(lambda t: t.unflatten(0, frames.shape[:2]) if isinstance(t, Tensor) else t, rows)


def plain_clips(encoder: nn.Module, clips: Sequence[Tensor], chunk_size: int, transform: Any = None) -> list[Tensor]:
    return list(plain_rows(encoder, torch.cat(list(clips)), chunk_size, transform).split([len(c) for c in clips]))


class Recording:
    """A lazy FrameSource that notes what is read of it."""

    def __init__(self, frames: Tensor) -> None:
        self.frames, self.reads = frames, [0] * len(frames)

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: slice) -> Tensor:
        for i in range(*index.indices(len(self))):
            self.reads[i] += 1
        return self.frames[index].clone()


# ------------------------------------------------------------------ the same as the plain loop, bitwise


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_batch_equals_plain_loop(keep: Keep, training: bool) -> None:
    encoder = conv_net().train(training)  # in training mode: batch statistics per chunk, dropout masks
    hold_against(
        lambda m, x: plain_batch(m, x, 4),
        lambda m, x: ChunkedEncoder(m, 4, keep=keep)(x),
        encoder,
        [float_frames(2, 7)],
    )


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_frames_that_require_grad_get_their_gradient(keep: Keep) -> None:
    run = hold_against(
        lambda m, x: plain_batch(m, x, 4),
        lambda m, x: ChunkedEncoder(m, 4, keep=keep)(x),
        conv_net(),
        [float_frames(2, 7, requires_grad=True)],
    )
    assert run.gradients["input 0"] is not None


@pytest.mark.parametrize("keep", KEEPS, ids=str)
def test_bytes_with_a_random_transform_equal_plain_loop(keep: Keep) -> None:
    hold_against(
        lambda m, x: plain_batch(m, x, 4, noisy),
        lambda m, x: ChunkedEncoder(m, 4, keep=keep, transform=noisy)(x),
        conv_net(),
        [byte_frames(2, 7)],
    )


@pytest.mark.parametrize("keep", KEEPS, ids=str)
@pytest.mark.parametrize("wrap", [lambda clip: clip, Recording], ids=["tensors", "sources"])
def test_clips_of_different_lengths_equal_plain_loop(keep: Keep, wrap: Any) -> None:
    clips = [byte_frames(n) for n in (5, 1, 8)]
    hold_against(
        lambda m: plain_clips(m, clips, 4, noisy),
        lambda m: ChunkedEncoder(m, 4, keep=keep, transform=noisy)([wrap(clip) for clip in clips]),
        conv_net(),
        [],
    )


def test_clips_that_require_grad_get_their_gradients() -> None:
    clips = [float_frames(n, requires_grad=n != 1) for n in (5, 1, 8)]
    hold_against(
        lambda m, *clips: plain_clips(m, clips, 4),
        lambda m, *clips: ChunkedEncoder(m, 4)(list(clips)),
        conv_net(),
        clips,
    )


@pytest.mark.parametrize("requires_grad", [False, True])
def test_lengths_encode_the_first_frames_only(requires_grad: bool) -> None:
    lengths = torch.tensor([3, 6])

    def plain(encoder: nn.Module, frames: Tensor) -> Tensor:
        rows = plain_clips(encoder, [clip[:n] for clip, n in zip(frames, lengths, strict=True)], 4)
        return torch.stack([torch.cat([r, r.new_zeros(6 - len(r), 5)]) for r in rows])

    hold_against(
        plain,
        lambda m, x: ChunkedEncoder(m, 4)(x, lengths),
        conv_net(),
        [float_frames(2, 6, requires_grad=requires_grad)],
    )


FROZEN = {"first stages": (0, 1), "middle": (3,), "first": (0,), "convolutions": (0, 3)}


@pytest.mark.parametrize("keep", [Keep(), Keep(frozen=False), Keep(depth=2), Keep(depth=7)], ids=str)
@pytest.mark.parametrize("frozen", FROZEN.values(), ids=FROZEN)
@pytest.mark.parametrize("transform", [to_float, noisy])
def test_half_frozen_encoder_equals_plain_loop(keep: Keep, frozen: tuple[int, ...], transform: Any) -> None:
    """Case 24. With noise in front of a frozen stem, the dropout behind it must still find its own random state."""
    encoder = conv_net()
    for i in frozen:
        encoder[i].requires_grad_(False)
    run = hold_against(
        lambda m, x: plain_batch(m, x, 4, transform),
        lambda m, x: ChunkedEncoder(m, 4, keep=keep, transform=transform)(x),
        encoder,
        [byte_frames(1, 11)],
    )
    for name, grad in run.gradients.items():
        assert (grad is None) == (int(name[0]) in frozen), name


def test_frozen_encoder_hands_gradients_to_frames() -> None:
    hold_against(
        lambda m, x: plain_batch(m, x, 4),
        lambda m, x: ChunkedEncoder(m, 4)(x),
        conv_net().requires_grad_(False),
        [float_frames(1, 9, requires_grad=True)],
    )


class WithTransform(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.scale = conv_net(), nn.Conv2d(3, 3, 1).double()
        self.encoder[0].requires_grad_(False)


@pytest.mark.parametrize("hidden_in", [lambda m: m.scale, lambda m: lambda x: m.scale(x), lambda m: m.scale.forward])
def test_trainable_transform_in_front_of_frozen_stages_is_trained(hidden_in: Any) -> None:
    run = hold_against(
        lambda m, x: plain_batch(m.encoder, x, 4, m.scale),
        lambda m, x: ChunkedEncoder(m.encoder, 4, transform=hidden_in(m))(x),
        WithTransform(),
        [float_frames(1, 9)],
    )
    assert run.gradients["scale.weight"] is not None


class Heads(nn.Module):
    """Nested outputs: a dict of features, one of them a tuple, one of whole numbers, and what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, 4, 3).double()

    def forward(self, x: Tensor) -> dict[str, Any]:
        maps = self.body(x)
        pooled = maps.mean((2, 3)), maps.amax((2, 3))
        return {"pooled": pooled, "map": maps, "argmax": maps.flatten(1).argmax(1), "none": None, "stride": 1}


@pytest.mark.parametrize("chunk_size", [1, 4, 99])
def test_nested_outputs_equal_plain_loop(chunk_size: int) -> None:
    hold_against(
        lambda m, x: plain_batch(m, x, chunk_size),
        lambda m, x: ChunkedEncoder(m, chunk_size)(x),
        Heads(),
        [float_frames(2, 5)],
    )


def test_outputs_that_no_loss_reads_cost_no_gradient() -> None:
    frames = float_frames(2, 5)
    hold_against(
        lambda m, x: plain_batch(m, x, 4),
        lambda m, x: ChunkedEncoder(m, 4)(x),
        Heads(),
        [frames],
        loss=lambda out: out["pooled"][1].square().sum(),
    )


class Writing(nn.Module):
    """Writes into the rows that it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(2).sub_(1).sin()


@pytest.mark.parametrize("first", [Writing(), nn.LeakyReLU(0.3, inplace=True), nn.Dropout(0.5, inplace=True)], ids=str)
@pytest.mark.parametrize("place", ["encoder", "behind a frozen stem", "kept stage", "all stages kept", "transform"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_layers_that_work_in_place(first: nn.Module, place: str, requires_grad: bool) -> None:
    """A layer that writes into its input must not change what its own replay starts from, nor the caller's frames."""
    stem, head = nn.Conv2d(3, 3, 1).double(), nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()).double()
    encoder = {
        "encoder": nn.Sequential(first, head),
        "transform": head,
        "behind a frozen stem": nn.Sequential(stem.requires_grad_(False), nn.Sequential(first, head)),
        "kept stage": nn.Sequential(stem, nn.Sequential(first, head)),
        "all stages kept": nn.Sequential(first, head),
    }[place]
    transform = first if place == "transform" else None
    keep = Keep(depth={"kept stage": 1, "all stages kept": 2}.get(place, 0))
    run = hold_against(  # the plain loop is given copies of its chunks
        lambda m, x: plain_rows(
            lambda part: m(part.clone() if transform is None else transform(part.clone())), x[0], 4
        ),
        lambda m, x: ChunkedEncoder(m, 4, keep=keep, transform=transform)(x)[0],
        encoder,
        [float_frames(1, 11, requires_grad=requires_grad)],
    )
    assert run.results


@pytest.mark.parametrize("grad_mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("as_clips", [False, True])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_frames_are_never_modified(grad_mode: Any, as_clips: bool, requires_grad: bool) -> None:
    encoder = nn.Sequential(Writing(), nn.Conv2d(3, 4, 3), nn.Flatten()).double()
    frames = float_frames(1, 9, requires_grad=requires_grad)
    before, version = frames.detach().clone(), frames._version
    with grad_mode():
        features = ChunkedEncoder(encoder, 4)(list(frames) if as_clips else frames)
    if grad_mode is torch.enable_grad:
        (features[0] if as_clips else features).sum().backward()
    assert torch.equal(frames.detach(), before)
    assert frames._version == version


# ------------------------------------------------------------------ the same as the undivided encoder, to rounding


@pytest.mark.parametrize("chunk_size", [1, 3, 10, 999])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_undivided_encoder_with_frozen_norm(chunk_size: int, requires_grad: bool) -> None:
    """Cases 22, 35: any chunk size, uint8-like frames without gradient included."""
    hold_against(
        lambda m, x: m(x.flatten(0, 1)).unflatten(0, x.shape[:2]),
        lambda m, x: ChunkedEncoder(m, chunk_size)(x),
        conv_net().eval(),
        [float_frames(2, 10, requires_grad=requires_grad)],
        tolerance=ROUNDING,
    )


def test_undivided_encoder_in_float32() -> None:
    hold_against(
        lambda m, x: m(x.flatten(0, 1)).unflatten(0, x.shape[:2]),
        lambda m, x: ChunkedEncoder(m, 3)(x),
        conv_net().float().eval(),
        [float_frames(2, 10).float()],
        tolerance=1e-5,  # relative to the largest entry: what float32 sums in another order differ by
    )


def test_batch_norm_per_chunk_is_another_function() -> None:
    """Case 35: the limit of exactness. Training-mode statistics are those of a chunk, so the chunk size matters."""
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).double()
    frames = float_frames(1, 10)
    whole = copy.deepcopy(encoder)(frames[0])
    assert (ChunkedEncoder(copy.deepcopy(encoder), 4)(frames)[0] - whole).abs().max() > 0.01
    assert torch.equal(ChunkedEncoder(copy.deepcopy(encoder), 10)(frames)[0], whole)


def test_one_step_changes_every_parameter_as_plain() -> None:
    """Case 25."""
    encoder, frames = conv_net().float().eval(), float_frames(1, 10).float()
    twin = copy.deepcopy(encoder)
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    for model, features in ((encoder, ChunkedEncoder(encoder, 3)), (twin, lambda x: twin(x[0]))):
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
        features(frames).square().sum().backward()
        optimiser.step()
    for (name, a), b in zip(encoder.named_parameters(), twin.parameters(), strict=True):
        assert not torch.equal(a, before[name]), name
        assert (a - b).abs().max() < 1e-6, name  # float32


def test_dropout_gradient_agrees_with_finite_differences() -> None:
    """Case 39: the mask is pinned by the seed, so a wrong mask in the replay would show."""
    encoder = conv_net().train()
    encoder[1].eval()
    chunked, frames = ChunkedEncoder(encoder, 3), float_frames(1, 8)
    weight = encoder[0].weight

    def loss() -> Tensor:
        torch.manual_seed(7)
        return chunked(frames).square().sum()

    loss().backward()
    step = 1e-6
    with torch.no_grad():
        weight[0, 0, 0, 0] += step
        above = loss()
        weight[0, 0, 0, 0] -= 2 * step
        below = loss()
    slope = float(above - below) / (2 * step)
    assert slope == pytest.approx(float(weight.grad[0, 0, 0, 0]), rel=1e-5)  # truncation ~step^2, cancellation ~1e-9


# ------------------------------------------------------------------ what is run, counted


@pytest.mark.parametrize(("num_frames", "chunk_size", "sizes"), [(33, 16, [11, 11, 11]), (34, 16, [11, 11, 12])])
def test_chunks_are_balanced(num_frames: int, chunk_size: int, sizes: list[int]) -> None:
    """Case 37: no stub at the end."""
    encoder = conv_net()
    with torch.no_grad(), count_calls(encoder) as calls:
        ChunkedEncoder(encoder, chunk_size)(float_frames(1, num_frames))
    assert calls.rows == sizes


def test_every_chunk_runs_twice_but_the_last_once() -> None:
    encoder = conv_net()
    with count_calls(encoder) as calls:
        features = ChunkedEncoder(encoder, 3)(float_frames(1, 12))
        assert calls.rows == [3] * 4
        features.sum().backward()
    assert len(calls) == 2 * 4 - 1


@pytest.mark.parametrize(("chunks", "total"), [(1, 7), (2, 6), (3, 5), (4, 4), (9, 4)])
def test_kept_chunks_run_once(chunks: int, total: int) -> None:
    encoder = conv_net()
    with count_calls(encoder) as calls:
        ChunkedEncoder(encoder, 3, keep=Keep(chunks=chunks))(float_frames(1, 12)).sum().backward()
    assert len(calls) == total


def test_frozen_encoder_runs_once_per_chunk() -> None:
    """Case 23: and warns of nothing (warnings are errors here)."""
    encoder = conv_net().requires_grad_(False)
    head = nn.Linear(5, 2).double()
    with count_calls(encoder) as calls:
        features = ChunkedEncoder(encoder, 3)(float_frames(1, 12))
        head(features).sum().backward()
    assert len(calls) == 4
    assert not features.requires_grad
    assert head.weight.grad is not None
    assert all(p.grad is None for p in encoder.parameters())


@pytest.mark.parametrize("keep", [Keep(), Keep(depth=3)], ids=str)
def test_frozen_stages_and_kept_stages_run_once(keep: Keep) -> None:
    encoder = conv_net()
    encoder[:2].requires_grad_(False)
    with count_calls(encoder[0]) as frozen, count_calls(encoder[3]) as forgotten, count_calls(encoder[5]) as last:
        ChunkedEncoder(encoder, 3, keep=keep)(float_frames(1, 12)).sum().backward()
    assert (len(frozen), len(forgotten), len(last)) == (4, 7, 4 if keep.depth else 7)


@pytest.mark.parametrize("grad_mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("training", [True, False])
def test_no_gradient_no_cost(grad_mode: Any, training: bool) -> None:
    """Case 30."""
    encoder, frames = conv_net().train(training), float_frames(1, 12)
    expected = plain_batch(copy.deepcopy(encoder).eval(), frames, 3)
    with grad_mode(), count_calls(encoder) as calls:
        features = ChunkedEncoder(encoder, 3)(frames)
    assert calls.rows == [3] * 4
    assert training or torch.equal(features, expected)


def test_forward_without_backward_runs_once_also_in_eval_mode() -> None:
    encoder = conv_net().eval()
    with count_calls(encoder) as calls:
        features = ChunkedEncoder(encoder, 3)(float_frames(1, 12))
    assert len(calls) == 4
    assert features.requires_grad


@pytest.mark.parametrize("chunk_size", [3, 4, 5])
def test_flops_are_two_forwards_and_one_backward_without_the_last_chunk(chunk_size: int) -> None:
    encoder, frames = conv_net(), float_frames(1, 12)

    def flops(run: Callable[[], Any]) -> int:
        with FlopCounterMode(display=False) as counter:
            run()
        return counter.get_total_flops()

    forward = flops(lambda: plain_batch(encoder, frames, chunk_size))
    plain = flops(lambda: plain_batch(encoder, frames, chunk_size).sum().backward())
    last = flops(lambda: encoder(frames[0, -(12 // -(-12 // chunk_size)) :]))
    chunked = flops(lambda: ChunkedEncoder(encoder, chunk_size)(frames).sum().backward())
    assert chunked == 2 * forward + (plain - forward) - last


def test_sources_are_read_again_in_the_replay_and_not_kept() -> None:
    source = Recording(byte_frames(12))
    features = ChunkedEncoder(conv_net(), 3, transform=to_float)([source])
    assert source.reads == [1] * 12
    features[0].sum().backward()
    assert source.reads == [2] * 9 + [1] * 3


def test_layers_can_ask_whether_they_are_replayed() -> None:
    answers = []
    encoder = conv_net()
    encoder[0].register_forward_hook(lambda *_: answers.append(is_replaying()))
    ChunkedEncoder(encoder, 4)(float_frames(1, 12)).sum().backward()
    assert answers == [False] * 3 + [True] * 2
    assert not is_replaying()


# ------------------------------------------------------------------ in an ordinary graph


def test_autograd_grad_equals_backward() -> None:
    """Case 28."""
    encoder, frames = conv_net().eval(), float_frames(1, 10)
    chunked = ChunkedEncoder(encoder, 3)
    (grad,) = torch.autograd.grad(chunked(frames).square().sum(), [encoder[3].weight])
    assert encoder[3].weight.grad is None
    chunked(frames).square().sum().backward()
    assert torch.equal(grad, encoder[3].weight.grad)


def test_second_derivatives_are_refused_by_name() -> None:
    encoder = conv_net()
    loss = ChunkedEncoder(encoder, 3)(float_frames(1, 10)).square().sum()
    with pytest.raises(ReplayError, match="create_graph=True"):
        torch.autograd.grad(loss, [encoder[0].weight], create_graph=True)


@pytest.mark.parametrize("keep", [Keep(), Keep(depth=3)], ids=str)
def test_retained_graph_gives_the_same_gradients_again(keep: Keep) -> None:
    encoder = conv_net()
    loss = ChunkedEncoder(encoder, 3, keep=keep)(float_frames(1, 10)).square().sum()
    loss.backward(retain_graph=True)
    once = [p.grad.clone() for p in encoder.parameters()]
    loss.backward()
    assert all(torch.equal(p.grad, 2 * g) for p, g in zip(encoder.parameters(), once, strict=True))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_weights_changed_before_backward_are_refused() -> None:
    encoder = conv_net()
    loss = ChunkedEncoder(encoder, 3)(float_frames(1, 10)).sum()
    with torch.no_grad():
        encoder[3].weight.mul_(2)
    with pytest.raises(ReplayError, match=r"3\.weight was changed in place between forward and backward"):
        loss.backward()


@pytest.mark.parametrize("as_clips", [False, True])
def test_frames_changed_before_backward_are_refused(as_clips: bool) -> None:
    frames = byte_frames(1, 10)
    features = ChunkedEncoder(conv_net(), 3, transform=to_float)(list(frames) if as_clips else frames)
    frames.zero_()
    with pytest.raises(RuntimeError, match=r"modified by an inplace operation|changed in place"):
        (features[0] if as_clips else features).sum().backward()


def test_replay_runs_in_the_mode_of_the_forward() -> None:
    encoder = conv_net()

    def switching(m: nn.Module, x: Tensor) -> Tensor:
        features = ChunkedEncoder(m, 4)(x)
        m.eval()
        return features

    hold_against(lambda m, x: plain_batch(m, x, 4), switching, encoder, [float_frames(1, 10)])


def test_parameter_hooks_fire_once_on_the_whole_gradient() -> None:
    encoder = conv_net()
    seen: list[Tensor] = []
    after: list[str] = []
    encoder[0].weight.register_hook(lambda grad: seen.append(grad.clone()))
    encoder[0].weight.register_post_accumulate_grad_hook(lambda p: after.append("once"))
    ChunkedEncoder(encoder, 3)(float_frames(1, 12)).sum().backward()
    assert len(seen) == 1
    assert torch.equal(seen[0], encoder[0].weight.grad)
    assert after == ["once"]


def test_bfloat16_autocast_keeps_every_gradient() -> None:
    """Case 51: a first pass without gradient and a replay with, in one autocast region with its cache of casts."""
    encoder, frames = conv_net().float().eval(), float_frames(1, 12).float()
    ChunkedEncoder(encoder, 4)(frames).square().sum().backward()
    full = [p.grad.clone() for p in encoder.parameters()]
    encoder.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ChunkedEncoder(encoder, 4)(frames).float().square().sum().backward()
    for p, grad in zip(encoder.parameters(), full, strict=True):
        assert p.grad is not None
        assert torch.cosine_similarity(p.grad.flatten(), grad.flatten(), 0) > 0.999


def test_bfloat16_autocast_equals_plain_loop_under_it() -> None:
    def under_autocast(run: Callable[[nn.Module, Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
        def wrapped(m: nn.Module, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return run(m, x)

        return wrapped  # backward runs outside: the replay must bring the autocast state with it

    hold_against(
        under_autocast(lambda m, x: plain_batch(m, x, 4)),
        under_autocast(lambda m, x: ChunkedEncoder(m, 4)(x)),
        conv_net().float(),
        [float_frames(1, 11).float()],
        tolerance=1e-2,  # the plain loop casts each weight once for all chunks and sums its gradient in bfloat16
    )


def test_copies_and_state_dict() -> None:
    chunked = ChunkedEncoder(conv_net(), 4, keep=Keep(depth=2), transform=to_float)
    assert list(chunked.state_dict()) == list(conv_net().state_dict())
    conv_net().load_state_dict(chunked.state_dict())
    frames = byte_frames(1, 6)
    for twin in (copy.deepcopy(chunked), pickle.loads(pickle.dumps(chunked))):
        assert (twin.chunk_size, twin.keep) == (4, Keep(depth=2))
        assert torch.equal(twin.eval()(frames), chunked.eval()(frames))
        chunked.train()


def test_check_replay_names_the_chunk() -> None:
    numbers = iter(range(100))
    encoder = conv_net().eval()  # batch statistics would take the difference out again
    chunked = ChunkedEncoder(encoder, 4, transform=lambda x: to_float(x) + next(numbers), check_replay=True)
    with pytest.raises(ReplayError, match=r"chunk 2 of 3 \(rows 4 to 7\)"):
        chunked(byte_frames(1, 12)).sum().backward()


# ------------------------------------------------------------------ refusals


@pytest.mark.parametrize("wrong", [0, -1, None, 2.5, "7", True, [3]])
def test_wrong_chunk_size_is_refused_at_construction(wrong: Any) -> None:
    """Case 33."""
    with pytest.raises((TypeError, ValueError), match=r"chunk_size is .*expected a whole number of at least 1"):
        ChunkedEncoder(conv_net(), wrong)
    chunked = ChunkedEncoder(conv_net(), 4)
    with pytest.raises((TypeError, ValueError), match="chunk_size"):
        chunked.chunk_size = wrong


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"depth": -1}, r"keep\.depth is -1"),
        ({"depth": -0.5}, r"keep\.depth is -0\.5"),
        ({"depth": float("nan")}, r"keep\.depth is nan"),
        ({"depth": "2"}, r"keep\.depth is '2'"),
        ({"chunks": 0}, r"keep\.chunks is 0"),
        ({"chunks": None}, r"keep\.chunks is None"),
    ],
)
def test_wrong_keep_is_refused(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        Keep(**wrong)


class DependsOnValues(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.sum() > 0 else x


def test_deeper_keep_than_the_encoder_is_refused() -> None:
    with pytest.raises(ValueError, match=r"keep.depth is 8, but the encoder can be cut in 7 stages"):
        ChunkedEncoder(conv_net(), 4, keep=Keep(depth=8))
    with pytest.raises(ValueError, match=r"keep.depth is 7.5, but the encoder can be cut in 7 stages"):
        ChunkedEncoder(conv_net(), 4, keep=Keep(depth=7.5))
    with pytest.raises(ValueError, match=r"keep.depth is 1, but the encoder cannot be cut in stages"):
        ChunkedEncoder(DependsOnValues(), 4, keep=Keep(depth=1))


def test_functions_and_wrong_frames_are_refused() -> None:
    with pytest.raises(TypeError, match="encoder is a function"):
        ChunkedEncoder(lambda x: x, 4)
    chunked = ChunkedEncoder(conv_net(), 4)
    with pytest.raises(ValueError, match=r"frames of shape \(2, 3\)"):
        chunked(torch.zeros(2, 3))
    for empty in (float_frames(2, 0), float_frames(0, 2)):
        with pytest.raises(ValueError, match="one or more clips, none of them empty"):
            chunked(empty)
    with pytest.raises(ValueError, match=r"clips of \[3, 0\] frames"):
        chunked([float_frames(3), float_frames(0)])
    with pytest.raises(ValueError, match=r"clips of \[\] frames"):
        chunked([])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [([4], "1 lengths for a batch of 2"), ([4, 0], r"lengths\[1\] is 0"), ([9, 3], r"lengths\[0\] is 9")],
)
def test_wrong_lengths_are_refused(lengths: list[int], message: str) -> None:
    """Case 10."""
    with pytest.raises(ValueError, match=message):
        ChunkedEncoder(conv_net(), 4)(float_frames(2, 5), lengths)


def test_encoder_that_changes_the_number_of_rows_is_refused() -> None:
    chunked = ChunkedEncoder(nn.Flatten(0, 1), 4)
    with pytest.raises(ReplayError, match=r"chunk 1 of 2 .*expected 3 rows"):
        chunked(float_frames(1, 6))


def test_what_is_no_tensor_must_be_the_same_in_all_chunks() -> None:
    class Counting(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, int]:
            return x.flatten(1), len(x)

    features, number = ChunkedEncoder(Counting(), 3)([torch.randn(2, 3), torch.randn(4, 3)])[1]
    assert features.shape == (4, 3)
    assert number == 3
    with pytest.raises(ReplayError, match=r"chunk 2 of 2 .*returned 4, the first chunk 3: what is no tensor must be"):
        ChunkedEncoder(Counting(), 4)(torch.randn(1, 7, 3))


def test_rrelu_is_exact() -> None:
    """torch's own checkpoint without re-entry gives gradients off by 1.5 times their size: its early stop leaves the
    noise of the first run in place."""
    hold_against(
        lambda m, x: plain_batch(m, x, 3),
        lambda m, x: ChunkedEncoder(m, 3)(x),
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.RReLU(), nn.Flatten(), nn.RReLU()).double(),
        [float_frames(2, 5)],
    )

"""The main claim: encoder, recurrent network and loss over 500 frames, one backward, equal to the undivided run."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from measures import peak_bytes, saved_bytes
from torch import Tensor, nn

from seqckpt import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.core import Keep

NUM_CLASSES = 7


class Plain(nn.Module):
    """Case 1's model as everyone writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8).eval(),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * 64, 8),
        )
        self.rnn = nn.LSTM(8, 16, batch_first=True)
        self.decoder = nn.Linear(16, NUM_CLASSES)
        self.criterion = nn.CrossEntropyLoss(torch.tensor([1, 2, 1, 0.5, 1, 1, 3]))

    def train(self, mode: bool = True) -> Plain:
        super().train(mode)
        self.encoder[1].eval()  # frozen statistics
        return self

    def forward(self, frames: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        rows = frames.flatten(0, 1).to(self.decoder.weight) / 255
        features = self.encoder(rows).unflatten(0, frames.shape[:2])
        hidden, state = self.rnn(features, state)
        return self.criterion(self.decoder(hidden).flatten(0, 1), targets.flatten()), state


class Cut(nn.Module):
    """The same model by its parts."""

    def __init__(self, plain: Plain, chunk_size: int, segment_length: Any, keep: Keep | None = None) -> None:
        super().__init__()
        dtype = plain.decoder.weight.dtype
        self.encoder = ChunkedEncoder(plain.encoder, chunk_size, keep=keep, transform=lambda rows: rows.to(dtype) / 255)
        self.rnn = SegmentedRNN(plain.rnn, segment_length)
        innermost = segment_length if isinstance(segment_length, int) else segment_length[-1]
        self.head = SegmentedLoss(plain.decoder, plain.criterion, innermost)

    def forward(self, frames: Tensor, targets: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        hidden, state = self.rnn(self.encoder(frames), state)
        return self.head(hidden, targets), state


def make_clip(num_frames: int, batch_size: int = 1) -> tuple[Tensor, Tensor]:
    frames = torch.randint(256, (batch_size, num_frames, 3, 16, 16), dtype=torch.uint8)
    targets = torch.randint(NUM_CLASSES, (batch_size, num_frames))
    return frames, targets.masked_fill(torch.rand(targets.shape) < 0.1, -100)


def gradients(plain: Plain) -> dict[str, Tensor]:
    grads = {name: p.grad.clone() for name, p in plain.named_parameters()}  # none may be None
    plain.zero_grad()
    return grads


@pytest.mark.parametrize("keep", [Keep(), Keep(depth=2), Keep(chunks=3)], ids=str)
@pytest.mark.parametrize("segment_length", [32, [250, 25]], ids=str)
def test_500_frames_end_to_end(keep: Keep, segment_length: Any) -> None:
    """Case 1: every gradient within 1e-10, the loss within 1e-12, of one undivided plain run in float64."""
    plain = Plain().double()
    frames, targets = make_clip(500)
    expected, _ = plain(frames, targets)
    expected.backward()
    expected_gradients = gradients(plain)
    loss, _ = Cut(plain, 16, segment_length, keep)(frames, targets)
    loss.backward()
    assert abs(loss.item() - expected.item()) < 1e-12
    for name, grad in gradients(plain).items():
        assert (grad - expected_gradients[name]).abs().max() < 1e-10, name
        assert grad.any(), name


def test_500_frames_in_float32() -> None:
    plain = Plain()
    frames, targets = make_clip(500)
    plain(frames, targets)[0].backward()
    expected = gradients(plain)
    Cut(plain, 16, 32)(frames, targets)[0].backward()
    for name, grad in gradients(plain).items():  # 1e-5 of the largest entry: float32 sums in another order
        assert (grad - expected[name]).abs().max() <= 1e-5 * expected[name].abs().max(), name


def test_every_choice_of_cuts_gives_the_same_training() -> None:
    """Four SGD steps over clips with a carried state; float64, so that rounding stays below 1e-10 throughout."""
    clips = [make_clip(20, batch_size=2) for _ in range(4)]

    def train(make: Callable[[Plain], nn.Module]) -> Tensor:
        torch.manual_seed(0)
        plain = Plain().double()
        model, optimiser = make(plain), torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
        state = None
        for frames, targets in clips:
            optimiser.zero_grad()
            loss, state = model(frames, targets, state)
            loss.backward()
            optimiser.step()
            state = tuple(s.detach() for s in state)
        return torch.cat([p.detach().flatten() for p in plain.parameters()])

    expected = train(lambda plain: plain)
    for cuts in ((80, 40), (16, 7), (1, 1), (13, [10, 4])):
        assert (train(lambda plain, cuts=cuts: Cut(plain, *cuts)) - expected).abs().max() < 1e-10, cuts


def test_videos_do_not_mix() -> None:
    """Case 18: a video's loss, gradients and state are bitwise those of a fresh model, whatever ran before."""
    plain = Plain().double().eval()
    model = Cut(plain, 16, 25)
    (a, b) = make_clip(60), make_clip(45)

    def step(clip: tuple[Tensor, Tensor]) -> tuple[Tensor, Any, dict[str, Tensor]]:
        loss, state = model(*clip)
        loss.backward()
        return loss, state, gradients(plain)

    first = step(b)
    step(a)
    second = step(b)
    assert torch.equal(first[0], second[0])
    assert all(torch.equal(x, y) for x, y in zip(first[1], second[1], strict=True))
    assert all(torch.equal(first[2][name], grad) for name, grad in second[2].items())


def test_state_of_the_last_step_must_be_detached() -> None:
    """Case 4: as with nn.LSTM, a state with history leads the second backward into the first graph."""
    plain = Plain().double()
    model = Cut(plain, 16, 25)
    loss, state = model(*make_clip(40))
    loss.backward()
    loss, _ = model(*make_clip(40), state)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()
    loss, _ = model(*make_clip(40), tuple(s.detach() for s in state))
    loss.backward()


def test_gradient_of_a_late_loss_reaches_the_first_frame() -> None:
    """What truncation would lose: only the last frame is labelled, only the first has anything to see."""
    plain = Plain().double()
    plain.rnn.bias_hh_l0.data[16:32] += 3  # remember for long
    frames, targets = torch.zeros(1, 60, 3, 16, 16, dtype=torch.uint8), torch.full((1, 60), -100)
    frames[0, 0], targets[0, -1] = 255, 3
    Cut(plain, 7, 9)(frames, targets)[0].backward()
    got = gradients(plain)["encoder.0.weight"]
    plain(frames, targets)[0].backward()
    assert got.any()
    assert (got - gradients(plain)["encoder.0.weight"]).abs().max() < 1e-10


def test_saved_bytes_do_not_grow_beyond_features_and_hidden() -> None:
    """Case 1: what autograd saves per frame, apart from the frames, is features, hidden states and targets."""
    plain, sizes, plain_sizes = Plain(), {}, {}
    for num_frames in (500, 2000):
        frames, targets = make_clip(num_frames)
        per_frame = 4 * (8 + 16) + 8 + 4 * 16  # features, hidden, target; hidden as the LSTM and the loss hold it
        model = Cut(plain, 16, 32)
        sizes[num_frames] = saved_bytes(lambda m=model, f=frames, t=targets: m(f, t), frames) - per_frame * num_frames
        plain_sizes[num_frames] = saved_bytes(lambda f=frames, t=targets: plain(f, t), frames)
    assert sizes[2000] <= 1.1 * sizes[500]
    assert plain_sizes[2000] > 3.9 * plain_sizes[500]


def test_peak_of_a_step_does_not_grow_with_the_clip() -> None:
    """The allocator's own record of forward and backward: T = 2,000 within 1.3 of T = 500, apart from features."""
    plain = Plain()
    model = Cut(plain, 16, 32)

    def peak(model: nn.Module, num_frames: int) -> int:
        frames, targets = make_clip(num_frames)
        model(frames, targets)[0].backward()  # gradients are there from now on
        return peak_bytes(lambda: model(frames, targets)[0].backward())

    # features and hidden with their gradients, and the targets
    small, large = (peak(model, n) - n * (2 * 4 * (8 + 16) + 8) for n in (500, 2000))
    assert large <= 1.3 * small
    assert peak(plain, 500) > 8 * small


def test_copies_train_alike() -> None:
    plain = Plain().double()
    clip = make_clip(30)
    twin = copy.deepcopy(plain)
    Cut(plain, 16, 8)(*clip)[0].backward()
    Cut(twin, 16, 8)(*clip)[0].backward()
    expected = gradients(plain)
    assert all(torch.equal(expected[name], grad) for name, grad in gradients(twin).items())

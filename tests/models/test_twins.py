"""The plain parts and the engine's are interchangeable: the same arguments, the same keys, the same numbers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from seqckpt import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.core import Keep
from seqckpt.models import (
    FrameTransform,
    NoRecurrence,
    PerFrame,
    PlainLoss,
    SmallEncoder,
    VideoModel,
    apply_batch_norm_policy,
    build_encoder,
)

NUM_PHASES = 4


def make_batch(*lengths: int, size: int = 16) -> tuple[list[Tensor], list[Tensor]]:
    frames = [torch.randint(0, 256, (length, 3, size, size), dtype=torch.uint8) for length in lengths]
    targets = [torch.randint(0, NUM_PHASES, (length,)) for length in lengths]
    targets[0][:2] = -100
    return frames, targets


def make_twins(encoder: nn.Module, rnn: nn.Module, num_hidden: int, **keep: int) -> tuple[VideoModel, VideoModel]:
    """Return a plain model and a chunked and segmented one with the same weights."""
    criterion = nn.CrossEntropyLoss(torch.tensor([1.0, 2.0, 0.5, 1.0]), label_smoothing=0.1)
    decoder = nn.Linear(num_hidden, NUM_PHASES)
    plain = VideoModel(PerFrame(encoder, transform=FrameTransform()), rnn, PlainLoss(decoder, criterion)).double()
    rnn = copy.deepcopy(rnn)
    chunked = VideoModel(
        ChunkedEncoder(copy.deepcopy(encoder), 4, transform=FrameTransform(), keep=Keep(**keep)),
        SegmentedRNN(rnn, 3) if isinstance(rnn, nn.RNNBase) else rnn,
        SegmentedLoss(copy.deepcopy(decoder), criterion, 3),
    ).double()
    return plain, chunked


def assert_same_step(plain: VideoModel, chunked: VideoModel, frames: list[Tensor], targets: list[Tensor]) -> None:
    assert list(plain.state_dict()) == list(chunked.state_dict())
    chunked.load_state_dict(plain.state_dict())
    losses = []
    for model in (plain, chunked):
        loss, _ = model(frames, targets)
        loss.backward()
        losses.append(loss)
    # Another batch size rounds differently: float64, so not by much.
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-10, atol=0)
    weights = dict(plain.named_parameters())
    for name, weight in chunked.named_parameters():
        twin = weights[name.replace("rnn.core.", "rnn.")]
        torch.testing.assert_close(weight.grad, twin.grad, rtol=1e-8, atol=1e-10, msg=name)


RNNS = {
    "lstm": lambda: (nn.LSTM(5, 6, 2, batch_first=True), 6),
    "gru": lambda: (nn.GRU(5, 6, batch_first=True), 6),
    "bidirectional": lambda: (nn.LSTM(5, 3, 2, batch_first=True, bidirectional=True), 6),
    "none": lambda: (NoRecurrence(), 5),
}


@pytest.mark.parametrize("kind", RNNS)
@pytest.mark.parametrize("lengths", [(10,), (7, 3, 6)])
@pytest.mark.parametrize("depth", [0, 3])
def test_a_step_is_the_same(kind: str, lengths: tuple[int, ...], depth: int) -> None:
    plain, chunked = make_twins(SmallEncoder(5, width=2), *RNNS[kind](), depth=depth)
    assert_same_step(plain, chunked, *make_batch(*lengths))


@pytest.mark.parametrize("policy", ["frozen", "group"])
@pytest.mark.parametrize("depth", [0, 5])
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_a_step_is_the_same_with_torchvisions_encoders(name: str, policy: str, depth: int) -> None:
    encoder = apply_batch_norm_policy(build_encoder(name), policy)
    for layer in encoder.modules():
        if isinstance(layer, nn.Dropout):
            layer.p = 0.0
    plain, chunked = make_twins(encoder, nn.GRU(encoder.num_features, 6, batch_first=True), 6, depth=depth)
    buffers = {key: buffer.clone() for key, buffer in plain.named_buffers()}
    assert_same_step(plain, chunked, *make_batch(6, 3, size=32))
    assert all(torch.equal(buffer, buffers[key]) for key, buffer in plain.named_buffers())


def test_predictions_and_collected_logits_are_the_same() -> None:
    plain, chunked = make_twins(SmallEncoder(5, width=2), *RNNS["lstm"]())
    chunked.load_state_dict(plain.state_dict())
    frames, targets = make_batch(7)
    collected: list[list[Tensor]] = []
    with torch.no_grad():
        for model in (plain, chunked):
            pieces: list[Tensor] = []
            model.head.collect = pieces.append
            model(frames, targets)
            collected.append(pieces)
        predicted = [model.predict(frames)[0][0] for model in (plain, chunked)]
    assert [len(pieces) for pieces in collected] == [1, 3]
    torch.testing.assert_close(torch.cat(collected[1], 1), collected[0][0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(predicted[1], predicted[0], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(predicted[0], collected[0][0][0], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param([[-100, -100, -100], [-100, -100, -100]], id="nothing labelled"),
        pytest.param([[0, 0, -100], [-100, 0, 0]], id="only of weight zero"),
        pytest.param([[0, 1, -100], [2, 2, 3]], id="some of each"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_losses_follow_one_rule(targets: list[list[int]], dtype: torch.dtype) -> None:
    decoder, criterion = nn.Linear(6, NUM_PHASES), nn.CrossEntropyLoss(torch.tensor([0.0, 1.0, 2.0, 1.0]))
    decoder.to(dtype)
    hidden = torch.randn(2, 3, 6, dtype=dtype)
    results = []
    for head in (PlainLoss(decoder, criterion), SegmentedLoss(decoder, criterion, 2)):
        decoder.zero_grad()
        loss = head(hidden, torch.tensor(targets))
        loss.backward()
        results.append((loss, decoder.weight.grad.clone()))
        assert loss.dtype == torch.float32
        assert torch.isfinite(decoder.weight.grad).all()
    # bfloat16 rounds gradients of one segment and of the whole clip differently.
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    for mine, theirs in zip(*results, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)

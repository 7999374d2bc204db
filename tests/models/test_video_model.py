"""The plain model equals loops written by hand, with clips of different lengths too."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from seqckpt.errors import UsageError
from seqckpt.models import FrameTransform, NoRecurrence, PerFrame, PlainLoss, SmallEncoder, VideoModel

NUM_PHASES = 4


@dataclass
class Source:
    """A lazy FrameSource: it has a length, and reading a slice gives frames."""

    frames: Tensor

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, rows: slice) -> Tensor:
        return self.frames[rows].clone()


def make_model(rnn: nn.Module | None = None, *, num_hidden: int = 6, weight: Tensor | None = None) -> VideoModel:
    encoder = PerFrame(SmallEncoder(5, width=2), transform=FrameTransform())
    rnn = rnn if rnn is not None else nn.LSTM(5, num_hidden, 2, batch_first=True)
    head = PlainLoss(nn.Linear(num_hidden, NUM_PHASES), nn.CrossEntropyLoss(weight=weight))
    return VideoModel(encoder, rnn, head).double()


def make_batch(*lengths: int) -> tuple[list[Tensor], list[Tensor]]:
    frames = [torch.randint(0, 256, (length, 3, 16, 16), dtype=torch.uint8) for length in lengths]
    targets = [torch.randint(0, NUM_PHASES, (length,)) for length in lengths]
    return frames, targets


def by_hand(model: VideoModel, frames: list[Tensor], targets: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
    """Loss and logits, frame by frame and clip by clip."""
    logits = []
    for clip in frames:
        rows = [model.encoder.encoder(model.encoder.transform(frame[None])) for frame in clip]
        logits.append(model.head.decoder(model.rnn(torch.cat(rows)[None])[0][0]))
    loss = functional.cross_entropy(torch.cat(logits), torch.cat(targets), weight=model.head.criterion.weight)
    return loss, logits


def assert_same_gradients(model: nn.Module, twin: nn.Module) -> None:
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-12, msg=name)


RNNS = {
    "lstm": lambda: nn.LSTM(5, 6, 2, batch_first=True),
    "gru": lambda: nn.GRU(5, 6, batch_first=True),
    "bidirectional": lambda: nn.LSTM(5, 3, 2, batch_first=True, bidirectional=True),
}


@pytest.mark.parametrize("kind", RNNS)
@pytest.mark.parametrize("lengths", [(7,), (5, 5), (7, 3, 5), (1, 6)])
def test_equals_loops_by_hand(kind: str, lengths: tuple[int, ...]) -> None:
    model = make_model(RNNS[kind](), weight=torch.tensor([1.0, 2.0, 0.5, 1.0]))
    twin = copy.deepcopy(model)
    frames, targets = make_batch(*lengths)
    targets[0][0] = -100
    before = [clip.clone() for clip in frames]
    loss, _ = model(frames, targets)
    loss.backward()
    expected, expected_logits = by_hand(twin, frames, targets)
    expected.backward()
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)
    assert_same_gradients(model, twin)
    logits, _ = model.predict(frames)
    assert [len(clip) for clip in logits] == list(lengths)
    for mine, theirs in zip(logits, expected_logits, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-10, atol=1e-12)
    assert all(torch.equal(clip, copied) for clip, copied in zip(frames, before, strict=True))


@pytest.mark.parametrize("kind", RNNS)
def test_the_state_is_that_at_each_clips_own_end(kind: str) -> None:
    model = make_model(RNNS[kind]())
    frames, targets = make_batch(6, 2, 4)
    _, state = model(frames, targets)
    for index, clip in enumerate(frames):
        _, alone = model([clip], [targets[index]])
        pairs = zip(state, alone, strict=True) if isinstance(state, tuple) else [(state, alone)]
        for mine, theirs in pairs:
            torch.testing.assert_close(mine[:, index], theirs[:, 0], rtol=1e-10, atol=1e-12)


class Smoothing(nn.Module):
    """Not torch's: every frame sees the whole sequence, with its padding, or what came before it."""

    def __init__(self, is_causal: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, 6))
        if is_causal:
            self.is_causal = True

    def forward(self, x: Tensor, state: None = None) -> tuple[Tensor, None]:
        seen = x.cumsum(1) if hasattr(self, "is_causal") else x.sum(1, keepdim=True) + x
        return (seen + 1) @ self.weight, None


def test_what_would_see_the_padding_is_refused() -> None:
    model = make_model(Smoothing(is_causal=False))
    frames, targets = make_batch(7, 3)
    with pytest.raises(UsageError, match=r"clips of \[7, 3\] frames came in one batch.* a Smoothing, is not told"):
        model(frames, targets)
    with pytest.raises(UsageError, match="is_causal = True"):
        model.predict(frames)
    model(frames[:1], targets[:1])  # nothing to pad
    model(*make_batch(4, 4))


def test_what_says_that_it_is_causal_is_padded() -> None:
    model = make_model(Smoothing(is_causal=True))
    frames, _ = make_batch(7, 3)
    for together, clip in zip(model.predict(frames)[0], frames, strict=True):
        torch.testing.assert_close(together, model.predict([clip])[0][0], rtol=1e-12, atol=1e-13)


def test_a_video_in_two_clips_with_the_state_carried() -> None:
    model = make_model()
    (video,), _ = make_batch(9)
    whole, _ = model.predict([video])
    first, state = model.predict([video[:4]])
    second, _ = model.predict([video[4:]], state)
    torch.testing.assert_close(torch.cat([first[0], second[0]]), whole[0], rtol=1e-12, atol=1e-13)


def test_videos_do_not_know_of_each_other() -> None:
    """Case 18: a video after another one is as if it came first."""
    model = make_model().eval()
    (video_a, video_b), _ = make_batch(5, 5)
    fresh, _ = model.predict([video_b])
    model.predict([video_a])
    assert torch.equal(model.predict([video_b])[0][0], fresh[0])


@hypothesis.given(lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4), data=st.data())
@hypothesis.settings(max_examples=20)
def test_padding_changes_nothing(lengths: list[int], data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(RNNS)))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    model = make_model(RNNS[kind]())
    frames, targets = make_batch(*lengths)
    loss, _ = model(frames, targets)
    torch.testing.assert_close(loss, by_hand(model, frames, targets)[0], rtol=1e-10, atol=1e-12)


def test_lazy_sources_do_as_well_as_tensors() -> None:
    model = make_model()
    frames, targets = make_batch(4, 2)
    loss, _ = model([Source(clip) for clip in frames], targets)
    assert torch.equal(loss, model(frames, targets)[0])


def test_no_recurrence() -> None:
    model = make_model(NoRecurrence(), num_hidden=5)
    frames, targets = make_batch(4, 2)
    loss, state = model(frames, targets)
    assert state is None
    rows = model.encoder.encoder(model.encoder.transform(torch.cat(frames)))
    expected = functional.cross_entropy(model.head.decoder(rows), torch.cat(targets))
    torch.testing.assert_close(loss, expected, rtol=1e-12, atol=0)


def test_lengths_that_do_not_fit() -> None:
    model = make_model()
    frames, targets = make_batch(4, 2)
    with pytest.raises(UsageError, match=r"clips of \[4, 2\] frames came with targets of \[4\] frames"):
        model(frames, targets[:1])
    with pytest.raises(UsageError, match="as many targets as frames"):
        model(frames, [targets[0], targets[1][:1]])
    with pytest.raises(UsageError, match="no empty clip"):
        model([frames[0][:0]], [targets[0][:0]])
    with pytest.raises(UsageError, match="at least one clip"):
        model([], [])


def test_per_frame_takes_a_tensor_and_has_the_keys_of_the_encoder() -> None:
    encoder = SmallEncoder(5, width=2)
    per_frame = PerFrame(encoder, transform=FrameTransform())
    frames = torch.randint(0, 256, (2, 3, 3, 16, 16), dtype=torch.uint8)
    features = per_frame(frames)
    assert features.shape == (2, 3, 5)
    assert torch.equal(torch.cat(per_frame(list(frames))), features.flatten(0, 1))
    assert list(per_frame.state_dict()) == list(encoder.state_dict())
    per_frame.load_state_dict(encoder.state_dict())
    images = PerFrame(nn.Conv2d(3, 2, 3))(torch.randn(2, 3, 3, 8, 8))
    assert images.shape == (2, 3, 2, 6, 6)


class TestPlainLoss:
    """The rules that SegmentedLoss follows as well."""

    def make(self, criterion: nn.Module, **options: object) -> PlainLoss:
        return PlainLoss(nn.Linear(6, NUM_PHASES), criterion, **options)

    def test_names_of_children(self) -> None:
        keys = list(self.make(nn.CrossEntropyLoss(weight=torch.ones(NUM_PHASES))).state_dict())
        assert keys == ["decoder.weight", "decoder.bias", "criterion.weight"]

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    @pytest.mark.parametrize("weighted", [True, False])
    def test_is_torchs_own_over_the_whole_batch(self, reduction: str, smoothing: float, weighted: bool) -> None:
        weight = torch.rand(NUM_PHASES) if weighted else None
        criterion = nn.CrossEntropyLoss(weight, reduction=reduction, label_smoothing=smoothing)
        head, hidden = self.make(criterion), torch.randn(3, 5, 6)
        targets = torch.randint(0, NUM_PHASES, (3, 5))
        targets[0, 2:] = -100
        assert torch.equal(head(hidden, targets), criterion(head.decoder(hidden).flatten(0, 1), targets.flatten()))

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_nothing_labelled_is_zero_with_zero_gradient(self, reduction: str) -> None:
        head = self.make(nn.CrossEntropyLoss(reduction=reduction))
        loss = head(torch.randn(2, 3, 6), torch.full((2, 3), -100))
        loss.backward()
        assert loss == 0
        assert torch.equal(head.decoder.weight.grad, torch.zeros(NUM_PHASES, 6))

    def test_only_frames_of_weight_zero_are_zero(self) -> None:
        head = self.make(nn.CrossEntropyLoss(torch.tensor([0.0, 1.0, 1.0, 1.0])))
        assert head(torch.randn(1, 2, 6), torch.tensor([[0, -100]])) == 0

    def test_half_precision_is_cast_to_float32(self) -> None:
        """Case 56: finite for logits of 100 against 0."""
        head = PlainLoss(nn.Identity(), nn.CrossEntropyLoss())
        for dtype in (torch.float16, torch.bfloat16):
            loss = head(torch.tensor([[[100.0, 0.0]]], dtype=dtype), torch.tensor([[1]]))
            assert loss.dtype == torch.float32
            assert loss == 100

    def test_other_criteria(self) -> None:
        hidden = torch.randn(2, 3, 6)
        soft = torch.softmax(torch.randn(2, 3, NUM_PHASES), -1)
        head = self.make(nn.CrossEntropyLoss())
        expected = functional.cross_entropy(head.decoder(hidden).movedim(-1, 1), soft.movedim(-1, 1))
        torch.testing.assert_close(head(hidden, soft), expected)
        for criterion in (nn.BCEWithLogitsLoss(), nn.MSELoss()):
            head = self.make(criterion)
            assert torch.equal(head(hidden, soft), criterion(head.decoder(hidden), soft))

    def test_collect_sees_detached_logits(self) -> None:
        collected: list[Tensor] = []
        head = self.make(nn.CrossEntropyLoss(), collect=collected.append)
        hidden = torch.randn(2, 3, 6)
        head(hidden, torch.zeros(2, 3, dtype=torch.long))
        assert torch.equal(collected[0], head.decoder(hidden))
        assert not collected[0].requires_grad


# ------------------------------------------------------------------- truncated back-propagation


def test_truncation_leaves_the_outputs_and_cuts_the_gradient() -> None:
    """Case 5: a frame's gradient comes from losses of its own stretch alone, exactly 0 from later ones."""
    model = make_model()
    frames, targets = make_batch(11, 7)
    cut = VideoModel(model.encoder, model.rnn, model.head, truncate=4)
    assert cut(frames, targets)[0].item() == pytest.approx(model(frames, targets)[0].item(), rel=1e-12)

    features: list[Tensor] = []
    model.encoder.register_forward_hook(lambda module, args, output: features.extend(output))
    for model_now, reaches in ((model, True), (cut, False)):
        features.clear()
        late = [target.clone() for target in targets]
        for target in late:
            target[:8] = -100
        model_now(frames, late)[0].backward(inputs=features)
        assert bool(features[0].grad[:8].any()) == reaches  # type: ignore[index]
        assert features[0].grad[8:].any()  # type: ignore[index]


def test_truncation_every_frame_or_longer_than_the_clip() -> None:
    model = make_model()
    frames, targets = make_batch(6)
    model(frames, targets)[0].backward()
    twin = copy.deepcopy(model)
    twin.truncate = 6
    twin(frames, targets)[0].backward()
    assert_same_gradients(twin, model)
    twin.truncate = 1
    twin.zero_grad()
    loss, _ = twin(frames, targets)
    loss.backward()
    assert torch.isfinite(loss)
    assert not torch.equal(twin.rnn.weight_hh_l0.grad, model.rnn.weight_hh_l0.grad)


def test_truncation_is_for_training() -> None:
    calls: list[int] = []
    model = make_model()
    model.truncate = 3
    model.rnn.register_forward_hook(lambda *unused: calls.append(1))
    frames, targets = make_batch(9)
    model.train()(frames, targets)
    assert len(calls) == 3
    model.eval()(frames, targets)
    assert len(calls) == 4


def test_truncation_refuses_a_network_in_both_directions() -> None:
    with pytest.raises(UsageError, match=r"truncate=4: a bidirectional network"):
        VideoModel(nn.Identity(), nn.LSTM(3, 3, bidirectional=True), nn.Identity(), truncate=4)

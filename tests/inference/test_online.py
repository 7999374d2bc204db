"""One frame at a time: the same as whole videos, nothing seen before it is there, and no state of another video."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from turned_films import UPRIGHT, patch_matrix, write_patches

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import stream_video
from seqckpt.errors import UsageError
from seqckpt.inference import OnlinePredictor, open_run
from seqckpt.models import FrameTransform, NoRecurrence, PerFrame, PlainLoss, SmallEncoder, VideoModel
from seqckpt.training import predict_windows

SIZE, NAMES = 16, ["preparation", "dissection", "closing"]
CORES = {
    "lstm of 2 layers": lambda: nn.LSTM(8, 12, 2, batch_first=True),
    "gru": lambda: nn.GRU(8, 12, batch_first=True),
    "rnn": lambda: nn.RNN(8, 12, batch_first=True),
    "none": NoRecurrence,
}
# Kernels for one frame add in another order than those for many: what differs is rounding of float32.
ROUNDING = {"rtol": 0, "atol": 1e-5}


def make_model(kind: str, *, plain: bool = False) -> VideoModel:
    """A model whose random weights are large enough for probabilities to change from frame to frame."""
    torch.manual_seed(3)
    encoder, core = SmallEncoder(8, width=4), CORES[kind]()
    decoder = nn.Linear(8 if kind == "none" else 12, len(NAMES))
    for parameter in (*core.parameters(), *decoder.parameters()):
        nn.init.uniform_(parameter, -1, 1)
    if plain:
        head = PlainLoss(decoder, nn.CrossEntropyLoss())
        return VideoModel(PerFrame(encoder, transform=FrameTransform()), core, head).eval()
    rnn = core if kind == "none" else SegmentedRNN(core, 5)
    loss = SegmentedLoss(decoder, nn.CrossEntropyLoss(), 5)
    return VideoModel(ChunkedEncoder(encoder, 7, transform=FrameTransform()), rnn, loss).eval()


def make_frames(length: int = 40, *, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    means = torch.randint(256, (length, 3, 1, 1), generator=generator)
    noise = torch.randint(-40, 40, (length, 3, SIZE, SIZE), generator=generator)
    return (means + noise).clamp(0, 255).to(torch.uint8)


def run_through(predictor: OnlinePredictor, frames: torch.Tensor) -> np.ndarray:
    return np.stack([predictor.step(frame)[1] for frame in frames])


@pytest.mark.parametrize("kind", CORES)
@pytest.mark.parametrize("plain", [False, True], ids=["engine", "plain"])
def test_it_equals_the_whole_video(kind: str, plain: bool) -> None:
    model, frames = make_model(kind, plain=plain), make_frames()
    predictor = OnlinePredictor(model, NAMES, image_size=SIZE)
    steps = [predictor.step(frame) for frame in frames]
    online = np.stack([probabilities for _, probabilities in steps])
    (offline,) = predict_windows(model, frames, window=len(frames))
    np.testing.assert_allclose(online, offline, **ROUNDING)
    assert [name for name, _ in steps] == [NAMES[phase] for phase in offline.argmax(axis=1)]
    assert np.ptp(online, axis=0).max() > 0.1  # else the test would say little


@pytest.mark.parametrize("kind", CORES)
def test_it_is_bitwise_the_video_read_frame_by_frame(kind: str) -> None:
    """The same kernels on the same shapes: nothing is left that could round differently."""
    model, frames = make_model(kind), make_frames()
    online = run_through(OnlinePredictor(model, NAMES, image_size=SIZE), frames)
    assert np.array_equal(online, np.concatenate(list(predict_windows(model, frames, window=1))))


@pytest.mark.parametrize("kind", CORES)
def test_later_frames_change_nothing(kind: str) -> None:
    """Online that is so by construction; it is offline prediction, which has them all, that could look ahead."""
    model, frames = make_model(kind), make_frames()
    others = frames.clone()
    others[25:] = make_frames(seed=1)[25:]
    (before,), (after,) = (predict_windows(model, clip, window=len(clip)) for clip in (frames, others))
    assert np.array_equal(before[:25], after[:25])
    assert not np.allclose(before[25:], after[25:])
    predictor = OnlinePredictor(model, NAMES, image_size=SIZE)
    first = run_through(predictor, frames)
    predictor.reset()
    assert np.array_equal(first[:25], run_through(predictor, others)[:25])


@pytest.mark.parametrize("kind", ["lstm of 2 layers", "gru"])
def test_a_state_is_never_that_of_another_video(kind: str) -> None:
    model, one, other = make_model(kind), make_frames(), make_frames(seed=1)
    alone = [run_through(OnlinePredictor(model, NAMES, image_size=SIZE), frames) for frames in (one, other)]
    assert not np.allclose(alone[0], alone[1])
    first, second = (OnlinePredictor(model, NAMES, image_size=SIZE) for _ in range(2))
    together = [(first.step(a)[1], second.step(b)[1]) for a, b in zip(one, other, strict=True)]
    assert np.array_equal(np.stack([a for a, _ in together]), alone[0])
    assert np.array_equal(np.stack([b for _, b in together]), alone[1])
    assert not np.array_equal(run_through(first, other), alone[1])  # it went on from `one`,
    first.reset()
    assert np.array_equal(run_through(first, other), alone[1])  # and now it does not


def test_a_run_predicts_online_what_it_predicted_of_a_video(run: Path, sample: Path) -> None:
    """Frames as PyAV decodes them are resized in the very way of training."""
    opened = open_run(run)
    path, size = sample / "videos" / "video04.mp4", opened.config.data.image_size
    sampled = stream_video(path, fps=opened.config.data.fps, image_size=(size, size))
    (offline,) = predict_windows(opened.model, sampled.frames, window=len(sampled.frames))
    predictor = OnlinePredictor.from_run(run)
    wanted = set(sampled.numbers.tolist())
    with av.open(str(path)) as container:
        decoded = [frame for k, frame in enumerate(container.decode(video=0)) if k in wanted]
    online = [predictor.step(frame) for frame in decoded]
    np.testing.assert_allclose(np.stack([row for _, row in online]), offline, **ROUNDING)
    assert {name for name, _ in online} <= set(opened.phase_names)
    predictor.reset()
    arrays = np.stack([predictor.step(frame.to_ndarray(format="rgb24"))[1] for frame in decoded])
    np.testing.assert_allclose(arrays, offline, atol=0.02)  # other steps of colour, see `step`


def test_a_decoded_frame_is_turned_as_it_is_shown(tmp_path: Path) -> None:
    """A frame of PyAV's brings its display matrix along; askew, it is refused, and the state stays."""
    model = make_model("gru")
    expected = OnlinePredictor(model, NAMES, image_size=SIZE)
    predictor = OnlinePredictor(model, NAMES, image_size=SIZE)
    film = write_patches(tmp_path / "a.mp4", pixel_format="yuv444p")
    upright = write_patches(tmp_path / "b.mp4", pixel_format="yuv444p", quarters=1)

    def decode(path: Path) -> av.VideoFrame:
        with av.open(str(path)) as container:
            return next(container.decode(video=0))

    turned, shown = decode(patch_matrix(film, UPRIGHT[90])), decode(upright)
    askew = decode(patch_matrix(film, (0.8, 0.6, -0.6, 0.8)))
    for _ in range(2):
        np.testing.assert_allclose(
            predictor.step(turned)[1], expected.step(shown)[1], atol=1e-3
        )  # stored with some loss
        with pytest.raises(UsageError, match=r"shown turned by 36\.9 degrees clockwise"):
            predictor.step(askew)


def test_any_way_to_write_a_picture_is_the_same() -> None:
    model = make_model("none")
    predictor = OnlinePredictor(model, NAMES, image_size=(SIZE, 2 * SIZE))
    picture = np.random.default_rng(0).integers(0, 256, (50, 90, 3), np.uint8)
    box = Image.fromarray(picture).resize((2 * SIZE, SIZE), Image.Resampling.BOX)  # as images in folders are read
    (expected,) = predict_windows(model, torch.from_numpy(np.array(box)).permute(2, 0, 1)[None], window=1)
    channels_first = picture.transpose(2, 0, 1)
    for frame in (picture, channels_first, torch.from_numpy(picture), torch.from_numpy(channels_first.copy())):
        assert np.array_equal(predictor.step(frame)[1], expected[0])


@pytest.mark.parametrize(
    ("frame", "given"),
    [
        (np.zeros((20, 20, 3), np.float32), r"float32 \(20, 20, 3\)"),
        (np.zeros((20, 20), np.uint8), r"uint8 \(20, 20\)"),
        (np.zeros((1, 3, 20, 20), np.uint8), r"uint8 \(1, 3, 20, 20\)"),
        (np.zeros((3, 20, 3), np.uint8), r"uint8 \(3, 20, 3\)"),
        (np.zeros((3, 0, 20), np.uint8), r"uint8 \(3, 0, 20\)"),
        ("frame.png", "str"),
    ],
)
def test_what_is_no_picture_is_refused_and_changes_nothing(frame: object, given: str) -> None:
    model, frames = make_model("gru"), make_frames(2)
    predictor = OnlinePredictor(model, NAMES, image_size=SIZE)
    predictor.step(frames[0])
    with pytest.raises(UsageError, match=f"frame is {given}; expected one RGB picture"):
        predictor.step(frame)  # type: ignore[arg-type]
    whole = np.concatenate(list(predict_windows(model, frames, window=1)))
    assert np.array_equal(predictor.step(frames[1])[1], whole[1])


def test_networks_that_read_from_the_end_are_refused_by_name() -> None:
    model = make_model("gru")
    model.rnn = SegmentedRNN(nn.LSTM(8, 6, batch_first=True, bidirectional=True), 5)
    with pytest.raises(UsageError, match=r"the model's LSTM \(core\) is bidirectional: it reads a video from its end"):
        OnlinePredictor(model, NAMES, image_size=SIZE)


def test_a_network_that_reads_from_the_end_is_given_whole_videos() -> None:
    """Windows with a state handed on would be another function."""
    model, frames = make_model("gru"), make_frames()
    model.rnn = SegmentedRNN(nn.LSTM(8, 6, batch_first=True, bidirectional=True), 5)
    (whole,) = predict_windows(model, frames, window=len(frames))
    (in_windows,) = predict_windows(model, frames, window=10)
    assert np.array_equal(whole, in_windows)


def test_what_does_not_belong_together_is_refused() -> None:
    with pytest.raises(UsageError, match="2 phase names were given for a model of 3 outputs"):
        OnlinePredictor(make_model("gru"), NAMES[:2], image_size=SIZE)
    predictor = OnlinePredictor(make_model("gru"), NAMES, image_size=SIZE)
    predictor.model.train()
    with pytest.raises(UsageError, match="the model is in training mode"):
        predictor.step(make_frames(1)[0])

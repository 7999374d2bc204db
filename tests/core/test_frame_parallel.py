"""One clip's frames on several ranks: the features and gradients of one process, each frame encoded and read once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import run_ranks
from test_pipeline import Cut, Plain, make_clip
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from seqckpt import ChunkedEncoder, SegmentedRNN
from seqckpt.core import FrameParallel, Keep, frame_spans
from seqckpt.errors import ReplayError, UsageError

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")


class Counted(nn.Module):
    """An encoder that counts its calls and the frames in them."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder, self.calls, self.frames = encoder, 0, 0

    def forward(self, rows: Tensor) -> Tensor:
        self.calls += 1
        self.frames += len(rows)
        return self.encoder(rows)


class Noted:
    """A FrameSource that notes which frames are read."""

    def __init__(self, frames: Tensor) -> None:
        self.frames, self.read = frames, set[int]()

    def __len__(self) -> int:
        return len(self.frames)

    def __getitem__(self, index: slice) -> Tensor:
        self.read |= set(range(*index.indices(len(self))))
        return self.frames[index]


def build(num_frames: int) -> tuple[Plain, tuple[Tensor, Tensor]]:
    torch.manual_seed(3)
    plain, (frames, targets) = Plain().double(), make_clip(num_frames)
    targets[0, 0] = 1  # a clip without any label has no mean
    return plain, (frames, targets)


def step(model: nn.Module, plain: Plain, clip: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    """The gradients of one step, and its loss."""
    plain.zero_grad()
    loss, _ = model(*clip)
    loss.backward()
    return {"loss": loss.detach(), **{name: p.grad.clone() for name, p in plain.named_parameters()}}


LENGTHS = (40, 41, 43, 3, 1)


def train_on_shares(rank: int) -> dict[str, Any]:
    results: dict[str, Any] = {"steps": [], "counts": []}
    for num_frames in LENGTHS:
        plain, clip = build(num_frames)
        cut = Cut(plain, 5, 8, Keep(depth=2))
        counted = Counted(cut.encoder.encoder)
        cut.encoder.keep, cut.encoder.encoder = Keep(), counted
        cut.encoder = FrameParallel(cut.encoder)
        results["steps"].append(step(DistributedDataParallel(cut), plain, clip))
        results["counts"].append((counted.calls, counted.frames))
    return results


def take_all_inputs(rank: int) -> dict[str, Any]:
    """Lists of sources, padded tensors, nested features, half precision."""
    plain, (frames, _) = build(23)
    inner = ChunkedEncoder(plain.encoder, 4, transform=lambda rows: rows.double() / 255)
    shared = FrameParallel(inner)
    sources = [Noted(frames[0, :9]), Noted(frames[0, 9:])]
    listed = shared(sources)
    padded = shared(torch.stack([frames[0, :9], frames[0, 9:18]]), lengths=[9, 4])
    expected = inner([frames[0, :9], frames[0, 9:]])
    both = FrameParallel(ChunkedEncoder(Both(), 4))(frames.double())
    with torch.autocast("cpu", torch.bfloat16):
        linear = nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
        low = FrameParallel(ChunkedEncoder(linear, 4, transform=lambda rows: rows.float()))(frames)
    low.float().sum().backward()
    return {
        "read": [source.read for source in sources],
        "spans": frame_spans([9, 14], dist.get_world_size(), rank),
        "equal": [torch.allclose(a, b, rtol=1e-12, atol=0) for a, b in zip(listed, expected, strict=True)],
        "padded": (padded.shape, bool((padded[1, 4:] == 0).all()), torch.allclose(padded[0], expected[0])),
        "nested": torch.equal(both["sum"].flatten(), frames.double().sum((2, 3, 4)).flatten())
        and both["pair"][1].shape,
        "low": (low.dtype, linear[1].weight.grad.clone()),
        "keys": set(shared.state_dict()) == set(plain.encoder.state_dict()),
    }


class Both(nn.Module):
    def forward(self, rows: Tensor) -> dict[str, Any]:
        return {"sum": rows.sum((1, 2, 3)), "pair": (rows.mean((2, 3)), rows[:, 0])}


def draw_numbers(rank: int) -> dict[str, Any]:
    """Dropout in the encoder, and between the layers of the recurrent network."""
    torch.manual_seed(0)
    frames = torch.ones(1, 13, 64)
    noisy = FrameParallel(ChunkedEncoder(nn.Dropout(0.5), 3))
    rnn = SegmentedRNN(nn.LSTM(64, 8, 2, batch_first=True, dropout=0.5), 4)
    quiet = FrameParallel(ChunkedEncoder(nn.Linear(64, 2), 3))
    before = torch.get_rng_state()
    quiet(frames)
    is_untouched = torch.equal(before, torch.get_rng_state())
    first, second = noisy(frames), noisy(frames)
    hidden, _ = rnn(first)
    return {"is_untouched": is_untouched, "masks": (first, second), "hidden": hidden.detach()}


def make_mistakes(rank: int) -> dict[str, str]:
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SyncBatchNorm(4))
    num_frames = 4 * dist.get_world_size() + 1  # the last rank has one more, and so two chunks
    tries: dict[str, Callable[[], object]] = {
        "lengths": lambda: FrameParallel(ChunkedEncoder(nn.Flatten(), 4))(torch.zeros(1, 8 + rank, 1, 2, 2)),
        "sync batch norm": lambda: FrameParallel(ChunkedEncoder(encoder, 4))(torch.zeros(1, num_frames, 3, 8, 8)),
    }
    return {name: error_of(attempt) for name, attempt in tries.items()}


def error_of(attempt: Callable[[], object]) -> str:
    try:
        attempt()
    except (UsageError, ReplayError) as error:
        return str(error)
    return "no error"


WORK = (train_on_shares, take_all_inputs, draw_numbers, make_mistakes)


def do_all(rank: int) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return {work.__name__: work(rank) for work in WORK}


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return run_ranks(do_all, tmp_path_factory.mktemp("ranks"), num_ranks=request.param)


def test_gradients_are_those_of_one_process(ranks: list[dict[str, Any]]) -> None:
    """Clips that divide evenly and that do not, and clips with fewer frames than there are ranks."""
    for k, num_frames in enumerate(LENGTHS):
        plain, clip = build(num_frames)
        expected = step(plain, plain, clip)
        for result in ranks:
            for name, value in result["train_on_shares"]["steps"][k].items():
                assert (value - expected[name]).abs().max() < 1e-12, (num_frames, name)


def test_each_rank_encodes_its_share(ranks: list[dict[str, Any]]) -> None:
    for k, num_frames in enumerate(LENGTHS):
        share = -(-num_frames // len(ranks))
        num_chunks = -(-share // 5)
        for result in ranks:
            calls, frames = result["train_on_shares"]["counts"][k]
            assert calls <= 2 * num_chunks - 1  # all forward, all but the last again in backward
            assert frames <= 2 * share
        if num_frames >= len(ranks):
            last_chunks = len(ranks) * 5
            all_frames = sum(result["train_on_shares"]["counts"][k][1] for result in ranks)
            assert 2 * num_frames - last_chunks <= all_frames <= 2 * num_frames


def test_each_rank_reads_only_its_frames(ranks: list[dict[str, Any]]) -> None:
    seen = [set[int](), set[int]()]
    for result in ranks:
        for clip, (read, (start, stop)) in enumerate(
            zip(result["take_all_inputs"]["read"], result["take_all_inputs"]["spans"], strict=True)
        ):
            assert read == set(range(start, stop))
            assert not seen[clip] & read
            seen[clip] |= read
    assert seen == [set(range(9)), set(range(14))]


def test_all_that_an_encoder_takes_and_gives(ranks: list[dict[str, Any]]) -> None:
    frames = build(23)[1][0]
    for result in (result["take_all_inputs"] for result in ranks):
        assert all(result["equal"])
        assert result["padded"] == ((2, 9, 8), True, True)
        assert result["nested"] == (1, 23, 16, 16)
        assert result["keys"]
        dtype, gradient = result["low"]
        assert dtype == torch.bfloat16
        assert gradient.abs().max() > 0
    summed = sum(result["take_all_inputs"]["low"][1] for result in ranks)  # F times the whole gradient, by shares
    whole = frames.float().flatten(2).to(torch.bfloat16).float().sum((0, 1)).expand(4, -1) * len(ranks)
    assert torch.allclose(summed, whole, rtol=1e-2)


def test_random_numbers(ranks: list[dict[str, Any]]) -> None:
    results = [result["draw_numbers"] for result in ranks]
    first, second = results[0]["masks"]
    for result in results:
        assert result["is_untouched"]
        assert torch.equal(result["hidden"], results[0]["hidden"])
        assert torch.equal(result["masks"][0], first)  # gathered: the same on all
    assert not torch.equal(first, second)
    spans = [frame_spans([13], len(ranks), rank)[0] for rank in range(len(ranks))]
    shares = [first[0, start : start + 2] for start, _ in spans]
    assert not any(torch.equal(shares[0], other) for other in shares[1:])


def test_mistakes_are_said_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    """Case 60, and what would hang: other clips on each rank."""
    for result in (result["make_mistakes"] for result in ranks):
        assert "expected the same clips on each" in result["lengths"]
        assert "SyncBatchNorm layers ['1'] would wait for ever" in result["sync batch norm"]


def test_without_other_processes() -> None:
    with pytest.raises(UsageError, match="start them with torchrun"):
        FrameParallel(nn.Flatten())


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 8])
def test_spans_cover_all_frames_once(num_ranks: int) -> None:
    for lengths in ([500], [7, 1, 12], [1] * 9):
        covered = []
        for rank in range(num_ranks):
            spans = frame_spans(lengths, num_ranks, rank)
            num_frames = sum(stop - start for start, stop in spans)
            assert num_frames in (sum(lengths) // num_ranks, -(-sum(lengths) // num_ranks))
            covered += [(clip, frame) for clip, span in enumerate(spans) for frame in range(*span)]
        assert covered == [(clip, frame) for clip, length in enumerate(lengths) for frame in range(length)]

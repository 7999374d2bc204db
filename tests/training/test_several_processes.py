"""Training on 2 and 4 processes, in every arrangement, against one: the same weights, losses, scores and snapshots.

All is in float64, where what is the same to rounding can be told from what is not.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from processes import find_free_port, run_launched
from test_resume import stop_after
from test_trainer import NUM_PHASES, VALIDATION, VIDEOS, make_video, rows
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import Augmentation, Video, cut_clips
from seqckpt.errors import TrainingError
from seqckpt.models import SmallEncoder, VideoModel
from seqckpt.training import Ranks, Stopped, Trainer, TrainSettings, build_optimiser, join_ranks, load_last

pytestmark = pytest.mark.skipif(not dist.is_available(), reason="torch is built without torch.distributed")

Arrangement = tuple[Path, int, list[dict[str, Any]]]

LANES = {"order": "sequential", "carry": True}
WAYS: dict[str, dict[str, Any]] = {
    "uneven batches": {"batch_size": 3},
    "two batches a step": {"batch_size": 2, "accumulate": 2, "averaging": 0.9},
    "state carried": {"batch_size": 2, **LANES},
    "augmented": {"batch_size": 2, "augmentation": Augmentation(flip=0.5, brightness=0.5)},
}
VALIDATED = [*VALIDATION, make_video(4, 9), make_video(5, 14)]
POISONED = make_video(9, 12)
POISONED.frames.fill_(255)
# The number of processes, and how many of them share frames; all of a line are done by the same processes.
SIZES = [
    pytest.param((2, [1, 2]), id="2 processes"),
    pytest.param((4, [2]), id="4 processes"),
    pytest.param((4, [1, 4]), id="4 processes, all alike", marks=pytest.mark.slow),
]


class Counted(nn.Module):
    """An encoder that counts the frames it is given, and has no finite features of those that are all white."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.num_trained, self.num_validated = SmallEncoder(8, width=8), 0, 0

    def forward(self, frames: Tensor) -> Tensor:
        self.num_trained += len(frames) * self.training
        self.num_validated += len(frames) * (not self.training)
        return self.encoder(frames) / (frames.flatten(1).mean(1, keepdim=True) < 1)


def make_model(dropout: float = 0.0) -> VideoModel:
    torch.manual_seed(0)
    encoder, decoder = Counted(), nn.Linear(8, NUM_PHASES)
    rnn = nn.LSTM(8, 8, 2, batch_first=True, dropout=dropout)
    criterion = nn.CrossEntropyLoss(torch.tensor([1.0, 0.5, 3.0]), ignore_index=-100)
    chunked = ChunkedEncoder(encoder, 6, transform=lambda frames: frames.double() / 255)
    return VideoModel(chunked, SegmentedRNN(rnn, 7), SegmentedLoss(decoder, criterion, 5)).double()


def begin(folder: Path, ranks: Ranks, *, dropout: float = 0.0, **changes: Any) -> Trainer:
    folder.mkdir(parents=True, exist_ok=True)
    values = {"num_epochs": 2, "batch_size": 1, "lr": 1e-2, "warmup": 0.0, "clip_norm": 0.1, "seed": 0}
    settings = TrainSettings(**{**values, "validation_window": 10, **changes})
    model = make_model(dropout)
    optimiser = build_optimiser(model, lr=settings.lr, weight_decay=0.01)
    names = ["a", "b", "c"]
    return Trainer(
        model,
        optimiser,
        settings,
        folder=folder,
        phase_names=names,
        extra={},
        print_line=lambda line: None,
        ranks=ranks,
    )


def fit(trainer: Trainer, *more: Video) -> dict[str, Tensor]:
    """Train; some frames of the clips have no label."""
    for video in VIDEOS:
        video.phases[::5] = -100
    trainer.fit(cut_clips([*VIDEOS, *more], 12), VALIDATED)
    return {name: value.detach().clone() for name, value in trainer.model.state_dict().items()}


def count_reductions(trainer: Trainer) -> Counter[int]:
    counts: Counter[int] = Counter()
    ddp = trainer.stepper._step_model
    assert isinstance(ddp, DistributedDataParallel)

    def count(state, bucket):  # type: ignore[no-untyped-def]  # DDP compares annotations with classes, not with text
        counts.update(id(parameter) for parameter in bucket.parameters())
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(None, count)
    return counts


def train_on_ranks(folder: Path, sizes: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
    """All that the tests below compare, from one of the processes, which meet anew for each arrangement."""
    results = []
    for num_frame_ranks, port in sizes:
        os.environ["MASTER_PORT"] = str(port)
        results.append(meet_and_train(folder / f"by {num_frame_ranks}", num_frame_ranks))
        results[-1]["threads"] = names_of_threads()
    return results


def meet_and_train(folder: Path, num_frame_ranks: int) -> dict[str, Any]:
    with join_ranks(torch.device("cpu"), frame_parallel=num_frame_ranks, timeout_seconds=80) as ranks:
        return train_every_way(folder, ranks)


def train_every_way(folder: Path, ranks: Ranks) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for name, way in WAYS.items():
        workers = ranks.num_frame_ranks - 1 if name == "augmented" and ranks.world_size == 2 else 0
        trainer = begin(folder / name / f"rank{ranks.rank}", ranks, num_workers=workers, **way)
        counts = count_reductions(trainer)
        results[name] = fit(trainer)
        results[name, "reductions"] = [counts[id(parameter)] for parameter in trainer.model.parameters()]
        results[name, "steps"] = trainer.progress.step
        results[name, "frames"] = trainer.model.encoder.encoder.num_trained
        if trainer.average is None:
            results[name, "validated"] = trainer.model.encoder.encoder.num_validated
    trainer.load_best()
    results["best"] = trainer.model.state_dict()
    going_on = begin(folder / "going on" / f"rank{ranks.rank}", ranks, **WAYS["state carried"])
    going_on.load(load_last(folder.parent / "stopped alone"), Path("last.pt"))
    results["gone on"] = fit(going_on)
    stopping = begin(folder / "stopping" / f"rank{ranks.rank}", ranks, **WAYS["state carried"])
    if ranks.rank == 1:
        stop_after(stopping, 4)
    try:
        fit(stopping)
    except Stopped:
        results["stopped after"] = stopping.progress.step
    once = {"batch_size": 2, "num_epochs": 1}
    results["dropout"] = fit(begin(folder / "dropout" / f"rank{ranks.rank}", ranks, dropout=0.5, **once))
    skipping = begin(folder / "skipping" / f"rank{ranks.rank}", ranks, skip_not_finite=True, **once)
    results["skipping"] = fit(skipping, POISONED)
    results["skipped"] = skipping.progress.of_run.num_skipped
    try:
        fit(begin(folder / "failing" / f"rank{ranks.rank}", ranks, **once), POISONED)
    except TrainingError as error:
        results["error"] = str(error)
    return results


def names_of_threads() -> set[str]:
    """Those of this process; empty where the system does not say."""
    return {(task / "comm").read_text().strip() for task in Path("/proc/self/task").glob("*")}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The same work in one process; a run that was stopped in it is left in a folder for the others."""
    folder = tmp_path_factory.mktemp("alone")
    results: dict[str, Any] = {"folder": folder}
    for name, way in WAYS.items():
        trainer = begin(folder / name, Ranks(), **way)
        results[name] = fit(trainer)
        results[name, "frames"] = trainer.model.encoder.encoder.num_trained
    trainer.load_best()
    results["best"] = trainer.model.state_dict()
    stopping = begin(folder / "stopped alone", Ranks(), **WAYS["state carried"])
    stop_after(stopping, 2)
    with pytest.raises(Stopped):
        fit(stopping)
    once = {"batch_size": 2, "num_epochs": 1}
    results["dropout"] = fit(begin(folder / "dropout", Ranks(), dropout=0.5, **once))
    results["skipping"] = fit(begin(folder / "skipping", Ranks(), skip_not_finite=True, **once), POISONED)
    return results


@pytest.fixture(scope="module", params=SIZES)
def several(request: pytest.FixtureRequest, alone: dict[str, Any]) -> list[Arrangement]:
    """One entry for each arrangement: its folder, how many ranks share frames, what each rank says."""
    num_ranks, arrangements = request.param
    folder = alone["folder"] / f"{num_ranks} by {arrangements}"
    folder.mkdir()
    (folder / "stopped alone").symlink_to(alone["folder"] / "stopped alone")
    sizes = [(num_frame_ranks, find_free_port()) for num_frame_ranks in arrangements]
    results = run_launched(train_on_ranks, folder / "results", folder, sizes, num_ranks=num_ranks)
    by_size = zip(*results, strict=True)
    return [(folder / f"by {size}", size, list(of)) for size, of in zip(arrangements, by_size, strict=True)]


def assert_same(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """To rounding, in float64, which AdamW makes larger: it divides each gradient by its own size."""
    for name, value in expected.items():
        assert torch.allclose(weights[name], value, rtol=1e-7, atol=1e-8), name


def assert_identical(weights: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert all(torch.equal(weights[name], value) for name, value in expected.items())


@pytest.mark.parametrize("way", WAYS)
def test_several_processes_train_as_one(several: list[Arrangement], alone: dict[str, Any], way: str) -> None:
    """Cases 57, 58, 62: uneven numbers of clips and lengths, replicas with nothing to do, lanes that end early."""
    for folder, _, results in several:
        for result in results:
            assert_same(result[way], alone[way])
            assert_identical(result[way], results[0][way])
        for table in ("steps.csv", "metrics.csv"):
            pairs = zip(rows(folder / way / "rank0" / table), rows(alone["folder"] / way / table), strict=True)
            for got, expected in pairs:
                for column in ("loss", "train_loss", "train_accuracy", "val_accuracy", "gradient_norm"):
                    if column in expected:
                        assert float(got[column]) == pytest.approx(float(expected[column]), rel=1e-7), (table, column)


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_reduced_once_a_step(several: list[Arrangement], way: str) -> None:
    for result in (result for _, _, results in several for result in results):
        assert set(result[way, "reductions"]) == {result[way, "steps"]}


def test_each_rank_encodes_its_share(several: list[Arrangement], alone: dict[str, Any]) -> None:
    """Frames, not seconds; first runs and replays. Of what is replayed less, the more last chunks there are."""
    for _, num_frame_ranks, results in several:
        for way in WAYS:
            frames = [result[way, "frames"] for result in results]
            num_idle = 2 * 10 * len(results) * num_frame_ranks  # frames for the others' sake, at most
            assert sum(frames) <= alone[way, "frames"] + num_idle
            if num_frame_ranks == len(results):
                assert max(frames) <= alone[way, "frames"] / num_frame_ranks + num_idle / num_frame_ranks


def test_each_video_is_validated_once(several: list[Arrangement]) -> None:
    """By one of the ranks, of which there may be more than videos."""
    for _, _, results in several:
        counts = [result["uneven batches", "validated"] for result in results]
        assert sum(counts) == 2 * sum(len(video) for video in VALIDATED)  # in two epochs
        assert sum(count > 0 for count in counts) == min(len(VALIDATED), len(results))


def test_only_the_first_rank_writes(several: list[Arrangement]) -> None:
    for folder, _, results in several:
        for way in WAYS:
            assert (folder / way / "rank0" / "best.pt").exists()
            assert not any(any((folder / way / f"rank{rank}").iterdir()) for rank in range(1, len(results)))


def test_all_ranks_find_the_best_weights(several: list[Arrangement], alone: dict[str, Any]) -> None:
    for result in (result for _, _, results in several for result in results):
        assert_same(result["best"], alone["best"])


def test_a_run_goes_on_with_another_number_of_processes(several: list[Arrangement], alone: dict[str, Any]) -> None:
    """Carried states included, in both directions."""
    for folder, _, results in several:
        for result in results:
            assert_same(result["gone on"], alone["state carried"])
            assert result["stopped after"] == 4  # all of them, though one alone had a signal
        again = begin(folder / "stopping" / "rank0", Ranks(), **WAYS["state carried"])
        again.load(load_last(folder / "stopping" / "rank0"), Path("last.pt"))
        assert_same(fit(again), alone["state carried"])


def test_dropout(several: list[Arrangement], alone: dict[str, Any]) -> None:
    """With one replica its masks are those of one process; with more, every rank ends with the same weights."""
    for _, num_frame_ranks, results in several:
        for result in results:
            assert_identical(result["dropout"], results[0]["dropout"])
            if num_frame_ranks == len(results):
                assert_same(result["dropout"], alone["dropout"])


def test_a_loss_that_is_not_finite_is_left_out_by_all(several: list[Arrangement], alone: dict[str, Any]) -> None:
    for result in (result for _, _, results in several for result in results):
        assert result["skipped"] == 1
        assert_same(result["skipping"], alone["skipping"])


def test_a_loss_that_is_not_finite_is_named_by_all(several: list[Arrangement]) -> None:
    """The clip, whichever rank had it, and with replicas no other of its batch."""
    for _, num_frame_ranks, results in several:
        for result in results:
            assert "the loss became nan in step" in result["error"]
            assert "video09 frames 0 to 12" in result["error"]
            if num_frame_ranks == 1:
                assert result["error"].count("video") == 1


def test_no_thread_outlives_the_meeting(several: list[Arrangement]) -> None:
    """A thread of gloo that lets a tensor go after the interpreter's end would abort the process (SIGABRT)."""
    for result in (result for _, _, results in several for result in results):
        assert not {name for name in result["threads"] if "gloo" in name}

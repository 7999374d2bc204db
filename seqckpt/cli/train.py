"""`seqckpt train`: from a configuration to a trained model with its scores."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import torch

from seqckpt import build, training
from seqckpt.atomic import write_text
from seqckpt.cli.command import Command
from seqckpt.cli.origin import Origin, Place, name_config, open_place
from seqckpt.cli.report import try_to_report
from seqckpt.config import Config, load_config, write_config
from seqckpt.data import Clip
from seqckpt.models import VideoModel
from seqckpt.units import format_bytes, format_seconds

__all__ = ["TRAIN"]


def _train(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Train a model on the training videos, choose the best epoch by the validation videos, and score the test ones."""
    started = time.perf_counter()
    config_name, config = load_config(name_config(arguments), find_more=build.find_unusable_names)
    device = build.choose_device(config.train.device)
    with (
        training.join_ranks(device, **vars(config.distributed)) as ranks,
        training.deterministic(config.train.deterministic),
        ranks.named_if_lost(),
        open_place(config, config_name) if ranks.is_main else nullcontext(Place(Path())) as chosen,
    ):
        place = ranks.share(chosen)
        if place.ended:
            print(place.ended)
            return 0
        line = _run(config_name, config, place.folder, place.origin, device=device, ranks=ranks, started=started)
        print(line)
        if ranks.is_main:
            training.note_line(place.folder, line)
    return 0


def _describe_end(summary: dict[str, Any], path: Path, report: Path | None) -> str:
    over = "mean over 1 video" if summary["num_test_videos"] == 1 else f"means over {summary['num_test_videos']} videos"
    return (
        f"test accuracy {summary['test_accuracy']:.3f}, Jaccard {summary['test_jaccard']:.3f} ({over}), "
        f"{format_seconds(summary['elapsed_seconds'])} in all; results in {path}"
        f"{f'; look at {report}' if report else ''}"
    )


def _run(
    config_name: str,
    config: Config,
    path: Path,
    origin: Origin | None,
    *,
    device: torch.device,
    ranks: training.Ranks,
    started: float,
) -> str:
    """Read the data, build or rebuild what is trained, train it to its end, write the results; return a line of it."""
    config.resume = None
    training.seed_generators(config.train.seed)
    if config.train.tensorboard:
        training.check_tensorboard()
    if config.train.batch_size < ranks.num_replicas:
        warnings.warn(
            f"train.batch_size={config.train.batch_size} is shared by {ranks.num_replicas} replicas, some of which "
            "have nothing to do: raise it, or let distributed.frame_parallel share the frames of a clip",
            stacklevel=2,
        )
    # One process makes the sample, fetches weights, decodes videos; the others find them.
    with ranks.first_of_machine():
        phase_names = config.data.phase_names = build.choose_phase_names(config.data)  # so that the run says them
        ids = build.choose_videos(config.data)
        model = build.build_model(config)
        build.check_image_size(model, config.data.image_size)
        videos = build.read_videos(config.data, ids)
    build.set_class_weights(model, config.train.class_weights, videos.train, num_phases=len(phase_names))
    model.to(device)
    optimiser = build.build_optimiser(model, config)
    clips = videos.clips(config.data.clip_length)
    asked = write_config(config)
    config, budget = _plan_for_all(config, model, clips, optimiser, path, ranks)
    if config.train.compile:
        build.compile_encoder(model)
    fuses = getattr(model.encoder, "fuse", False)
    described = _describe(config, videos, device, path, ranks=ranks, fuses=fuses)
    print(described, flush=True)
    if ranks.is_main:
        write_text(path / "config.yaml", write_config(config))
        for line in ([origin.told] if origin else []) + [described]:
            training.note_line(path, line)
    trainer = training.Trainer(
        model,
        optimiser,
        build.build_settings(config),
        folder=path,
        phase_names=phase_names,
        extra={"phase_names": phase_names, "config": asked, "config_name": config_name},
        budget=budget,
        ranks=ranks,
    )
    if origin is not None:
        trainer.load(origin.state, origin.snapshot)
    if ranks.is_main:
        training.note_environment(path, device, step=trainer.progress.step)
    try:
        trainer.fit(clips, videos.val)
    except training.Stopped as stop:
        if not stop.at_once and ranks.is_main:
            where = f"{path / 'last.pt'} after step {trainer.progress.step}"
            with suppress(OSError):  # the terminal may be what was lost
                print(f"saved {where}; resume={path} goes on from there", file=sys.stderr)
            training.note_line(path, f"stopped by a signal; saved {where}")
        raise
    summary = _finish(trainer, config_name, config, videos, started=started)
    frames = {video.video_id: video.frames for video in videos.test}
    return _describe_end(summary, path, try_to_report(path, config, frames) if ranks.is_main else None)


def _plan_for_all(
    config: Config,
    model: VideoModel,
    clips: Sequence[Clip],
    optimiser: torch.optim.Optimizer,
    path: Path,
    ranks: training.Ranks,
) -> tuple[Config, training.Budget | None]:
    """Plan on one process for all of them. A step that runs out of memory is not run again where others wait for it."""
    if ranks.world_size == 1:
        return _plan(config, model, clips, optimiser, path)
    planned = (
        _plan(config, model, clips, optimiser, path, num_replicas=ranks.num_replicas)[0] if ranks.is_main else None
    )
    config = ranks.share(planned) or config
    if config.memory.enabled:
        build.build_schedule(config.memory).apply(model)
    return config, None


def _plan(
    config: Config,
    model: VideoModel,
    clips: Sequence[Clip],
    optimiser: torch.optim.Optimizer,
    path: Path,
    *,
    num_replicas: int = 1,
) -> tuple[Config, training.Budget | None]:
    """Choose and set a schedule where there is a budget; the configuration returned has it filled in.

    Where it is planned again, the run's configuration in `path` is written anew.
    """
    if config.memory.budget is None or not build.is_open_to_plan(config.memory):
        return config, None
    sample = build.take_largest_batch(config, clips, num_replicas=num_replicas)
    with training.Precision(config.train.precision, next(model.parameters()).device).autocast():
        planning = build.Planning(config, model, sample, optimiser)
    schedule = planning.choose()
    schedule.apply(model)
    print(f"planned for {format_bytes(planning.budget_bytes)}: {schedule}", flush=True)

    def replan(factor: float) -> str:
        again = planning.choose(round(planning.budget_bytes / factor))
        again.apply(model)
        write_text(path / "config.yaml", write_config(build.with_schedule(config, again)))
        return str(again)

    budget = training.Budget(planning.budget_bytes, planning.resident_bytes, replan)
    return build.with_schedule(config, schedule), budget


def _finish(
    trainer: training.Trainer, config_name: str, config: Config, videos: build.Videos, *, started: float
) -> dict[str, Any]:
    """Score the best epoch on the test videos, write all results, and return the summary."""
    phase_names = trainer.phase_names
    trainer.load_best()
    window = build.choose_window(config.data)
    predictions = training.predict_videos(trainer.model, videos.test, window=window, ranks=trainer.ranks)
    scores = training.score(predictions, len(phase_names))
    progress = trainer.progress
    summary: dict[str, Any] = {
        "test_accuracy": scores.accuracy_mean,
        "test_accuracy_std_over_videos": scores.accuracy_std_over_videos,
        "test_jaccard": scores.jaccard.mean,
        "protocol": scores.protocol,
        "val_accuracy": progress.best_accuracy,
        "best_epoch": progress.best_epoch,
        "num_videos": len(videos.train) + len(videos.val) + len(videos.test),
        "num_train_videos": len(videos.train),
        "num_val_videos": len(videos.val),
        "num_test_videos": len(videos.test),
        "phase_frames": build.count_phases(videos, phase_names),
        "phase_weights": build.list_class_weights(trainer.model),
        "num_steps": progress.step,
        "num_skipped_steps": progress.of_run.num_skipped,
        "frames_per_second": progress.of_run.num_frames / progress.of_run.seconds,
        "waiting_share": progress.of_run.waiting_seconds / progress.of_run.seconds,
        "peak_memory_bytes": progress.of_run.peak_bytes or None,
        "peak_memory_meaning": trainer.meter.meaning,
        "elapsed_seconds": time.perf_counter() - started,
        "config_name": config_name,
        "torch_version": torch.__version__,
        "device": _describe_device(trainer.device),
        "num_processes": trainer.ranks.world_size,
    }
    if not trainer.ranks.is_main:
        return summary
    with training.writing_into(trainer.folder, "the results"):
        training.draw_curves(trainer.folder, progress.records)
        training.write_results(trainer.folder, predictions, phase_names, summary)
    return summary


def _describe(
    config: Config, videos: build.Videos, device: torch.device, path: Path, *, ranks: training.Ranks, fuses: bool
) -> str:
    model, memory = config.model, config.memory
    over_time = "each frame by itself" if model.rnn == "none" else f"{model.rnn} {model.hidden_size}"
    saving = build.build_schedule(memory).describe_choices() if memory.enabled else "plain run"
    saving += ", layers fused" if fuses else ""
    counts = f"{len(videos.train)} videos to train, {len(videos.val)} to validate, {len(videos.test)} to test"
    where = f"{_describe_device(device)}, {saving}"
    if ranks.world_size > 1:
        where += f", {ranks.world_size} processes ({ranks.num_replicas} x {ranks.num_frame_ranks} that share frames)"
    return f"{model.encoder} + {over_time} on {where}; {counts}; results in {path}"


def _describe_device(device: torch.device) -> str:
    return f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


TRAIN = Command("train", _train, "train a model and write its results into runs/")

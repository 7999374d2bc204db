"""`seqckpt train`: from a configuration to a trained model with its scores."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from seqckpt import build, training
from seqckpt.atomic import write_text
from seqckpt.cli.command import Command
from seqckpt.config import Config, load_config, write_config
from seqckpt.data import Clip
from seqckpt.models import VideoModel
from seqckpt.units import format_bytes, format_seconds

__all__ = ["TRAIN"]


def _train(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Train a model on the training videos, choose the best epoch by the validation videos, and score the test ones."""
    started = time.perf_counter()
    config_name, config = load_config(arguments, find_more=build.find_unusable_names)
    path = training.choose_run_path(config.run, config_name)
    device = build.choose_device(config.train.device)
    phase_names = config.data.phase_names = build.choose_phase_names(config.data)  # so that the run says them
    ids = build.choose_videos(config.data)
    model = build.build_model(config)
    build.check_image_size(model, config.data.image_size)
    videos = build.read_videos(config.data, ids)
    build.set_class_weights(model, config.train.class_weights, videos.train, num_phases=len(phase_names))
    model.to(device)
    optimiser = build.build_optimiser(model, config)
    clips = videos.clips(config.data.clip_length)
    config, budget = _plan(config, model, clips, optimiser, path)
    print(_describe(config, videos, device, path), flush=True)
    with training.open_run_directory(path):
        write_text(path / "config.yaml", write_config(config))
        trainer = training.Trainer(
            model,
            optimiser,
            build.build_settings(config),
            folder=path,
            num_phases=len(phase_names),
            extra={"phase_names": phase_names, "config": write_config(config)},
            budget=budget,
        )
        try:
            trainer.fit(clips, videos.val)
        except KeyboardInterrupt:
            print(f"saved {path / 'last.pt'} after step {trainer.progress.step}", file=sys.stderr)
            raise
        summary = _finish(trainer, config_name, config, videos, started=started)
    over = "mean over 1 video" if len(videos.test) == 1 else f"means over {len(videos.test)} videos"
    print(
        f"test accuracy {summary['test_accuracy']:.3f}, Jaccard {summary['test_jaccard']:.3f} ({over}), "
        f"{format_seconds(summary['elapsed_seconds'])} in all; results in {path}"
    )
    return 0


def _plan(
    config: Config, model: VideoModel, clips: Sequence[Clip], optimiser: torch.optim.Optimizer, path: Path
) -> tuple[Config, training.Budget | None]:
    """Choose and set a schedule where there is a budget; the configuration returned has it filled in.

    Where it is planned again, the run's configuration in `path` is written anew.
    """
    if config.memory.budget is None or not build.is_open_to_plan(config.memory):
        return config, None
    planning = build.Planning(config, model, build.take_largest_batch(config, clips), optimiser)
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
    phase_names = build.choose_phase_names(config.data)
    trainer.load_best()
    predictions = training.predict_videos(trainer.model, videos.test, window=build.choose_window(config.data))
    scores = training.score(predictions, trainer.num_phases)
    progress = trainer.progress
    training.draw_curves(trainer.folder, progress.records)
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
        "frames_per_second": progress.of_run.num_frames / progress.of_run.seconds,
        "waiting_share": progress.of_run.waiting_seconds / progress.of_run.seconds,
        "peak_memory_bytes": progress.of_run.peak_bytes or None,
        "peak_memory_meaning": trainer.meter.meaning,
        "elapsed_seconds": time.perf_counter() - started,
        "config_name": config_name,
        "torch_version": torch.__version__,
        "device": _describe_device(trainer.device),
    }
    training.write_results(trainer.folder, predictions, phase_names, summary)
    return summary


def _describe(config: Config, videos: build.Videos, device: torch.device, path: Path) -> str:
    model, memory = config.model, config.memory
    over_time = "each frame by itself" if model.rnn == "none" else f"{model.rnn} {model.hidden_size}"
    saving = build.build_schedule(memory).describe_choices() if memory.enabled else "plain run"
    counts = f"{len(videos.train)} videos to train, {len(videos.val)} to validate, {len(videos.test)} to test"
    return f"{model.encoder} + {over_time} on {_describe_device(device)}, {saving}; {counts}; results in {path}"


def _describe_device(device: torch.device) -> str:
    return f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


TRAIN = Command("train", _train, "train a model and write its results into runs/")

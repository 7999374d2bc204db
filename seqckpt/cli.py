"""The command line: `seqckpt <command> config=... [key=value ...]`.

A mistake of the user's is one message on stderr and exit code 2; training that cannot go on is 1; Ctrl-C is 130.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TextIO

import torch

from seqckpt import build, training
from seqckpt.atomic import write_text
from seqckpt.config import Config, describe_keys, load_config, write_config
from seqckpt.errors import TrainingError, UsageError
from seqckpt.units import format_seconds

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; `argv` defaults to the arguments of the process."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in arguments or os.environ.get("SEQCKPT_DEBUG", "") not in ("", "0")
    arguments = [text for text in arguments if text != "--debug"]
    warnings.showwarning = _show_warning
    logging.basicConfig(level=logging.WARNING, format="warning: %(message)s")
    try:
        command, rest = _choose_command(arguments)
        if command is None or any(text in ("-h", "--help") for text in rest):
            print(_help(command))
            return 0
        return _COMMANDS[command][0](rest)
    except (UsageError, TrainingError, OSError) as error:
        if debug:
            traceback.print_exc()
        else:
            print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        if debug:
            traceback.print_exc()
        print("interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # not foreseen: still no traceback in a user's face, but the way to one
        if debug:
            traceback.print_exc()
        else:
            print(f"error: {type(error).__name__}: {error}\n(--debug shows where it came from)", file=sys.stderr)
        return 1


def train(arguments: Sequence[str]) -> int:
    """Train a model on the training videos, choose the best epoch by the validation videos, and score the test ones."""
    started = time.perf_counter()
    config_name, config = load_config(arguments, find_more=build.find_unusable_names)
    path = training.choose_run_path(config.run, config_name)
    device = build.choose_device(config.train.device)
    phase_names = list(config.data.phase_names)
    ids = build.choose_videos(config.data)
    model = build.build_model(config)
    build.check_image_size(model, config.data.image_size)
    videos = build.read_videos(config.data, ids)
    build.set_class_weights(model, config.train.class_weights, videos.train, num_phases=len(phase_names))
    model.to(device)
    print(_describe(config, videos, device, path), flush=True)
    with training.open_run_directory(path):
        write_text(path / "config.yaml", write_config(config))
        trainer = training.Trainer(
            model,
            build.build_optimiser(model, config),
            build.build_settings(config),
            folder=path,
            num_phases=len(phase_names),
            extra={"phase_names": phase_names, "config": write_config(config)},
        )
        try:
            trainer.fit(videos.clips(config.data.clip_length), videos.val)
        except KeyboardInterrupt:
            print(f"saved {path / 'last.pt'} after step {trainer.progress.step}", file=sys.stderr)
            raise
        summary = _finish(trainer, config_name, config, videos, started=started)
    print(
        f"test accuracy {summary['test_accuracy']:.3f}, Jaccard {summary['test_jaccard']:.3f} (means over "
        f"{len(videos.test)} videos), {format_seconds(summary['elapsed_seconds'])} in all; results in {path}"
    )
    return 0


def _finish(
    trainer: training.Trainer, config_name: str, config: Config, videos: build.Videos, *, started: float
) -> dict[str, Any]:
    """Score the best epoch on the test videos, write all results, and return the summary."""
    trainer.load_best()
    predictions = training.predict_videos(trainer.model, videos.test, window=config.data.clip_length)
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
        "num_steps": progress.step,
        "frames_per_second": progress.of_run.num_frames / progress.of_run.seconds,
        "peak_memory_bytes": progress.of_run.peak_bytes or None,
        "peak_memory_meaning": trainer.meter.meaning,
        "elapsed_seconds": time.perf_counter() - started,
        "config_name": config_name,
        "torch_version": torch.__version__,
        "device": _describe_device(trainer.device),
    }
    training.write_results(trainer.folder, predictions, config.data.phase_names, summary)
    return summary


_COMMANDS: dict[str, tuple[Callable[[Sequence[str]], int], str]] = {
    "train": (train, "train a model and write its results into runs/"),
}


def _choose_command(arguments: Sequence[str]) -> tuple[str | None, Sequence[str]]:
    if not arguments or arguments[0] in ("-h", "--help"):
        if arguments:
            return None, arguments
        raise UsageError(f"a command is missing: expected one of {', '.join(_COMMANDS)}\n\n{_help(None)}")
    command, rest = arguments[0], arguments[1:]
    if command not in _COMMANDS:
        near = difflib.get_close_matches(command, _COMMANDS, n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        raise UsageError(f"{command!r} is no command: expected one of {', '.join(_COMMANDS)}{meant}")
    return command, rest


def _help(command: str | None) -> str:
    if command is None:
        listed = "\n".join(f"  {name:<12} {meaning}" for name, (_, meaning) in _COMMANDS.items())
        return (
            f"usage: seqckpt COMMAND config=FILE [key=value ...]\n\n{listed}\n\nseqckpt COMMAND --help lists the keys."
        )
    return f"""usage: seqckpt {command} config=FILE [key=value ...] [--debug]

{_COMMANDS[command][1]}

config=FILE is read first: a bare name is looked up in configs/, anything with a / is a path. Then come the other
arguments, such as train.epochs=5 or data.split.test=[9-12]. --debug (or SEQCKPT_DEBUG=1) shows tracebacks.

keys, with their defaults:
{describe_keys()}"""


def _describe(config: Config, videos: build.Videos, device: torch.device, path: Path) -> str:
    model, memory = config.model, config.memory
    over_time = "each frame by itself" if model.rnn == "none" else f"{model.rnn} {model.hidden_size}"
    saving = f"chunks of {memory.chunk_size}, segments of {memory.segment_length}" if memory.enabled else "plain run"
    counts = f"{len(videos.train)} videos to train, {len(videos.val)} to validate, {len(videos.test)} to test"
    return f"{model.encoder} + {over_time} on {_describe_device(device)}, {saving}; {counts}; results in {path}"


def _describe_device(device: torch.device) -> str:
    return f"{device.type} ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else str(device)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    print(f"warning: {message}", file=sys.stderr)

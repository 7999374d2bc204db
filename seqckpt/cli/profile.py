"""`seqckpt profile`: what a training step does to memory, plain and scheduled, and where checkpoints would help."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from seqckpt import build, training
from seqckpt.atomic import write_text
from seqckpt.cli.command import Command
from seqckpt.config import Config, load_config, write_config
from seqckpt.errors import UsageError
from seqckpt.memory import MemoryTrace, Sample, suggest_checkpoint_location, trace_memory
from seqckpt.plots import compare_traces, plot_trace
from seqckpt.units import format_bytes

__all__ = ["PROFILE"]

_NO_PLAIN = "--no-plain"
_COUNTS = (1, 2, 4, 8)


def _profile(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Trace one step on one clip of random frames of the configured length and size, in each way; write and draw."""
    config_name, config = load_config(arguments, find_more=build.find_unusable_names)
    path = training.choose_run_path(config.run, f"{config_name}-profile")
    traces: dict[str, MemoryTrace] = {"scheduled": _trace(config, enabled=True)}
    if _NO_PLAIN not in flags:
        try:
            traces = {"plain": _trace(config, enabled=False), **traces}
        except torch.OutOfMemoryError as error:
            print(f"the plain step does not fit into memory ({error}): shorten data.clip_length, or give {_NO_PLAIN}\n")
    with training.open_run_directory(path):
        write_text(path / "config.yaml", write_config(config))
        for name, trace in traces.items():
            trace.to_json(path / f"{name}.json")
            plot_trace(trace, path / f"{name}.png")
            print(f"{name}: {build.choose_window(config.data)} frames of {config.data.image_size} px on {trace.device}")
            print(f"{trace.table()}\n")
        compare_traces(traces, path / "comparison.png")
        if "plain" in traces:
            text = _suggest(traces["plain"], traces["scheduled"])
            write_text(path / "suggestions.txt", text)
            print(text)
    print(f"traces and pictures in {path}")
    return 0


def _trace(config: Config, *, enabled: bool) -> MemoryTrace:
    """Trace the config's model with `memory.enabled` so; the optimiser has made a step, and holds its state."""
    config = copy.deepcopy(config)
    config.memory.enabled = enabled
    device = build.choose_device(config.train.device)
    model = build.build_model(config)
    build.check_image_size(model, config.data.image_size)
    model.to(device).train()
    optimiser = build.build_optimiser(model, config)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    length, size = build.choose_window(config.data), config.data.image_size
    frames = torch.randint(256, (length, 3, size, size), dtype=torch.uint8)
    targets = torch.randint(len(build.choose_phase_names(config.data)), (length,))
    sample = Sample([frames.to(device)], [targets.to(device)])
    if enabled and config.memory.budget is not None:
        build.Planning(config, model, sample, optimiser).choose().apply(model)
    return trace_memory(model, sample.frames, sample.targets, optimiser=optimiser)


def _suggest(plain: MemoryTrace, scheduled: MemoryTrace) -> str:
    """Describe the best places for some numbers of checkpoints in the plain model, beside what the schedule reaches."""
    try:
        suggestions = [suggest_checkpoint_location(plain, count) for count in _COUNTS]
    except UsageError as error:
        return f"no suggestions: {error}\n"
    modules = suggestions[0].all_modules
    different = dict.fromkeys(suggestion.describe() for suggestion in suggestions if suggestion.ranges)
    lines = [
        f"suggested checkpoints in the plain model, between {modules[0]} and {modules[-1]}, all frames at once:",
        *(different or ["none that lowers the peak"]),
        f"for comparison: plain {format_bytes(plain.peak_bytes)}, scheduled {format_bytes(scheduled.peak_bytes)}",
    ]
    return "\n".join(lines) + "\n"


PROFILE = Command(
    "profile",
    _profile,
    "trace the memory of one training step, plain and scheduled, and suggest checkpoints",
    {_NO_PLAIN: "leave the plain step out, where it needs more memory than there is"},
)

"""What a report says of a run besides its results: its settings, and facts of its summary."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from seqckpt.config import Config
from seqckpt.units import format_bytes, format_seconds

__all__ = ["describe_run", "list_facts", "list_settings"]


def describe_run(config: Config, summary: Mapping[str, Any]) -> str:
    """Say in a line what was trained."""
    model = config.model
    over_time = "each frame by itself" if model.rnn == "none" else f"{model.rnn} {model.hidden_size}"
    parts = [
        f"{model.encoder} + {over_time}",
        f"{config.data.fps:g} frame{'s' * (config.data.fps != 1)} per second of video",
    ]
    if summary.get("config_name"):
        parts.insert(0, str(summary["config_name"]))
    if summary.get("best_epoch"):
        parts.append(f"best epoch {summary['best_epoch']} of {config.train.epochs}")
    return " · ".join(parts)


def list_facts(summary: Mapping[str, Any]) -> dict[str, str]:
    """Pick what people ask of a run from its summary."""
    shown: dict[str, tuple[str, Callable[[Any], str]]] = {
        "device": ("device", str),
        "torch_version": ("torch", str),
        "num_train_videos": ("videos to train", str),
        "num_val_videos": ("videos to validate", str),
        "num_test_videos": ("videos to test", str),
        "num_steps": ("steps", str),
        "val_accuracy": ("best validation accuracy (video)", lambda value: f"{value:.3f}"),
        "frames_per_second": ("frames a second in training", lambda value: f"{value:.0f}"),
        "peak_memory_bytes": ("peak memory of a step", format_bytes),
        "elapsed_seconds": ("time in all", format_seconds),
    }
    return {name: write(summary[key]) for key, (name, write) in shown.items() if summary.get(key) is not None}


def list_settings(config: Config) -> list[tuple[str, str, bool]]:
    """Return every key with its value as YAML writes it, and whether it differs from the default."""
    default = dict(_flatten(dataclasses.asdict(Config())))
    return [(key, _show(value), value != default.get(key)) for key, value in _flatten(dataclasses.asdict(config))]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    leaves: list[tuple[str, Any]] = []
    for name, value in tree.items():
        key = f"{prefix}{name}"
        leaves += _flatten(value, f"{key}.") if isinstance(value, dict) else [(key, value)]
    return leaves


def _show(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_show, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)

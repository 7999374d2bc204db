"""Which settings of a run may change when it goes on, and which would make another run of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from seqckpt.config import Config, list_values, read_config
from seqckpt.errors import ConfigError

__all__ = ["check_resumable"]

# What decides the weights' names and shapes, which clips there are and in which order they come. A key that ends with a
# dot stands for a section.
_KEPT = (
    *("model.", "data.", "train.seed", "train.batch_size", "train.accumulate", "train.bptt", "train.truncate"),
    *("train.optimiser", "train.class_weights"),
)
_FREE = (
    *("model.weights", "data.root", "data.frames_from", "data.cache", "data.cache_dir", "data.num_workers"),
    *("data.corrupt", "data.tail", "data.augment."),
)
_UNSAID = ("run", "resume")


def check_resumable(saved: str, config: Config) -> list[str]:
    """Return the settings that differ from those in a snapshot, as "key: old -> new"; how a run goes on is free.

    Memory, workers, device and the like change nothing in the results; learning rate, decay, epochs, precision and
    augmentation count from here on. Raises ConfigError, with the keys listed, where the model, the clips or their order
    would be others: their state in the snapshot does not fit.
    """
    before, now = list_values(read_config(saved)), list_values(config)
    differing = {key: (before[key], now[key]) for key in now if key not in _UNSAID and before[key] != now[key]}
    if before["memory.budget"] is not None:  # what was left open was planned, and is no setting of anybody's
        planned = [key for key in differing if key.startswith("memory.") and before[key] is None]
        differing = {key: pair for key, pair in differing.items() if key not in planned}
    refused = {key: pair for key, pair in differing.items() if _is_in(key, _KEPT) and not _is_in(key, _FREE)}
    if refused:
        listed = "\n".join(f"  {line}" for line in _list(refused))
        raise ConfigError(
            f"the run that is to be resumed had other settings, which cannot change in the middle of it:\n{listed}\n"
            "Give the old values, or start a new run without resume="
        )
    return _list(differing)


def _is_in(key: str, keys: tuple[str, ...]) -> bool:
    return any(key == known or (known.endswith(".") and key.startswith(known)) for known in keys)


def _list(differing: Mapping[str, tuple[Any, Any]]) -> list[str]:
    return [f"{key}: {before} -> {now}" for key, (before, now) in differing.items()]

"""What a snapshot consists of, part by part: checked once, when it is loaded, so that nobody who uses a part need ask.

Checksums (checksums.py) find what changed after a snapshot was written; this finds files that are whole but not what a
run saved: written by another program, put together by hand, or cut down to their weights.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from seqckpt.training.records import Progress, Totals

__all__ = ["find_misfit"]


def find_misfit(state: Any, keys: Sequence[str], *, parts: bool = True) -> str | None:
    """Return what keeps loaded data from being a snapshot with at least these keys; None where it is one.

    With `parts` the form of each part that is known is checked; else that of the weights and names alone.
    """
    if not isinstance(state, dict):
        return f"it holds a {type(state).__name__}"
    if missing := [key for key in keys if key not in state]:
        return f"{', '.join(missing)} not in it"
    for key, check in _CHECKS.items():
        if (parts or key in _FOR_PREDICTION) and key in state and (problem := check(state[key])):
            return f"{key}: {problem}"
    return None


def _misfit_of_weights(weights: Any) -> str | None:
    if not isinstance(weights, Mapping) or not all(isinstance(key, str) for key in weights):
        return f"a {type(weights).__name__} instead of tensors by name"
    other = next((key for key, value in weights.items() if not isinstance(value, Tensor)), None)
    return None if other is None else f"{other} is a {type(weights[other]).__name__}, no tensor"


def _misfit_of_optimiser(optimiser: Any) -> str | None:
    if not isinstance(optimiser, Mapping) or not isinstance(optimiser.get("state"), Mapping):
        return "it has no state of the parameters"
    groups = optimiser.get("param_groups")
    if not isinstance(groups, list) or not groups:
        return "it has no groups of parameters"
    for group in groups:
        if not isinstance(group, Mapping) or not {"params", "param_names", "base_lr"} <= group.keys():
            return "a group of parameters lacks their names, or its learning rate"
        if len(group["params"]) != len(group["param_names"]):
            return f"a group has {len(group['params'])} parameters with {len(group['param_names'])} names"
        if not _is_number(group["base_lr"]) or group["base_lr"] < 0:
            return f"the learning rate {group['base_lr']!r}"
    other = [value for value in optimiser["state"].values() if not isinstance(value, Mapping)]
    return f"the state of a parameter is a {type(other[0]).__name__}" if other else None


def _misfit_of_progress(progress: Any) -> str | None:
    wanted = {field.name for field in dataclasses.fields(Progress)}
    if not isinstance(progress, Mapping) or progress.keys() != wanted:
        differing = wanted ^ set(progress) if isinstance(progress, Mapping) else wanted
        return f"these are missing, or too many: {', '.join(sorted(map(str, differing)))}"
    counts = [progress[name] for name in ("epoch", "step_in_epoch", "step")]
    if not all(_is_count(count) for count in counts):
        return f"epoch, step_in_epoch and step are {counts}"
    epoch, step_in_epoch, step = counts
    if step_in_epoch > step or epoch > step:
        return f"step_in_epoch={step_in_epoch} of epoch={epoch} after step={step} cannot be"
    best, accuracy, records = progress["best_epoch"], progress["best_accuracy"], progress["records"]
    if (best is None) != (accuracy is None):
        return f"best_epoch={best} with best_accuracy={accuracy}"
    if best is not None and not (_is_count(best) and 1 <= best <= epoch and _is_number(accuracy)):
        return f"best_epoch={best!r} (accuracy {accuracy!r}) after {epoch} epochs"
    if not isinstance(records, list) or not all(isinstance(record, Mapping) and record for record in records):
        return "its records are no list of rows"
    if len(records) != epoch:
        return f"{len(records)} records of {epoch} epochs"
    names = [field.name for field in dataclasses.fields(Totals)]
    for part in ("of_epoch", "of_run"):
        totals = progress[part]
        if not isinstance(totals, Mapping) or sorted(totals) != sorted(names):
            return f"{part} does not hold {', '.join(names)}"
        if not all(_is_number(value) for value in totals.values()):
            return f"{part} holds what is no number"
    return None


def _misfit_of_random_states(states: Any) -> str | None:
    """Set the states in generators that nobody uses."""
    try:
        torch.Generator().set_state(states["torch"].cpu())
        if not all(isinstance(state, Tensor) for state in states["cuda"]):
            return "those of CUDA devices are no tensors"
        numpy_state = states["numpy"]
        key = np.array(numpy_state["state"]["key"], np.uint32)
        np.random.RandomState().set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})
        version, internal, gauss = states["python"]
        random.Random().setstate((version, tuple(internal), gauss))
    except Exception as error:  # whatever it holds instead
        return f"{type(error).__name__}: {error}"
    return None


def _misfit_of_carried(carried: Any) -> str | None:
    if not isinstance(carried, Mapping) or not all(_is_count(lane) for lane in carried):
        return "no states by lane"
    return None if all(_holds_tensors(state) for state in carried.values()) else "a state holds what is no tensor"


def _holds_tensors(state: Any) -> bool:
    if isinstance(state, Tensor):
        return True
    parts = state.values() if isinstance(state, Mapping) else state if isinstance(state, list | tuple) else None
    return parts is not None and len(parts) > 0 and all(_holds_tensors(part) for part in parts)


def _misfit_of_names(names: Any) -> str | None:
    return None if isinstance(names, list) and all(isinstance(name, str) for name in names) else "no list of names"


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not math.isnan(value)


def _of_kind(kind: type) -> Callable[[Any], str | None]:
    return lambda value: None if isinstance(value, kind) else f"a {type(value).__name__}"


_CHECKS: dict[str, Callable[[Any], str | None]] = {
    "model": _misfit_of_weights,
    "trained_model": _misfit_of_weights,
    "num_averaged": lambda value: None if _is_count(value) else f"{value!r} is no count",
    "optimiser": _misfit_of_optimiser,
    "scaler": _of_kind(Mapping),
    "carried": _misfit_of_carried,
    "progress": _misfit_of_progress,
    "random_states": _misfit_of_random_states,
    "phase_names": _misfit_of_names,
    "config": _of_kind(str),
}
_FOR_PREDICTION = ("model", "phase_names")

"""What the commands that score have in common: how they are told to, and what is made of it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from seqckpt.data import find_format
from seqckpt.errors import UsageError
from seqckpt.metrics import (
    CHOLEC80,
    M2CAI16,
    PROTOCOLS,
    TOLERANCE_SECONDS,
    Accumulator,
    Neighbours,
    choose_neighbours,
    find_background,
)

__all__ = ["SCORING_NAMES", "choose_protocols", "describe_scoring", "open_accumulator", "read_number"]

SCORING_NAMES = {
    "protocol": f"which protocols, divided by commas: {', '.join(PROTOCOLS)}; all unless given",
    "tolerance": f"seconds that the relaxed protocols forgive ({TOLERANCE_SECONDS:g} unless given)",
    "background": "phases that the segmental protocol leaves out, divided by commas (none unless given)",
}


def choose_protocols(values: Mapping[str, str]) -> list[str]:
    """Return the protocols that protocol= names, or all. Raises UsageError for an unknown one."""
    chosen = [name.strip() for name in values.get("protocol", ",".join(PROTOCOLS)).split(",")]
    for name in chosen:
        if name not in PROTOCOLS:
            raise UsageError(f"protocol={name}: there is no such protocol; expected some of {', '.join(PROTOCOLS)}")
    return list(dict.fromkeys(chosen))


def open_accumulator(values: Mapping[str, str], phase_names: Sequence[str], *, fps: float | None) -> Accumulator:
    """Return an empty Accumulator as tolerance= and background= say."""
    tolerance = read_number("tolerance", values, at_least=0)
    background = [name.strip() for name in values["background"].split(",")] if "background" in values else []
    return Accumulator(
        len(phase_names),
        fps=fps,
        tolerance_seconds=TOLERANCE_SECONDS if tolerance is None else tolerance,
        neighbours=_choose_neighbours(phase_names),
        background=find_background(background, phase_names),
    )


def describe_scoring(accumulator: Accumulator, phase_names: Sequence[str]) -> dict[str, Any]:
    """Say with which settings scores are computed."""
    background = [phase_names[phase] for phase in accumulator.background]
    neighbours = accumulator.neighbours
    return {
        "fps": accumulator.fps,
        "tolerance_seconds": accumulator.tolerance_seconds,
        "relaxed_neighbours": neighbours.name if neighbours is not None else None,
        "background": ", ".join(background) or "none",
    }


def read_number(name: str, values: Mapping[str, str], *, at_least: float) -> float | None:
    """Return the number that name= gives, None where it is not given. Raises UsageError for what is none."""
    if name not in values:
        return None
    try:
        number = float(values[name])
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= at_least):
        raise UsageError(f"{name}={values[name]}: expected a number from {at_least:g}")
    return number


def _choose_neighbours(phase_names: Sequence[str]) -> Neighbours:
    """Return the rule that was made for these phases; for others one neighbour each way.

    Where phases are only numbers, their number says which they are.
    """
    names = list(phase_names)
    for rule in (CHOLEC80, M2CAI16):
        known = find_format(rule.name).phase_names
        if not callable(known) and list(known) == names:
            return rule
    return choose_neighbours(len(names)) if all(name.isdigit() for name in names) else Neighbours.one(len(names))

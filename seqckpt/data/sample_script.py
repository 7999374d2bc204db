"""What happens in each surgery of the sample: which phase when, and which instruments are in view.

Phases come in pairs that look alike. Calot and gallbladder dissection show the hook, by one and the same random
process; preparation and cleaning show grasper, bipolar and irrigator likewise. Which of a pair it is, only the past
tells: has the clipping been seen? Nothing else that is drawn depends on the phase or on time, so what a classifier of
single frames can reach at best is counted from these scripts alone (`per_frame_limit`).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.formats.cholec80 import PHASES, TOOLS

__all__ = ["VIDEO_RATE", "Script", "per_frame_limit", "write_script"]

VIDEO_RATE = 5  # frames a second: enough for motion, a fifth of the real set's work
_CHANGE_SECONDS = 4.0  # mean time until an instrument's presence is drawn anew

_SAME_AS_PREPARATION = {"Grasper": 0.7, "Bipolar": 0.75, "Irrigator": 0.6}
_SAME_AS_CALOT = {"Hook": 0.93, "Grasper": 0.6}
_CLIPPING = {"Clipper": 0.93, "Grasper": 0.6}
_CUTTING = {"Scissors": 0.93, "Grasper": 0.6}

# Seconds at least and at most (before all are stretched to the surgery's length), and what is in view how often. The
# last phase outlasts what is beyond 500 seconds and looks like no other: a clip cut there can be told without a past.
_COURSE: dict[str, tuple[tuple[float, float], tuple[dict[str, float], ...]]] = {
    "Preparation": ((40, 70), (_SAME_AS_PREPARATION,)),
    "CalotTriangleDissection": ((85, 135), (_SAME_AS_CALOT,)),
    "ClippingCutting": ((40, 60), (_CLIPPING, _CUTTING)),
    "GallbladderDissection": ((85, 135), (_SAME_AS_CALOT,)),
    "GallbladderPackaging": ((40, 60), ({"SpecimenBag": 0.95, "Grasper": 0.8},)),
    "CleaningCoagulation": ((40, 70), (_SAME_AS_PREPARATION,)),
    "GallbladderRetraction": ((65, 80), ({"SpecimenBag": 0.95, "Grasper": 0.5},)),
}


@dataclass(frozen=True)
class Script:
    """One surgery by frame, VIDEO_RATE a second: `phases` int64 (T,), `tools` bool (T, 7), `bag_closed` bool (T,)."""

    phases: NDArray[np.int64]
    tools: NDArray[np.bool_]
    bag_closed: NDArray[np.bool_]


def write_script(rng: np.random.Generator, shortest_seconds: int, longest_seconds: int) -> Script:
    """Draw a surgery of a whole number of seconds; phases last differently long in each."""
    order = list(range(len(PHASES)))
    if rng.random() < 0.5:  # cleaning before packaging happens as often as after it
        order[4], order[5] = order[5], order[4]
    drawn = np.array([rng.uniform(*_COURSE[PHASES[phase]][0]) for phase in order])
    num_frames = VIDEO_RATE * int(rng.integers(shortest_seconds, longest_seconds + 1))
    ends = np.rint(np.cumsum(drawn) / drawn.sum() * num_frames).astype(int)
    phases = np.empty(num_frames, np.int64)
    tools = np.zeros((num_frames, len(TOOLS)), bool)
    for phase, start, end in zip(order, [0, *ends[:-1]], ends, strict=True):
        phases[start:end] = phase
        views = _COURSE[PHASES[phase]][1]
        for view, part in zip(views, np.array_split(np.arange(start, end), len(views)), strict=True):
            for name, share in view.items():
                tools[part, TOOLS.index(name)] = _draw_presence(rng, len(part), share, starts=name == next(iter(view)))
    return Script(phases, tools, phases == PHASES.index("GallbladderRetraction"))


def _draw_presence(rng: np.random.Generator, num_frames: int, share: float, *, starts: bool) -> NDArray[np.bool_]:
    """Draw when an instrument is in view: drawn anew at random moments; `starts`: there from the first frame."""
    change = rng.random(num_frames) < 1 / (_CHANGE_SECONDS * VIDEO_RATE)
    change[:1] = True
    draws = rng.random(num_frames) < share
    if starts:
        draws[:1] = True
    return draws[np.maximum.accumulate(np.where(change, np.arange(num_frames), 0))]


def per_frame_limit(scripts: Iterable[Script]) -> float:
    """Return the accuracy (0..1) of the best possible classifier of single frames over these surgeries.

    It sees perfectly what is in view, and names the phase in which that is seen most often.
    """
    seen: defaultdict[tuple[bool, ...], Counter[int]] = defaultdict(Counter)
    for script in scripts:
        in_view = np.column_stack([script.tools, script.bag_closed & script.tools[:, TOOLS.index("SpecimenBag")]])
        for look, phase in zip(in_view.tolist(), script.phases.tolist(), strict=True):
            seen[tuple(look)][phase] += 1
    right = sum(max(counts.values()) for counts in seen.values())
    return right / sum(counts.total() for counts in seen.values())

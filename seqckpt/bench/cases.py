"""The bench's cases by name: one line each registers one."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

from seqckpt.bench.case import Case
from seqckpt.bench.fixed_costs import FIXED_COSTS
from seqckpt.bench.host_memory import HOST_MEMORY
from seqckpt.bench.learning import LEARNING
from seqckpt.bench.lm import LM
from seqckpt.bench.memonger_cnn import MEMONGER_CNN
from seqckpt.bench.nin import NIN
from seqckpt.bench.online import ONLINE
from seqckpt.bench.planning import PLANNING
from seqckpt.bench.reading import READING
from seqckpt.bench.rnn import RNN
from seqckpt.bench.suggest import SUGGEST
from seqckpt.bench.video import VIDEO
from seqckpt.bench.video_long import VIDEO_LONG
from seqckpt.errors import UsageError

__all__ = ["CASES", "choose_cases"]

CASES: dict[str, Case] = {
    case.name: case
    for case in (
        VIDEO,
        VIDEO_LONG,
        LM,
        MEMONGER_CNN,
        NIN,
        RNN,
        SUGGEST,
        LEARNING,
        PLANNING,
        READING,
        ONLINE,
        HOST_MEMORY,
        FIXED_COSTS,
    )
}


def choose_cases(names: Sequence[str], *, others: Mapping[str, str] | None = None) -> list[Case]:
    """The cases of these names, all of them for none; raises UsageError for an unknown one, with what was meant.

    `others` maps what else the command line may have to how it is written there: "output" to "output=...", say.
    """
    written = {key: f"{key}=..." for case in CASES.values() for key in case.settings}
    written |= {name: name for name in CASES} | dict(others or {})
    for name in names:
        if name not in CASES:
            near = difflib.get_close_matches(name, written, n=1)
            meant = f"; did you mean {written[near[0]]}?" if near else ""
            raise UsageError(f"{name!r} is no case of the bench: expected some of {', '.join(CASES)}{meant}")
    return [CASES[name] for name in dict.fromkeys(names)] or list(CASES.values())

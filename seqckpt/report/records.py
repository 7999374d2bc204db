"""What a report shows, as plain records: the page is made from these and from nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from seqckpt.report.thumbnails import Thumbnails
from seqckpt.training import VideoPrediction

__all__ = ["Report", "Row"]

Row = Mapping[str, Any]  # one row of a table: text or numbers by the name of the column; None and nan are "undefined"


@dataclass(frozen=True)
class Report:
    """One run.

    `headlines` are (name, value, explanation). `tables` are lists of rows by their titles, shown in that order.
    `confusion` counts labelled frames, int64 (K, K), row = truth. `curves` are the rows of metrics.csv. `settings` are
    (key, value, whether it differs from the default). `facts` are what is known of the run besides. `notes` say what
    is missing, and why.
    """

    title: str
    subtitle: str
    phase_names: Sequence[str]
    predictions: Sequence[VideoPrediction] = ()
    headlines: Sequence[tuple[str, str, str]] = ()
    tables: Mapping[str, Sequence[Row]] = field(default_factory=dict)
    confusion: Any = None
    curves: Sequence[Row] = ()
    settings: Sequence[tuple[str, str, bool]] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    thumbnails: Thumbnails | None = None
    notes: Sequence[str] = ()

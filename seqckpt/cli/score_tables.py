"""Scores as tables: all protocols side by side, per phase and per video; and the files that hold them."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqckpt.atomic import write_text
from seqckpt.cli.text_table import align, write_latex
from seqckpt.metrics import Accumulator, InferenceTime, ScoreRow, Scores, score_rows
from seqckpt.training import write_table

__all__ = ["Report", "format_score", "tabulate"]

_PER_VIDEO = ("accuracy", "jaccard")  # each a table of its own, protocols side by side; the CSV has all
_OTHERS_PER_VIDEO = ("edit", "f1@10", "f1@25", "f1@50", "absolute delay", "inference time")
_UNITS = "video, pooled, relaxed, relaxed-matlab: shares from 0 to 1; segmental: percent; delay: seconds"

Table = tuple[str, list[list[str]]]  # title, and rows of cells, the first of them the head


@dataclasses.dataclass(frozen=True)
class Report:
    """Scores of a set of videos with what is needed to write them; `about` says what was scored, and how."""

    about: Mapping[str, Any]
    phase_names: Sequence[str]
    video_ids: Sequence[str]
    scores: Mapping[str, Scores]
    time: InferenceTime | None

    @classmethod
    def of(
        cls, accumulator: Accumulator, protocols: Sequence[str], phase_names: Sequence[str], about: Mapping[str, Any]
    ) -> Report:
        """Score what was gathered under the protocols named."""
        scores = accumulator.scores(protocols)
        return cls(about, phase_names, accumulator.videos, scores, accumulator.inference_time())

    def rows(self) -> list[ScoreRow]:
        """Return every number, the time of inference among them."""
        rows = score_rows(self.scores, video_ids=self.video_ids, phase_names=self.phase_names)
        if self.time is not None:
            name = ("time", "inference time", "s")
            rows.append(ScoreRow(*name, "", "", self.time.mean_seconds, self.time.std_seconds_over_videos))
            pairs = zip(self.video_ids, self.time.seconds_per_video.tolist(), strict=True)
            rows += [ScoreRow(*name, video, "", seconds) for video, seconds in pairs]
        return rows

    def tables(self) -> list[Table]:
        """Return the tables: over all videos, per phase for each measure, per video, and the confusion matrix."""
        rows = self.rows()
        over = f"over {len(self.video_ids)} video{'s' * (len(self.video_ids) != 1)}"
        tables = [tabulate(f"{over}: mean ± std over videos", _select(rows), _measure, _protocol)]
        spreads = [row for row in _select(rows) if not math.isnan(row.std_over_phases)]
        if spreads:
            spreads = [dataclasses.replace(row, value=row.std_over_phases, std_over_videos=math.nan) for row in spreads]
            tables.append(tabulate(f"{over}: std over phases", spreads, _measure, _protocol))
        for measure in dict.fromkeys(row.measure for row in rows if row.phase and row.protocol != "delay"):
            chosen = [row for row in _select(rows, phase=True) if row.measure == measure]
            tables.append(tabulate(f"{measure} per phase, %", chosen, _phase, _protocol))
        delays = [row for row in _select(rows, phase=True) if row.protocol == "delay"]
        if delays:
            tables.append(tabulate("delay per phase", delays, _phase, _measure))
        tables += _video_tables(_select(rows, video=True))
        return [*tables, *self._confusion()]

    def text(self) -> str:
        """Return all tables for a terminal."""
        about = "\n".join(f"{name}: {'not given' if value is None else value}" for name, value in self.about.items())
        return "\n\n".join([about, *(f"{title}\n{align(table)}" for title, table in self.tables())])

    def write(self, folder: Path, stem: str) -> list[Path]:
        """Write <stem>.csv, .json and .tex into a folder, each whole or not at all; return their paths."""
        paths = [folder / f"{stem}.{suffix}" for suffix in ("csv", "json", "tex")]
        table, plain, latex = paths
        write_table(table, [_without_nan(dataclasses.asdict(row)) for row in self.rows()])
        write_text(plain, json.dumps(self.as_dict(), indent=1, allow_nan=False) + "\n")
        about = "\n".join(f"% {name}: {value}" for name, value in self.about.items())
        write_text(latex, "\n\n".join([about, *(write_latex(*entry) for entry in self.tables())]) + "\n")
        return paths

    def as_dict(self) -> dict[str, Any]:
        """Return everything for JSON; undefined values are None."""
        return {
            **self.about,
            "units": _UNITS,
            "phases": list(self.phase_names),
            "videos": list(self.video_ids),
            "scores": {name: scores.as_dict() for name, scores in self.scores.items()},
            "inference_time": None if self.time is None else self.time.as_dict(),
        }

    def _confusion(self) -> list[Table]:
        counts = next((scores.confusion for scores in self.scores.values() if hasattr(scores, "confusion")), None)
        if counts is None:
            return []
        head = ["", *map(str, range(len(counts)))]
        rows = [
            [f"{number} {name}", *map(str, row)]
            for number, (name, row) in enumerate(zip(self.phase_names, counts.tolist(), strict=True))
        ]
        return [("confusion: frames of each true phase (rows), by the phase predicted (columns)", [head, *rows])]


def tabulate(
    title: str, rows: Sequence[ScoreRow], index: Callable[[ScoreRow], str], column: Callable[[ScoreRow], str]
) -> Table:
    """Lay rows out by two of their properties; a cell without a row is empty, an undefined one a dash."""
    cells = {(index(row), column(row)): _format_row(row) for row in rows}
    columns = list(dict.fromkeys(column(row) for row in rows))
    lines = [[name, *(cells.get((name, entry), "") for entry in columns)] for name in dict.fromkeys(map(index, rows))]
    return title, [["", *columns], *lines]


def format_score(value: float, std: float = math.nan) -> str:
    """Write a number with two digits and its spread, if there is one; undefined is a dash."""
    if math.isnan(value):
        return "-"
    return f"{value:.2f}" + ("" if math.isnan(std) else f" ± {std:.2f}")


def _format_row(row: ScoreRow) -> str:
    return f"{row.value:.0f}" if row.unit == "videos" else format_score(row.value, row.std_over_videos)


def _video_tables(rows: Sequence[ScoreRow]) -> list[Table]:
    tables = []
    for measure in _PER_VIDEO:
        chosen = [row for row in rows if row.measure == measure]
        if chosen:
            tables.append(tabulate(f"{measure} per video, %", chosen, _video, _protocol))
    others = [row for row in rows if row.measure in _OTHERS_PER_VIDEO]
    return [*tables, tabulate("segments, delay and time per video", others, _video, _measure)] if others else tables


def _video(row: ScoreRow) -> str:
    return row.video


def _select(rows: Sequence[ScoreRow], *, video: bool = False, phase: bool = False) -> list[ScoreRow]:
    return [row for row in rows if bool(row.video) == video and bool(row.phase) == phase]


def _measure(row: ScoreRow) -> str:
    return row.measure if row.unit == "videos" else f"{row.measure}, {row.unit}"


def _protocol(row: ScoreRow) -> str:
    return row.protocol


def _phase(row: ScoreRow) -> str:
    return row.phase


def _without_nan(row: dict[str, Any]) -> dict[str, Any]:
    return {key: "" if isinstance(value, float) and math.isnan(value) else value for key, value in row.items()}

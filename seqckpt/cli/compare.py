"""`seqckpt compare`: the scores and ribbons of several runs side by side."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from seqckpt import build, training
from seqckpt.atomic import write_text
from seqckpt.cli.command import Command, take_names
from seqckpt.cli.outputs import choose_folder
from seqckpt.cli.score_tables import Report, format_score
from seqckpt.cli.scoring import SCORING_NAMES, choose_protocols, describe_scoring, open_accumulator
from seqckpt.cli.text_table import align
from seqckpt.config import load_config
from seqckpt.errors import UsageError
from seqckpt.metrics import ScoreRow
from seqckpt.plots import Ribbon, plot_ribbons
from seqckpt.training import VideoPrediction

__all__ = ["COMPARE"]

_NAMES = {
    **SCORING_NAMES,
    "output": "the folder to write to (unless given: one beside the first run that is called after the runs)",
}
_LONGEST_NAME = 100
_IN_TABLES = ("accuracy", "jaccard", "edit", "f1@10", "absolute delay")  # per phase and per video; the CSV has all

Key = tuple[str, str, str, str, str]  # protocol, measure, unit, video, phase


@dataclass(frozen=True)
class _Predicted:
    """A run's phases and its stored predictions of the test videos, by video."""

    name: str
    folder: Path
    fps: float
    phase_names: list[str]
    videos: dict[str, VideoPrediction]


def _compare(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Score the stored predictions of runs, print and write them side by side, with differences from the first."""
    values, rest = take_names(arguments, _NAMES)
    protocols = choose_protocols(values)
    runs = _read_runs(rest)
    for run in runs[1:]:
        _check_comparable(runs[0], run)
    folder = choose_folder(values, runs[0].folder.parent / _name_folder(runs))
    reports = {run.name: _score(run, values, protocols) for run in runs}
    numbers = {name: {_key(row): row for row in report.rows()} for name, report in reports.items()}
    written = _write(folder, runs, reports, numbers)
    print(_describe(numbers, runs))
    print(f"\nwritten: {', '.join(map(str, written))}")
    return 0


def _read_runs(arguments: Sequence[str]) -> list[_Predicted]:
    unknown = [text for text in arguments if "=" in text and not Path(text).exists()]
    if unknown:
        hint = f"; write {unknown[0].removeprefix('run=')} alone" if unknown[0].startswith("run=") else ""
        raise UsageError(
            f"{unknown[0]}: expected runs by folder or name, and {', '.join(f'{name}=' for name in _NAMES)}{hint}"
        )
    if len(arguments) < 2:
        raise UsageError(f"{len(arguments)} run given: expected two or more to compare, by folder or name")
    folders = [training.find_run(text) for text in arguments]
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UsageError(f"the run {twice[0]} is given twice: expected different runs")
    return [_read_run(name, folder) for name, folder in zip(names, folders, strict=True)]


def _read_run(name: str, folder: Path) -> _Predicted:
    _, config = load_config([f"config={(folder / 'config.yaml').absolute()}"])
    phase_names = build.choose_phase_names(config.data)
    paths = sorted((folder / "predictions").glob("*.csv"))
    if not paths:
        raise UsageError(f"the run {folder} holds no predictions/*.csv: its training was not finished; resume it first")
    entries = [training.read_prediction(path, phase_names) for path in paths]
    return _Predicted(name, folder, config.data.fps, phase_names, {entry.video_id: entry for entry in entries})


def _check_comparable(first: _Predicted, other: _Predicted) -> None:
    """Raise UsageError where two runs were not tested on the same frames with the same phases."""
    both = f"{first.name} and {other.name} cannot be compared"
    if first.phase_names != other.phase_names:
        lists = "; ".join(f"{run.name}: {', '.join(run.phase_names)}" for run in (first, other))
        raise UsageError(f"{both}: they have other phases, or in another order\n{lists}")
    for one, two in ((first, other), (other, first)):
        only = [video for video in one.videos if video not in two.videos]
        if only:
            raise UsageError(f"{both}: only {one.name} was tested on {', '.join(only)}; expected the same test videos")
    for video, entry in first.videos.items():
        again = other.videos[video]
        if len(entry.truth) != len(again.truth) or not np.allclose(entry.seconds, again.seconds):
            raise UsageError(
                f"{both}: {video} was sampled otherwise, {len(entry.truth)} frames at {first.fps:g} fps and "
                f"{len(again.truth)} at {other.fps:g}"
            )
        differing = np.flatnonzero(entry.truth != again.truth)
        if differing.size:
            raise UsageError(
                f"{both}: the truth of {video} differs in {differing.size} frames, first at second "
                f"{entry.seconds[differing[0]]:g}; expected the same annotation"
            )


def _score(run: _Predicted, values: Mapping[str, str], protocols: Sequence[str]) -> Report:
    accumulator = open_accumulator(values, run.phase_names, fps=run.fps)
    for entry in run.videos.values():
        accumulator.add(entry.truth, entry.prediction, video=entry.video_id)
    return Report.of(accumulator, protocols, run.phase_names, describe_scoring(accumulator, run.phase_names))


def _key(row: ScoreRow) -> Key:
    return row.protocol, row.measure, row.unit, row.video, row.phase


def _describe(numbers: Mapping[str, Mapping[Key, ScoreRow]], runs: Sequence[_Predicted]) -> str:
    """Return the tables: over all videos, then for some measures per phase and per video."""
    keys = list(numbers[runs[0].name])
    parts = {
        "over all videos": [key for key in keys if not key[3] and not key[4]],
        "per phase": [key for key in keys if key[1] in _IN_TABLES and key[4] and not key[3]],
        "per video": [key for key in keys if key[1] in _IN_TABLES and key[3] and not key[4]],
    }
    lines = [f"{len(runs)} runs, {len(runs[0].videos)} test videos; differences are from {runs[0].name}"]
    for title, chosen in parts.items():
        if chosen:
            lines.append(f"{title}\n{align(_table(numbers, chosen))}")
    return "\n\n".join(lines)


def _table(numbers: Mapping[str, Mapping[Key, ScoreRow]], keys: Sequence[Key]) -> list[list[str]]:
    first, *others = numbers
    whose = any(video or phase for _, _, _, video, phase in keys)
    head = ["protocol", "measure", *(["of"] if whose else []), first]
    table = [[*head, *(text for name in others for text in (name, "difference"))]]
    for key in keys:
        protocol, measure, unit, video, phase = key
        row = [protocol, f"{measure}, {unit}", *([video or phase] if whose else [])]
        row.append(format_score(numbers[first][key].value))
        for name in others:
            value = numbers[name][key].value
            difference = value - numbers[first][key].value
            row += [format_score(value), "-" if math.isnan(difference) else f"{difference:+.2f}"]
        table.append(row)
    return table


def _name_folder(runs: Sequence[_Predicted]) -> str:
    """Return a name for the comparison's folder that says which runs, as far as a name may be long."""
    names = [run.folder.resolve().name for run in runs]
    name = "-vs-".join(names)
    return name if len(name) <= _LONGEST_NAME else f"{names[0][:_LONGEST_NAME]}-vs-{len(names) - 1}-others"


def _write(
    folder: Path,
    runs: Sequence[_Predicted],
    reports: Mapping[str, Report],
    numbers: Mapping[str, Mapping[Key, ScoreRow]],
) -> list[Path]:
    """Write comparison.csv, .json and ribbons.png, each whole or not at all; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    table, plain, picture = folder / "comparison.csv", folder / "comparison.json", folder / "ribbons.png"
    training.write_table(table, [_as_line(key, numbers) for key in numbers[runs[0].name]])
    about = {"differences_from": runs[0].name, "folders": {run.name: str(run.folder) for run in runs}}
    everything = {**about, "runs": {name: report.as_dict() for name, report in reports.items()}}
    write_text(plain, json.dumps(everything, indent=1, allow_nan=False) + "\n")
    ribbons = [
        Ribbon(f"{video}  {run.name}", entry.truth, entry.prediction, entry.seconds)
        for video in runs[0].videos
        for run, entry in ((run, run.videos[video]) for run in runs)
    ]
    plot_ribbons(ribbons, runs[0].phase_names, picture)
    return [table, plain, picture]


def _as_line(key: Key, numbers: Mapping[str, Mapping[Key, ScoreRow]]) -> dict[str, Any]:
    """Return one line of comparison.csv: what, every run's value, and every other run's difference from the first."""
    line: dict[str, Any] = dict(zip(("protocol", "measure", "unit", "video", "phase"), key, strict=True))
    values = {name: of_run[key].value for name, of_run in numbers.items()}
    first = next(iter(values.values()))
    line |= {name: "" if math.isnan(value) else value for name, value in values.items()}
    for name, value in list(values.items())[1:]:
        line[f"{name} - {next(iter(values))}"] = "" if math.isnan(value - first) else value - first
    return line


COMPARE = Command(
    "compare",
    _compare,
    "lay scores and ribbons of several runs side by side",
    usage="RUN RUN ... [protocol=...] [output=...]",
    names=_NAMES,
    takes_keys=False,
)

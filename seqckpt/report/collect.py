"""From the folder of a run to its report: whatever is there is shown, and what is missing is said."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqckpt.atomic import write_text
from seqckpt.config import Config
from seqckpt.data import FrameSource
from seqckpt.data.frame_source import Stretch
from seqckpt.data.natural_order import sort_naturally
from seqckpt.metrics import Accumulator, PooledScores, VideoScores
from seqckpt.progress import progress_bar
from seqckpt.report.facts import describe_run, list_facts, list_settings
from seqckpt.report.page import make_page
from seqckpt.report.records import Report, Row
from seqckpt.report.scores import score_tables
from seqckpt.report.tables import UNDEFINED
from seqckpt.report.thumbnails import Thumbnails, make_thumbnails
from seqckpt.training import VideoPrediction, read_prediction

__all__ = ["collect_report", "write_report"]

_PICTURE_BYTES = 2_300_000  # 2.9 MiB in base64: with all else below 5 MiB

OpenAccumulator = Callable[[Sequence[str], float], Accumulator]


def _open_accumulator(phase_names: Sequence[str], fps: float) -> Accumulator:
    return Accumulator(len(phase_names), fps=fps)


def write_report(
    folder: Path,
    config: Config,
    frames: Mapping[str, FrameSource] | None = None,
    *,
    open_accumulator: OpenAccumulator = _open_accumulator,
    without_frames: str = "",
    picture_bytes: int = _PICTURE_BYTES,
) -> Path:
    """Write report.html into a run's folder and return its path; a bar shows the progress if it takes over a second.

    `frames` are those of the videos by id, for pictures of up to `picture_bytes` in all; `without_frames` says why
    there are none. `open_accumulator` makes what scores the predictions, from phase names and frames per second.
    Raises DataError where a file of the run is damaged. Memory: the page, and a sheet of pictures.
    """
    report = collect_report(
        folder,
        config,
        frames,
        open_accumulator=open_accumulator,
        without_frames=without_frames,
        picture_bytes=picture_bytes,
    )
    path = folder / "report.html"
    write_text(path, make_page(report))
    return path


def collect_report(
    folder: Path,
    config: Config,
    frames: Mapping[str, FrameSource] | None = None,
    *,
    open_accumulator: OpenAccumulator = _open_accumulator,
    without_frames: str = "",
    picture_bytes: int = _PICTURE_BYTES,
) -> Report:
    """Read a run's folder into a Report; see `write_report`."""
    notes: list[str] = []
    phase_names, predictions = _read_predictions(folder, config, notes)
    curves = _read_rows(folder / "metrics.csv")
    if not curves:
        notes.append("There are no learning curves: metrics.csv has no finished epoch.")
    summary = _read_summary(folder / "summary.json")
    report = Report(
        title=folder.resolve().name,
        subtitle=describe_run(config, summary),
        phase_names=phase_names,
        predictions=predictions,
        curves=curves,
        settings=list_settings(config),
        facts=list_facts(summary),
        thumbnails=_make_thumbnails(predictions, frames, without_frames, picture_bytes, notes),
        notes=notes,
    )
    if not predictions:
        return report
    accumulator = open_accumulator(phase_names, config.data.fps)
    tables, by_video, pooled = score_tables(predictions, phase_names, accumulator)
    return dataclasses.replace(
        report, tables=tables, confusion=pooled.confusion, headlines=_choose_headlines(by_video, pooled)
    )


def _read_predictions(folder: Path, config: Config, notes: list[str]) -> tuple[list[str], list[VideoPrediction]]:
    """Return the phases, and the predictions of all test videos in the order in which people count them."""
    names = list(config.data.phase_names or ())
    paths = sort_naturally((folder / "predictions").glob("*.csv"), key=lambda path: path.name)
    if not names and paths:
        with open(paths[0], newline="", encoding="utf-8") as file:
            header = next(csv.reader(file), [])
        names = [name.removeprefix("probability of ") for name in header if name.startswith("probability of ")]
    read = [read_prediction(path, names) for path in paths]
    predictions = [entry for entry in read if len(entry.seconds)]
    if not predictions:
        notes.append("There are no predictions: they are written when a run ends, and this one has not ended (yet).")
    if len(read) > len(predictions) > 0:
        notes.append(f"{len(read) - len(predictions)} videos have no frames, and are left out.")
    without = [entry.video_id for entry in predictions if (entry.truth < 0).all()]
    if without:
        notes.append(f"Without labels, and so without scores: {', '.join(without)}.")
    return names, predictions


def _make_thumbnails(
    predictions: list[VideoPrediction],
    frames: Mapping[str, FrameSource] | None,
    without_frames: str,
    picture_bytes: int,
    notes: list[str],
) -> Thumbnails | None:
    """Make pictures of the videos whose frames there are; note where there are none, and why."""
    if not predictions:
        return None
    usable: dict[str, FrameSource] = {}
    for entry in predictions if frames else ():
        source = (frames or {}).get(entry.video_id)
        if source is not None and len(source) >= len(entry.seconds):  # what goes beyond has no label
            usable[entry.video_id] = Stretch(source, 0, len(entry.seconds))
    if not usable:
        reason = without_frames or "the frames found are not those that were predicted"
        notes.append(f"There are no pictures of the frames: {reason}.")
        return None
    if len(usable) < len(predictions):
        missing = [entry.video_id for entry in predictions if entry.video_id not in usable]
        notes.append(f"No pictures of these videos, whose frames are not those predicted: {', '.join(missing)}.")
    with progress_bar(total=len(usable), desc="report", unit="video", delay=1, leave=False) as bar:
        made = make_thumbnails(usable, budget_bytes=picture_bytes, count=_counter(bar))
    if made is None:
        notes.append("There are no pictures of the frames: the videos are too many for the size of this file.")
    elif made.every > 1:
        notes.append(
            f"To keep this file small, one frame in {made.every} has a picture; the others show the nearest one."
        )
    return made


def _counter(bar: Any) -> Callable[[], object]:
    return lambda: bar.update()


def _read_rows(path: Path) -> list[Row]:
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [{name: _number(text) for name, text in row.items() if name} for row in csv.DictReader(file)]


def _number(text: str | None) -> Any:
    """Read a cell as a number where it is one; None where it is empty."""
    text = (text or "").strip()
    try:
        return int(text) if text.lstrip("-").isdecimal() else float(text)
    except ValueError:
        return text or None


def _read_summary(path: Path) -> dict[str, Any]:
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return read if isinstance(read, dict) else {}


def _choose_headlines(by_video: VideoScores, pooled: PooledScores) -> list[tuple[str, str, str]]:
    num_videos = sum(not math.isnan(value) for value in by_video.accuracy_per_video)
    spread = by_video.accuracy_std_over_videos
    deviation = "" if math.isnan(spread) else f"± {spread:.3f}, "
    over = "1 video" if num_videos == 1 else f"{deviation}mean over {num_videos} videos"
    num_wrong = pooled.num_frames - int(pooled.confusion.trace())
    return [
        ("Accuracy (video)", _score(by_video.accuracy_mean), over),
        ("Jaccard (video)", _score(by_video.jaccard.mean), "mean over videos, then phases"),
        ("Accuracy (pooled)", _score(pooled.accuracy), "all labelled frames as one sequence"),
        ("Wrong frames", f"{num_wrong:,}", f"of {pooled.num_frames:,} with a label"),
    ]


def _score(value: float) -> str:
    return UNDEFINED if math.isnan(value) else f"{value:.3f}"

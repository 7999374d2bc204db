"""Examining a data set before an hour is lost on it: a row of facts per video, and everything that is odd or wrong."""

from __future__ import annotations

import dataclasses
import os
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from seqckpt.data.checks import ALL_VIDEOS, check_labels, check_videos
from seqckpt.data.class_balance import check_balance
from seqckpt.data.display_checks import check_displays
from seqckpt.data.findings import Finding
from seqckpt.data.formats import Annotation, DataSet, VideoEntry
from seqckpt.data.pictures import Pictures, look_at_all, look_at_some
from seqckpt.data.recording import index_recording, number_frames
from seqckpt.data.timeline import Timeline, choose_frames, to_fraction
from seqckpt.data.video_facts import VideoFacts, facts_of_timeline
from seqckpt.data.video_file import VideoIndex
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError
from seqckpt.progress import progress_bar

__all__ = ["Checkup", "examine"]

_SIDES = ("top", "bottom", "left", "right")
_LARGEST_SHARE_OF_HOLES = 0.01  # of the steps between frames; where more are odd, the rate is variable by itself
_COLUMNS = ("seconds", "fps", "labelled", "first label", "last label", "missing")


@dataclass(frozen=True)
class Checkup:
    """What was found: `table`, text, a header and a row per video; all findings; labelled frames per part and class."""

    table: list[list[str]]
    findings: list[Finding]
    counts: dict[str, Tensor]

    @property
    def has_errors(self) -> bool:
        return any(finding.severity == "error" for finding in self.findings)


@dataclass
class _Patient:
    """A video under examination; what could not be read is None, and a finding says why."""

    entry: VideoEntry
    annotation: Annotation | None = None
    timeline: Timeline | None = None
    facts: VideoFacts | None = None
    pictures: Pictures | None = None
    labels: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))  # of sampled frames
    findings: list[Finding] = field(default_factory=list)


def examine(
    data_set: DataSet,
    parts: Mapping[str, Sequence[str]],
    names: Sequence[str],
    *,
    fps: float,
    frame_rate: float | None = None,
    annotation_fps: float | None = None,
    tail: str = "trim",
    corrupt: str = "error",
    unlabelled: str = "ignore",
    full: bool = False,
    progress: bool = True,
    incomplete: Collection[str] = (),
) -> Checkup:
    """Examine the videos of all parts: annotations, lengths and rates, and a few pictures of each; with `full`, all.

    `incomplete` are parts of which videos are missing: nothing is said of classes that they lack, nor of those with a
    video that cannot be read. Raises nothing for what is wrong with the data: it becomes a finding. `counts` are frames
    at `fps`. Time: a tenth of a second per five minutes of video, and what decoding takes.
    """
    known = {entry.video_id: entry for entry in data_set.entries}
    ids = dict.fromkeys(video_id for part in parts.values() for video_id in part)
    patients = [_Patient(known[video_id]) for video_id in ids if video_id in known]

    stop = threading.Event()

    def work(patient: _Patient) -> None:
        _read(patient, to_fraction(fps), frame_rate=frame_rate, annotation_fps=annotation_fps)
        _look(patient, stop, full=full)
        is_complete = patient.annotation is not None and patient.annotation.phases.is_complete
        gaps = check_labels(
            patient.entry.video_id, patient.labels, to_fraction(fps), unlabelled=unlabelled, is_complete=is_complete
        )
        patient.findings += [*_find_in_pictures(patient, corrupt=corrupt, tail=tail), *([gaps] if gaps else [])]

    pool = ThreadPoolExecutor(max(1, min(len(patients), os.cpu_count() or 1)))
    try:
        results = pool.map(work, patients)
        list(progress_bar(results, "examining", len(patients), unit="video", leave=False, disable=not progress))
    finally:  # also at Ctrl-C
        stop.set()
        pool.shutdown(cancel_futures=True)
    lengths = list(check_videos(list(_facts_without_damage(patients)), tail=tail))
    counts = _count_classes(parts, {patient.entry.video_id: patient.labels for patient in patients}, len(names))
    displays = {
        patient.entry.video_id: patient.timeline.display
        for patient in patients
        if isinstance(patient.timeline, VideoIndex)
    }
    unread = _find_unread(patients, parts, lengths)
    findings = [
        *(finding for patient in patients for finding in patient.findings),
        *lengths,
        *check_displays(displays, subject=ALL_VIDEOS),
        *check_balance({part: counts[part] for part in parts if part not in {*incomplete, *unread}}, names),
    ]
    table = [_header(full), *(_describe(patient, parts, names, full=full) for patient in patients)]
    return Checkup(table, findings, counts)


def _find_unread(
    patients: Sequence[_Patient], parts: Mapping[str, Sequence[str]], lengths: Sequence[Finding]
) -> set[str]:
    """Return the parts with a video whose labels are not known, or of a wrong length: what they lack may be there."""
    wrong = {finding.subject for finding in lengths if finding.severity == "error"}
    read = {patient.entry.video_id for patient in patients if len(patient.labels)} - wrong
    return {part for part, ids in parts.items() if not read.issuperset(ids) or ALL_VIDEOS in wrong}


def _facts_without_damage(patients: Sequence[_Patient]) -> Iterator[VideoFacts]:
    """Yield the facts of each video, but for what damage does to the rate: holes, between frames that are regular."""
    for patient in patients:
        facts, timeline, pictures = patient.facts, patient.timeline, patient.pictures
        if facts is not None and timeline is not None and pictures is not None and pictures.damaged:
            steps = np.diff(timeline.stamps)
            odd = np.abs(steps - np.median(steps)) > 0.5 * np.median(steps)
            if np.count_nonzero(odd) <= max(1, _LARGEST_SHARE_OF_HOLES * len(steps)):
                facts = dataclasses.replace(facts, stray_frames=0.0)
        if facts is not None:
            yield facts


def _read(patient: _Patient, fps: Fraction, *, frame_rate: float | None, annotation_fps: float | None) -> None:
    """Read what can be read of one video, and note what cannot."""
    entry = patient.entry
    if entry.missing:
        missing = map(str, entry.missing)
        hint = "add it, or leave the video out of data.split"
        patient.findings.append(Finding("error", entry.video_id, f"there is no {' and no '.join(missing)}", hint))
    try:
        patient.annotation = None if set(entry.missing) & set(entry.files) else entry.read()
    except DataError as error:
        patient.findings.append(Finding("error", entry.video_id, str(error)))
    if entry.path in entry.missing:
        return
    try:
        patient.timeline = index_recording(entry.path, frame_rate=frame_rate or entry.frame_rate)
        patient.facts = facts_of_timeline(entry, patient.timeline, patient.annotation, annotation_fps=annotation_fps)
        numbers, _ = number_frames(patient.timeline, choose_frames(patient.timeline, float(fps)))
        patient.labels, _ = patient.facts.label(numbers, fps)
    except DataError as error:
        patient.findings.append(Finding("error", entry.video_id, str(error)))


def _look(patient: _Patient, stop: threading.Event, *, full: bool) -> None:
    """Look at the pictures of one video, if its frames could be listed."""
    if patient.timeline is not None:
        try:
            patient.pictures = (look_at_all if full else look_at_some)(patient.timeline, stop=stop)
        except DataError as error:
            patient.findings.append(Finding("error", patient.entry.video_id, str(error)))


def _find_in_pictures(patient: _Patient, *, corrupt: str, tail: str) -> Iterator[Finding]:
    """Yield stretches that cannot be decoded, and black borders."""
    entry, timeline, pictures = patient.entry, patient.timeline, patient.pictures
    if pictures is None or timeline is None:
        return
    facts = [patient.facts] if patient.facts is not None else []
    fails_anyway = any(finding.severity == "error" for finding in check_videos(facts, tail=tail))
    repair = "repair the file, or leave the video out"
    for first, last in pictures.damaged_stretches():
        where = (
            f"from {timeline.seconds_at(first):.2f} s to {timeline.seconds_at(last):.2f} s (frames {first} to {last})"
        )
        if first == last:
            where = f"in frame {first}, at {timeline.seconds_at(first):.2f} s"
        yield Finding(
            "error" if corrupt == "error" else "warning",
            entry.video_id,
            f"{entry.path} cannot be decoded {where}",
            repair if fails_anyway or corrupt == "repeat" else f"{repair}, or set data.corrupt=repeat",
        )
    crop = pictures.crop_filter()
    if crop is not None:
        borders = ", ".join(f"{side} {share:.0%}" for side, share in zip(_SIDES, pictures.borders, strict=True))
        hint = f"ffmpeg -vf {crop} cuts them off"
        yield Finding("note", entry.video_id, f"{entry.path} has black borders ({borders})", hint)


def _count_classes(
    parts: Mapping[str, Sequence[str]], labels: Mapping[str, NDArray[np.int64]], num_classes: int
) -> dict[str, Tensor]:
    """Count the labelled frames of each class in each part."""
    counts = {}
    for part, ids in parts.items():
        together = np.concatenate(
            [np.empty(0, np.int64), *(labels[video_id] for video_id in ids if video_id in labels)]
        )
        counts[part] = torch.from_numpy(np.bincount(together[together != IGNORE_INDEX], minlength=num_classes))
    return counts


def _header(full: bool) -> list[str]:
    decodable = ["decodable"] if full else []
    return ["video", "part", "frames", *decodable, "rows", *_COLUMNS]


def _describe(patient: _Patient, parts: Mapping[str, Sequence[str]], names: Sequence[str], *, full: bool) -> list[str]:
    """Return a video's row of the table; "?" where something could not be read."""
    facts, video_id = patient.facts, patient.entry.video_id
    decodable = [str(patient.pictures.num_decoded) if patient.pictures else "?"] if full else []
    lengths = ["?", *decodable, _num_rows(patient), "?", "?"]
    if facts is not None:
        rate = facts.num_frames / facts.duration_seconds
        lengths = [
            str(facts.num_frames),
            *decodable,
            _num_rows(patient),
            f"{facts.duration_seconds:.2f}",
            f"{rate:.5g}",
        ]
    return [
        video_id,
        " and ".join(part for part, ids in parts.items() if video_id in ids),
        *lengths,
        f"{np.mean(patient.labels != IGNORE_INDEX):.0%}" if len(patient.labels) else "?",
        *_describe_labels(patient.annotation, names),
    ]


def _num_rows(patient: _Patient) -> str:
    return str(patient.annotation.phases.num_rows) if patient.annotation is not None else "?"


def _describe_labels(annotation: Annotation | None, names: Sequence[str]) -> Iterator[str]:
    """Yield first label, last label, and the classes that do not occur."""
    if annotation is None:
        yield from ("?", "?", "?")
        return
    labels = annotation.phases.values.tolist()
    for label in (labels[0], labels[-1]) if labels else (IGNORE_INDEX, IGNORE_INDEX):
        yield names[label] if label != IGNORE_INDEX else "(none)"
    yield ", ".join(name for place, name in enumerate(names) if place not in labels) or "-"

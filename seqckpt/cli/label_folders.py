"""Folders of label files for `seqckpt evaluate`: the truth that predictions are held against, and the predictions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.data import (
    LabelFile,
    Labels,
    Video,
    find_label_files,
    match_label_files,
    read_label_file,
    read_label_texts,
    read_mapping,
)
from seqckpt.errors import DataError, UsageError
from seqckpt.metrics import Accumulator
from seqckpt.training import read_prediction

__all__ = ["Truth", "add_predictions", "truth_of_folder", "truth_of_videos"]

_IGNORED = "-100"
_MOST_PHASES = 1000  # where ids alone say how many there are: more is a mistake in a file


@dataclass(frozen=True)
class Truth:
    """What is known of the videos: the phases of each, int64 (T,), by its id; `files` where they come from files."""

    name: str
    labels: Labels
    fps: float | None
    phases: Mapping[str, NDArray[np.int64]]
    files: Mapping[str, LabelFile]


def truth_of_videos(
    videos: Iterable[Video], phase_names: Sequence[str], *, ignored: Sequence[str], fps: float, name: str
) -> Truth:
    """Return the labels of a data set's videos."""
    labels = Labels(tuple(phase_names), ignored=_with_default(ignored, phase_names))
    return Truth(name, labels, fps, {video.video_id: video.phases.numpy() for video in videos}, {})


def truth_of_folder(
    folder: Path, predictions: Path, *, phases: str | None, ignored: str | None, fps: float | None
) -> Truth:
    """Return the labels of a folder's files.

    `phases` names them in the order of their ids, or the file that does; without it all labels must be ids. Raises
    UsageError where it is needed, DataError for what is wrong in a file.
    """
    paths = find_label_files(folder)
    no_labels = tuple(ignored.split(",")) if ignored is not None else ()
    names = _read_phases(phases) if phases is not None else _count_ids([folder, predictions], (*no_labels, _IGNORED))
    labels = Labels(names, ignored=_with_default(no_labels, names))
    files = {video_id: read_label_file(path, labels) for video_id, path in paths.items()}
    return Truth(str(folder), labels, fps, {video_id: file.phases for video_id, file in files.items()}, files)


def add_predictions(accumulator: Accumulator, folder: Path, truth: Truth) -> None:
    """Read the prediction of every video and add it, in the order of the truth.

    Raises DataError where a video is missing or unknown, or where a file's length or labels are wrong.
    """
    paths = find_label_files(folder)
    match_label_files(paths, truth.phases, folder, truth.name)
    for video_id, phases in truth.phases.items():
        path = paths[video_id]
        if _is_of_a_run(path):
            prediction = read_prediction(path, truth.labels.names).prediction
            if len(prediction) != len(phases):
                raise DataError(f"{path}: {len(prediction)} rows; expected {len(phases)}, as in {truth.name}")
        else:
            file = read_label_file(path, truth.labels)
            file.check_against(phases, truth.name)
            if video_id in truth.files:
                file.check_frames(truth.files[video_id])
            prediction = file.phases
        accumulator.add(phases, prediction, video=video_id)


def _is_of_a_run(path: Path) -> bool:
    """Say whether a file is one of those that training and prediction write."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return path.suffix == ".csv" and file.readline().startswith("second,")


def _with_default(ignored: Sequence[str], names: Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([*ignored, *([_IGNORED] if _IGNORED not in names else [])]))


def _read_phases(text: str) -> tuple[str, ...]:
    path = Path(text).expanduser()
    if path.is_file():
        return read_mapping(path)
    names = tuple(name.strip() for name in text.split(","))
    if len(names) < 2 or "" in names or len(set(names)) != len(names):
        raise UsageError(f"phases={text}: expected a file of `id name` lines, or different names divided by commas")
    return names


def _count_ids(folders: Sequence[Path], ignored: Sequence[str]) -> tuple[str, ...]:
    """Return the ids 0, 1, 2, ... as names, up to the highest label in the files."""
    highest = 0
    for folder in folders:
        for path in find_label_files(folder).values():
            for row in [] if _is_of_a_run(path) else read_label_texts(path):
                text = row.fields[-1]
                if text in ignored:
                    continue
                if not (text.isascii() and text.isdigit() and int(text) < _MOST_PHASES):
                    raise row.error(
                        f"{text!r} is no id below {_MOST_PHASES}; name the phases in phases=, or see ignored="
                    )
                highest = max(highest, int(text))
    return tuple(str(number) for number in range(highest + 1))

"""Labels of frames as other systems write them: a text file a video, one label a line, or `frame label` a line.

Labels are phase names or ids, strictly read (see `labels`). Frame numbers begin at 0 and go up in even steps; a first
line that begins with "Frame" is a header. A file is called by its video's id, with or without "-phase" behind it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from seqckpt.data.annotations import Row, find_step, quote, read_lines
from seqckpt.data.labels import Labels
from seqckpt.data.natural_order import sort_naturally
from seqckpt.data.videos import IGNORE_INDEX
from seqckpt.errors import DataError

__all__ = ["LabelFile", "find_label_files", "match_label_files", "read_label_file", "read_label_texts"]

_SUFFIXES = (".txt", ".tsv", ".csv")
_ENDINGS = ("-phase", "_phase")


@dataclass(frozen=True)
class LabelFile:
    """The labels of one video, int64 (T,), IGNORE_INDEX where there is none; `rows` say where each stands."""

    path: Path
    phases: NDArray[np.int64]
    rows: list[Row]

    def check_against(self, truth: NDArray[np.int64], name: str) -> None:
        """Raise DataError where there is not one label a frame, or no phase where the truth, from `name`, has one."""
        if len(self.phases) != len(truth):
            place = self.rows[min(len(self.rows), len(truth) + 1) - 1]
            hint = _explain_lengths(len(self.phases), len(truth), name)
            raise place.error(
                f"{len(self.phases)} labels in all; expected {len(truth)}, one a frame as in {name}{hint}"
            )
        missing = np.flatnonzero((self.phases == IGNORE_INDEX) & (truth != IGNORE_INDEX))
        if missing.size:
            row = self.rows[missing[0]]
            raise row.error(f"{quote(row.fields[-1])} is no phase; expected one, since {name} has a label here")

    def check_frames(self, other: LabelFile) -> None:
        """Raise DataError where both number their frames and do so differently."""
        for row, expected in zip(self.rows, other.rows, strict=True):
            if len(row.fields) == len(expected.fields) == 2 and int(row.fields[0]) != int(expected.fields[0]):
                raise row.error(f"frame {row.fields[0]}; expected {expected.fields[0]} as in {expected.path}")


def read_label_file(path: Path, labels: Labels) -> LabelFile:
    """Read one file. Raises DataError, with file and line, for what is no label or no frame number."""
    rows = read_label_texts(path)
    phases = [labels.find(row.fields[-1], row) for row in rows]
    return LabelFile(path, np.array(phases, np.int64), rows)


def read_label_texts(path: Path) -> list[Row]:
    """Read the rows of one file, (label,) or (frame, label) each, whatever the labels mean."""
    lines = read_lines(path)
    if lines and re.match(r"frame\b", lines[0][1], re.IGNORECASE) and len(re.split(r"[\s,;]+", lines[0][1])) == 2:
        del lines[0]
    if not lines:
        raise DataError(f"{path} holds no labels; expected one a line, or `frame label`")
    numbered = re.match(r"\d+(\s+|\s*[,;]\s*)\S", lines[0][1], re.ASCII) is not None
    rows = [Row(path, number, _split(text) if numbered else (text,)) for number, text in lines]
    if numbered:
        for row in rows:
            if len(row.fields) != 2:
                raise row.error(
                    f"read {quote(row.fields[0])}; expected a frame number and a label, as in the first row"
                )
        find_step(rows)
    return rows


def find_label_files(folder: Path) -> dict[str, Path]:
    """Return the files of labels in a folder by the id of their video. Raises DataError for two of one video."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; expected one with a text file of labels a video")
    files: dict[str, Path] = {}
    paths = [path for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES and not path.name.startswith(".")]
    for path in sort_naturally(paths, key=lambda path: path.name):
        ending = next((ending for ending in _ENDINGS if path.stem.endswith(ending)), "")
        video_id = path.stem.removesuffix(ending)
        if video_id in files:
            raise DataError(f"{path} and {files[video_id].name} are both for {video_id}; expected one file a video")
        files[video_id] = path
    if not files:
        raise DataError(f"{folder} holds no file of labels ({', '.join(_SUFFIXES)}); expected one a video")
    return files


def match_label_files(files: Collection[str], video_ids: Iterable[str], folder: Path, name: str) -> None:
    """Raise DataError where a video of `name` has no file in the folder, or a file is for none of them."""
    expected = list(video_ids)
    missing = [video_id for video_id in expected if video_id not in files]
    extra = [video_id for video_id in files if video_id not in expected]
    problems = []
    if missing:
        problems.append(f"no file for {', '.join(missing)}")
    if extra:
        problems.append(f"files for {', '.join(extra)}, which {name} does not have")
    if problems:
        raise DataError(f"{folder}: {'; '.join(problems)}; expected one each for {', '.join(expected)}")


def _explain_lengths(given: int, expected: int, name: str) -> str:
    """Say that one of two lengths is that of another frame rate, where it looks like it.

    >>> _explain_lengths(1000, 40, "the split test")
    '; these are 25 for each of those: keep the first row of every 25'
    >>> _explain_lengths(39, 40, "the split test")
    ''
    """
    more, fewer = max(given, expected), max(1, min(given, expected))
    every = round(more / fewer)
    if every < 2 or fewer != -(-more // every):
        return ""
    if given > expected:
        return f"; these are {every} for each of those: keep the first row of every {every}"
    return f"; {name} has {every} for each of these: it needs the first row of every {every} only"


def _split(text: str) -> tuple[str, ...]:
    """Part a frame number from its label; a line that does not begin with a number stays whole."""
    match = re.fullmatch(r"(\d+)(?:\s*[,;]\s*|\s+)(\S.*)", text, re.ASCII)
    return (match[1], match[2]) if match else (text,)

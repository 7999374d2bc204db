"""Which videos are for training, validation and test: ids and ranges, checked against what is there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence

from seqckpt.data.natural_order import sort_naturally
from seqckpt.errors import DataError

__all__ = ["parse_split"]


def parse_split(split: Mapping[str, Sequence[str | int] | None], available: Sequence[str]) -> dict[str, list[str]]:
    """Turn what a user writes into lists of video ids, one per part of the split.

    An entry is an id ("video01"), the number at an id's end (1, "1", "01"), or a range of either with both ends
    ("1-6", "video01-video06"). Order is kept.
    Raises DataError with everything that is wrong: a part without videos, an id that is not available, one that occurs
    twice, in one part or in two.

    >>> ids = [f"video{number:02d}" for number in range(1, 9)]
    >>> parse_split({"train": ["1-3", "video05"], "val": [4], "test": ["video06-video07"]}, ids)
    {'train': ['video01', 'video02', 'video03', 'video05'], 'val': ['video04'], 'test': ['video06', 'video07']}
    """
    problems: list[str] = []
    parts: dict[str, list[str]] = {}
    owner: dict[str, str] = {}
    for name, entries in split.items():
        if isinstance(entries, str | int):
            entries = [entries]
        parts[name] = []
        for entry in entries or ():
            try:
                ids = _expand(entry, available)
            except DataError as error:
                problems.append(f"{name}: {error}")
                continue
            for video_id in ids:
                if video_id in owner:
                    twice = (
                        f"is in {owner[video_id]} and in {name}" if owner[video_id] != name else f"is twice in {name}"
                    )
                    problems.append(f"{video_id} {twice}; expected each video in one part, once")
                else:
                    owner[video_id] = name
                    parts[name].append(video_id)
        if not entries:
            problems.append(f"{name} is empty; expected one video or more, such as [1, 4-8, video12]")
    if problems:
        raise DataError(_report(problems, available))
    return parts


def _expand(entry: str | int, available: Sequence[str]) -> list[str]:
    """Return the ids that one entry stands for."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        raise DataError(f"{entry!r} is no video; expected an id, a number or a range")
    text = unicodedata.normalize("NFC", str(entry).strip())
    if text in available:
        return [text]
    if re.fullmatch(r"[0-9]{1,9}", text):
        return [_find("", int(text), text, available)]
    ends = re.fullmatch(r"(.*?)([0-9]{1,9})\s*-\s*(.*?)([0-9]{1,9})", text)
    if ends is None or ends[1] != ends[3]:
        raise DataError(f"there is no video {text!r}")
    first, last = int(ends[2]), int(ends[4])
    if first > last:
        raise DataError(f"the range {text!r} runs backwards")
    if last - first >= 100_000:
        raise DataError(f"the range {text!r} is for {last - first + 1} videos")
    return [_find(ends[1], number, text, available) for number in range(first, last + 1)]


def _find(prefix: str, number: int, entry: str, available: Sequence[str]) -> str:
    found = [video_id for video_id in available if _matches(video_id, prefix, number)]
    if len(found) != 1:
        within = f" of the range {entry!r}" if "-" in entry else ""
        several = f" fits several: {', '.join(found)}" if found else " is not there"
        raise DataError(f"video {prefix}{number}{within}{several}")
    return found[0]


def _matches(video_id: str, prefix: str, number: int) -> bool:
    ending = re.search(r"[0-9]+$", video_id)
    return ending is not None and int(ending[0]) == number and prefix in ("", video_id[: ending.start()])


def _report(problems: Sequence[str], available: Sequence[str]) -> str:
    listed = "".join(f"\n  {problem}" for problem in problems)
    return f"the split of the videos is wrong:{listed}\navailable are {', '.join(_abbreviate(available)) or 'none'}"


def _abbreviate(available: Sequence[str]) -> Iterator[str]:
    ids = sort_naturally(available, key=str)
    yield from ids if len(ids) <= 12 else [*ids[:5], "...", *ids[-5:]]

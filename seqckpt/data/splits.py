"""Which videos are for training, validation and test: ids and ranges, checked against what is there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from seqckpt.data.natural_order import sort_naturally
from seqckpt.errors import DataError

__all__ = ["expand_split", "parse_split"]

Split = Mapping[str, Sequence[str | int] | str | int | None]


def parse_split(
    split: Split,
    available: Sequence[str],
    *,
    lists: Mapping[str, Sequence[str]] | None = None,
    paths: Mapping[str, Path] | None = None,
) -> dict[str, list[str]]:
    """Turn what a user writes into lists of video ids, one per part of the split.

    An entry is an id ("video01"), the number at an id's end (1, "1", "01"), a range of either with both ends ("1-6",
    "video01-video06"), or the name of one of the data set's own `lists` ("train.split1.bundle"); "not 3-4" takes out
    out what entries before it have put in. Order is kept.
    Raises DataError with everything that is wrong: a part without videos, an id that is not available, one that occurs
    twice, in one part or in two, and two ids in different parts whose recording, by `paths`, is the same.

    >>> ids = [f"video{number:02d}" for number in range(1, 9)]
    >>> parse_split({"train": ["1-5", "not 4"], "val": [4], "test": ["video06-video07"]}, ids)
    {'train': ['video01', 'video02', 'video03', 'video05'], 'val': ['video04'], 'test': ['video06', 'video07']}
    """
    parts, problems = expand_split(split, available, lists=lists, paths=paths)
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems)
        names = f"; lists are {', '.join(lists)}" if lists else ""
        ids = ", ".join(_abbreviate(available)) or "none"
        raise DataError(f"the split of the videos is wrong:{shown}\navailable are {ids}{names}")
    return parts


def expand_split(
    split: Split,
    available: Sequence[str],
    *,
    lists: Mapping[str, Sequence[str]] | None = None,
    paths: Mapping[str, Path] | None = None,
) -> tuple[dict[str, list[str]], list[str]]:
    """Return the ids of each part, and what is wrong with them in words: as parse_split, but raises nothing.

    What is available stays in its part even where it is in another one too.
    """
    problems: list[str] = []
    parts: dict[str, list[str]] = {}
    for name, entries in split.items():
        parts[name] = []
        for entry in [entries] if isinstance(entries, str | int) else entries or ():
            try:
                ids = _expand(entry, available, lists or {})
                removes = _is_removal(entry, available)
            except DataError as error:
                problems.append(f"{name}: {error}")
                continue
            if removes:
                problems += [
                    f"{name}: {entry!r} takes out {video_id}, which is not in it"
                    for video_id in ids
                    if video_id not in parts[name]
                ]
                parts[name] = [video_id for video_id in parts[name] if video_id not in ids]
            else:
                parts[name] += ids
        if not parts[name] and not any(problem.startswith(f"{name}: ") for problem in problems):
            problems.append(f"{name} is empty; expected one video or more, such as [1, 4-8, video12]")
    return parts, [*problems, *_find_repeats(parts), *_find_shared(parts, paths or {})]


def _find_repeats(parts: Mapping[str, Sequence[str]]) -> Iterator[str]:
    owner: dict[str, str] = {}
    for name, ids in parts.items():
        for video_id in ids:
            first = owner.setdefault(video_id, name)
            if first != name:
                yield f"{video_id} is in {first} and in {name}; expected each video in one part, once"
        for video_id in dict.fromkeys(video_id for video_id in ids if ids.count(video_id) > 1):
            yield f"{video_id} is twice in {name}; expected each video in one part, once"


def _find_shared(parts: Mapping[str, Sequence[str]], paths: Mapping[str, Path]) -> Iterator[str]:
    """Yield the recordings that stand in two parts under different ids."""
    owner: dict[Path, tuple[str, str]] = {}
    for name, ids in parts.items():
        for video_id in ids:
            if video_id in paths:
                part, other = owner.setdefault(paths[video_id].resolve(), (name, video_id))
                if part != name and other != video_id:
                    yield (
                        f"{other} in {part} and {video_id} in {name} are one recording, {paths[video_id]}; expected "
                        "each in one part"
                    )


def _is_removal(entry: object, available: Sequence[str]) -> bool:
    return isinstance(entry, str) and entry.strip().startswith("not ") and entry.strip() not in available


def _expand(entry: str | int, available: Sequence[str], lists: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the ids that one entry stands for."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        raise DataError(f"{entry!r} is no video; expected an id, a number or a range")
    text = unicodedata.normalize("NFC", str(entry).strip())
    if text in available:
        return [text]
    if _is_removal(text, available):
        return _expand(text.removeprefix("not ").strip(), available, lists)
    if text in lists:
        absent = [video_id for video_id in lists[text] if video_id not in available]
        if absent:
            raise DataError(f"the list {text!r} names {', '.join(_abbreviate(absent))}, not there")
        return list(lists[text])
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


def _abbreviate(available: Sequence[str]) -> Iterator[str]:
    ids = sort_naturally(available, key=str)
    yield from ids if len(ids) <= 12 else [*ids[:5], "...", *ids[-5:]]

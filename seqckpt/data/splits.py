"""Which videos are for training, validation and test: ids and ranges, checked against what is there."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from seqckpt.data.natural_order import sort_naturally
from seqckpt.errors import DataError

__all__ = ["describe_available", "expand_split", "parse_split"]

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
    parts, problems, _ = expand_split(split, available, lists=lists, paths=paths)
    if problems:
        shown = "".join(f"\n  {problem}" for problem in problems)
        raise DataError(f"the split of the videos is wrong:{shown}\n{describe_available(available, lists)}")
    return parts


def describe_available(available: Sequence[str], lists: Mapping[str, Sequence[str]] | None = None) -> str:
    """Say in a line which videos and lists a split may name; the middle of many videos is left out."""
    names = f"; lists are {', '.join(lists)}" if lists else ""
    return f"available are {', '.join(_abbreviate(available)) or 'none'}{names}"


def expand_split(
    split: Split,
    available: Sequence[str],
    *,
    lists: Mapping[str, Sequence[str]] | None = None,
    paths: Mapping[str, Path] | None = None,
) -> tuple[dict[str, list[str]], list[str], set[str]]:
    """Return the ids of each part, what is wrong with them in words, and which parts are not as they were meant.

    As parse_split, but raises nothing. What is available stays in its part, even where it is in another one too, or
    where others of its range are missing.
    """
    problems: list[str] = []
    parts: dict[str, list[str]] = {}
    broken: set[str] = set()
    for name, entries in split.items():
        parts[name] = []
        num_before = len(problems)
        for entry in [entries] if isinstance(entries, str | int) else entries or ():
            ids, wrong = _expand(entry, available, lists or {})
            problems += [f"{name}: {problem}" for problem in wrong]
            if _is_removal(entry, available):
                problems += [
                    f"{name}: {entry!r} takes out {video_id}, which is not in it"
                    for video_id in ids
                    if video_id not in parts[name]
                ]
                parts[name] = [video_id for video_id in parts[name] if video_id not in ids]
            else:
                parts[name] += ids
        if not parts[name] and len(problems) == num_before:
            problems.append(f"{name} is empty; expected one video or more, such as [1, 4-8, video12]")
        if len(problems) > num_before:
            broken.add(name)
    return parts, [*problems, *_find_repeats(parts), *_find_shared(parts, paths or {})], broken


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


def _expand(
    entry: str | int, available: Sequence[str], lists: Mapping[str, Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Return the ids that one entry stands for, those that are there, and what is wrong with it."""
    if isinstance(entry, bool) or not isinstance(entry, str | int):
        return [], [f"{entry!r} is no video; expected an id, a number or a range"]
    text = unicodedata.normalize("NFC", str(entry).strip())
    if text in available:
        return [text], []
    if _is_removal(text, available):
        return _expand(text.removeprefix("not ").strip(), available, lists)
    if text in lists:
        absent = [video_id for video_id in lists[text] if video_id not in available]
        wrong = [f"the list {text!r} names {', '.join(_abbreviate(absent))}, not there"] if absent else []
        return [video_id for video_id in lists[text] if video_id in available], wrong
    if re.fullmatch(r"[0-9]{1,9}", text):
        return _find("", range(int(text), int(text) + 1), available)
    ends = re.fullmatch(r"(.*?)([0-9]{1,9})\s*-\s*(.*?)([0-9]{1,9})", text)
    if ends is None or ends[1] != ends[3]:
        return [], [f"there is no video {text!r}"]
    first, last = int(ends[2]), int(ends[4])
    if first > last:
        return [], [f"the range {text!r} runs backwards"]
    if last - first >= 100_000:
        return [], [f"the range {text!r} is for {last - first + 1} videos"]
    return _find(ends[1], range(first, last + 1), available, within=f" of the range {text!r}")


def _find(prefix: str, numbers: range, available: Sequence[str], *, within: str = "") -> tuple[list[str], list[str]]:
    """Return the ids that end in these numbers, and which of them are not there or stand for several."""
    ids: list[str] = []
    wrong: list[str] = []
    absent: list[str] = []
    endings: dict[int, list[str]] = {}
    for video_id in available:
        ending = re.search(r"[0-9]+$", video_id)
        if ending is not None and prefix in ("", video_id[: ending.start()]):
            endings.setdefault(int(ending[0]), []).append(video_id)
    for number in numbers:
        found = endings.get(number, [])
        if len(found) == 1:
            ids += found
        elif found:
            wrong.append(f"video {prefix}{number}{within} fits several: {', '.join(found)}")
        else:
            absent.append(f"{prefix}{number}")
    if absent:
        several = len(absent) > 1
        shown = ", ".join(_abbreviate(absent))
        wrong.append(f"video{'s' * several} {shown}{within} {'are' if several else 'is'} not there")
    return ids, wrong


def _abbreviate(available: Sequence[str]) -> Iterator[str]:
    ids = sort_naturally(available, key=str)
    yield from ids if len(ids) <= 12 else [*ids[:5], "...", *ids[-5:]]

"""Data from a configuration: config.data -> the videos of each split, their cache, and what the doctor says of them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from seqckpt.config import DataConfig, sample_root
from seqckpt.data import (
    SAMPLE_SPLIT,
    CacheEstimate,
    Checkup,
    Clip,
    DataSet,
    Finding,
    Labels,
    SampledVideo,
    Sources,
    Video,
    check_balance,
    check_names,
    choose_cache_dir,
    count_classes,
    cut_clips,
    describe_available,
    estimate_cache,
    examine,
    expand_split,
    find_entries,
    find_format,
    list_sources,
    make_sample,
    parse_split,
    report_findings,
    sample_videos,
)
from seqckpt.data import read_videos as read_data_set
from seqckpt.errors import ConfigError, DataError, UsageError

__all__ = [
    "Videos",
    "choose_phase_names",
    "choose_videos",
    "choose_window",
    "count_phases",
    "estimate_frame_cache",
    "examine_videos",
    "fill_frame_cache",
    "read_split",
    "read_videos",
]

_SAMPLE_SEED = 0
_USUAL_WINDOW = 500


@dataclass(frozen=True)
class Videos:
    """The videos of each split."""

    train: list[Video]
    val: list[Video]
    test: list[Video]

    def clips(self, clip_length: int | str) -> list[Clip]:
        """Cut the training videos into clips of that many frames, or into one each ("video")."""
        return cut_clips(self.train, None if isinstance(clip_length, str) else clip_length)


def choose_phase_names(data: DataConfig) -> list[str]:
    """Return the phases in the order of their ids: those of the configuration, or else the format's own.

    Raises DataError where the format takes them from a file that is not there.
    """
    return list(data.phase_names or find_format(data.format).names_in(Path(data.root)))


def choose_videos(data: DataConfig) -> dict[str, list[str]]:
    """Find the ids of each split's videos; the sample data is made first, if it is asked for and absent.

    Nothing is read yet: what is wrong with the folder or the split is known before a model is built for it.
    """
    data_set = _open_data_set(data)  # first: a folder that is not there is the mistake to name
    return parse_split(_choose_split(data, data_set), data_set.video_ids, lists=data_set.lists, paths=data_set.paths)


def read_videos(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> Videos:
    """Read the videos chosen, after the checks that cost nothing; what is odd is said in the log."""
    return Videos(**_read_and_check(data, ids))


def read_split(data: DataConfig, split: str) -> list[Video]:
    """Read the videos of one part of the split: train, val or test. Raises UsageError where it is none, or empty."""
    ids = choose_videos(data)
    if not ids.get(split):
        filled = [name for name, entries in ids.items() if entries]
        raise UsageError(f"split={split}: no videos; expected one of {', '.join(filled)}")
    return _read_and_check(data, {split: ids[split]})[split]


def _read_and_check(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> dict[str, list[Video]]:
    try:
        return _read_parts(data, ids)
    except DataError as error:
        raise DataError(f"{error}\n`python -m seqckpt doctor config=...` shows all that is odd or wrong") from error


def _read_parts(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> dict[str, list[Video]]:
    names = choose_phase_names(data)
    videos = read_data_set(
        _open_data_set(data),
        [video_id for part in ids.values() for video_id in part],
        fps=data.fps,
        image_size=data.image_size,
        cache_dir=choose_cache_dir(Path(data.root), data.cache, data.cache_dir),
        frame_rate=data.frame_rate,
        annotation_fps=data.annotation_fps,
        tail=data.tail,
        corrupt=data.corrupt,
        unlabelled=data.unlabelled,
    )
    by_id = {video.video_id: video for video in videos}
    parts = {name: [by_id[video_id] for video_id in part] for name, part in ids.items()}
    counts = {name: count_classes(part, len(names)) for name, part in parts.items()}
    report_findings([*_check_phase_names(data), *check_balance(counts, names)])
    return parts


def count_phases(videos: Videos, names: Sequence[str]) -> dict[str, dict[str, int]]:
    """Return how many labelled frames of each phase each part of the split has."""
    parts = {part: count_classes(of_part, len(names)).tolist() for part, of_part in vars(videos).items()}
    return {part: dict(zip(names, counts, strict=True)) for part, counts in parts.items()}


def examine_videos(data: DataConfig, *, full: bool) -> Checkup:
    """Examine the videos of all parts of the split, or all there are where none is given; `full`: every frame."""
    data_set = _open_data_set(data)
    findings = _check_phase_names(data)
    try:
        split = _choose_split(data, data_set)
    except ConfigError as error:
        begun = any(vars(data.split).values()) or bool({"train", "val", "test"} & set(data_set.lists))
        findings.append(Finding("error" if begun else "warning", "split", str(error)))
        split = {"all": data_set.video_ids}
    parts, problems, broken = expand_split(split, data_set.video_ids, lists=data_set.lists, paths=data_set.paths)
    hint = describe_available(data_set.video_ids, data_set.lists)
    findings += [Finding("error", "split", problem, hint if problem is problems[-1] else "") for problem in problems]
    checkup = examine(
        data_set,
        parts,
        choose_phase_names(data),
        fps=data.fps,
        frame_rate=data.frame_rate,
        annotation_fps=data.annotation_fps,
        tail=data.tail,
        corrupt=data.corrupt,
        unlabelled=data.unlabelled,
        full=full,
        incomplete=broken,
    )
    return dataclasses.replace(checkup, findings=findings + checkup.findings)


def estimate_frame_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> tuple[Path, CacheEstimate]:
    """Return the folder of the frame cache, and what the videos chosen will take in it."""
    cache_dir, sources = _describe_cache(data, ids)
    return cache_dir, estimate_cache(**vars(sources), cache_dir=cache_dir)


def fill_frame_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> list[SampledVideo]:
    """Decode the videos chosen into the cache, with a progress bar; those that are there are checked."""
    cache_dir, sources = _describe_cache(data, ids)
    return sample_videos(**vars(sources), cache_dir=cache_dir, corrupt=data.corrupt)


def choose_window(data: DataConfig) -> int:
    """Return how many frames are taken at once where any will do: in evaluation, and to profile whole videos."""
    return _USUAL_WINDOW if isinstance(data.clip_length, str) else data.clip_length


def _open_data_set(data: DataConfig) -> DataSet:
    """Find the videos; the sample data is made first, if it is asked for and absent."""
    root = Path(data.root)
    if root == sample_root() and not root.exists():
        make_sample(root, seed=_SAMPLE_SEED)
    names = tuple(choose_phase_names(data))
    labels = Labels(names, ignored=tuple(data.ignored_labels), priority=tuple(data.overlap_priority))
    return find_format(data.format).open(root, labels, frames_from=data.frames_from)


def _describe_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> tuple[Path, Sources]:
    entries = find_entries(_open_data_set(data), [video_id for part in ids.values() for video_id in part])
    sources = list_sources(entries, fps=data.fps, image_size=data.image_size, frame_rate=data.frame_rate)
    cache_dir = choose_cache_dir(Path(data.root), "memory_map", data.cache_dir)
    assert cache_dir is not None
    return cache_dir, sources


def _choose_split(data: DataConfig, data_set: DataSet) -> Mapping[str, Sequence[str | int]]:
    given = {name: entries for name, entries in vars(data.split).items() if entries is not None}
    if not given and Path(data.root) == sample_root():
        return SAMPLE_SPLIT
    parts = ("train", "val", "test")
    if not given:
        given = {name: [name] for name in parts if name in data_set.lists}
    missing = [f"data.split.{name}" for name in parts if name not in given]
    if missing:
        own = f"; the data set's own lists are {', '.join(data_set.lists)}" if data_set.lists else ""
        for name in parts:
            meant = [other for other in data_set.lists if other != name and re.fullmatch(rf"{name}[a-z]*", other, re.I)]
            if name not in given and meant:
                own += f"; write {name}, not {meant[0]}, and they are taken without data.split"
        raise ConfigError(
            f"{', '.join(missing)}: missing; say which videos are for what, as in {missing[-1]}=[9-12]{own}"
        )
    return given


def _check_phase_names(data: DataConfig) -> list[Finding]:
    """Say where the ids are others than the format's usual ones."""
    usual = find_format(data.format).phase_names
    difference = None if callable(usual) else check_names(choose_phase_names(data), usual)
    if difference is None:
        return []
    hint = "predictions and snapshots of others have other ids"
    return [Finding("warning", "data.phase_names", f"another order than usual: {difference}", hint)]

"""The sample: the layout of Cholec80, the same from the same seed, whole or not there, and not solvable by frame."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from seqckpt.data import (
    SAMPLE_SPLIT,
    Labels,
    find_format,
    make_sample,
    parse_split,
    read_videos,
    sample,
    sample_per_frame_limit,
)
from seqckpt.data.formats import DataSet
from seqckpt.data.formats.cholec80 import PHASES, TOOLS, read_phase_table, read_tool_table
from seqckpt.data.sample_script import VIDEO_RATE, Script, per_frame_limit, write_script
from seqckpt.data.video_file import index_video
from seqckpt.errors import DataError

LABELS = Labels(PHASES)
SMALL: dict[str, Any] = {"num_videos": 3, "shortest_seconds": 14, "longest_seconds": 20, "progress": False}


def contents(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def open_sample(root: Path) -> DataSet:
    return find_format("cholec80").open(root, LABELS)


@pytest.fixture(scope="module")
def small_sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sample") / "data" / "sample"
    make_sample(root, seed=0, **SMALL)
    return root


def test_it_has_the_layout_of_cholec80(small_sample: Path) -> None:
    names = [f"video{number:02d}" for number in (1, 2, 3)]
    assert open_sample(small_sample).video_ids == names
    assert set(contents(small_sample)) == {
        *(f"videos/{name}.mp4" for name in names),
        *(f"phase_annotations/{name}-phase.txt" for name in names),
        *(f"tool_annotations/{name}-tool.txt" for name in names),
    }
    for name in names:
        index = index_video(small_sample / "videos" / f"{name}.mp4")
        phases = read_phase_table(small_sample / "phase_annotations" / f"{name}-phase.txt", LABELS)
        tools = read_tool_table(small_sample / "tool_annotations" / f"{name}-tool.txt", TOOLS)
        assert len(index.stamps) == phases.num_rows == VIDEO_RATE * tools.num_rows
        assert tools.step == VIDEO_RATE
        assert index.duration_seconds == tools.num_rows


def test_it_is_read_without_a_frame_too_many(small_sample: Path, tmp_path: Path) -> None:
    data_set = open_sample(small_sample)
    ids = data_set.video_ids
    videos = read_videos(data_set, ids, fps=1.0, image_size=64, cache_dir=tmp_path, tail="strict", progress=False)
    for video in videos:
        assert 14 <= len(video) <= 20
        assert video.tools is not None
        assert (video.tools >= 0).all()
        assert video.frames[:].float().std() > 20  # there is something to be seen
    assert len(torch.cat([video.phases for video in videos]).unique()) == 7


def test_the_same_seed_draws_the_same(small_sample: Path, tmp_path: Path) -> None:
    make_sample(tmp_path / "again", seed=0, **SMALL)
    assert contents(tmp_path / "again") == contents(small_sample)
    make_sample(tmp_path / "other", seed=1, **{**SMALL, "num_videos": 1})
    for name, content in contents(tmp_path / "other").items():
        assert content != contents(small_sample)[name]


def test_a_surgery_does_not_depend_on_how_many_there_are(small_sample: Path, tmp_path: Path) -> None:
    make_sample(tmp_path / "one", seed=0, **{**SMALL, "num_videos": 1})
    whole = contents(small_sample)
    assert all(whole[name] == content for name, content in contents(tmp_path / "one").items())


class Interruption(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


@pytest.mark.parametrize("error", [Interruption(), OSError(28, "No space left on device")])
def test_an_interrupted_sample_leaves_nothing(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw_video = sample.draw_video

    def interrupted(rng: np.random.Generator, script: Script) -> Iterator[Any]:
        yield from itertools.islice(draw_video(rng, script), 2)
        raise error

    monkeypatch.setattr(sample, "draw_video", interrupted)
    expected = DataError if isinstance(error, OSError) else Interruption
    with pytest.raises(expected):
        make_sample(tmp_path / "data" / "sample", seed=0, **SMALL)
    assert os.listdir(tmp_path / "data") == []


def test_nothing_that_is_there_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "sample").mkdir()
    (tmp_path / "sample" / "mine").write_text("x")
    with pytest.raises(DataError, match="something is there; remove it"):
        make_sample(tmp_path / "sample", seed=0, **SMALL)
    assert os.listdir(tmp_path / "sample") == ["mine"]


def test_a_place_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(DataError, match=r"cannot be made in .*: Not a directory|cannot be made in .*: File exists"):
        make_sample(tmp_path / "file" / "sample", seed=0, **SMALL)


FULL = [write_script(np.random.default_rng([0, number]), 500, 560) for number in range(1, 13)]


def test_surgeries_are_long_enough_and_differ() -> None:
    lengths = [len(script.phases) / VIDEO_RATE for script in FULL]
    assert min(lengths) >= 500
    assert len(set(lengths)) > 6
    starts = [[int(np.argmax(script.phases == phase)) for script in FULL] for phase in range(1, 7)]
    assert all(np.std(column) > 5 * VIDEO_RATE for column in starts)  # the time alone tells little


def test_every_surgery_has_every_phase_and_clipping_between_dissections() -> None:
    for script in FULL:
        order = [int(phase) for phase, _ in itertools.groupby(script.phases)]
        assert sorted(order) == list(range(7))
        assert order[:4] == [0, 1, 2, 3]
        assert order[6] == 6
    assert len({tuple(phase for phase, _ in itertools.groupby(script.phases.tolist())) for script in FULL}) == 2


def test_what_a_clip_cut_at_500_leaves_needs_no_past() -> None:
    """The clip of the rest starts without memory: it holds the one phase that looks like no other."""
    for script in FULL:
        assert set(script.phases[500 * VIDEO_RATE :].tolist()) <= {6}


@pytest.mark.parametrize(
    ("one", "other"), [("CalotTriangleDissection", "GallbladderDissection"), ("Preparation", "CleaningCoagulation")]
)
def test_pairs_of_phases_look_alike(one: str, other: str) -> None:
    """The same instruments, as often: shares over the whole sample agree up to chance."""
    scripts = [write_script(np.random.default_rng([9, number]), 500, 560) for number in range(200)]
    shares = [
        np.concatenate([script.tools[script.phases == PHASES.index(name)] for script in scripts]).mean(0)
        for name in (one, other)
    ]
    assert np.abs(shares[0] - shares[1]).max() < 0.04


def test_the_limit_of_single_frames_by_hand() -> None:
    """Two looks: the first is phase 0 three times and phase 1 once, the second always phase 2: 4 of 5 at best."""
    tools = np.zeros((5, 7), bool)
    tools[4, 2] = True
    script = Script(np.array([0, 0, 0, 1, 2]), tools, np.zeros(5, bool))
    assert per_frame_limit([script]) == 0.8


def test_single_frames_are_not_enough() -> None:
    assert per_frame_limit(FULL) == sample_per_frame_limit()
    assert 0.6 < sample_per_frame_limit() < 0.75


def test_the_readme_states_the_limit() -> None:
    readme = Path(__file__).parents[2] / "data" / "README.md"
    assert f"{sample_per_frame_limit():.1%}".replace("%", " %") in readme.read_text(encoding="utf-8")
    assert len(parse_split(SAMPLE_SPLIT, [f"video{number:02d}" for number in range(1, 13)])["train"]) == 8

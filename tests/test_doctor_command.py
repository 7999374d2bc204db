"""`seqckpt doctor` and the checks that training runs by itself: what is printed, and the exit code."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf

from seqckpt import build
from seqckpt.cli import main
from seqckpt.config import Config, load_config
from seqckpt.data.formats.cholec80 import PHASES
from seqckpt.errors import ConfigError, DataError

SetMaker = Callable[..., Path]


def write_video(path: Path, num_frames: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=5, options={"threads": "1"})
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        stream.codec_context.time_base = Fraction(1, 5)
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(np.full((32, 32, 3), 50 + number, np.uint8), format="rgb24")
            frame.pts = number
            container.mux(stream.encode(frame))
        container.mux(stream.encode())


@pytest.fixture
def write_set(tmp_path: Path) -> SetMaker:
    """A function that makes a data set of three videos in the layout of Cholec80 and a config for it."""

    def write(phases: Sequence[int] = tuple(range(7)), num_videos: int = 3, name: str = "config") -> Path:
        for number in range(1, num_videos + 1):
            write_video(tmp_path / "set" / "videos" / f"video{number:02d}.mp4", 70)
            rows = "".join(f"{k}\t{PHASES[phases[k * len(phases) // 70]]}\n" for k in range(70))
            path = tmp_path / "set" / "phase_annotations" / f"video{number:02d}-phase.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"Frame\tPhase\n{rows}")
        config = tmp_path / f"{name}.yaml"
        config.write_text(
            f"data:\n  root: {tmp_path / 'set'}\n  image_size: 16\n  split: {{train: [1], val: [2], test: [3]}}\n"
            "train: {epochs: 1, device: cpu, class_weights: inverse_frequency}\nmodel: {hidden_size: 8}\n"
        )
        return config

    return write


def run(command: str, config: Path, *arguments: str) -> int:
    return main([command, f"config={config}", *arguments])


def test_a_sound_set(write_set: SetMaker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", write_set()) == 0
    table, balance, verdict = capsys.readouterr().out.split("\n\n")
    header, *rows = table.splitlines()
    assert header.split()[:6] == ["video", "part", "frames", "rows", "seconds", "fps"]
    assert [row.split()[:6] for row in rows] == [
        [f"video{number:02d}", part, "70", "70", "14.00", "5"]
        for number, part in ((1, "train"), (2, "val"), (3, "test"))
    ]
    assert balance.splitlines()[0].split("  ")[-1].strip() == "weight"
    assert balance.splitlines()[1].split() == ["Preparation", *["2", "(14.3%)"] * 3, "1"]
    assert verdict == "nothing odd was found\n"


def test_full_looks_at_every_frame(write_set: SetMaker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", write_set(), "--full") == 0
    assert capsys.readouterr().out.splitlines()[0].split()[2:5] == ["frames", "decodable", "rows"]


def test_errors_are_told_with_hints_and_by_the_exit_code(
    write_set: SetMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_set()
    (tmp_path / "set" / "videos" / "video02.mp4").write_bytes(b"")
    (tmp_path / "set" / "phase_annotations" / "video03-phase.txt").unlink()
    assert run("doctor", config, "data.split.val=[1,2]") == 1
    printed = capsys.readouterr().out
    for text in (
        "error: split: video01 is in train and in val; expected each video in one part, once",
        "    available are video01, video02, video03",
        "video02.mp4 is empty (0 bytes)",
        "error: video03: there is no ",
        "    add it, or leave the video out of data.split",
    ):
        assert text in printed
    assert "train and val" in printed
    assert "no frame of" not in printed  # who knows: a video of each other part is not read


def test_a_broken_range_hides_nothing(write_set: SetMaker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", write_set(phases=[0, 3, 5]), "data.split.test=[3-8]") == 1
    printed = capsys.readouterr().out
    assert "error: split: test: videos 4, 5, 6, 7, 8 of the range '3-8' are not there" in printed
    assert [line.split()[:2] for line in printed.splitlines()[1:4]][2] == ["video03", "test"]
    assert "warning: val: no frame of" in printed
    assert ": test: no frame of" not in printed


def test_without_a_split_all_videos_are_examined(
    write_set: SetMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = write_set()
    config.write_text(f"data: {{root: {tmp_path / 'set'}}}")
    assert run("doctor", config) == 0
    printed = capsys.readouterr().out
    assert printed.count("  all  ") >= 3
    assert "warning: split: data.split.train, data.split.val, data.split.test: missing" in printed


def test_another_order_of_phases(
    write_set: SetMaker, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = write_set()
    names = [*PHASES[:5], PHASES[6], PHASES[5]]
    argument = f"data.phase_names=[{','.join(names)}]"
    assert run("doctor", config, argument) == 0
    message = "another order than usual: phase 5 is GallbladderRetraction, usually it is CleaningCoagulation"
    assert f"warning: data.phase_names: {message}" in capsys.readouterr().out
    data = load_config([f"config={config}", argument])[1].data
    with caplog.at_level(logging.WARNING, logger="seqckpt"):
        build.read_videos(data, build.choose_videos(data))
    assert message in caplog.text


@pytest.mark.parametrize("argument", ["data.format=cholec", "data.tail=guess", "data.corrupt=skip", "data.fps=x"])
def test_mistakes_in_the_configuration(argument: str, write_set: SetMaker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", write_set(), argument) == 2
    assert argument.split("=")[0] in capsys.readouterr().err


def test_nothing_to_examine(tmp_path: Path, write_set: SetMaker, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", write_set(), f"data.root={tmp_path / 'nowhere'}") == 2
    assert "nowhere does not exist. Expected in" in capsys.readouterr().err


# --- training ---


def test_training_keeps_the_names_and_says_what_is_missing(
    write_set: SetMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(logging.root, "handlers", [])
    assert run("train", write_set(phases=[0, 3, 5]), "run=first") == 0
    said = capsys.readouterr().err
    assert "warning: train: no frame of CalotTriangleDissection, ClippingCutting, GallbladderPackaging" in said
    written = OmegaConf.load(tmp_path / "runs" / "first" / "config.yaml")
    assert list(written.data.phase_names) == list(PHASES)
    state = torch.load(tmp_path / "runs" / "first" / "last.pt", weights_only=True)
    assert state["phase_names"] == list(PHASES)
    summary = json.loads((tmp_path / "runs" / "first" / "summary.json").read_text())
    frames = {PHASES[0]: 5, PHASES[3]: 5, PHASES[5]: 4}
    assert summary["phase_frames"] == {
        part: {name: frames.get(name, 0) for name in PHASES} for part in ("train", "val", "test")
    }
    assert summary["phase_weights"] == pytest.approx(
        [14 / (7 * frames[name]) if name in frames else 0 for name in PHASES]
    )


def test_training_stops_at_errors_before_decoding(
    write_set: SetMaker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    config = write_set()
    for number, num_rows in ((1, 60), (3, 40)):
        path = tmp_path / "set" / "phase_annotations" / f"video{number:02d}-phase.txt"
        path.write_text("\n".join(path.read_text().splitlines()[: num_rows + 1]))
    assert run("train", config) == 2
    said = capsys.readouterr().err
    assert "2 things are wrong with the videos" in said
    assert "is for 60" in said
    assert said.rstrip().endswith("`python -m seqckpt doctor config=...` shows all that is odd or wrong")
    assert "is for 40" in said
    assert not (tmp_path / "set" / "frame_cache").exists()
    assert not (tmp_path / "runs").exists()


def test_phase_names_are_the_formats_own_unless_given(tmp_path: Path) -> None:
    config = Config()
    assert build.choose_phase_names(config.data) == list(PHASES)
    config.data.format = "cataract101"
    assert len(build.choose_phase_names(config.data)) == 10
    config.data.format, config.data.root = "mstcn", str(tmp_path)
    with pytest.raises(DataError, match=r"mapping\.txt cannot be read"):
        build.choose_phase_names(config.data)
    (tmp_path / "mapping.txt").write_text("0 stir\n1 pour\n")
    assert build.choose_phase_names(config.data) == ["stir", "pour"]
    config.data.phase_names = ["pour", "stir"]
    assert build.choose_phase_names(config.data) == ["pour", "stir"]


def test_a_data_sets_own_lists_are_its_split(tmp_path: Path) -> None:
    config = Config()
    config.data.format, config.data.root = "autolaparo", str(tmp_path)
    for number in (1, 10, 11, 21):
        write_video(tmp_path / "videos" / f"{number:02d}.mp4", 2)
    assert build.choose_videos(config.data) == {"train": ["01", "10"], "val": ["11"], "test": ["21"]}
    config.data.split.train = ["train", "not 10"]
    with pytest.raises(ConfigError, match=r"data\.split\.test: missing; .*lists are train, val, test"):
        build.choose_videos(config.data)
    config.data.split.val, config.data.split.test = [10], ["val", "test"]
    assert build.choose_videos(config.data) == {"train": ["01"], "val": ["10"], "test": ["11", "21"]}


def test_the_name_of_a_part_is_corrected(tmp_path: Path) -> None:
    config = Config()
    config.data.format, config.data.root, config.data.phase_names = "csv", str(tmp_path), ["a"]
    rows = "".join(f"{name}.mp4,{name}.csv,{part}\n" for name, part in (("x", "train"), ("y", "Valid"), ("z", "test")))
    (tmp_path / "videos.csv").write_text(f"video,annotation,split\n{rows}")
    with pytest.raises(ConfigError, match=r"lists are train, Valid, test; write val, not Valid, and they are taken"):
        build.choose_videos(config.data)
    (tmp_path / "videos.csv").write_text(f"video,annotation,split\n{rows.replace('Valid', 'val')}")
    assert build.choose_videos(config.data) == {"train": ["x"], "val": ["y"], "test": ["z"]}
    config.data.split.train, config.data.split.val, config.data.split.test = ["test"], ["val"], ["x"]
    assert build.choose_videos(config.data) == {"train": ["z"], "val": ["y"], "test": ["x"]}  # what is given wins


def test_a_listed_file_that_is_not_there_is_named_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_video(tmp_path / "b.mp4", 10)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.csv").write_text("second,phase\n0,Cuting\n1,Cutting\n")
    rows = "a.mp4,a.csv,train\nb.mp4,b.csv,val\nc.mp4,gone.csv,test\n"
    (tmp_path / "videos.csv").write_text(f"video,annotation,split\n{rows}")
    config = tmp_path / "my.yaml"
    config.write_text(f"data: {{format: csv, root: {tmp_path}, phase_names: [Cutting, Sewing]}}\n")
    assert run("train", config) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: 3 file(s) of the data set are missing:\n")
    for name in ("a.mp4", "c.mp4", "gone.csv"):
        assert f"  {tmp_path / name}\n" in said
    assert "leave these videos out of data.split" in said
    assert run("doctor", config) == 1
    printed = capsys.readouterr().out
    assert f"error: a: there is no {tmp_path / 'a.mp4'}\n" in printed
    assert f"error: c: there is no {tmp_path / 'c.mp4'} and no {tmp_path / 'gone.csv'}\n" in printed
    assert "unknown phase 'Cuting'; expected one of Cutting, Sewing; did you mean Cutting?" in printed


def test_a_part_that_the_table_lacks_is_an_error_here_as_in_training(
    sample: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [
        f"{sample}/videos/{name}.mp4,{sample}/phase_annotations/{name}-phase.txt,{part}"
        for name, part in (("video01", "train"), ("video02", "val"))
    ]
    (tmp_path / "videos.csv").write_text("\n".join(["video,annotation,split", *rows]) + "\n")
    arguments = ["config=surgical_video.yaml", "data.format=csv", f"data.root={tmp_path}"]
    names = f"data.phase_names=[{','.join(PHASES)}]"
    assert main(["doctor", *arguments, names]) == 1
    shown = capsys.readouterr().out
    assert "error: split: data.split.test: missing; say which videos are for what" in shown
    assert "the data set's own lists are train, val" in shown

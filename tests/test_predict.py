"""`seqckpt predict`: any video in, a table, a ribbon and a drawn video out, and one line for whatever is wrong."""

from __future__ import annotations

import shutil
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from turned_films import UPRIGHT, find_corners, patch_matrix, write_patches

from seqckpt.cli import main
from seqckpt.data import find_recordings
from seqckpt.errors import DataError
from seqckpt.inference import open_run
from seqckpt.inference import predict as predicting
from seqckpt.training import read_prediction


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out"


def predict(run: Path, source: Path, output: Path, *more: str) -> int:
    return main(["predict", f"run={run}", f"input={source}", f"output={output}", *more])


def make_frames(folder: Path, *numbers: int) -> Path:
    folder.mkdir(parents=True)
    for number in numbers:
        Image.new("RGB", (40, 30), (number % 256, 80, 160)).save(folder / f"{number}.png")
    return folder


def test_a_video_is_predicted_as_the_run_predicted_it(
    run: Path, sample: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The test video of the run, through another door: the same frames, hence the same rows."""
    assert predict(run, sample / "videos" / "video04.mp4", output) == 0
    names = open_run(run).phase_names
    there, again = (read_prediction(folder / "video04.csv", names) for folder in (run / "predictions", output))
    assert np.array_equal(again.seconds, there.seconds)
    assert (again.truth == -100).all()
    np.testing.assert_allclose(again.probabilities, there.probabilities, atol=2e-4)  # four digits are written
    assert (again.prediction == there.prediction).mean() > 0.98  # two phases may be as likely, to rounding
    assert sorted(path.name for path in output.iterdir()) == ["video04-ribbon.png", "video04.csv"]
    printed = capsys.readouterr()
    assert "x real time" in printed.out
    assert f"results in {output}" in printed.out


def test_memory_does_not_grow_with_the_video(
    run: Path, sample: Path, output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At no time are more frames alive than two windows and what is read ahead, and rows are written as they come."""
    monkeypatch.setattr(predicting, "_WINDOW", 4)
    lengths: list[int] = []
    read = predicting.StreamedFrames.__getitem__

    def note(frames: predicting.StreamedFrames, index: slice) -> torch.Tensor:
        part = read(frames, index)
        lengths.append(len(part))
        return part

    monkeypatch.setattr(predicting.StreamedFrames, "__getitem__", note)
    assert predict(run, sample / "videos" / "video04.mp4", output) == 0
    assert sum(lengths) == len((output / "video04.csv").read_text().splitlines()) - 1  # each once
    assert max(lengths) <= 5


def test_folders_are_taken_for_what_is_in_them(tmp_path: Path) -> None:
    frames = make_frames(tmp_path / "frames" / "op 1", 1, 2, 3)
    assert find_recordings(frames) == {"op 1": frames}
    assert find_recordings(frames.parent) == {"op 1": frames}
    videos = tmp_path / "videos"
    videos.mkdir()
    for name in ("b10.mp4", "b2.MOV", "a.mp4", "a.avi", ".a.mp4", "notes.txt"):
        (videos / name).touch()
    make_frames(videos / "c", 1)
    found = find_recordings(videos)
    assert list(found) == ["a.avi", "a.mp4", "b2", "b10", "c"]  # natural order; a suffix where names would be the same
    with pytest.raises(DataError, match=r"holds neither videos \(\.mp4, .* nor frames; did you mean .*frames\?"):
        find_recordings(tmp_path)
    (videos / "cover.jpg").touch()
    with pytest.raises(DataError, match=r"holds both images \(cover\.jpg\) and videos"):
        find_recordings(videos)


def test_a_folder_of_frames_is_predicted_and_drawn(run: Path, tmp_path: Path, output: Path) -> None:
    frames = make_frames(tmp_path / "op", *range(0, 100, 25))
    assert predict(run, frames, output, "data.frame_rate=25", "--video") == 0
    assert len((output / "op.csv").read_text().splitlines()) == 1 + 4
    with av.open(str(output / "op-phases.mp4")) as container:
        times = [frame.time for frame in container.decode(video=0)]
    assert times == [0, 1, 2, 3]


def test_a_folder_of_videos_goes_on_after_a_damaged_one(
    run: Path, sample: Path, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    videos = tmp_path / "videos"
    videos.mkdir()
    good = (sample / "videos" / "video04.mp4").read_bytes()
    middle = len(good) // 2
    (videos / "damaged.mp4").write_bytes(good[:middle] + bytes(4000) + good[middle + 4000 :])
    (videos / "good.mp4").write_bytes(good)
    (videos / "short.mp4").write_bytes(good[:middle])  # its index is missing: it cannot even be opened
    (videos / "text.mp4").write_text("no video")
    assert predict(run, videos, output) == 2
    printed = capsys.readouterr()
    assert "short.mp4 cannot be opened as a video" in printed.err
    assert "text.mp4 cannot be opened as a video" in printed.err
    assert "damaged.mp4 cannot be decoded throughout: the frame shown at" in printed.err
    assert "error: 3 of 4 videos could not be predicted: short, text, damaged" in printed.err
    assert sorted(path.name for path in output.iterdir()) == ["good-ribbon.png", "good.csv"]  # nothing half-written
    assert predict(run, videos / "damaged.mp4", output, "data.corrupt=repeat") == 0
    rows = [(output / f"{name}.csv").read_text().splitlines() for name in ("good", "damaged")]
    assert len(rows[0]) == len(rows[1])


def test_the_drawn_video_has_the_frames_and_their_phases(run: Path, tmp_path: Path, output: Path) -> None:
    """At their times, in the aspect in which players show them: pixels here are a third wider than high."""
    source = tmp_path / "wide.mp4"
    with av.open(str(source), "w") as container:
        stream = container.add_stream("libx264", rate=12)
        stream.width, stream.height, stream.pix_fmt = 96, 60, "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(4, 3)
        for k in range(30):
            picture = np.full((60, 96, 3), 8 * k, np.uint8)
            picture[:, : 3 * k] = (200, 60, 30)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(stream.encode())
    assert predict(run, source, output, "--video") == 0
    with av.open(str(source)) as one, av.open(str(output / "wide-phases.mp4")) as other:
        pairs = list(zip(one.decode(video=0), other.decode(video=0), strict=True))
    assert len(pairs) == 30
    assert all(before.time == pytest.approx(after.time, abs=1e-3) for before, after in pairs)
    for before, after in pairs[::10]:
        drawn = after.to_ndarray(format="rgb24")
        assert drawn.shape[1] == 512  # 4 * 96 * 4 / 3
        expected = before.reformat(512, 240).to_ndarray(format="rgb24")
        assert abs(drawn[:240].astype(int) - expected).mean() < 8  # grey levels, after another compression
        assert drawn[240:].std() > 10  # the band
        assert len(drawn) > 260


@pytest.mark.parametrize(("degrees", "corners"), [(90, "grey red green blue"), (180, "blue grey red green")])
def test_a_turned_video_is_predicted_and_drawn_as_shown(
    degrees: int, corners: str, run: Path, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the size that players show, pixels twice as wide as high as stored; its rows are those of an upright copy."""
    source = write_patches(tmp_path / "turned.mp4", (96, 128), num_frames=50, sample_aspect_ratio=Fraction(2))
    patch_matrix(source, UPRIGHT[degrees])
    assert predict(run, source, output, "--video") == 0
    with av.open(str(output / "turned-phases.mp4")) as drawn:
        frames = [frame.to_ndarray(format="rgb24") for frame in drawn.decode(video=0)]
    height, width = (256, 96) if degrees == 90 else (96, 256)
    factor = -(-480 // width)  # small ones are enlarged
    assert len(frames) == 50
    assert frames[0].shape[1] == factor * width
    assert frames[0].shape[0] > factor * height
    assert find_corners(frames[25][: factor * height].transpose(2, 0, 1)) == corners.split()

    upright = write_patches(tmp_path / "upright.mp4", (96, 128), num_frames=50, quarters=degrees // 90)
    assert predict(run, upright, output) == 0
    names = open_run(run).phase_names
    rows = [read_prediction(output / f"{name}.csv", names).probabilities for name in ("turned", "upright")]
    np.testing.assert_allclose(*rows, atol=0.02)  # stored with some loss, written in four digits


def test_a_video_that_cannot_be_shown_upright_is_one_line(
    run: Path, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert predict(run, patch_matrix(write_patches(tmp_path / "askew.mp4"), (0.8, 0.6, -0.6, 0.8)), output) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "askew.mp4: its display matrix says that pictures are shown turned by 36.9 degrees clockwise" in line


def test_mistakes_are_one_line(
    run: Path, sample: Path, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "nothing.mp4").touch()
    (tmp_path / "file").touch()
    frames = make_frames(tmp_path / "op", 1, 2)
    video = sample / "videos" / "video04.mp4"
    for source, more, message in [
        (tmp_path / "absent.mp4", [], "absent.mp4 does not exist; expected a video, a folder of frames, or a folder"),
        (tmp_path / "text.mp4", [], "text.mp4 cannot be opened as a video"),
        (tmp_path / "nothing.mp4", [], "nothing.mp4 is empty (0 bytes); expected a video"),
        (tmp_path / "empty", [], "empty holds neither videos (.mp4"),
        (frames, [], "nothing says how many of their numbers make a second; give data.frame_rate"),
        (frames, ["data.frame_rate=1", f"output={frames}"], "given more than once"),
        (video, ["data.fsp=2"], "unknown key; did you mean data.fps?"),
        (video, ["--vidoe"], "--vidoe"),
    ]:
        assert predict(run, source, output, *more) == 2, message
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert predict(run, frames, frames, "data.frame_rate=1") == 2
    assert "is the folder of the frames" in capsys.readouterr().err
    assert predict(run, video, tmp_path / "file") == 2
    assert "is a file; expected a folder" in capsys.readouterr().err
    assert main(["predict", f"run={run}"]) == 2
    assert "error: input= is missing: a video, a folder of frames" in capsys.readouterr().err
    assert main(["predict", f"run={run}", f"inptu={video}"]) == 2
    assert "input= is missing: a video, a folder of frames, or a folder of such; is inptu= meant for it?" in (
        capsys.readouterr().err
    )
    assert not output.exists()


def test_results_are_replaced_only_when_asked(
    run: Path, tmp_path: Path, output: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frames = make_frames(tmp_path / "op", 1, 2)
    output.mkdir()
    (output / "op.csv").write_text("mine")
    assert predict(run, frames, output, "data.frame_rate=1") == 2
    assert "op.csv exists already: name another folder with output=, or give --overwrite" in capsys.readouterr().err
    assert [path.read_text() for path in output.iterdir()] == ["mine"]
    assert predict(run, frames, output, "data.frame_rate=1", "--overwrite") == 0
    assert (output / "op.csv").read_text().startswith("second,")


def test_results_are_in_the_run_by_default(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    frames = make_frames(tmp_path / "op", 1, 2)
    assert main(["predict", f"run={moved}", f"input={frames}", "data.frame_rate=1"]) == 0
    assert sorted(path.name for path in (moved / "predicted").iterdir()) == ["op-ribbon.png", "op.csv"]

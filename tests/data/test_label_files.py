"""Label files of other systems: how they may be typed, and what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from seqckpt.data import IGNORE_INDEX, Labels, find_label_files, match_label_files, read_label_file
from seqckpt.errors import DataError

LABELS = Labels(("cut", "sew up"), ignored=("none",))


@pytest.mark.parametrize(
    "text",
    [
        "cut\nsew up\nnone\n",
        "\ufeffcut\r\n\r\nsew up \r\nnone",
        "0\n1\nnone\n",
        "0\tcut\n1\tsew up\n2\tnone\n",
        "Frame\tPhase\n0\tcut\n25\tsew up\n50\tnone\n",
        "frame,label\n0,cut\n1, sew up\n2,none\n",
        "0; 0\n1; 1\n2; none\n",
        "0 cut\n5 sew up\n10 none\n",
    ],
)
def test_ways_of_typing_the_same(tmp_path: Path, text: str) -> None:
    path = tmp_path / "video01.txt"
    path.write_bytes(text.encode())
    assert read_label_file(path, LABELS).phases.tolist() == [0, 1, IGNORE_INDEX]


def test_files_are_called_by_their_video(tmp_path: Path) -> None:
    for name in ("video10.txt", "video2-phase.txt", "video1_phase.csv", ".hidden.txt", "notes.md"):
        (tmp_path / name).touch()
    (tmp_path / "evaluation").mkdir()
    files = find_label_files(tmp_path)
    assert list(files) == ["video1", "video2", "video10"]
    match_label_files(files, ["video10", "video2", "video1"], tmp_path, "the truth")
    with pytest.raises(DataError, match="no file for video3; files for video10, which the truth does not have"):
        match_label_files(files, ["video1", "video2", "video3"], tmp_path, "the truth")


def test_an_empty_folder(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds no file of labels \(\.txt, \.tsv, \.csv\)"):
        find_label_files(tmp_path)

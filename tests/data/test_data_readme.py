"""data/README.md: its format runs as it stands there, in 20 lines, and its tables name what there is."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from seqckpt.cli import main
from seqckpt.config import describe_keys, load_config
from seqckpt.data import Labels, find_format, list_formats, read_videos
from seqckpt.data.formats import registry
from seqckpt.errors import DataError

README = (Path(__file__).parents[2] / "data" / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.fixture
def marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The format of the README, known while the test runs."""
    monkeypatch.setattr(registry, "_FORMATS", dict(registry._FORMATS))
    exec(compile(BLOCKS[0], "data/README.md", "exec"), {"__name__": "readme"})


@pytest.fixture
def marked_set(tmp_path: Path, write_film: Callable[..., Path], write_text: Callable[..., Path]) -> Path:
    for number in (1, 2, 3):
        write_film(tmp_path / "videos" / f"case{number}.mp4", 100)
        write_text(tmp_path / "marks" / f"case{number}.txt", "2.0 4 Withdrawal\n0 1.5 Insertion\n")
    return tmp_path


def test_a_format_takes_20_lines() -> None:
    assert len([line for line in BLOCKS[0].splitlines() if line.strip()]) <= 20


def test_the_format_reads_what_it_says(marks: None, marked_set: Path) -> None:
    assert "marks" in list_formats()
    found = find_format("marks")
    data_set = found.open(marked_set, Labels(found.names_in(marked_set)))
    (video,) = read_videos(data_set, ["case1"], fps=2.0, image_size=16, cache_dir=None, progress=False)
    assert video.phases.tolist() == [0, 0, 0, -100, 1, 1, 1, 1]
    path = marked_set / "marks" / "case2.txt"
    path.write_text("0 1.5 Insertion\n1,5 4 Withdrawal\n")
    with pytest.raises(DataError, match=r"case2\.txt:2: the start is '1,5'; expected a number from 0"):
        read_videos(data_set, ["case2"], fps=2.0, image_size=16, cache_dir=None, progress=False)


def test_the_command_line_knows_it(marks: None, marked_set: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "from seqckpt.cli import main" in BLOCKS[1]
    config = marked_set / "my.yaml"
    config.write_text(
        f"data:\n  format: marks\n  root: {marked_set}\n  fps: 2\n  split: {{train: [1], val: [2], test: [3]}}\n"
    )
    assert main(["doctor", f"config={config}"]) == 0
    printed = capsys.readouterr().out
    assert "Insertion" in printed
    assert "nothing odd was found" in printed


def test_every_format_and_key_is_documented() -> None:
    for name in ("cholec80", "m2cai16", "autolaparo", "heichole", "cataract101", "mstcn", "frames", "csv"):
        assert f"| `{name}` |" in README
    keys = re.findall(r"^  (data\.[a-z_.]+)=", describe_keys(), re.MULTILINE)
    elsewhere = ("data.augment.", "data.num_workers", "data.order", "data.clip_length")  # of training, not of the data
    for key in keys:
        assert key in README or key.startswith(elsewhere) or key in ("data.split.test",), key


def test_the_config_to_begin_with_loads(tmp_path: Path) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert len(block.splitlines()) == 8
    path = tmp_path / "my.yaml"
    path.write_text(block, encoding="utf-8")
    name, config = load_config([f"config={path}"])
    assert (name, config.data.format, config.data.split.train) == ("my", "csv", ["1-6"])

"""README's Python runs, block after block, as a reader would paste it; and its commands are the ones that CI runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_python_block_runs(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(run, tmp_path / "runs" / "first")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 7
    names: dict[str, object] = {"__name__": "readme"}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"README.md, block {number}", "exec"), names)
    assert names["features"].grad_fn is not None  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", ["pip install -e . && python train.py config=surgical_video.yaml"])
def test_set_up_commands_stand_at_the_top(command: str) -> None:
    assert README.index(command) < README.index("## Your own data")


def test_ci_runs_the_test_command() -> None:
    assert "pip install -e '.[dev]' && pytest" in README
    lines = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    commands = [line for line in lines if not line.startswith("#")]
    (install,) = (i for i, line in enumerate(commands) if line.startswith("pip install") and "-e '.[dev]'" in line)
    (test,) = (i for i, line in enumerate(commands) if re.search(r"(^| )pytest( |$)", line))
    assert install < test


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.search(r"@@|TODO|XXX", README)


def test_every_file_that_readme_links_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target

"""README's Python runs, block after block, as a reader would paste it; and its commands are the ones that CI runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_every_python_block_runs() -> None:
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
    (command,) = re.findall(r"pip install -e '\.\[dev\]' && pytest", README)
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert command in script or all(part in script for part in ("'.[dev]'", "pytest"))


def test_every_file_that_readme_links_is_there() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target

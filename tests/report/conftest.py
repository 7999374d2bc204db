"""A browser for all tests of a process; without one they are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Browser, find_chromium
from made_reports import make_prediction, make_report

from seqckpt.report import make_page


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """A headless Chromium; Debian's package is called chromium, $CHROMIUM names another one."""
    program = find_chromium()
    if program is None:
        pytest.skip("no Chromium is installed: install one (apt-get install chromium), or set $CHROMIUM")
    with Browser(program) as browser:
        yield browser


@pytest.fixture(scope="session")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two videos of 50 and 40 frames; the first is wrong in frames 10-19 and 30-32, the second in 5-24."""
    first = make_prediction("first", [0] * 20 + [1] * 30, [0] * 10 + [1] * 20 + [2] * 3 + [1] * 17)
    second = make_prediction("second", [0] * 5 + [1] * 20 + [-100] * 5 + [2] * 10, [0] * 5 + [2] * 35)
    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(make_page(make_report([first, second])), encoding="utf-8")
    return path

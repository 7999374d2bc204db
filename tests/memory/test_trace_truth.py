"""What a trace says, against what the operating system sees of a fresh process. Slow: by hand, with `-m slow`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from traced_models import NAMES

SIZES = dict(zip(NAMES, (40, 24, 24, 100, 48), strict=True))  # 190 MiB and more: what is not the step's is little

# So that resident size follows what is allocated: the C library gives blocks back at once (by default it keeps some
# 50 % more in its heap), and touches what it hands out (oneDNN's LSTM takes work space that it never touches, a third
# of the language model's peak).
C_LIBRARY = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_PERTURB_": "1"}


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of one step can be had on Linux only")
@pytest.mark.parametrize("name", NAMES)
def test_the_traced_peak_is_the_growth_of_resident_size(name: str) -> None:
    repository = Path(__file__).parents[2]
    environment = {**os.environ, **C_LIBRARY, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(repository)}
    script = Path(__file__).with_name("traced_models.py")
    command = [sys.executable, str(script), name, str(SIZES[name])]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    measured = json.loads(run.stdout)
    if "in a step" not in measured["meaning"]:
        pytest.skip("this container forbids writing to /proc/self/clear_refs")
    assert measured["traced"] == pytest.approx(measured["resident"], rel=0.15)

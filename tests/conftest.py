"""What every test starts from: few threads, fixed seeds, and a hypothesis profile."""

from __future__ import annotations

import os
import random
from pathlib import Path

import hypothesis
import numpy as np
import pytest

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as seqckpt/__init__.py does, but before torch is loaded here

import torch

# `ci` tries the same examples on every run, so that a failure is never a matter of luck; HYPOTHESIS_PROFILE=long
# searches anew each time, through thousands.
hypothesis.settings.register_profile(
    "ci",
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.register_profile(
    "long",
    parent=hypothesis.settings.get_profile("ci"),
    max_examples=5000,
    derandomize=False,
    print_blob=True,
)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Several test processes share the machine's cores; one process alone needs no more than two.
torch.set_num_threads(1 if "PYTEST_XDIST_WORKER" in os.environ else min(2, torch.get_num_threads()))


@pytest.fixture(autouse=True)
def _fixed_seeds() -> None:
    """Start every test from the same random state, whatever ran before it."""
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002 - the global generator is what is to be fixed
    random.seed(0)


@pytest.fixture(scope="session")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four synthetic surgeries of about a minute each, as real video files in the layout of Cholec80."""
    from seqckpt.data import make_sample

    root = tmp_path_factory.mktemp("data") / "sample"
    make_sample(root, seed=1, num_videos=4, shortest_seconds=60, longest_seconds=70, progress=False)
    return root


@pytest.fixture(scope="session")
def run(sample: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short run on the sample, called "trained"; tests must not write into it."""
    from seqckpt.cli import main

    parent = tmp_path_factory.mktemp("run")
    here = os.getcwd()
    os.chdir(parent)
    try:
        arguments = ["config=surgical_video.yaml", f"data.root={sample}", "run=trained", "train.epochs=2"]
        split = ["data.split.train=[1,2]", "data.split.val=[3]", "data.split.test=[4]"]
        assert main(["train", *arguments, *split, "data.image_size=32", "train.device=cpu"]) == 0
    finally:
        os.chdir(here)
    return parent / "runs" / "trained"

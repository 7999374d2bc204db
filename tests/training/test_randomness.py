"""Random states in a snapshot, and kernels that repeat."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from seqckpt.training import deterministic, load_snapshot, save_snapshot
from seqckpt.training.randomness import read_random_states, write_random_states


def draw() -> list[float]:
    return [float(torch.rand(1)), random.random(), random.gauss(0, 1), float(np.random.rand())]  # noqa: NPY002


def test_all_generators_go_on_from_a_snapshot(tmp_path: Path) -> None:
    random.gauss(0, 1)  # leaves a second number behind
    save_snapshot(tmp_path / "s.pt", {"states": read_random_states()})
    expected = [draw() for _ in range(700)]  # more than one block of the Mersenne Twister
    assert draw() != expected[0]
    write_random_states(load_snapshot(tmp_path / "s.pt")["states"])
    assert [draw() for _ in range(700)] == expected


def test_deterministic_kernels_are_for_the_context_alone() -> None:
    assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(False):
        assert not torch.are_deterministic_algorithms_enabled()
    with deterministic(True):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.backends.cudnn.benchmark
    assert not torch.are_deterministic_algorithms_enabled()

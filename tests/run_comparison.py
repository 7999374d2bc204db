"""Whether two runs are one and the same, bit for bit, but for what was timed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

TIMED = ("frames_per_second", "peak_memory_bytes", "waiting_share")


def assert_alike(one: Any, other: Any, where: str = "") -> None:
    """Nested plain data and tensors are equal, bit for bit."""
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other), where
    elif isinstance(one, Mapping):
        assert one.keys() == other.keys(), where
        for key, value in one.items():
            if key not in ("seconds", "waiting_seconds", "peak_bytes", *TIMED):
                assert_alike(value, other[key], f"{where}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), where
        for number, (a, b) in enumerate(zip(one, other, strict=True)):
            assert_alike(a, b, f"{where}[{number}]")
    else:
        assert one == other or (one != one and other != other), where

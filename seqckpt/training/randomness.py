"""Random states in a snapshot, and runs that repeat bit for bit."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

__all__ = ["deterministic", "read_random_states", "seed_generators", "write_random_states"]


def read_random_states() -> dict[str, Any]:
    """Return the states of the generators of torch (CPU and all CUDA devices), numpy and Python, as plain data."""
    numpy_state: Any = np.random.get_state(legacy=False)  # noqa: NPY002 - the global generator, which others may use
    version, internal, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": {**numpy_state, "state": {**numpy_state["state"], "key": numpy_state["state"]["key"].tolist()}},
        "python": [version, list(internal), gauss],
    }


def write_random_states(states: Mapping[str, Any]) -> None:
    """Set what `read_random_states` returned; CUDA devices that are not there now are left out."""
    torch.set_rng_state(states["torch"].cpu())
    if torch.cuda.is_available():
        for device, state in zip(range(torch.cuda.device_count()), states["cuda"], strict=False):
            torch.cuda.set_rng_state(state.cpu(), device)
    numpy_state = states["numpy"]
    key = np.array(numpy_state["state"]["key"], np.uint32)
    np.random.set_state({**numpy_state, "state": {**numpy_state["state"], "key": key}})  # noqa: NPY002
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(internal), gauss))


def seed_generators(seed: int) -> None:
    """Seed the global generators of torch, numpy and Python, for what draws from them."""
    torch.manual_seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global generator, which others may use
    random.seed(seed)


@contextmanager
def deterministic(enabled: bool) -> Iterator[None]:
    """Within this context torch takes the same kernels every time, or raises where it has none that repeat.

    On CUDA cuBLAS needs CUBLAS_WORKSPACE_CONFIG before its first use; it is set here unless it is set already. Costs
    time, on CUDA mostly. Nothing is changed where `enabled` is False.
    """
    if not enabled:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled(), torch.backends.cudnn.benchmark
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.backends.cudnn.benchmark = before[1]

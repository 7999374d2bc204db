"""The meter sees what a step takes at its peak, in each step anew."""

from __future__ import annotations

import sys

import pytest
import torch

from seqckpt.memory import PeakMeter, peak_meter

MiB = 2**20


def take(num_bytes: int) -> None:
    """Allocate zeros, touch every page, and free them."""
    torch.ones(num_bytes, dtype=torch.uint8)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the high-water mark can be set back on Linux only")
def test_each_step_has_its_own_peak_on_linux() -> None:
    meter = PeakMeter("cpu")
    if "in a step" not in meter.meaning:
        pytest.skip("this container forbids writing to /proc/self/clear_refs")
    for num_mib in (64, 16, 256, 16):
        meter.start()
        take(num_mib * MiB)
        assert meter.read() == pytest.approx(num_mib * MiB, abs=4 * MiB)
    meter.start()
    assert meter.read() == pytest.approx(0, abs=4 * MiB)


def test_where_the_mark_cannot_be_set_back_the_meaning_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_meter, "_reset_high_water_mark", lambda: False)
    meter = PeakMeter("cpu")
    assert meter.meaning == "growth of peak resident size since the start"
    meter.start()
    before = meter.read()
    assert before is not None
    take(256 * MiB)
    meter.start()
    after = meter.read()
    assert after is not None
    assert after >= before


def test_where_nothing_is_known_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peak_meter, "_reset_high_water_mark", lambda: False)
    monkeypatch.setattr(peak_meter, "_high_water_mark", lambda: None)
    meter = PeakMeter("cpu")
    meter.start()
    assert (meter.read(), meter.meaning) == (None, "not measured")


@pytest.mark.gpu
def test_cuda_counts_the_allocator() -> None:
    meter = PeakMeter("cuda")
    meter.start()
    start = meter.read()
    torch.ones(64 * MiB, dtype=torch.uint8, device="cuda")
    assert start is not None
    assert meter.read() == start + 64 * MiB

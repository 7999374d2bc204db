"""Signals during training: the first is noted; what torchrun hands on a second time is not a second one."""

from __future__ import annotations

import signal
import time

import pytest

from seqckpt.training import Stopped
from seqckpt.training.interrupt import catch_signals


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torchrun leaves it to the second of two processes."""
    values = {"RANK": "1", "LOCAL_RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_a_second_signal_stops_at_once() -> None:
    with catch_signals() as request:
        signal.raise_signal(signal.SIGTERM)
        assert request.number == signal.SIGTERM
        with pytest.raises(Stopped) as stop:
            signal.raise_signal(signal.SIGINT)
    assert stop.value.at_once
    assert stop.value.exit_code == 130


def test_a_signal_that_torchrun_hands_on_as_well_is_one(launched: None, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.monotonic()
    with catch_signals() as request:
        for seconds in (0.0, 0.1, 2.9):
            monkeypatch.setattr(time, "monotonic", lambda seconds=seconds: now + seconds)
            signal.raise_signal(signal.SIGTERM)
        assert request.number == signal.SIGTERM
        monkeypatch.setattr(time, "monotonic", lambda: now + 3.1)
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGTERM)

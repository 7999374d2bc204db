"""The band under a drawn video: which phase, when, and by which name."""

from __future__ import annotations

import numpy as np
from PIL import ImageColor

from seqckpt.plots import PhaseBand, phase_style


def test_the_band_shows_the_phase_of_its_time() -> None:
    phases = np.repeat([0, 2, 1], [50, 30, 20])
    band = PhaseBand(500, seconds=np.arange(100), phases=phases, end_seconds=100, phase_names=["a", "b", "c"])
    bands = {second: band.draw(second) for second in (0, 10, 49.9, 60, 99.9)}
    ribbon = {second: picture[0] for second, picture in bands.items()}
    for place, phase in ((100, 0), (300, 2), (450, 1)):
        assert tuple(ribbon[0][place]) == ImageColor.getrgb(phase_style(phase)["color"])
    assert [int((row == 255).all(-1).argmax()) for row in ribbon.values()] == [0, 49, 248, 299, 498]  # the mark
    low = {second: picture[-band.height // 2 :] for second, picture in bands.items()}
    assert not np.array_equal(low[49.9], low[60])
    assert all(picture.shape == (band.height, 500, 3) for picture in bands.values())


def test_no_name_runs_into_the_time() -> None:
    for name in ("", "x" * 500, "胆嚢"):
        band = PhaseBand(480, seconds=[0], phases=[0], end_seconds=7200, phase_names=[name])
        shown, without = band.draw(7199), PhaseBand(480, seconds=[0], phases=[0], end_seconds=7200, phase_names=[""])
        assert np.array_equal(shown[:, -60:], without.draw(7199)[:, -60:])

"""What tests of pictures share: the figures that are saved, to look into them."""

from __future__ import annotations

from typing import Any, BinaryIO

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Keep the figures that are saved."""
    kept: list[Figure] = []
    save = Figure.savefig

    def keep(figure: Figure, file: BinaryIO, **options: Any) -> None:
        kept.append(figure)
        save(figure, file, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return kept

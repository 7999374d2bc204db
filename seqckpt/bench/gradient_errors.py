"""How far each way's gradients are from the plain run's: in float64, and in the data type that is timed."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seqckpt.bench.worker import DoesNotFit, Refused, Worker

__all__ = ["Errors", "is_exact", "measure_gradient_errors", "show_errors"]

_EXACT = {"float64": 1e-6, "float32": 1e-2}  # an error below is rounding; other gradients are off by a tenth and more
Errors = Mapping[str, float | str]
"""By data type: the worst parameter's relative error, or why there is none."""


def measure_gradient_errors(
    ways: Mapping[str, Mapping[str, Any]],
    build: Callable[..., Any],
    *,
    dtypes: Sequence[str] = ("float64",),
    tick: Callable[[str], object] = lambda name: None,
) -> dict[str, Errors]:
    """Each way's errors against the first way in float64; subjects are made by `build(dtype=..., **ways[name])`.

    `dtypes` begins with float64. `tick` is called with a way's name before its gradients are taken.
    """
    errors: dict[str, Errors] = {}
    plain = next(iter(ways))
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "plain.pt")
        for name, arguments in ways.items():
            tick(f"gradients: {name}")
            errors[name] = {
                dtype: _measure(build, arguments, dtype, path, is_reference=name == plain and dtype == "float64")
                for dtype in dtypes
            }
    return errors


def _measure(
    build: Callable[..., Any], arguments: Mapping[str, Any], dtype: str, path: str, *, is_reference: bool
) -> float | str:
    try:
        with Worker(build, dtype=dtype, **arguments) as worker:
            if is_reference:
                worker.ask("write_gradients", path)
            return worker.ask("gradient_error", path)
    except (DoesNotFit, Refused) as error:
        return str(error)


def is_exact(errors: Errors) -> bool:
    """Whether all were measured, and are rounding.

    >>> is_exact({"float64": 2e-15, "float32": 3e-7}), is_exact({"float64": float("nan")})
    (True, False)
    """
    return bool(errors) and all(isinstance(error, float) and error < _EXACT[dtype] for dtype, error in errors.items())


def show_errors(errors: Errors) -> str:
    """In a table's cell; one reason where there are no figures.

    >>> show_errors({"float64": 2.1e-15, "float32": 3e-7}), show_errors({"float64": "no", "float32": "no"})
    ('2e-15, 3e-07', 'no')
    """
    reasons = dict.fromkeys(error for error in errors.values() if isinstance(error, str))
    return "; ".join(reasons) or ", ".join(f"{error:.0e}" for error in errors.values())

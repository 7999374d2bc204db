"""`seqckpt report`: one HTML file about a run, to look at."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqckpt import build, training
from seqckpt.cli.command import Command, take_names
from seqckpt.cli.scoring import open_accumulator
from seqckpt.config import Config, load_config
from seqckpt.data import FrameSource
from seqckpt.errors import UsageError
from seqckpt.metrics import Accumulator
from seqckpt.report import find_frames, write_report
from seqckpt.units import format_bytes

__all__ = ["REPORT", "try_to_report"]

_NO_PICTURES = "--no-thumbnails"


def _report(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Write the report of a run; where its data cannot be read, without pictures, which the report then says."""
    own, changes = take_names(arguments, REPORT.names, required=["run"])
    folder = training.find_run(own["run"])
    _, config = load_config(
        [f"config={(folder / 'config.yaml').absolute()}", *changes, "model.weights=null"],
        find_more=build.find_unusable_names,
    )
    frames: Mapping[str, FrameSource] = {}
    reason = f"this file was written with {_NO_PICTURES}" if _NO_PICTURES in flags else ""
    if not reason:
        try:
            frames = find_frames(config)
        except (UsageError, OSError) as error:
            reason = str(error).partition("\n")[0]
            print(f"warning: no pictures of the frames: {error}", file=sys.stderr)
    path = write_report(folder, config, frames, open_accumulator=_open_accumulator, without_frames=reason)
    print(f"{path} ({format_bytes(path.stat().st_size)}): open it in a browser")
    return 0


def try_to_report(folder: Path, config: Config, frames: Mapping[str, FrameSource]) -> Path | None:
    """Write the report of a run that has ended; if that fails, whatever the cause, warn and return None."""
    try:
        return write_report(folder, config, frames, open_accumulator=_open_accumulator)
    except Exception as error:  # the run itself is finished and whole, and this is not worth failing for
        print(f"warning: no report was written: {type(error).__name__}: {error}", file=sys.stderr)
        return None


def _open_accumulator(phase_names: Sequence[str], fps: float) -> Accumulator:
    """Score as `evaluate` does unless told otherwise."""
    return open_accumulator({}, phase_names, fps=fps)


REPORT = Command(
    "report",
    _report,
    "write one HTML file about a run: scores, curves, and every test video frame by frame",
    flags={_NO_PICTURES: "without pictures of the frames: a smaller file, and the videos are not needed"},
    usage="run=RUN [key=value ...]",
    names={"run": "folder of the run, or its name in runs/"},
)

"""What a run writes while it trains: steps.csv, metrics.csv, log.txt, and TensorBoard's files where wanted.

Everything logged is a number or a text already: nothing here holds a graph, or a tensor.
"""

from __future__ import annotations

import csv
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from PIL import Image

from seqckpt.errors import UsageError
from seqckpt.training.run_directory import writing_into
from seqckpt.training.tables import write_table

__all__ = ["NoLog", "RunLog", "check_tensorboard", "note_line"]

_STEPS, _EPOCHS, _TEXT = "steps.csv", "metrics.csv", "log.txt"
_TIME = "%Y-%m-%d %H:%M:%S"


class RunLog:
    """The logs in a run's `folder`; `print_line` shows a line to whoever watches."""

    def __init__(self, folder: Path, *, print_line: Callable[[str], object], tensorboard: bool = False) -> None:
        self.folder = folder
        self.print_line = print_line
        self._tensorboard = tensorboard
        self._writer: Any = None
        self._text = logging.getLogger(f"{__name__}.{folder.name}")
        self._text.propagate = False
        self._text.setLevel(logging.INFO)
        self._file: TextIO | None = None

    @contextmanager
    def open(self, step: int, records: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Write into the files within this context, from where a run stands: after `step`, with `records` of epochs.

        What they hold of later steps, before an interruption, is taken away first. Raises TrainingError where they
        cannot be written.
        """
        with writing_into(self.folder, "the log"):
            _cut(self.folder / _STEPS, step)
            if records:
                write_table(self.folder / _EPOCHS, records)
            handler = _TextFile(self.folder / _TEXT, encoding="utf-8")
            steps = open(self.folder / _STEPS, "a", newline="", encoding="utf-8")  # noqa: SIM115 - closed below
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", _TIME))
        root, show_warning = logging.getLogger(), warnings.showwarning

        def note(message: Warning | str, *args: Any, **options: Any) -> None:
            self._text.info("warning: %s", message)
            show_warning(message, *args, **options)

        warnings.showwarning = note
        self._text.addHandler(handler)
        root.addHandler(handler)
        self._writer = _open_tensorboard(self.folder, step) if self._tensorboard else None
        try:
            self._file = steps
            yield
        finally:
            self._file = None
            with suppress(OSError):  # a disk that is full was an error when the row was written
                steps.close()
            warnings.showwarning = show_warning
            self._text.removeHandler(handler)
            root.removeHandler(handler)
            handler.close()
            if self._writer is not None:
                self._writer.close()

    def say(self, line: str) -> None:
        """Show a line, and keep it in log.txt."""
        self.print_line(line)
        self._text.info("%s", line)

    def step(self, row: Mapping[str, Any]) -> None:
        """Add a row to steps.csv; it is on disk at once."""
        assert self._file is not None, "the log is not open"
        with writing_into(self.folder, f"the row of step {row['step']}"):
            table = csv.DictWriter(self._file, fieldnames=list(row), lineterminator="\n")
            if self._file.tell() == 0:
                table.writeheader()
            table.writerow(row)
            self._file.flush()
            self._add_scalars("step", row, row["step"])

    def epoch(self, records: Sequence[Mapping[str, Any]], pictures: Mapping[str, Path]) -> None:
        """Write metrics.csv anew with all epochs' rows; `pictures` of the last one go to TensorBoard."""
        with writing_into(self.folder, f"the row of epoch {records[-1]['epoch']}"):
            write_table(self.folder / _EPOCHS, records)
            self._add_scalars("epoch", records[-1], records[-1]["step"])
            if self._writer is not None:
                for name, path in pictures.items():
                    with Image.open(path) as picture:
                        pixels = np.asarray(picture.convert("RGB"))
                    self._writer.add_image(name, pixels, records[-1]["step"], dataformats="HWC")
                self._writer.flush()

    def _add_scalars(self, prefix: str, row: Mapping[str, Any], step: int) -> None:
        if self._writer is not None:
            for name, value in row.items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(f"{prefix}/{name}", value, step)


class _TextFile(logging.FileHandler):
    """log.txt. Where it cannot be written that is said once; training goes on without it."""

    is_broken = False

    def handleError(self, record: logging.LogRecord) -> None:
        """Stand in for logging's own traceback on stderr."""
        if not self.is_broken:
            print(f"warning: {self.baseFilename} cannot be written: {sys.exc_info()[1]}", file=sys.stderr)
        self.is_broken = True

    def close(self) -> None:
        """Close the file, and leave what could not be written."""
        with suppress(OSError):
            super().close()


class NoLog(RunLog):
    """In the place of a run's log where another process writes it."""

    @contextmanager
    def open(self, step: int, records: Sequence[Mapping[str, Any]]) -> Iterator[None]:
        """Open nothing."""
        yield

    def say(self, line: str) -> None:
        """Say nothing."""

    def step(self, row: Mapping[str, Any]) -> None:
        """Write nothing."""

    def epoch(self, records: Sequence[Mapping[str, Any]], pictures: Mapping[str, Path]) -> None:
        """Write nothing."""


def note_line(folder: Path, line: str) -> None:
    """Add a line to log.txt while the log is not open: what comes before the first step, and after the last."""
    with suppress(OSError), open(folder / _TEXT, "a", encoding="utf-8") as file:
        file.writelines(f"{datetime.now():{_TIME}} {part}\n" for part in line.splitlines())


def check_tensorboard() -> None:
    """Raise UsageError where TensorBoard is not installed."""
    try:
        import tensorboard  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise UsageError(
            "train.tensorboard=true needs the package tensorboard: pip install 'seqckpt[tensorboard]'"
        ) from error


def _open_tensorboard(folder: Path, step: int) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1 if step else None)


def _cut(path: Path, step: int) -> None:
    """Take the rows of later steps out of steps.csv: those after the snapshot that a run goes on from."""
    if not path.exists():
        return
    with open(path, newline="", encoding="utf-8") as file:
        whole = [row for row in csv.DictReader(file) if None not in row.values()]  # not one cut off by a full disk
        rows = [row for row in whole if row["step"].isdigit() and int(row["step"]) <= step]
    if rows:
        write_table(path, rows)
    else:
        path.unlink()

"""What is found to be odd or wrong in a data set, each thing with a hint."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from seqckpt.errors import DataError

__all__ = ["Finding", "report_findings"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Finding:
    """One thing: `severity` is "error" (training refuses), "warning" or "note"; `subject` a video, or the data set."""

    severity: str
    subject: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.subject}: {self.message}{f'; {self.hint}' if self.hint else ''}"


def report_findings(findings: Iterable[Finding]) -> None:
    """Write warnings and notes into the log. Raises DataError with all the errors, if there are any."""
    errors = []
    for finding in findings:
        if finding.severity == "error":
            errors.append(str(finding))
        else:
            _log.log(logging.WARNING if finding.severity == "warning" else logging.INFO, "%s", finding)
    if len(errors) == 1:
        raise DataError(errors[0])
    if errors:
        raise DataError(
            f"{len(errors)} things are wrong with the videos:\n" + "\n".join(f"  {text}" for text in errors)
        )

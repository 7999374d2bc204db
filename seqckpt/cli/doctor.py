"""`seqckpt doctor`: examine a data set before training on it."""

from __future__ import annotations

from collections.abc import Sequence

from seqckpt import build
from seqckpt.cli.command import Command
from seqckpt.cli.text_table import align
from seqckpt.config import load_config
from seqckpt.data import Finding, format_balance

__all__ = ["DOCTOR"]


def _doctor(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Print a table of the videos, the balance of classes, and all findings; return 1 if one of them is an error."""
    _, config = load_config(arguments, find_more=build.find_unusable_names)
    names = build.choose_phase_names(config.data)
    checkup = build.examine_videos(config.data, full="--full" in flags)
    print(align(checkup.table))
    print()
    weights = build.weigh_classes(config.train.class_weights, checkup.counts.get("train"))
    print(align(format_balance(checkup.counts, names, weights=weights)))
    print()
    for severity in ("error", "warning", "note"):
        _print_findings([finding for finding in checkup.findings if finding.severity == severity])
    if not checkup.findings:
        print("nothing odd was found")
    return 1 if checkup.has_errors else 0


def _print_findings(findings: Sequence[Finding]) -> None:
    for finding in findings:
        print(f"{finding.severity}: {finding.subject}: {finding.message}")
        if finding.hint:
            print(f"    {finding.hint}")


DOCTOR = Command(
    "doctor",
    _doctor,
    "examine a data set: a table of its videos, and everything that is odd or wrong",
    {"--full": "decode every frame, to find what cannot be decoded"},
)

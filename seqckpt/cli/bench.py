"""`seqckpt bench`: measurements side by side, on the reader's own machine."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from seqckpt.bench.case import Case, Settings, part_settings, read_settings, write_value
from seqckpt.bench.cases import CASES, choose_cases
from seqckpt.bench.hardware import read_hardware
from seqckpt.bench.report import Report
from seqckpt.cli.command import Command, take_names
from seqckpt.cli.outputs import choose_folder, made_folder
from seqckpt.errors import UsageError
from seqckpt.units import format_seconds

__all__ = ["BENCH"]

_QUICK = "--quick"
_OUTPUT = {"output": "folder for tables and pictures; otherwise bench/<case>-<date and time>, one for each case"}


def _bench(arguments: Sequence[str], flags: frozenset[str]) -> int:
    own, rest = take_names(arguments, _OUTPUT)
    is_quick = _QUICK in flags
    others = {_QUICK: _QUICK, **{name: f"{name}=..." for name in _OUTPUT}}
    cases = choose_cases([text for text in rest if "=" not in text], others=others)
    settings = read_settings(cases, part_settings(text for text in rest if "=" in text))
    chosen = {case.name: case.choose(settings[case.name], is_quick=is_quick) for case in cases}
    command = ["python", "-m", "seqckpt", "bench", *arguments, *flags]
    started = datetime.now().strftime("%Y%m%d-%H%M%S")
    folders = {case.name: choose_folder(own, Path("bench") / f"{case.name}-{started}") for case in cases}
    for folder in folders.values():
        with made_folder(folder):  # one that cannot be had ends the command before anything is measured
            pass
    failed = 0
    for case in cases:
        folder, is_alone = folders[case.name], len(cases) == 1
        with made_folder(folder):
            failed += not _run(case, chosen[case.name], folder, command, is_quick=is_quick, is_alone=is_alone)
    return 1 if failed else 0


def _run(
    case: Case, settings: Settings, folder: Path, command: Sequence[str], *, is_quick: bool, is_alone: bool
) -> bool:
    """Run one case and write its report; one that fails among several leaves the others their turn."""
    began = time.perf_counter()
    report = Report(case.name, folder, settings=settings, hardware=read_hardware(command), is_quick=is_quick)
    print(f"\n## {case.name}: {case.meaning}", flush=True)
    try:
        case.run(settings, report)
    except BaseException as error:
        if report.records:  # what there is of hours of measuring
            report.write()
        if is_alone or not isinstance(error, Exception):
            raise
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        print(f"error: {case.name}: {kind}{error}", file=sys.stderr)
        return False
    written = report.write()
    elapsed = format_seconds(time.perf_counter() - began)
    *names, last = [*(path.name for path in written), *(["pictures"] if report.pictures else [])]
    print(f"\n{case.name} took {elapsed}; {', '.join(names)} and {last} are in {folder}")
    return True


def _list_cases() -> str:
    lines = []
    for case in CASES.values():
        lines.append(f"  {case.name:<14} {case.meaning}")
        shown = (f"{name}={_quote(value)}" for name, value in case.settings.items())
        lines.append(f"{'':<17}{' '.join(shown)}")
    return "\n".join(lines)


def _quote(value: object) -> str:
    text = write_value(value)
    return f"'{text}'" if " " in text else text


BENCH = Command(
    "bench",
    _bench,
    "measure memory and time side by side with the plain run and with what others offer, on this machine",
    {_QUICK: "small sizes and few steps: under three minutes for all cases"},
    usage="[case ...] [key=value ...]",
    names=_OUTPUT,
    takes_keys=False,
    closing="\n\nWithout a case all of them run, one after the other; a key goes to every case that has it. "
    "Schedules (smallest, balanced, fastest, sweep, choice) are written 25 for chunks of 25, 25f with fused layers, "
    "25+4.5f with the last 4.5 stages kept, too, 25x3 with the last 3 chunks kept whole. The cases, "
    f"with their settings in a full run:\n{_list_cases()}",
)

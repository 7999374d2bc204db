"""What a trace of a training step holds, as plain records: calls of modules, moments in memory, totals; table and JSON.

All bytes are counted above what was allocated when the step began, so that parameters and inputs are not among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from seqckpt.atomic import write_text
from seqckpt.errors import DataError
from seqckpt.units import format_bytes

__all__ = ["MemoryTrace", "ModuleCall", "ModuleRow", "Moment", "TraceTotals"]

_FORMAT = "seqckpt memory trace 1"


@dataclass(frozen=True, kw_only=True)
class ModuleCall:
    """One run of one module, forward or backward, children included where nothing else is said.

    Args:
        module: its name in the model, "" for the model itself.
        kind: the name of its class.
        phase: "forward" or "backward".
        is_replay: whether it was recomputed in backward (and the backward of what was recomputed).
        forward: of a backward, the position of the forward it belongs to; of a forward, its own.
        parent: the position of the call that it ran inside, or None.
        start_seconds, seconds: since the step began, and how long.
        before_bytes, peak_bytes, after_bytes: allocated when it began, at most, and when it ended.
        activations_before_bytes, gradients_before_bytes: of the first, what autograd held, and parameters' gradients.
        allocated_bytes: the sum of all allocations, given back or not.
        saved_bytes: of storages that autograd began to hold in it, without those of its children.
        saves: all storages that autograd was handed in it, known to it before or not: positions in `storage_bytes`.
        input_storage, output_storage: of its first argument and of its result, where each is one tensor.
        follows: its first argument is the result of the call before it, unchanged, which nothing else uses.
        shares_arguments: beside the first it has further arguments, and they are those of the call before it.
        is_row: it is an nn.Sequential, whose run is that of its children one after the other.
        parameter_bytes, largest_parameter_bytes: of trainable parameters, children's included; of the largest one.
    """

    module: str
    kind: str
    phase: str
    is_replay: bool
    forward: int
    parent: int | None
    start_seconds: float
    seconds: float
    before_bytes: int
    peak_bytes: int
    after_bytes: int
    activations_before_bytes: int
    gradients_before_bytes: int
    allocated_bytes: int
    saved_bytes: int = 0
    saves: tuple[int, ...] = ()
    input_storage: int | None = None
    output_storage: int | None = None
    follows: bool = False
    shares_arguments: bool = False
    is_row: bool = False
    parameter_bytes: int = 0
    largest_parameter_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """The stretch of a step up to the next begin or end of a module's run.

    `module`, `phase` and `is_replay` are those of the innermost run ("" and "other": outside of the model);
    `peak_bytes` is the most allocated in the stretch, `end_bytes` at its end, `activation_bytes` what autograd held
    saved and `gradient_bytes` what the parameters' gradients took at the instant of the stretch's peak.
    """

    module: str
    phase: str
    is_replay: bool
    start_seconds: float
    peak_seconds: float
    peak_bytes: int
    end_bytes: int
    activation_bytes: int
    gradient_bytes: int


@dataclass(frozen=True, kw_only=True)
class TraceTotals:
    """Bytes of the whole step. At the peak: peak = activations + gradients then there + temporaries.

    `activation_bytes` and `temporary_bytes` are those at the instant of the peak, `gradient_bytes` those at the end,
    `optimiser_bytes` what the optimiser holds now: nothing before its first step.
    """

    peak_bytes: int
    peak_seconds: float
    peak_module: str
    peak_phase: str
    peak_in_replay: bool
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimiser_bytes: int
    activation_bytes: int
    temporary_bytes: int
    seconds: float


@dataclass(frozen=True, kw_only=True)
class ModuleRow:
    """All calls of one module, summed (peak: the largest). `saved_bytes` and `replay_saved_bytes` are its own, without
    those of its children, so that rows add up to the whole step; the other figures include the children."""

    module: str
    kind: str
    num_calls: int
    num_replays: int
    saved_bytes: int
    replay_saved_bytes: int
    allocated_bytes: int
    peak_bytes: int
    forward_seconds: float
    replay_seconds: float
    backward_seconds: float


@dataclass(frozen=True, kw_only=True)
class MemoryTrace:
    """One training step, recorded: `calls` in order of execution, the `timeline`, and `totals`.

    `storage_bytes`: the size of each storage that was saved or handed from module to module, 0 for parameters and
    inputs; calls refer to it by position.
    """

    device: str
    calls: tuple[ModuleCall, ...]
    timeline: tuple[Moment, ...]
    totals: TraceTotals
    storage_bytes: tuple[int, ...]

    def __repr__(self) -> str:
        where = f"in {self.totals.peak_module}, {self.totals.peak_phase}"
        return f"MemoryTrace(peak {format_bytes(self.peak_bytes)} {where}; {len(self.calls)} calls; see table())"

    @property
    def peak_bytes(self) -> int:
        """The most that was allocated at once, above the step's start."""
        return self.totals.peak_bytes

    def rows(self) -> list[ModuleRow]:
        """One row a module, in order of the first call."""
        calls: dict[str, list[ModuleCall]] = {}
        for call in self.calls:
            calls.setdefault(call.module, []).append(call)
        return [_sum_up(module, of_module) for module, of_module in calls.items()]

    def top_activation_producers(self, n: int) -> list[ModuleRow]:
        """The n modules in which autograd saves most, each by itself without its children; the first run counts."""
        return sorted(self.rows(), key=lambda row: -row.saved_bytes)[:n]

    def table(self, top: int = 20) -> str:
        """Totals, and the `top` modules that save most, as text."""
        rows = sorted(self.rows(), key=lambda row: (-row.saved_bytes - row.replay_saved_bytes, -row.allocated_bytes))
        cells = [_HEADINGS, *(_cells(row) for row in rows[:top])]
        widths = [max(len(row[column]) for row in cells) for column in range(len(_HEADINGS))]
        lines = [
            "  ".join(text.ljust(w) if i < 2 else text.rjust(w) for i, (text, w) in enumerate(zip(row, widths)))  # noqa: B905
            for row in cells
        ]
        left_out = [f"... and {len(rows) - top} modules more"] if len(rows) > top else []
        return "\n".join([*_describe_totals(self), "", *(line.rstrip() for line in lines), *left_out])

    def to_json(self, path: str | Path) -> None:
        """Write everything to a file, whole or not at all."""
        record = {
            "format": _FORMAT,
            "device": self.device,
            "totals": asdict(self.totals),
            "storage_bytes": self.storage_bytes,
            "calls": _to_columns(self.calls, ModuleCall),
            "timeline": _to_columns(self.timeline, Moment),
        }
        write_text(Path(path), json.dumps(record, separators=(",", ":")))

    @classmethod
    def from_json(cls, path: str | Path) -> MemoryTrace:
        """Read what `to_json` wrote; raises DataError for any other file."""
        try:
            record = json.loads(Path(path).read_text(encoding="utf-8"))
            if record["format"] != _FORMAT:
                raise KeyError(record["format"])
            calls = [ModuleCall(**{**row, "saves": tuple(row["saves"])}) for row in _from_columns(record["calls"])]
            return cls(
                device=record["device"],
                calls=tuple(calls),
                timeline=tuple(Moment(**row) for row in _from_columns(record["timeline"])),
                totals=TraceTotals(**record["totals"]),
                storage_bytes=tuple(record["storage_bytes"]),
            )
        except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise DataError(
                f"{path} is no memory trace ({error!r}): expected a file that MemoryTrace.to_json of this version wrote"
            ) from error


_HEADINGS = ("module", "kind", "calls", "replays", "saved", "in replays", "allocated", "peak", "forward", "backward")


def _cells(row: ModuleRow) -> tuple[str, ...]:
    return (
        row.module or "(the model)",
        row.kind,
        str(row.num_calls),
        str(row.num_replays),
        format_bytes(row.saved_bytes),
        format_bytes(row.replay_saved_bytes),
        format_bytes(row.allocated_bytes),
        format_bytes(row.peak_bytes),
        f"{1e3 * row.forward_seconds:.1f} ms",
        f"{1e3 * (row.backward_seconds + row.replay_seconds):.1f} ms",
    )


def _describe_totals(trace: MemoryTrace) -> list[str]:
    totals = trace.totals
    where = f"in {totals.peak_module or 'the model'}" if totals.peak_phase != "other" else "outside of the model"
    replay = ", replayed" if totals.peak_in_replay else ""
    phase = f" ({totals.peak_phase}{replay})" if totals.peak_phase != "other" else ""
    kept = [
        (totals.parameter_bytes, "parameters"),
        (totals.buffer_bytes, "buffers"),
        (totals.gradient_bytes, "gradients"),
        (totals.optimiser_bytes, "optimiser state"),
    ]
    return [
        f"peak {format_bytes(totals.peak_bytes)} above the start, at {totals.peak_seconds:.3f} of "
        f"{totals.seconds:.3f} s, {where}{phase}",
        f"at the peak: activations {format_bytes(totals.activation_bytes)}, temporaries "
        f"{format_bytes(totals.temporary_bytes)}, gradients "
        f"{format_bytes(totals.peak_bytes - totals.activation_bytes - totals.temporary_bytes)}",
        "whole step: " + ", ".join(f"{name} {format_bytes(num_bytes)}" for num_bytes, name in kept),
    ]


def _sum_up(module: str, calls: Sequence[ModuleCall]) -> ModuleRow:
    first_runs = [call for call in calls if call.phase == "forward" and not call.is_replay]
    replays = [call for call in calls if call.phase == "forward" and call.is_replay]
    backwards = [call for call in calls if call.phase == "backward"]
    return ModuleRow(
        module=module,
        kind=calls[0].kind,
        num_calls=len(first_runs),
        num_replays=len(replays),
        saved_bytes=sum(call.saved_bytes for call in first_runs),
        replay_saved_bytes=sum(call.saved_bytes for call in replays),
        allocated_bytes=sum(call.allocated_bytes for call in calls),
        peak_bytes=max(call.peak_bytes for call in calls),
        forward_seconds=sum(call.seconds for call in first_runs),
        replay_seconds=sum(call.seconds for call in replays),
        backward_seconds=sum(call.seconds for call in backwards),
    )


def _to_columns(records: Sequence[Any], kind: type) -> dict[str, list[Any]]:
    """Field by field: names are written once, not once a record."""
    return {field.name: [getattr(record, field.name) for record in records] for field in fields(kind)}


def _from_columns(columns: dict[str, list[Any]]) -> Iterator[dict[str, Any]]:
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))

"""Tables and lists of a report as HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from seqckpt.report.records import Row

__all__ = ["UNDEFINED", "describe_list", "describe_table", "write_confusion"]

UNDEFINED = "\N{EN DASH}"
_LARGEST_MATRIX = 30
_MOST_PAIRS = 30


def describe_table(title: str, rows: Sequence[Row]) -> str:
    """Write rows as a table, the first column as its rows' names; it scrolls by itself where it is too wide."""
    if not rows:
        return ""
    columns = list(rows[0])
    is_text = {column: any(_is_text(row.get(column)) for row in rows) for column in columns}
    forms = {column: _choose_format([row.get(column) for row in rows]) for column in columns}
    head = "".join(
        f'<th scope="col"{"" if not is_text[column] else " class=text"}>{escape(str(column).replace("_", " "))}</th>'
        for column in columns
    )
    body = "".join(
        f'<tr><th scope="row">{_show(row.get(columns[0]), forms[columns[0]])}</th>'
        + "".join(
            f"<td{' class=text' if is_text[name] else ''}>{_show(row.get(name), forms[name])}</td>"
            for name in columns[1:]
        )
        + "</tr>"
        for row in rows
    )
    table = f"<caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return _scroll(title, f"<table>{table}</table>")


def describe_list(pairs: Sequence[tuple[str, str]]) -> str:
    """Write names and values as a list."""
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="settings">{items}</dl>'


def write_confusion(confusion: Any, phase_names: Sequence[str]) -> str:
    """Write a confusion matrix (K, K), row = truth, as shares of each row; where it is large, the commonest pairs."""
    if confusion is None or not confusion.sum():
        return ""
    if len(phase_names) > _LARGEST_MATRIX:
        return _write_pairs(confusion, phase_names)
    head = "".join(
        f'<th scope="col" title="{escape(name)}"><span aria-hidden="true">{number}</span>'
        f'<span class="hidden">{escape(name)}</span></th>'
        for number, name in enumerate(phase_names, start=1)
    )
    rows = "".join(
        f'<tr><th scope="row"><span class="index">{number + 1}</span> {escape(name)}</th>'
        f"{''.join(_write_cell(count, total, number == other) for other, count in enumerate(confusion[number]))}"
        f"<td class=total>{total:,}</td></tr>"
        for number, (name, total) in enumerate(zip(phase_names, confusion.sum(axis=1).tolist(), strict=True))
    )
    table = (
        "<table class=confusion><caption>Per cent of each true phase predicted as each phase</caption>"
        f'<thead><tr><th scope="col">truth</th>{head}<th scope="col">frames</th></tr></thead>'
        f"<tbody>{rows}</tbody></table>"
    )
    meaning = (
        "Per cent of the frames of each true phase (row) that were predicted as each phase (column, by its number)."
    )
    return f'<p class="quiet">{meaning} All test videos together.</p>{_scroll("Confusion matrix", table)}'


def _write_cell(count: int, total: int, is_right: bool) -> str:
    share = count / total if total else 0.0
    text = "" if not count else "&lt;1" if share < 0.005 else f"{100 * share:.0f}"
    kind = "right" if is_right else "off"
    return f'<td class="share-{math.ceil(share * 10)} {kind}" title="{count:,} frames">{text or "<span>·</span>"}</td>'


def _write_pairs(confusion: Any, phase_names: Sequence[str]) -> str:
    wrong = confusion.copy()
    np.fill_diagonal(wrong, 0)
    totals = confusion.sum(axis=1)
    order = np.argsort(-wrong, axis=None, kind="stable")[:_MOST_PAIRS]
    pairs = [divmod(int(place), len(phase_names)) for place in order]
    rows: list[Row] = [
        {
            "true phase": phase_names[truth],
            "predicted": phase_names[phase],
            "frames": int(wrong[truth, phase]),
            "share of the true phase": float(wrong[truth, phase] / totals[truth]),
        }
        for truth, phase in pairs
        if wrong[truth, phase]
    ]
    said = f"<p class=quiet>{len(phase_names)} phases are too many for a matrix.</p>"
    return said + (describe_table("The commonest confusions", rows) or "<p>No frame with a label is wrong.</p>")


def _scroll(name: str, table: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(name)}">{table}</div>'


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _choose_format(values: Sequence[Any]) -> str:
    """Choose how the numbers of a column are written: three digits below ten, as scores have, one above."""
    highest = max((abs(value) for value in values if _is_fraction(value)), default=0.0)
    return ",.1f" if highest >= 10 else ".2g" if 0 < highest < 0.001 else ".3f"


def _is_fraction(value: Any) -> bool:
    return isinstance(value, (float, np.floating)) and math.isfinite(value)


def _show(value: Any, form: str) -> str:
    """Write a cell: fractions in the form of their column, counts with separators."""
    if value is None or value == "" or (isinstance(value, (float, np.floating)) and math.isnan(value)):
        return UNDEFINED
    if isinstance(value, (int, np.integer)):
        return f"{value:,}"
    return format(float(value), form) if isinstance(value, (float, np.floating)) else escape(str(value))

"""Tables for a terminal and for LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["align", "write_latex"]

_SPECIAL = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def align(table: Sequence[Sequence[str]]) -> str:
    """Write a table with its columns under each other."""
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table)
    return "\n".join(line.rstrip() for line in lines)


def write_latex(title: str, table: Sequence[Sequence[str]]) -> str:
    r"""Write a table as a tabular that needs no package; the first row is its head, the title its caption.

    >>> print(write_latex("in %", [["phase", "video"], ["a_b", "50.0"]]))
    \begin{table}
    \caption{in \%}
    \begin{tabular}{lr}
    \hline
    phase & video \\
    \hline
    a\_b & 50.0 \\
    \hline
    \end{tabular}
    \end{table}
    """
    head, *rows = (" & ".join(_escape(cell) for cell in row) + r" \\" for row in table)
    columns = "l" + "r" * (len(table[0]) - 1)
    body = [r"\hline", head, r"\hline", *rows, r"\hline"]
    begin = [r"\begin{table}", rf"\caption{{{_escape(title)}}}", rf"\begin{{tabular}}{{{columns}}}"]
    return "\n".join([*begin, *body, r"\end{tabular}", r"\end{table}"])


def _escape(text: str) -> str:
    return "".join(_SPECIAL.get(letter, letter) for letter in text)

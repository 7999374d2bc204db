"""How often each class occurs in each part of a split, and what that means for training."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from seqckpt.data.findings import Finding

__all__ = ["check_balance", "format_balance"]


def check_balance(counts: Mapping[str, Tensor], names: Sequence[str]) -> Iterable[Finding]:
    """Yield the classes that a part has no labelled frame of, an error where training needs some and there is none.

    `counts` are frames (num_classes,) of each part.
    """
    for part, numbers in counts.items():
        missing = [name for name, number in zip(names, numbers.tolist(), strict=True) if not number]
        if not missing:
            continue
        severity, hint = "warning", "they count in no score of it"
        if len(missing) == len(names) and part in ("train", "val"):  # a test may be for the predictions alone
            severity, hint = "error", "not one frame has a label: see the annotations and data.ignored_labels"
        elif part == "train":
            hint = "nothing can be learnt of them (inverse_frequency weighs them 0)"
        yield Finding(severity, part, f"no frame of {', '.join(missing)}", hint)


def format_balance(
    counts: Mapping[str, Tensor], names: Sequence[str], *, weights: Tensor | None = None
) -> list[list[str]]:
    """Return a table of text: a row per class with its frames in each part, their share, and its weight in the loss."""
    header = ["phase", *(f"{part} frames" for part in counts), *(["weight"] if weights is not None else [])]
    rows = []
    for place, name in enumerate(names):
        shares = [
            f"{int(numbers[place])} ({int(numbers[place]) / max(1, int(numbers.sum())):.1%})"
            for numbers in counts.values()
        ]
        rows.append([name, *shares, *([f"{float(weights[place]):.3g}"] if weights is not None else [])])
    return [header, *rows]

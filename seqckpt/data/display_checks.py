"""What the doctor says of how pictures are shown: which videos are turned, and what may be other than it looks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from seqckpt.data.display import Display
from seqckpt.data.findings import Finding

__all__ = ["check_displays"]

_SHOWN_VIDEOS = 5


def check_displays(displays: Mapping[str, Display], *, subject: str) -> Iterator[Finding]:
    """Yield what is odd about how videos, by their ids, are shown; `subject` is what stands for all of them.

    That some are turned and others are not (or otherwise) is a warning: those may lie on their side.
    """
    turned = {video_id: display.turn for video_id, display in displays.items() if not display.turn.is_none}
    for video_id, turn in turned.items():
        found = f"its pictures are stored lying and shown turned by {turn.degrees:g} degrees clockwise (display matrix)"
        yield Finding("note", video_id, found, "they are read as shown")
    if len({display.turn for display in displays.values()}) > 1:
        names = ", ".join(f"{video_id} by {turn.degrees:g}" for video_id, turn in [*turned.items()][:_SHOWN_VIDEOS])
        more = ", ..." if len(turned) > _SHOWN_VIDEOS else ""
        found = f"{len(turned)} of {len(displays)} videos are turned by their display matrix ({names}{more} degrees)"
        hint = "look whether all of them are upright: the others may lack a display matrix, or these have one too many"
        yield Finding("warning", subject, found, hint)
    for video_id, display in displays.items():
        if display.is_interlaced:
            found = "its pictures are interlaced: each holds two moments, in alternating lines"
            hint = (
                "they are read as they are, with comb-like edges where something moves; ffmpeg -vf yadif removes them"
            )
            yield Finding("warning", video_id, found, hint)
        if display.dynamic_range is not None:
            found = f"its colours are meant for HDR screens ({display.dynamic_range})"
            hint = "they are read without tone mapping, paler than players show them"
            yield Finding("note", video_id, found, hint)

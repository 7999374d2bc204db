"""From a Report to one HTML file: tables, lists and curves are written here, ribbons and pictures drawn by page.js.

Everything that comes from outside is escaped. The page may load nothing: its Content-Security-Policy lets in this one
style sheet and this one script, by their hashes, and pictures that are inside the file.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from string import Template

from seqckpt.plots import phase_style
from seqckpt.report.curves import draw_curves
from seqckpt.report.payload import HATCHES, has_all_probabilities, write_payload
from seqckpt.report.records import Report
from seqckpt.report.stretches import Stretch, find_wrong_stretches, frame_seconds
from seqckpt.report.tables import describe_list, describe_table, write_confusion
from seqckpt.units import format_seconds

__all__ = ["make_page"]

_MOST_STRETCHES, _STRETCHES_AT_FIRST = 30, 9
_FEW = 4  # ribbons, which are then taller
_PROTOCOLS = (
    "video: every video is scored by itself, then the mean is taken over videos, phase by phase, and over phases. "
    "pooled: all labelled frames of all videos are scored as one sequence. relaxed: as video, with 10 seconds of "
    "tolerance around the phases of the truth; relaxed-matlab: with the published script's fault, to compare with "
    "papers. segmental: edit score and F1 of segments. A dash is a score that is undefined."
)
_READING = (
    "In each ribbon the truth is above, the prediction below it, and the line at the foot marks wrong frames. "
    "Point at a frame or tap it to see it."
)
_KEYS = (
    "Keys: left and right move by one frame, with shift by ten, page up and page down by a twentieth of the video, "
    "home and end to its ends, up and down to the other videos."
)
_SCRIPTS = ("frames.js", "viewer.js", "moving.js", "ribbons.js", "page.js")


def make_page(report: Report) -> str:
    """Return the page of a report, complete in itself."""
    style = _read("page.css") + _write_phase_colors(len(report.phase_names))
    script = _join_scripts() if report.predictions else ""
    sections = {
        "stretches": ("Worst stretches", _write_stretches(report)),
        "ribbons": ("Ribbons", _write_ribbons(report)),
        "scores": ("Scores", _write_tables(report)),
        "confusion": ("Confusion", write_confusion(report.confusion, report.phase_names)),
        "curves": ("Curves", _write_curves(report)),
        "settings": ("Settings", _write_settings(report)),
    }
    shown = {name: section for name, section in sections.items() if section[1]}
    return Template(_read("page.html")).substitute(
        style=style,
        style_hash=_hash(style),
        script=script,
        script_hash=_hash(script),
        title=escape(f"{report.title} · seqckpt report"),
        heading=escape(report.title),
        subtitle=escape(report.subtitle),
        headlines=_write_headlines(report),
        navigation=_write_navigation({name: title for name, (title, _) in shown.items()}),
        notes=_write_notes([*report.notes, *_find_omissions(report)]),
        sections="\n".join(_write_section(name, *section) for name, section in shown.items()),
        written=f"{datetime.now():%Y-%m-%d %H:%M}",
        data=write_payload(report),
    )


def _read(name: str) -> str:
    return files("seqckpt.report").joinpath(name).read_text(encoding="utf-8")


def _join_scripts() -> str:
    """Return the scripts as one, in a scope of its own."""
    parts = "\n".join(_read(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}}})();'


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}"


def _write_phase_colors(num_phases: int) -> str:
    """Return a rule for each phase: style attributes are not let in."""
    return "".join(f".phase-{number}{{--phase:{phase_style(number)['color']}}}\n" for number in range(num_phases))


def _write_section(name: str, title: str, content: str) -> str:
    return (
        f'<section id="{name}" aria-labelledby="{name}-title"><h2 id="{name}-title">{title}</h2>\n{content}</section>'
    )


def _write_headlines(report: Report) -> str:
    items = "".join(
        f"<div><dt>{escape(name)}</dt><dd><strong>{escape(value)}</strong><span>{escape(meaning)}</span></dd></div>"
        for name, value, meaning in report.headlines
    )
    return f'<dl class="headlines">{items}</dl>' if items else ""


def _write_navigation(titles: dict[str, str]) -> str:
    links = "".join(f'<li><a href="#{name}">{title}</a></li>' for name, title in titles.items())
    return f'<nav aria-label="Sections"><ul>{links}</ul></nav>'


def _find_omissions(report: Report) -> list[str]:
    """Say what the page leaves out of the report to stay small."""
    if has_all_probabilities(report.predictions):
        return []
    return ["To keep this file small, it holds the probability of the predicted phase only, not those of all phases."]


def _write_notes(notes: Sequence[str]) -> str:
    items = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f'<ul class="notes" aria-label="Notes">{items}</ul>' if items else ""


def _swatch(phase: int) -> str:
    hatch = HATCHES[phase_style(phase)["hatch"]]
    return f'<span class="swatch phase-{phase} {hatch}" aria-hidden="true"></span>'


def _write_stretches(report: Report) -> str:
    """List the longest wrong stretches, the longest first, each a link to its place."""
    if not report.predictions:
        return ""
    stretches = find_wrong_stretches(report.predictions, most=_MOST_STRETCHES)
    if not stretches:
        labelled = any((entry.truth >= 0).any() for entry in report.predictions)
        return f"<p>{'No frame with a label is wrong.' if labelled else 'No frame has a label.'}</p>"
    items = [_write_stretch(report, stretch) for stretch in stretches]
    first, more = items[:_STRETCHES_AT_FIRST], items[_STRETCHES_AT_FIRST:]
    more_of_them = f'<ol class="stretches" start="{len(first) + 1}">{"".join(more)}</ol>'
    rest = f"<details><summary>{len(more)} more</summary>{more_of_them}</details>"
    return (
        "<p>The longest stretches of wrong frames; each leads to its place.</p>"
        f'<ol class="stretches">{"".join(first)}</ol>{rest if more else ""}'
    )


def _write_stretch(report: Report, stretch: Stretch) -> str:
    video_id = escape(report.predictions[stretch.video].video_id)
    truth, phase = (escape(report.phase_names[number]) for number in (stretch.truth, stretch.phase))
    middle = (stretch.start + stretch.stop) // 2
    others = f" · {stretch.num_pairs - 1} more confused pair{'s' * (stretch.num_pairs > 2)}" * (stretch.num_pairs > 1)
    span = f"{format_seconds(stretch.start_second)} to {format_seconds(stretch.stop_second)}"
    length = f"{stretch.seconds:.0f} s" if stretch.seconds >= 1 else f"{stretch.seconds:.2f} s"
    picture = (
        f'<canvas class="picture" data-video="{stretch.video}" data-frame="{middle}" aria-hidden="true"></canvas>'
        if report.thumbnails and report.predictions[stretch.video].video_id in report.thumbnails.sheets
        else ""
    )
    return (
        f'<li><a href="#v{stretch.video}-f{stretch.start}">{picture}<span class="what">'
        f'<span class="where"><b>{video_id}</b> <span>{span}</span> <em>{length}</em></span>'
        f'<span class="pair">{_swatch(stretch.truth)}<span><i>is</i> {truth}</span></span>'
        f'<span class="pair">{_swatch(stretch.phase)}<span><i>taken for</i> {phase}</span></span>'
        f'<span class="quiet">mean probability {100 * stretch.probability:.0f} %{others}</span></span></a></li>'
    )


def _write_ribbons(report: Report) -> str:
    """Write the legend, the viewer, and a place for each video's ribbon, which page.js fills."""
    if not report.predictions:
        return ""
    legend = "".join(
        f"<li>{_swatch(number)}<span>{escape(name)}</span></li>" for number, name in enumerate(report.phase_names)
    )
    if any((entry.truth < 0).any() for entry in report.predictions):
        legend += '<li><span class="swatch unlabelled" aria-hidden="true"></span><span>(no label)</span></li>'
    ribbons = "".join(_write_ribbon(report, number) for number in range(len(report.predictions)))
    size = "few" if len(report.predictions) <= _FEW else "many"
    viewer = Template(_read("viewer.html")).substitute(picture="" if report.thumbnails else "hidden")
    return (
        f'<p class="quiet">{_READING} <span id="keys">{_KEYS}</span></p>'
        f'<ul class="legend" aria-label="Phases">{legend}</ul>'
        f'<div class="viewing"><div class="viewer" role="region" aria-label="Frame">{viewer}</div>'
        f'<ol class="ribbons {size}">{ribbons}</ol></div><noscript><p>The ribbons are drawn by a script.</p></noscript>'
    )


def _write_ribbon(report: Report, number: int) -> str:
    return (
        f'<li class="ribbon" data-video="{number}"><h3>{escape(report.predictions[number].video_id)}</h3>'
        f'<p class="quiet">{_sum_up(report, number)}</p><div class="band"><canvas role="slider" tabindex="-1"></canvas>'
        '<div class="cursor" hidden></div></div><div class="times" aria-hidden="true"></div></li>'
    )


def _sum_up(report: Report, number: int) -> str:
    entry = report.predictions[number]
    labelled = int((entry.truth >= 0).sum())
    length = format_seconds(len(entry.seconds) * frame_seconds(entry))
    if not labelled:
        return f"no labels · {len(entry.seconds):,} frames · {length}"
    right = int((entry.truth == entry.prediction).sum())
    return f"accuracy {right / labelled:.3f} · {labelled - right:,} wrong of {labelled:,} frames · {length}"


def _write_tables(report: Report) -> str:
    tables = "".join(describe_table(title, rows) for title, rows in report.tables.items())
    return f'<p class="quiet">{_PROTOCOLS}</p>{tables}' if tables else ""


def _write_curves(report: Report) -> str:
    drawn = draw_curves(report.curves)
    if not drawn:
        return ""
    values = describe_table("Every epoch", report.curves)
    return f'<div class="curves">{drawn}</div><details><summary>The numbers</summary>{values}</details>'


def _write_settings(report: Report) -> str:
    changed = [(key, value) for key, value, differs in report.settings if differs]
    facts = f"<h3>The run</h3>{describe_list(list(report.facts.items()))}" if report.facts else ""
    other = f"<h3>Settings other than the defaults</h3>{describe_list(changed)}" if changed else ""
    everything = describe_list([(key, value) for key, value, _ in report.settings])
    more = f"<details><summary>All settings</summary>{everything}</details>" if report.settings else ""
    return facts + other + more

"""Case reading: what reading costs, against the step that it feeds, in memory, and against the ffmpeg command line.

- cache: an epoch's frames from the cache, against steps of two models.
- waiting: the share of a step spent waiting for frames that are streamed (854 x 480, 25 fps, a sample each second).
- memory: resident memory while frames of 224 pixels are streamed.
- decoding: a long video at one frame a second, against ffmpeg (on Linux: on that many `threads`' cores, for either).
- augmentation: what each augmentation costs.

Each figure comes from a process of its own. Videos are made once in `folder` (default: a new temporary one): a moving
pattern, a key frame every ten seconds.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from seqckpt.bench.case import Case, Settings, check_known
from seqckpt.bench.made_videos import make_long_video, write_pattern
from seqckpt.bench.reading_subject import AUGMENTATIONS, MODELS, PIXELS, Reading
from seqckpt.bench.report import Report
from seqckpt.bench.worker import Worker
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["READING"]

_Records = list[dict[str, Any]]
_CLIP_FRAMES = {"cache": (500, 100), "waiting": (500, 50)}  # of either model


def _prepare_cache(folder: Path, settings: Settings) -> _Records:
    common = {"folder": str(folder), "repeats": settings["repeats"]}
    lengths = zip(MODELS, _CLIP_FRAMES["cache"], strict=True)
    return [{"model": model, "num_frames": length, **common} for model, length in lengths]


def _show_cache(records: _Records, report: Report) -> None:
    rows = []
    for record in records:
        read, step = median(record["read_seconds"]), median(record["step_seconds"])
        cells = [f"{1000 * read:.1f} ms", f"{step:.2f} s", f"{read / step:.2%}"]
        rows.append([record["model"], f"{record['num_frames']}", *cells])
    title = "cache: a clip read in chunks, forward and backward"
    report.add_table(title, ["model", "frames", "reading", "step", "of the step"], rows)


def _prepare_waiting(folder: Path, settings: Settings) -> _Records:
    video = make_long_video(folder, seconds=600)
    lengths = zip(MODELS, _CLIP_FRAMES["waiting"], strict=True)
    return [{"model": model, "video": str(video), "num_frames": length} for model, length in lengths]


def _show_waiting(records: _Records, report: Report) -> None:
    rows = []
    for record in records:
        ahead = record["step_reading_ahead_seconds"]
        cells = [f"{record['step_seconds']:.1f} s", f"{ahead:.1f} s", f"{record['waiting_seconds'] / ahead:.1%}"]
        rows.append([record["model"], f"{record['num_frames']}", *cells])
    heads = ["model", "frames", "step", "step, read ahead", "of which waiting for frames"]
    report.add_table("waiting: a step on frames that are streamed", heads, rows)


def _prepare_memory(folder: Path, settings: Settings) -> _Records:
    num_frames = settings["frames"]
    video = folder / f"square-{num_frames}.mp4"
    if not video.exists():
        write_pattern(video, width=PIXELS, height=PIXELS, num_frames=num_frames, key_every=50)
    return [{"video": str(video), "num_frames": num_frames}]


def _show_memory(records: _Records, report: Report) -> None:
    for record in records:
        growth = "" if record["growth_bytes"] is None else f" {format_bytes(record['growth_bytes'])}"
        report.add_note(
            f"memory: {record['num_frames']} frames of {PIXELS} px streamed forward and backward in "
            f"{record['seconds']:.0f} s: {record['meaning']}{growth}; the frames are "
            f"{format_bytes(record['frame_bytes'])}"
        )


def _prepare_decoding(folder: Path, settings: Settings) -> _Records:
    common = {"video": str(make_long_video(folder, seconds=settings["seconds"])), "num_threads": settings["threads"]}
    programs = ["", *filter(None, [shutil.which("ffmpeg")])]
    return [{"program": program, **common} for _ in range(settings["repeats"]) for program in programs]


def _show_decoding(records: _Records, report: Report) -> None:
    medians = {}
    rows = []
    for by in dict.fromkeys(record["by"] for record in records):
        own = [record for record in records if record["by"] == by]
        medians[by] = [median(record[key] for record in own) for key in ("seconds", "processor_seconds")]
        rows.append([by, f"{own[0]['num_frames']:,}", *(f"{seconds:.1f} s" for seconds in medians[by])])
    title = f"decoding: a frame a second of a long video, at {PIXELS} px, on {records[0]['num_cores']} core(s)"
    report.add_table(title, ["by", "frames", "time", "processor time"], rows)
    if "ffmpeg" not in medians:
        report.add_note("ffmpeg is not installed: nothing to compare with")
        return
    whole, work = (own / other for own, other in zip(medians["seqckpt"], medians["ffmpeg"], strict=True))
    report.add_note(f"{whole:.2f} times as long as ffmpeg, {work:.2f} times the processor time")


def _prepare_augmentation(folder: Path, settings: Settings) -> _Records:
    return [{"kind": kind, "repeats": settings["repeats"]} for kind in AUGMENTATIONS]


def _show_augmentation(records: _Records, report: Report) -> None:
    rows = [[record["kind"], f"{1000 * median(record['seconds']) / record['num_frames']:.2f} ms"] for record in records]
    report.add_table(f"augmentation of frames of {PIXELS} px", ["kind", "a frame"], rows)


# What makes the videos and says with what arguments the subject's method is called, a process each; what shows the
# figures.
_MEASUREMENTS: dict[str, tuple[Callable[[Path, Settings], _Records], Callable[[_Records, Report], None]]] = {
    "cache": (_prepare_cache, _show_cache),
    "waiting": (_prepare_waiting, _show_waiting),
    "memory": (_prepare_memory, _show_memory),
    "decoding": (_prepare_decoding, _show_decoding),
    "augmentation": (_prepare_augmentation, _show_augmentation),
}


def run_reading(settings: Settings, report: Report) -> None:
    """Make the videos, then the measurements named, one after the other."""
    chosen = settings["what"]
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(settings["folder"] or temporary)
        place.mkdir(parents=True, exist_ok=True)
        made = progress_bar(chosen, desc="making videos", unit="measurement", leave=False)
        work = {what: _MEASUREMENTS[what][0](place, settings) for what in made}
        with progress_bar(total=sum(map(len, work.values())), desc="reading", unit="process") as bar:
            for what, calls in work.items():
                records = []
                for arguments in calls:
                    with Worker(Reading) as worker:
                        records.append({"what": what, **worker.ask(what, **arguments)})
                    bar.update()
                report.records += records
                _MEASUREMENTS[what][1](records, report)


READING = Case(
    "reading",
    "what reading costs: cache, streaming, memory, decoding against ffmpeg, augmentation",
    run_reading,
    settings={
        "what": tuple(_MEASUREMENTS),
        "repeats": 3,
        "seconds": 7200,
        "threads": 1,
        "frames": 20_000,
        "folder": "",
    },
    quick={"what": ("memory", "augmentation"), "repeats": 1, "frames": 1000},
    check=lambda settings: check_known("what", settings["what"], _MEASUREMENTS),
)

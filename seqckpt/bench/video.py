"""Case video: a training step of encoder and LSTM over T frames, plain, by this library, and by every peer.

Peaks, step times and gradient errors side by side, one clip, float32, frozen batch norm, gradients None before each
step. Peaks are the allocator's, over the step's start, without the parameters' gradients. Errors of gradients are the
worst parameter's relative error against the plain run in float64, on a short clip of small frames in smaller pieces
(`shorten`): in float64, which shows exactness, and in the float32 that is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from seqckpt.bench.case import Case, Settings, check_encoder
from seqckpt.bench.gradient_errors import is_exact, measure_gradient_errors, show_errors
from seqckpt.bench.hardware import default_device, free_memory
from seqckpt.bench.peers import CUTTERS, LABELS, PEERS
from seqckpt.bench.probes import SHORT, find_problem, probe
from seqckpt.bench.report import Report
from seqckpt.bench.turns import Figures, measure_side_by_side
from seqckpt.bench.video_model import OURS, build_video_subject, parse_choice
from seqckpt.errors import UsageError
from seqckpt.plots import FrontPoint, plot_front, plot_peak_memory
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes

__all__ = ["VIDEO", "choose_ways", "shorten"]

Ways = dict[str, dict[str, Any]]

_PEERS = tuple(peer for peer in PEERS if peer != "plain")
_PLAIN = "plain"


def choose_ways(settings: Settings) -> Ways:
    """What is compared: name to arguments of `build_video_subject`, the lengths left open.

    Peers that cut are given the cut of the balanced schedule; checkpoints by hand those of all three.
    """
    last = {"channels_last": bool(settings["channels_last"])}
    ours = {name: settings[name] for name in ("smallest", "balanced", "fastest")}
    ways: Ways = {_PLAIN: {"way": "plain"}, "plain, channels_last": {"way": "plain", "channels_last": True}}
    for name, choice in [*ours.items(), *((choice, choice) for choice in settings["sweep"])]:
        chosen = parse_choice(choice)
        layout = {"channels_last": last["channels_last"] and not chosen.fuse}  # fused layers choose their own
        ways[f"{OURS}: {name} ({chosen.describe()})"] = {"way": OURS, "choice": choice, **layout}
    balanced = str(parse_choice(ours["balanced"]).chunk_size)
    sizes = sorted({parse_choice(choice).chunk_size for choice in ours.values()} - {int(balanced)})
    for peer in settings["peers"]:
        if peer not in PEERS:
            raise UsageError(f"peers={peer}: expected some of {', '.join(_PEERS)}")
        label = f"{LABELS[peer]}, chunks of {balanced}" if peer in CUTTERS else LABELS[peer]
        ways[label] = {"way": peer, "choice": balanced, **last}
        for size in sizes if peer == "checkpoint" else ():
            ways[f"{LABELS[peer]}, chunks of {size}"] = {"way": peer, "choice": str(size), **last}
    common = {"choice": balanced, "segment_length": settings["segment"]}
    return {name: {**common, **arguments} for name, arguments in ways.items()}


def shorten(ways: Ways, settings: Settings, encoder: str) -> Ways:
    """The ways on a clip of `error_frames` small frames in at least four pieces, where gradients are compared."""
    num_frames = settings["error_frames"]
    piece = max(1, num_frames // 4)
    short = {}
    for name, arguments in ways.items():
        choice = parse_choice(arguments["choice"])
        cut = f"{min(choice.chunk_size, piece)}+{choice.depth:g}x{choice.chunks}{'f' * choice.fuse}"
        sizes = {"encoder": encoder, "pixels": settings["error_pixels"], "num_frames": num_frames}
        short[name] = {**arguments, **sizes, "choice": cut, "segment_length": piece}
    return short


def run_video(settings: Settings, report: Report) -> None:
    """Measure every model at every length, and draw."""
    ways = choose_ways(settings)
    jobs = _list_jobs(settings)
    encoders = dict.fromkeys(encoder for encoder, *_ in jobs)
    num_ticks = len(ways) * (len(encoders) + sum(1 + _count_steps(num_frames, settings) for *_, num_frames in jobs))
    with progress_bar(total=num_ticks, desc="video", unit="step") as bar:

        def tick(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        errors = {
            encoder: measure_gradient_errors(
                shorten(ways, settings, encoder), build_video_subject, dtypes=("float64", "float32"), tick=tick
            )
            for encoder in encoders
        }
        seen: dict[tuple[str, int], dict[str, list[tuple[int, int]]]] = {}
        for encoder, pixels, num_frames in jobs:
            if (encoder, pixels) not in seen:
                plain = probe(ways[_PLAIN], encoder, pixels, SHORT)  # everything is kept: no way takes more
                seen[encoder, pixels] = {name: list(plain) for name in ways}
            figures = _measure_length(ways, settings, encoder, pixels, num_frames, seen[encoder, pixels], tick)
            for figure in figures.values():
                figure.gradient_errors = errors[encoder][figure.name]
            _add_table(report, figures, encoder, pixels, num_frames)
            if not _count_steps(num_frames, settings):
                report.add_note("Times are those of the one step whose peak was recorded.")
    report.add_note(
        f"Gradient error: the worst parameter's, relative to the plain run's in float64, on {settings['error_frames']} "
        f"frames of {settings['error_pixels']} px, in pieces of a quarter of them at most; 1: as large as the gradient."
    )
    _draw_lengths(report)


def _list_jobs(settings: Settings) -> list[tuple[str, int, int]]:
    jobs = []
    for number, model in enumerate(settings["models"]):
        encoder, _, pixels = model.rpartition("-")
        if not pixels.isdigit() or not int(pixels):
            raise UsageError(f"models={model}: expected encoder-pixels, as in resnet18-112")
        lengths = settings["lengths"] if number == 0 else settings["more_lengths"]
        jobs += [(encoder, int(pixels), num_frames) for num_frames in sorted(lengths)]
    return jobs


def _count_steps(num_frames: int, settings: Settings) -> int:
    """Timed steps: fewer of the long ones, and none of those that take minutes: their peak's step is enough."""
    return settings["steps"] if num_frames <= 500 else settings["steps"] * 500 // num_frames


def _measure_length(
    ways: Ways,
    settings: Settings,
    encoder: str,
    pixels: int,
    num_frames: int,
    points: dict[str, list[tuple[int, int]]],
    tick: Callable[[str], object],
) -> dict[str, Figures]:
    """All ways that fit, in turn; `points` gets their peaks, from which the next length's are predicted."""
    free = free_memory(default_device())
    problems = {}
    for name in ways:
        problem = find_problem(ways[name], encoder, pixels, num_frames, points[name], free)
        if problem is not None:
            problems[name] = problem
        elif ways[name]["way"] == "compile" and num_frames not in settings["compile_lengths"]:
            problems[name] = "left out: to compile for one length takes minutes (compile_lengths)"
    tried = {
        name: {**arguments, "encoder": encoder, "pixels": pixels, "num_frames": num_frames}
        for name, arguments in ways.items()
        if name not in problems
    }
    num_steps = _count_steps(num_frames, settings)
    measured = measure_side_by_side(tried, build_video_subject, num_steps=num_steps, limit_bytes=int(free), tick=tick)
    for name, figures in measured.items():
        if figures.peak_bytes is not None:
            points[name].append((num_frames, figures.peak_bytes))
    return {name: measured.get(name) or Figures(name, problem=problems[name]) for name in ways}


def _add_table(report: Report, figures: dict[str, Figures], encoder: str, pixels: int, num_frames: int) -> None:
    for figure in figures.values():
        report.records.append(figure.to_record(encoder=encoder, pixels=pixels, num_frames=num_frames))
    plain = _best_plain(figures)
    heads = ["way", "peak of a step", "less", "median step", "of plain", "gradient error (float64, float32)"]
    rows = [_row(figure, plain) for figure in figures.values()]
    title = f"{encoder} at {pixels} px, LSTM 256, T = {num_frames:,}, one clip"
    report.add_table(title, heads, rows)
    exact = [f for f in figures.values() if f.peak_bytes and f.step_seconds and is_exact(f.gradient_errors)]
    if len({figure.name.startswith(OURS) for figure in exact}) == 2:  # some of ours, and some of others
        report.add_note(_describe_front(exact))
    points = [
        FrontPoint(f.name, f.peak_bytes, f.step_seconds, f.name.startswith(OURS), is_exact(f.gradient_errors))
        for f in figures.values()
        if f.peak_bytes and f.step_seconds
    ]
    if points:
        path = report.add_picture(f"front-{encoder}-{pixels}-{num_frames}", f"time over memory, {title}")
        plot_front(points, path, title=title)


def _best_plain(figures: dict[str, Figures]) -> Figures | None:
    """The faster of the plain runs, that is in its best memory format."""
    plains = [f for f in figures.values() if f.name.startswith(_PLAIN) and f.step_seconds is not None]
    return min(plains, key=lambda figure: figure.step_seconds or 0.0, default=None)


def _row(figure: Figures, plain: Figures | None) -> list[str]:
    written = show_errors(figure.gradient_errors)
    if figure.problem is not None:
        return [figure.name, figure.problem, "", "", "", "" if written in figure.problem else written]
    peak, seconds = figure.peak_bytes or 0, figure.step_seconds
    less = f"{plain.peak_bytes / peak:.1f}x" if plain and plain.peak_bytes and peak else ""
    ratio = f"{seconds / plain.step_seconds:.2f}x" if plain and plain.step_seconds and seconds else ""
    return [figure.name, format_bytes(peak), less, f"{seconds:.3g} s" if seconds else "", ratio, written]


def _describe_front(exact: Sequence[Figures]) -> str:
    """Which exact ways no way of ours beats or equals in both memory and time."""

    def is_behind(other: Figures) -> bool:
        return any(
            own.name.startswith(OURS)
            and (own.peak_bytes or 0) <= (other.peak_bytes or 0)
            and (own.step_seconds or 0.0) <= (other.step_seconds or 0.0)
            for own in exact
        )

    ahead = [other.name for other in exact if not other.name.startswith(OURS) and not is_behind(other)]
    if not ahead:
        return "Every exact way but ours is beaten or equalled in both memory and time by one of our schedules."
    return f"Not beaten in both memory and time by any of our schedules here: {'; '.join(ahead)}."


def _draw_lengths(report: Report) -> None:
    for model in dict.fromkeys((record["encoder"], record["pixels"]) for record in report.records):
        points = [
            {"label": record["name"], "num_frames": record["num_frames"], "peak_bytes": record["peak_bytes"]}
            for record in report.records
            if (record["encoder"], record["pixels"]) == model and record["peak_bytes"]
        ]
        names = [_PLAIN, *(p["label"] for p in points if p["label"].startswith((OURS, LABELS["checkpoint"])))]
        shown = [point for point in points if point["label"] in names]
        if shown:
            path = report.add_picture(f"peak-{model[0]}-{model[1]}", "peak memory over T")
            plot_peak_memory(
                shown, path, title=f"peak memory of a training step, {model[0]} at {model[1]} px, LSTM 256"
            )


def _check(settings: Settings) -> None:
    choose_ways(settings)
    for encoder, _, _ in _list_jobs(settings):
        check_encoder("models", encoder)


VIDEO = Case(
    "video",
    "a training step of encoder + LSTM over T frames: plain, three schedules of ours, and every peer",
    run_video,
    settings={
        "models": ("resnet18-112", "resnet18-224", "resnet50-112"),
        "lengths": (100, 250, 500, 1000, 2000, 5000),
        "more_lengths": (100, 250),
        "steps": 5,
        "segment": 100,
        "smallest": "25f",
        "balanced": "25+4.5f",
        "fastest": "25+8.1f",
        "sweep": ("",)[:0],
        "channels_last": 1,
        "peers": _PEERS,
        "compile_lengths": (100, 500),
        "error_frames": 40,
        "error_pixels": 32,
    },
    quick={
        "models": ("resnet18-64",),
        "smallest": "10f",
        "balanced": "10+4.5f",
        "fastest": "10+8.1f",
        "lengths": (40, 120),
        "steps": 1,
        "peers": tuple(peer for peer in _PEERS if peer != "compile"),  # half a minute of compiling
        "error_frames": 20,
    },
    least={"steps": 0, "channels_last": 0, "error_frames": 4},
    most={"channels_last": 1},
    may_be_empty={"more_lengths", "sweep", "peers", "compile_lengths"},
    check=_check,
)

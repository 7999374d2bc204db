"""Case learning: does the long clip pay? Equal numbers of frames seen, several seeds, on the sample data.

- random features: the encoder stays as it was drawn, the LSTM learns over clips of 500;
- clips of 25 and of 100: trained end to end, the state cut between clips; as many clips to a step as make 500 frames;
- clips of 500: trained end to end, exact.

All see the same frames equally often, in equally many steps of equally many frames. Scores are accuracies on the test
videos, mean over videos, of the epoch that is best on the validation videos.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from seqckpt import build, training
from seqckpt.bench.case import Case, Settings
from seqckpt.bench.report import Report
from seqckpt.bench.worker import Worker
from seqckpt.config import load_config
from seqckpt.data import make_sample, sample_per_frame_limit
from seqckpt.errors import UsageError
from seqckpt.progress import progress_bar

__all__ = ["LEARNING", "Run"]


class Run:
    """One training run from the main configuration, changed by some keys; encoder frozen or trained."""

    def __init__(self, *, arguments: list[str], trains_encoder: bool) -> None:
        self.arguments, self.trains_encoder = arguments, trains_encoder

    def train(self) -> dict[str, Any]:
        """Train and score; test accuracy, Jaccard and steps taken."""
        _, config = load_config(self.arguments, find_more=build.find_unusable_names)
        phase_names = build.choose_phase_names(config.data)
        ids = build.choose_videos(config.data)
        model = build.build_model(config)
        model.encoder.requires_grad_(self.trains_encoder)
        videos = build.read_videos(config.data, ids)
        model.to(build.choose_device(config.train.device))
        optimiser = build.build_optimiser(model, config)
        settings = build.build_settings(config)
        with tempfile.TemporaryDirectory() as folder:
            trainer = training.Trainer(
                model, optimiser, settings, folder=Path(folder), phase_names=phase_names, extra={}
            )
            trainer.fit(videos.clips(config.data.clip_length), videos.val)
            trainer.load_best()
        window = build.choose_window(config.data)
        scores = training.score(training.predict_videos(trainer.model, videos.test, window=window), len(phase_names))
        return {
            "test_accuracy": scores.accuracy_mean,
            "test_jaccard": scores.jaccard.mean,
            "num_steps": trainer.progress.step,
            "num_frames_seen": trainer.progress.of_run.num_frames,
        }


def run_learning(settings: Settings, report: Report) -> None:
    """Every way with every seed, one process each, and a table with the spread over seeds."""
    longest = settings["frames_per_step"]
    ways = {"random features, clips of " + f"{longest}": (longest, False)}
    for length in sorted(settings["clip_lengths"]):
        exact = "exact" if length == longest else "the state cut between them"
        ways[f"end to end, clips of {length}, {exact}"] = (length, True)
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as temporary:
        data = _make_data(settings, Path(temporary))
        with progress_bar(total=len(ways) * len(settings["seeds"]), desc="learning", unit="run") as bar:
            for seed in settings["seeds"]:  # seeds outside: a run that is stopped early has all ways
                for name, (length, trains_encoder) in ways.items():
                    arguments = ["config=surgical_video.yaml", *data, f"train.seed={seed}"]
                    arguments += [f"data.clip_length={length}", f"train.batch_size={longest // length}"]
                    arguments.append(f"train.epochs={settings['epochs']}")
                    with Worker(Run, arguments=arguments, trains_encoder=trains_encoder) as worker:
                        results[name].append({"seed": seed, **worker.ask("train")})
                    bar.update()
    rows = []
    for name, runs in results.items():
        report.records += [{"way": name, **run} for run in runs]
        cells = [_spread([run[key] for run in runs]) for key in ("test_accuracy", "test_jaccard")]
        rows.append([name, *cells, f"{runs[0]['num_frames_seen']:,}", f"{runs[0]['num_steps']:,}"])
    heads = ["way", "test accuracy", "test Jaccard", "frames seen", "steps"]
    report.add_table(f"sample data, small encoder + LSTM 128, {len(settings['seeds'])} seeds each", heads, rows)
    if not settings["num_videos"]:
        report.add_note(f"No classifier of single frames can exceed {sample_per_frame_limit():.3f} on these data.")


def _make_data(settings: Settings, folder: Path) -> list[str]:
    """The sample data of the main configuration, or a small one of this case's own; as arguments for it."""
    if not settings["num_videos"]:
        return []
    root, seconds, number = folder / "sample", settings["video_seconds"], settings["num_videos"]
    make_sample(root, num_videos=number, shortest_seconds=seconds, longest_seconds=seconds + 20, progress=False)
    split = f"[1-{number - 2}]", f"[{number - 1}]", f"[{number}]"
    names = [f"data.split.{name}={ids}" for name, ids in zip(("train", "val", "test"), split, strict=True)]
    return [f"data.root={root}", *names]


def _spread(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.3f}"
    return f"{mean(values):.3f} ± {stdev(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def _check(settings: Settings) -> None:
    whole, number = settings["frames_per_step"], settings["num_videos"]
    for length in settings["clip_lengths"]:
        if whole % length:
            raise UsageError(
                f"clip_lengths={length}: expected divisors of frames_per_step={whole}, so that all ways see equal work"
            )
    if number in (1, 2):
        raise UsageError(f"num_videos={number}: expected 0, the sample data, or at least 3: train, validate and test")


LEARNING = Case(
    "learning",
    "does the long clip pay: frozen random features, short clips and whole ones, equal frames seen, several seeds",
    run_learning,
    settings={
        "seeds": (0, 1, 2),
        "clip_lengths": (25, 100, 500),
        "frames_per_step": 500,
        "epochs": 14,
        "num_videos": 0,
        "video_seconds": 500,
    },
    quick={"seeds": (0,), "clip_lengths": (25, 100), "frames_per_step": 100, "epochs": 1}
    | {"num_videos": 3, "video_seconds": 100},
    least={"seeds": 0, "num_videos": 0},
    check=_check,
)

"""`seqckpt evaluate`: the scores of a run, or of other systems' predictions, under every protocol."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from seqckpt import build, training
from seqckpt.cli.command import Command, take_names
from seqckpt.cli.label_folders import Truth, add_predictions, truth_of_folder, truth_of_videos
from seqckpt.cli.outputs import choose_folder
from seqckpt.cli.score_tables import Report
from seqckpt.cli.scoring import SCORING_NAMES, choose_protocols, describe_scoring, open_accumulator, read_number
from seqckpt.config import Config, load_config
from seqckpt.errors import UsageError
from seqckpt.inference import open_run
from seqckpt.progress import progress_bar

__all__ = ["EVALUATE"]

_NAMES = {
    "run": "the run to evaluate: its folder, or its name under runs/; its videos are predicted anew",
    "split": "which part of the split: train, val or test (test unless given)",
    **SCORING_NAMES,
    "predictions": "a folder of other predictions to evaluate instead, a text file a video: one label a line, or "
    "`frame label`; the truth is that of the data set of run= or config=, or of truth=",
    "truth": "a folder of files of the same form that hold the truth, instead of a data set",
    "phases": "with truth=: the phases in the order of their ids, divided by commas, or a file of `id name` lines",
    "ignored": "with truth=: labels that mean no label, divided by commas (-100 always does)",
    "fps": "with truth=: labels per second, which relaxed, relaxed-matlab and delay need",
    "output": "the folder to write to (unless given: evaluation/ in the run's folder or in that of the predictions)",
}
_ONLY_WITH_TRUTH = ("phases", "ignored", "fps")
_ONLY_WITHOUT_TRUTH = ("run", "split")


def _evaluate(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Score a run or predictions, print the tables, and write them as CSV, JSON and LaTeX."""
    values, rest = take_names(arguments, _NAMES)
    protocols = choose_protocols(values)  # first: a mistake in it should not cost the time of predicting
    _refuse_what_does_not_belong(values, rest)
    if "predictions" in values:
        report, folder, stem = _score_predictions(values, rest, protocols)
    else:
        report, folder, stem = _score_run(values, rest, protocols)
    written = report.write(folder, stem)
    print(report.text())
    print(f"\nwritten: {', '.join(map(str, written))}")
    return 0


def _score_run(values: Mapping[str, str], rest: Sequence[str], protocols: Sequence[str]) -> tuple[Report, Path, str]:
    """Predict one part of the split with the run's best weights, and score it."""
    split = values.get("split", "test")
    run = open_run(values["run"], changes=rest)
    output = choose_folder(values, run.folder / "evaluation")
    data = run.config.data
    accumulator = open_accumulator(values, run.phase_names, fps=data.fps)
    videos = build.read_split(data, split)
    for video in progress_bar(videos, desc="predicting", unit="video"):
        began = time.perf_counter()
        (entry,) = training.predict_videos(run.model, [video], window=build.choose_window(data))
        seconds = time.perf_counter() - began
        accumulator.add(entry.truth, entry.prediction, video=entry.video_id, inference_seconds=seconds)
    about = {
        "run": str(run.folder),
        "snapshot": run.snapshot.name,
        "split": split,
        "timed": f"reading and predicting, on {run.device}",
        **describe_scoring(accumulator, run.phase_names),
    }
    return Report.of(accumulator, protocols, run.phase_names, about), output, split


def _score_predictions(
    values: Mapping[str, str], rest: Sequence[str], protocols: Sequence[str]
) -> tuple[Report, Path, str]:
    """Score the files of a folder against a data set, or against the files of another folder."""
    folder = Path(values["predictions"]).expanduser()
    output = choose_folder(values, folder / "evaluation")
    split = values.get("split", "test")
    truth = _read_truth(values, rest, split, folder)
    accumulator = open_accumulator(values, truth.labels.names, fps=truth.fps)
    accumulator.check_protocols(protocols)
    add_predictions(accumulator, folder, truth)
    about = {
        "predictions": str(folder),
        "truth": truth.name,
        **describe_scoring(accumulator, truth.labels.names),
    }
    stem = "scores" if "truth" in values else split
    return Report.of(accumulator, protocols, truth.labels.names, about), output, stem


def _read_truth(values: Mapping[str, str], rest: Sequence[str], split: str, predictions: Path) -> Truth:
    if "truth" in values:
        return truth_of_folder(
            Path(values["truth"]).expanduser(),
            predictions,
            phases=values.get("phases"),
            ignored=values.get("ignored"),
            fps=read_number("fps", values, at_least=1e-3),
        )
    config = _load_config(values, rest)
    data = config.data
    if "run" not in values:
        data.cache = "none"  # only labels are wanted: nothing is decoded for them
    phase_names = data.phase_names = build.choose_phase_names(data)
    videos = build.read_split(data, split)
    return truth_of_videos(
        videos, phase_names, ignored=data.ignored_labels, fps=data.fps, name=f"the split {split} of {data.root}"
    )


def _load_config(values: Mapping[str, str], rest: Sequence[str]) -> Config:
    own = [f"config={(training.find_run(values['run']) / 'config.yaml').absolute()}"] if "run" in values else []
    _, config = load_config([*own, *rest], find_more=build.find_unusable_names)
    return config


def _refuse_what_does_not_belong(values: Mapping[str, str], rest: Sequence[str]) -> None:
    """Raise UsageError for arguments that do not go together."""
    has_config = any(text.startswith("config=") for text in rest)
    if "predictions" not in values:
        if "run" not in values:
            raise UsageError(f"run= is missing: {_NAMES['run']}; or predictions=, {_NAMES['predictions']}")
        refused = [name for name in ("truth", *_ONLY_WITH_TRUTH) if name in values]
        if refused:
            raise UsageError(f"{refused[0]}= goes with predictions= and truth=; run={values['run']} has its own")
    elif "truth" in values:
        refused = [f"{name}=" for name in _ONLY_WITHOUT_TRUTH if name in values] + list(rest)
        if refused:
            raise UsageError(f"{refused[0]} does not go with truth=, which takes the place of a data set")
    else:
        refused = [name for name in _ONLY_WITH_TRUTH if name in values]
        if refused:
            raise UsageError(f"{refused[0]}= goes with truth=; a data set has its own, see data.{refused[0]}")
        if "run" not in values and not has_config:
            raise UsageError("predictions= needs a truth to hold them against: give run=, config= or truth=")
    if has_config and "run" in values:
        raise UsageError("config= and run= are both given; a run has its own configuration, leave config= out")


EVALUATE = Command(
    "evaluate",
    _evaluate,
    "score a run, or predictions of other systems, under every protocol: tables, CSV, JSON and LaTeX",
    usage="run=RUN [split=test] [protocol=...] | predictions=FOLDER (run=RUN | config=FILE | truth=FOLDER)",
    names=_NAMES,
)

"""`seqckpt predict`: the phases of new videos, by a run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from seqckpt import inference
from seqckpt.cli.command import Command, take_names
from seqckpt.cli.outputs import choose_folder
from seqckpt.errors import DataError
from seqckpt.units import format_seconds

__all__ = ["PREDICT"]

_VIDEO, _OVERWRITE = "--video", "--overwrite"
_NAMES = {
    "run": "the run: its folder, or its name in runs/",
    "input": "a video, a folder of frames, or a folder of such",
    "output": "folder for the results; default: predicted/ in the run's folder",
}


def _predict(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Predict all videos, one after the other; a damaged one does not keep the others back."""
    names, changes = take_names(arguments, _NAMES, required=("run", "input"))
    run = inference.open_run(names["run"], changes=[*inference.PREDICTION_CHANGES, *changes])
    folder = choose_folder(names, run.folder / "predicted")
    videos, unusable = inference.open_videos(run, Path(names["input"]).expanduser())
    draw = _VIDEO in flags
    inference.check_outputs(videos, folder, draw=draw, overwrite=_OVERWRITE in flags)
    for error in unusable.values():
        print(f"error: {error}", file=sys.stderr)
    failed = list(unusable)
    num_videos = len(videos) + len(unusable)
    for video in videos:
        try:
            done = inference.predict_video(run, video, folder, draw=draw)
        except DataError as error:
            if num_videos == 1:
                raise
            failed.append(video.name)
            print(f"error: {error}", file=sys.stderr)
            continue
        speed = inference.describe_speed(done.times_real_time)
        phases = "1 phase" if done.num_phases == 1 else f"{done.num_phases} phases"
        print(f"{done.name}: {phases} in {format_seconds(done.duration_seconds)}, predicted at {speed}", flush=True)
    if failed:
        raise DataError(f"{len(failed)} of {num_videos} videos could not be predicted: {', '.join(failed)}")
    print(f"results in {folder}: a table and a ribbon for each video{', and the video with both' if draw else ''}")
    return 0


PREDICT = Command(
    "predict",
    _predict,
    "predict the phases of new videos: a table, a ribbon and, if asked for, the video with both",
    {_VIDEO: "also write each video with ribbon and phase under it", _OVERWRITE: "replace results that are there"},
    usage="run=RUN input=PATH [output=FOLDER] [key=value ...]",
    names=_NAMES,
)

"""Case online: what prediction costs.

- latency: seconds of one frame, one at a time, from the picture in memory to the probabilities, resizing included;
  `frames` of them, 854 x 480 pixels.
- memory: how far resident size rises over the loaded model's while a video of `seconds` is predicted as the command
  does it (854 x 480 pixels, 25 fps, one frame sampled each second), with `draw=1` the drawn video, too.

Measured is a trained run (`run=`), or else two usual models with random weights (`encoder=`: only one of them), each
figure in a process of its own. The video and what is predicted are written into `folder` (default: a new temporary
one).
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from seqckpt import build, inference, training
from seqckpt.bench.case import Case, Settings, check_known
from seqckpt.bench.made_videos import HEIGHT, WIDTH, make_long_video
from seqckpt.bench.report import Report
from seqckpt.bench.worker import Worker
from seqckpt.config import Config
from seqckpt.memory import PeakMeter, time_step
from seqckpt.progress import progress_bar
from seqckpt.units import format_bytes, format_seconds

__all__ = ["ONLINE", "Prediction"]

_NUM_PHASES, _NUM_WARM_UPS = 7, 10
_MODELS = {  # by encoder, with pixels and LSTM: the default configuration, and that of Cholec80
    "small": ("the default configuration (small encoder, 64 px, LSTM 128)", 64, 128),
    "resnet50": ("ResNet-50 at 224 px, LSTM 512", 224, 512),
}


class Prediction:
    """A trained run, opened, or a usual model with random weights; the methods are the case's measurements.

    Raises what `open_run` raises.
    """

    def __init__(self, *, run: str, encoder: str) -> None:
        self._run = inference.open_run(run, changes=inference.PREDICTION_CHANGES) if run else _build_run(encoder)
        self._record = {
            "model": str(self._run.folder) if run else _MODELS[encoder][0],
            "device": str(self._run.device),
        }

    def latency(self, *, num_frames: int) -> dict[str, Any]:
        """Seconds of single frames, after some that warm up."""
        run, frames = self._run, np.random.default_rng(0).integers(0, 256, (8, HEIGHT, WIDTH, 3), np.uint8)
        predictor = inference.OnlinePredictor(run.model, run.phase_names, image_size=run.config.data.image_size)
        seconds = [
            time_step(partial(predictor.step, frames[k % len(frames)]), run.device)
            for k in range(_NUM_WARM_UPS + num_frames)
        ]
        return {**self._record, "seconds": seconds[_NUM_WARM_UPS:]}

    def memory(self, *, video: str, folder: str, draw: bool) -> dict[str, Any]:
        """Predict a video as the command does: bytes that the process grew by over the loaded model, and seconds."""
        meter = PeakMeter()
        meter.start()
        began = time.perf_counter()
        (opened,), _ = inference.open_videos(self._run, Path(video))
        done = inference.predict_video(self._run, opened, Path(folder), draw=draw, progress=False)
        return {
            **self._record,
            "num_frames": len(opened.frames),
            "video_seconds": done.duration_seconds,
            "prediction_seconds": done.elapsed_seconds,
            "total_seconds": time.perf_counter() - began,
            "growth_bytes": meter.read(),
            "meaning": meter.meaning.removesuffix(" in a step"),
        }


def _build_run(encoder: str) -> inference.Run:
    _, pixels, hidden_size = _MODELS[encoder]
    config = Config()
    config.data.image_size = pixels
    config.data.phase_names = [f"phase {k}" for k in range(_NUM_PHASES)]
    config.model.encoder, config.model.hidden_size = encoder, hidden_size
    config.memory.chunk_size = inference.PREDICTION_CHUNK
    model = build.build_model(config).to(build.choose_device("auto")).eval()
    return inference.Run(Path(), config, config.data.phase_names, model, Path())


def _prepare_latency(folder: Path, settings: Settings, number: int) -> dict[str, Any]:
    return {"num_frames": settings["frames"]}


def _show_latency(records: list[dict[str, Any]], report: Report) -> None:
    rows = []
    for record in records:
        middle, high = np.percentile(np.array(record["seconds"]) * 1000, [50, 95])
        rows.append([record["model"], record["device"], f"{middle:.2f} ms", f"{high:.2f} ms"])
    title = f"latency: one frame of {WIDTH} x {HEIGHT} at a time, over {len(records[0]['seconds'])} frames"
    report.add_table(title, ["model", "device", "median", "95 % are below"], rows)


def _prepare_memory(folder: Path, settings: Settings, number: int) -> dict[str, Any]:
    video = make_long_video(folder, seconds=settings["seconds"])
    return {"video": str(video), "folder": str(folder / f"predicted-{number}"), "draw": bool(settings["draw"])}


def _show_memory(records: list[dict[str, Any]], report: Report) -> None:
    rows = []
    for record in records:
        speed = inference.describe_speed(record["video_seconds"] / record["prediction_seconds"])
        growth = "" if record["growth_bytes"] is None else format_bytes(record["growth_bytes"])
        cells = [f"{record['num_frames']:,}", format_seconds(record["video_seconds"]), speed, growth]
        rows.append([record["model"], record["device"], *cells])
    heads = ["model", "device", "frames", "of a video of", "predicted at", "over the loaded model"]
    report.add_table(f"memory: {records[0]['meaning']} while a video is predicted", heads, rows)


_Records = list[dict[str, Any]]
_Prepare = Callable[[Path, Settings, int], dict[str, Any]]  # the number is the model's; returns the method's arguments
_MEASUREMENTS: dict[str, tuple[_Prepare, Callable[[_Records, Report], None]]] = {
    "latency": (_prepare_latency, _show_latency),
    "memory": (_prepare_memory, _show_memory),
}


def run_online(settings: Settings, report: Report) -> None:
    """Make the measurements named, of each model in turn."""
    run, encoder = settings["run"], settings["encoder"]
    models = [""] if run else [encoder] if encoder else list(_MODELS)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(settings["folder"] or temporary)
        place.mkdir(parents=True, exist_ok=True)
        with progress_bar(total=len(settings["what"]) * len(models), desc="online", unit="measurement") as bar:
            for what in settings["what"]:
                prepare, show = _MEASUREMENTS[what]
                records = []
                for number, model in enumerate(models):
                    arguments = prepare(place, settings, number)
                    with Worker(Prediction, run=run, encoder=model) as worker:
                        records.append({"what": what, **worker.ask(what, **arguments)})
                    bar.update()
                report.records += records
                show(records, report)


def _check(settings: Settings) -> None:
    check_known("what", settings["what"], _MEASUREMENTS)
    check_known("encoder", [settings["encoder"]] if settings["encoder"] else [], _MODELS)
    if settings["run"]:
        training.find_run(settings["run"])


ONLINE = Case(
    "online",
    "what prediction costs: the time of one frame online, and the memory that a long video takes",
    run_online,
    settings={
        "what": tuple(_MEASUREMENTS),
        "run": "",
        "encoder": "",
        "folder": "",
        "frames": 200,
        "seconds": 7200,
        "draw": 0,
    },
    quick={"what": ("latency",), "encoder": "small", "frames": 50},
    least={"draw": 0},
    most={"draw": 1},
    check=_check,
)

"""What prediction costs: the time of one frame online, and the memory that a long video takes.

    python -m seqckpt bench online what=latency    milliseconds a frame, one frame at a time
    python -m seqckpt bench online what=memory    how far resident size rises over the model's while one is predicted

`latency` is what is measured where no case is named. Options: run=RUN (a trained run in place of two usual models with
random weights, small and resnet50; encoder=small: only that one), frames=200 (latency), seconds=7200 (memory: of a
video of 854 x 480 pixels, 25 frames a second, one sampled each second), draw=1 (memory: the drawn video, too),
folder=PATH for the files (default: a new temporary one).
"""

from __future__ import annotations

import platform
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from seqckpt import build, inference
from seqckpt.bench.case import case_that_prints
from seqckpt.bench.made_videos import HEIGHT, WIDTH, make_long_video
from seqckpt.config import Config
from seqckpt.errors import UsageError
from seqckpt.memory import PeakMeter
from seqckpt.units import format_bytes, format_seconds

__all__ = ["ONLINE", "main"]

_NUM_PHASES = 7
_MODELS = {  # encoder, pixels, LSTM: the default configuration, and that of Cholec80
    "the default configuration (small encoder, 64 px, LSTM 128)": ("small", 64, 128),
    "ResNet-50 at 224 px, LSTM 512": ("resnet50", 224, 512),
}


def measure_latency(runs: Iterator[tuple[str, inference.Run]], settings: dict[str, int], folder: Path) -> None:
    """Time single frames of 480p from the picture in memory to the probabilities, resizing included."""
    frames = np.random.default_rng(0).integers(0, 256, (8, HEIGHT, WIDTH, 3), np.uint8)
    for name, run in runs:
        predictor = inference.OnlinePredictor(run.model, run.phase_names, image_size=run.config.data.image_size)
        seconds = []
        for k in range(settings["frames"] + 10):
            started = time.perf_counter()
            predictor.step(frames[k % len(frames)])  # its result is on the CPU: nothing is still being computed
            seconds.append(time.perf_counter() - started)
        middle, high = np.percentile(np.array(seconds[10:]) * 1000, [50, 95])  # the first ten warm up
        print(
            f"{name}: {middle:.2f} ms a frame (median), {high:.2f} ms (95 % are below), over {settings['frames']} "
            f"frames of {WIDTH} x {HEIGHT} on {_describe_machine(run.device)}",
            flush=True,
        )


def measure_memory(runs: Iterator[tuple[str, inference.Run]], settings: dict[str, int], folder: Path) -> None:
    """Predict a long video as the command does, and say by how much the process grew over the loaded model."""
    path = make_long_video(folder, seconds=settings["seconds"])
    for number, (name, run) in enumerate(runs):
        meter = PeakMeter()
        meter.start()
        (video,), _ = inference.open_videos(run, path)
        done = inference.predict_video(run, video, folder / f"predicted-{number}", draw=bool(settings["draw"]))
        print(
            f"{name}: {len(video.frames)} frames of a video of {format_seconds(done.duration_seconds)} predicted at "
            f"{inference.describe_speed(done.times_real_time)}: {format_bytes(meter.read() or 0)} over the model "
            f"({meter.meaning.removesuffix(' in a step')}) on {_describe_machine(run.device)}",
            flush=True,
        )


def _open_runs(name: str | None, only: str | None) -> Iterator[tuple[str, inference.Run]]:
    """Yield what is to be measured: a run, or usual models with random weights."""
    if name is not None:
        run = inference.open_run(name, changes=inference.PREDICTION_CHANGES)
        yield str(run.folder), run
        return
    for title, (encoder, pixels, hidden_size) in _MODELS.items():
        if only not in (None, encoder):
            continue
        config = Config()
        config.data.image_size = pixels
        config.data.phase_names = [f"phase {k}" for k in range(_NUM_PHASES)]
        config.model.encoder, config.model.hidden_size = encoder, hidden_size
        config.memory.chunk_size = inference.PREDICTION_CHUNK
        model = build.build_model(config).to(build.choose_device("auto")).eval()
        yield title, inference.Run(Path(), config, config.data.phase_names, model, Path())


def _describe_machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"a CPU ({platform.machine()}, {threads} thread{'s' if threads > 1 else ''})"


_MEASUREMENTS = {"latency": measure_latency, "memory": measure_memory}
_SETTINGS = {"frames": 200, "seconds": 7200, "draw": 0}


def main(arguments: Sequence[str]) -> int:
    """Make one of the measurements and print it."""
    given = dict(text.split("=", 1) for text in arguments if "=" in text)
    folder, run, encoder = (given.pop(name, None) for name in ("folder", "run", "encoder"))
    cases = [text for text in arguments if "=" not in text] or ["latency"]
    is_known = given.keys() <= _SETTINGS.keys() and all(value.isdecimal() for value in given.values())
    is_known &= encoder in (None, *(encoder for encoder, *_ in _MODELS.values()))
    if len(cases) > 1 or cases[0] not in _MEASUREMENTS or not is_known:
        print(f"error: got {' '.join(arguments)!r}; expected one of {', '.join(_MEASUREMENTS)}, then options such as")
        print("  run=RUN encoder=small folder=PATH " + " ".join(f"{name}={value}" for name, value in _SETTINGS.items()))
        return 2
    settings = {**_SETTINGS, **{name: int(value) for name, value in given.items()}}
    print(f"torch {torch.__version__}", flush=True)
    try:
        with tempfile.TemporaryDirectory() as temporary:
            place = Path(folder or temporary)
            place.mkdir(parents=True, exist_ok=True)
            _MEASUREMENTS[cases[0]](_open_runs(run, encoder), settings, place)
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


ONLINE = case_that_prints(
    "online",
    "what prediction costs: the time of one frame online, and the memory that a long video takes",
    main,
    settings={"what": tuple(_MEASUREMENTS), "run": "", "encoder": "", "folder": "", **_SETTINGS},
    quick={"what": ("latency",), "encoder": "small", "frames": 50},
)

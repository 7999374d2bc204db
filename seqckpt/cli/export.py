"""`seqckpt export`: a run's model as one file for other programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqckpt import inference
from seqckpt.cli.command import Command, take_names
from seqckpt.cli.outputs import check_folder
from seqckpt.errors import UsageError
from seqckpt.units import format_bytes

__all__ = ["EXPORT"]

_OVERWRITE = "--overwrite"
_NAMES = {
    "run": "the run: its folder, or its name in runs/",
    "format": "onnx (the default) or torch (a program of torch.export)",
    "output": "the file; default: model.onnx or model.pt2 in the run's folder",
}
_SUFFIXES = {"onnx": ".onnx", "torch": ".pt2"}


def _export(arguments: Sequence[str], flags: frozenset[str]) -> int:
    """Write one time step of the model, and say how far ONNX Runtime's results are from torch's."""
    names, changes = take_names(arguments, _NAMES, required=("run",))
    kind = names.get("format", "onnx")
    if kind not in _SUFFIXES:
        raise UsageError(f"format={kind}: expected {' or '.join(_SUFFIXES)}")
    run = inference.open_run(names["run"], changes=changes)
    path = Path(names["output"]).expanduser() if "output" in names else run.folder / f"model{_SUFFIXES[kind]}"
    if path.is_dir() or (path.exists() and _OVERWRITE not in flags):
        raise UsageError(f"output={path} exists already: name another file, or give --overwrite to replace a file")
    check_folder(path.parent)
    data = run.config.data
    size = data.image_size, data.image_size
    step = inference.OneStep(run.model)
    metadata = inference.describe_step(run.phase_names, image_size=size, fps=data.fps)
    write = inference.export_onnx if kind == "onnx" else inference.export_torch
    write(step, path, image_size=size, metadata=metadata)
    print(
        f"{path} ({format_bytes(path.stat().st_size)}): {', '.join(step.input_names())} -> "
        f"{', '.join(step.output_names())}"
    )
    if kind == "onnx":
        difference = inference.largest_difference(step, path, image_size=size)
        print(f"ONNX Runtime's probabilities differ from torch's by at most {difference:.1g} over 20 frames of noise")
    return 0


EXPORT = Command(
    "export",
    _export,
    "write a run's model as one file for other programs: a time step, with the state as input and output",
    {_OVERWRITE: "replace a file that is there"},
    usage="run=RUN [format=onnx|torch] [output=FILE] [key=value ...]",
    names=_NAMES,
)

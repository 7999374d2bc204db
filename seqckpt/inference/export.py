"""A trained model as a file that needs no training code: one time step, the recurrent state as its input and output.

    frame uint8 (1, 3, H, W), hidden (layers, 1, size)[, cell]  ->  probabilities (1, K), next_hidden[, next_cell]

One step and not a whole sequence: torch's exporters fix the length of an LSTM's or GRU's loop, and who runs such a file
has one frame at a time anyway. The state of a first frame is all zero. Normalisation is inside; resizing is not.
"""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from seqckpt.atomic import new_file
from seqckpt.errors import UsageError
from seqckpt.inference.online import check_causal
from seqckpt.models import NoRecurrence, VideoModel

__all__ = ["OneStep", "describe_step", "export_onnx", "export_torch", "largest_difference"]

_STATES: dict[type[nn.Module], tuple[str, ...]] = {
    nn.LSTM: ("hidden", "cell"),
    nn.GRU: ("hidden",),
    nn.RNN: ("hidden",),
    NoRecurrence: (),
}
_METADATA = "metadata.json"


class OneStep(nn.Module):
    """A VideoModel's step from one frame to the next, on the CPU: `step(frame, *state) -> (probabilities, *state)`.

    A copy of the model's parts in eval mode. Raises UsageError for a network over time that has no such step: a
    bidirectional one, or one of another kind than nn.LSTM, nn.GRU and nn.RNN.
    """

    def __init__(self, model: VideoModel) -> None:
        super().__init__()
        check_causal(model)
        if type(model.core) not in _STATES:
            raise UsageError(
                f"a {type(model.core).__name__} cannot be exported: nothing says what its state is; expected nn.LSTM, "
                "nn.GRU or nn.RNN"
            )
        self.state_names = _STATES[type(model.core)]
        with torch.no_grad():
            copied = copy.deepcopy(model).cpu().eval()
        self.encoder = copied.encoder.get_submodule("encoder")  # without what drives it in chunks
        self.transform: Callable[[Tensor], Tensor] | None = getattr(copied.encoder, "transform", None)
        self.core = copied.core
        self.decoder = copied.head.get_submodule("decoder")

    def forward(self, frame: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """Return the probabilities (1, K) at a frame (1, 3, H, W), and the state for the next one."""
        rows = frame if self.transform is None else self.transform(frame)
        features = self.encoder(rows).unsqueeze(1)
        given = state if len(state) > 1 else (state[0] if state else None)
        hidden, after = self.core(features, given)
        probabilities = self.decoder(hidden[:, 0]).float().softmax(dim=-1)
        return (probabilities, *(after if isinstance(after, tuple) else [after] if state else []))

    def first_state(self) -> list[Tensor]:
        """Return the state before the first frame, zeros."""
        if not isinstance(self.core, nn.RNNBase):
            return []
        core = self.core
        sizes = (core.proj_size or core.hidden_size, core.hidden_size)
        like = next(core.parameters())
        return [like.new_zeros(core.num_layers, 1, size) for size, _ in zip(sizes, self.state_names, strict=False)]

    def input_names(self) -> list[str]:
        return ["frame", *self.state_names]

    def output_names(self) -> list[str]:
        return ["probabilities", *(f"next_{name}" for name in self.state_names)]


def describe_step(phase_names: Sequence[str], *, image_size: tuple[int, int], fps: float) -> dict[str, str]:
    """Return what a file says of itself: texts, lists as JSON."""
    return {
        "phase_names": json.dumps(list(phase_names), ensure_ascii=False),
        "image_size": json.dumps(list(image_size)),
        "fps": str(fps),
        "frame": "RGB, uint8, resized to image_size (height, width) by averaging areas, fps frames a second",
        "state": "zeros before the first frame; each next_ output is the input of the following frame",
    }


def export_torch(step: OneStep, path: Path, *, image_size: tuple[int, int], metadata: Mapping[str, str]) -> None:
    """Write a step as torch.export's program, whole or not at all; `metadata` as JSON beside it in the file.

    `torch.export.load(path, extra_files={"metadata.json": ""})` reads both; `.module()` of what it returns is called as
    the step is.
    """
    program = _trace(step, image_size)
    with new_file(path) as file:
        torch.export.save(program, file, extra_files={_METADATA: json.dumps(dict(metadata), ensure_ascii=False)})


def export_onnx(step: OneStep, path: Path, *, image_size: tuple[int, int], metadata: Mapping[str, str]) -> None:
    """Write a step as ONNX in one file, whole or not at all; `metadata` becomes the model's own (`metadata_props`).

    Raises UsageError where the extra `onnx` is not installed, and for an LSTM with projections.
    """
    try:
        import onnx
        import onnxscript  # noqa: F401 - torch's exporter needs it
    except ImportError as error:
        raise UsageError(f"ONNX files need more packages ({error.name}): pip install 'seqckpt[onnx]'") from error
    if getattr(step.core, "proj_size", 0):
        raise UsageError(f"ONNX knows no LSTM with a projection (proj_size={step.core.proj_size}); use format=torch")
    program = _trace(step, image_size)
    with _without_a_false_alarm():
        exported = torch.onnx.export(
            program, dynamo=True, input_names=step.input_names(), output_names=step.output_names(), verbose=False
        )
    assert exported is not None
    proto = exported.model_proto
    onnx.helper.set_model_props(proto, dict(metadata))
    with new_file(path) as file:
        file.write(proto.SerializeToString())


def largest_difference(step: OneStep, path: Path, *, image_size: tuple[int, int], num_frames: int = 20) -> float:
    """Run an ONNX file with ONNX Runtime beside the step, on frames of noise; return how far probabilities differ."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    frames = torch.randint(256, (num_frames, 1, 3, *image_size), dtype=torch.uint8)
    state = step.first_state()
    other = [tensor.numpy() for tensor in state]
    largest = 0.0
    for frame in frames:
        with torch.no_grad():
            expected, *state = step(frame, *state)
        found, *other = session.run(None, dict(zip(step.input_names(), [frame.numpy(), *other], strict=True)))
        largest = max(largest, float(abs(expected - torch.from_numpy(found)).max()))
    return largest


def _trace(step: OneStep, image_size: tuple[int, int]) -> torch.export.ExportedProgram:
    frame = torch.zeros(1, 3, *image_size, dtype=torch.uint8)
    with torch.no_grad(), _without_a_false_alarm():
        return torch.export.export(step, (frame, *step.first_state()))


@contextmanager
def _without_a_false_alarm() -> Iterator[None]:
    """Leave out torch's warning of a list that its recurrent networks keep of their own weights."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"The tensor attributes? .*_flat_weights")
        yield

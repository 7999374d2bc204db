"""`seqckpt export`: another program that reads the file gives the phases that torch gives."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from seqckpt.cli import main
from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import stream_video
from seqckpt.errors import UsageError
from seqckpt.inference import OneStep, describe_step, export_onnx, export_torch, largest_difference, open_run
from seqckpt.models import (
    FrameTransform,
    NoRecurrence,
    PerFrame,
    PlainLoss,
    SmallEncoder,
    VideoModel,
    apply_batch_norm_policy,
    build_encoder,
)
from seqckpt.training import predict_windows

SIZE, NAMES = 32, ["préparation", "dissection", "closing"]
CORES = {
    "lstm of 2 layers": lambda: nn.LSTM(8, 12, 2, batch_first=True, dropout=0.5),
    "gru": lambda: nn.GRU(8, 12, batch_first=True),
    "rnn of 2 layers": lambda: nn.RNN(8, 12, 2, batch_first=True),
    "none": NoRecurrence,
}


@pytest.fixture
def onnx_runtime() -> object:
    pytest.importorskip("onnxscript", reason="the extra onnx is not installed")
    return pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")


def make_model(kind: str) -> VideoModel:
    torch.manual_seed(3)
    core = CORES[kind]()
    rnn = core if kind == "none" else SegmentedRNN(core, 5)
    head = SegmentedLoss(nn.Linear(8 if kind == "none" else 12, len(NAMES)), nn.CrossEntropyLoss(), 5)
    for parameter in (*core.parameters(), *head.parameters()):
        nn.init.uniform_(parameter, -1, 1)
    encoder = ChunkedEncoder(SmallEncoder(8, width=4), 7, transform=FrameTransform())
    return VideoModel(encoder, rnn, head).eval()


def run_onnx(session, frames: torch.Tensor) -> np.ndarray:
    """Carry the state from frame to frame as README says, by the names and shapes in the file alone."""
    state = {entry.name: np.zeros(entry.shape, np.float32) for entry in session.get_inputs()[1:]}
    rows = []
    for frame in frames:
        probabilities, *after = session.run(None, {"frame": frame[None].numpy(), **state})
        names = [output.name.removeprefix("next_") for output in session.get_outputs()[1:]]
        state = dict(zip(names, after, strict=True))
        rows.append(probabilities[0])
    return np.stack(rows)


def test_onnx_gives_the_probabilities_of_a_sample_video(
    run: Path, sample: Path, tmp_path: Path, onnx_runtime, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    assert main(["export", f"run={run}", f"output={path}"]) == 0
    assert "frame, hidden, cell -> probabilities, next_hidden, next_cell" in capsys.readouterr().out
    session = onnx_runtime.InferenceSession(path)
    metadata = session.get_modelmeta().custom_metadata_map
    opened = open_run(run)
    size = json.loads(metadata["image_size"])
    assert size == [opened.config.data.image_size] * 2
    assert json.loads(metadata["phase_names"]) == opened.phase_names
    video = stream_video(sample / "videos" / "video04.mp4", fps=float(metadata["fps"]), image_size=tuple(size))
    (offline,) = predict_windows(opened.model, video.frames, window=len(video.frames))
    found = run_onnx(session, video.frames[0 : len(video.frames)])
    np.testing.assert_allclose(found, offline, atol=1e-4)
    assert np.array_equal(found.argmax(axis=1), offline.argmax(axis=1))


@pytest.mark.parametrize("kind", CORES)
def test_onnx_of_every_network_over_time(kind: str, tmp_path: Path, onnx_runtime) -> None:
    model, path = make_model(kind), tmp_path / "model.onnx"
    frames = (torch.rand(40, 3, 1, 1) * torch.rand(40, 3, SIZE, SIZE) * 255).to(torch.uint8)
    export_onnx(OneStep(model), path, image_size=(SIZE, SIZE), metadata=describe(NAMES))
    session = onnx_runtime.InferenceSession(path)
    (offline,) = predict_windows(model, frames, window=len(frames))
    assert np.ptp(offline, axis=0).max() > 0.1
    np.testing.assert_allclose(run_onnx(session, frames), offline, atol=1e-4)
    assert json.loads(session.get_modelmeta().custom_metadata_map["phase_names"]) == NAMES
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]  # weights inside


def test_onnx_of_a_usual_encoder(tmp_path: Path, onnx_runtime) -> None:
    encoder = build_encoder("resnet18")
    apply_batch_norm_policy(encoder, "frozen")
    model = VideoModel(
        PerFrame(encoder, transform=FrameTransform()),
        nn.GRU(encoder.num_features, 12, batch_first=True),
        PlainLoss(nn.Linear(12, 3), nn.CrossEntropyLoss()),
    )
    step, path = OneStep(model.eval()), tmp_path / "model.onnx"
    export_onnx(step, path, image_size=(48, SIZE), metadata=describe(NAMES))
    assert largest_difference(step, path, image_size=(48, SIZE), num_frames=5) < 1e-4


@pytest.mark.parametrize("kind", ["lstm of 2 layers", "none"])
def test_torch_export_is_the_same_step(kind: str, tmp_path: Path) -> None:
    model, path = make_model(kind), tmp_path / "model.pt2"
    frames = torch.randint(256, (10, 3, SIZE, SIZE), dtype=torch.uint8)
    step = OneStep(model)
    export_torch(step, path, image_size=(SIZE, SIZE), metadata=describe(NAMES))
    files = {"metadata.json": ""}
    loaded = torch.export.load(path, extra_files=files).module()
    assert json.loads(json.loads(files["metadata.json"])["phase_names"]) == NAMES
    state, rows = step.first_state(), []
    for frame in frames:
        probabilities, *state = loaded(frame[None], *state)
        rows.append(probabilities[0].detach().numpy())
    (offline,) = predict_windows(model, frames, window=len(frames))
    np.testing.assert_allclose(np.stack(rows), offline, rtol=0, atol=1e-5)  # rounding: kernels for one frame


def describe(names: list[str]) -> dict[str, str]:
    return describe_step(names, image_size=(SIZE, SIZE), fps=1.0)


def test_what_has_no_step_is_refused_by_name() -> None:
    model = make_model("gru")
    model.rnn = SegmentedRNN(nn.GRU(8, 6, batch_first=True, bidirectional=True), 5)
    with pytest.raises(UsageError, match=r"GRU \(core\) is bidirectional"):
        OneStep(model)
    model.rnn = nn.Identity()
    with pytest.raises(UsageError, match=r"a Identity cannot be exported: .* expected nn.LSTM, nn.GRU or nn.RNN"):
        OneStep(model)


def test_onnx_has_no_projections(tmp_path: Path) -> None:
    model = make_model("gru")
    model.rnn = nn.LSTM(8, 16, batch_first=True, proj_size=12)
    step = OneStep(model)
    assert [tuple(part.shape) for part in step.first_state()] == [(1, 1, 12), (1, 1, 16)]
    with pytest.raises(UsageError, match=r"no LSTM with a projection \(proj_size=12\); use format=torch"):
        export_onnx(step, tmp_path / "model.onnx", image_size=(SIZE, SIZE), metadata={})


def test_mistakes_are_one_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    there = tmp_path / "there.onnx"
    there.write_text("kept")
    for arguments, message in {
        (): "error: run= is missing",
        (f"run={run}", "format=tflite"): "error: format=tflite: expected onnx or torch",
        (f"run={run}", f"output={there}"): "there.onnx exists already: name another file, or give --overwrite",
        (f"run={run}", f"output={tmp_path}", "--overwrite"): "exists already: name another file",
    }.items():
        assert main(["export", *arguments]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert "Traceback" not in error
    assert there.read_text() == "kept"


def test_without_the_extra_it_says_what_to_install(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    assert main(["export", f"run={run}", f"output={tmp_path / 'model.onnx'}"]) == 2
    assert "pip install 'seqckpt[onnx]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []

"""Mixed precision through chunks and segments: all gradients there and near those of float32, and a saved scale."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from test_trainer import VIDEOS, make_model, make_trainer, whole

from seqckpt.data import cut_clips
from seqckpt.models import VideoModel
from seqckpt.training import Precision, load_last
from seqckpt.training.step import Stepper

CPU = torch.device("cpu")


def gradients(name: str, model: VideoModel) -> dict[str, torch.Tensor]:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    found: dict[str, torch.Tensor] = {}
    optimiser.register_step_pre_hook(
        lambda *unused: found.update({key: p.grad.clone() for key, p in model.named_parameters()})
    )
    batch = [cut_clips(VIDEOS, None)]
    Stepper(model, optimiser, Precision(name, CPU)).run(whole(batch), iter(batch), "in step 1")
    return found


def cosine(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    flat = (torch.cat([gradient.flatten() for gradient in each.values()]) for each in (one, other))
    return float(torch.cosine_similarity(*flat, dim=0))


@pytest.mark.parametrize(("name", "least"), [("bf16", 0.99), ("fp16", 0.999)])  # 8 and 11 bits
def test_every_gradient_is_near_that_of_float32(name: str, least: float) -> None:
    """Cases 51, 53: casts that are cached in a first pass without gradients cost no weight its gradient."""
    exact = gradients("float32", make_model())
    plain = gradients(name, make_model(checkpointed=False))
    got = gradients(name, make_model())
    assert got.keys() == exact.keys()
    for key, gradient in exact.items():
        assert got[key].dtype == torch.float32
        assert torch.cosine_similarity(got[key].flatten(), gradient.flatten(), dim=0) > 0.95, key
    assert cosine(got, exact) > least
    assert cosine(got, plain) > 0.9998  # the same casts; kernels round differently by size


def test_frames_reach_the_network_in_half_precision_and_the_loss_does_not() -> None:
    seen: dict[str, torch.dtype] = {}
    model = make_model()
    convolution = next(m for m in model.modules() if isinstance(m, torch.nn.Conv2d))
    convolution.register_forward_hook(lambda module, args, output: seen.update(features=output.dtype))
    model.register_forward_hook(lambda module, args, output: seen.update(loss=output[0].dtype))
    gradients("bf16", model)
    assert seen == {"features": torch.bfloat16, "loss": torch.float32}


def test_float32_is_plain(tmp_path: Path) -> None:
    precision = Precision("float32", CPU)
    with precision.autocast():
        assert not torch.is_autocast_enabled("cpu")
    assert not precision.skips_overflow
    assert precision.state_dict() == {}


def test_the_scale_outlasts_a_stop(tmp_path: Path) -> None:
    """Case 70: a grown scale and its tracker are found again; a snapshot without one goes on in fp16 all the same."""
    trainer = make_trainer(tmp_path, precision="fp16")
    trainer.precision.scaler.set_growth_interval(2)
    batch = [cut_clips(VIDEOS[:1], None)]
    for _ in range(3):
        trainer.stepper.run(whole(batch), iter(batch), "in a step")
    assert trainer.precision.scaler.get_scale() == 2.0**17
    trainer.save()
    again = make_trainer(tmp_path, precision="fp16")
    again.load(load_last(tmp_path), tmp_path / "last.pt")
    again.stepper.run(whole(batch), iter(batch), "in a step")  # the scaler takes its state up with its first loss
    assert again.precision.scaler.get_scale() == 2.0**18  # at 2**17, one step short of the next doubling

    plain = make_trainer(tmp_path)
    plain.save()
    again = make_trainer(tmp_path, precision="fp16")
    again.load(load_last(tmp_path), tmp_path / "last.pt")
    assert not again.stepper.run(whole(batch), iter(batch), "in a step").skipped

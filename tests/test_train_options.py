"""Options of `train`, each through the whole command: that it does what it says, and not only that it runs."""

from __future__ import annotations

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_train import arguments, losses

from seqckpt import build
from seqckpt.cli import main
from seqckpt.config import read_config
from seqckpt.training import load_snapshot


@pytest.fixture(autouse=True)
def in_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def train(sample: Path, name: str, *more: str) -> Path:
    assert main(arguments(sample, f"run={name}", "train.epochs=2", *more)) == 0
    return Path("runs") / name


def first_weights(run: Path) -> dict[str, torch.Tensor]:
    return build.build_model(read_config((run / "config.yaml").read_text())).state_dict()


def last_weights(run: Path) -> dict[str, torch.Tensor]:
    return load_snapshot(run / "last.pt")["model"]


def test_carried_state_sees_what_lies_before_the_clip(sample: Path) -> None:
    """With one frame a clip, a network without carried state sees that frame alone."""
    more = ("data.clip_length=30", "train.batch_size=2", "data.order=sequential")
    carried = losses(train(sample, "carried", *more, "train.bptt=carry"))
    alone = losses(train(sample, "alone", *more))
    assert len(carried) == len(alone) == 6
    assert carried[0] == alone[0]  # videos begin
    assert carried[1] != alone[1]


def test_truncation_changes_the_training_and_not_the_first_loss(sample: Path) -> None:
    cut = losses(train(sample, "cut", "train.bptt=truncated", "train.truncate=7"))
    whole = losses(train(sample, "whole"))
    assert cut[0] == pytest.approx(whole[0], rel=1e-5)
    assert cut[3] != pytest.approx(whole[3], rel=1e-5)


@pytest.mark.parametrize("stage", ["all", "stem"])
def test_frozen_stages_keep_their_weights(sample: Path, stage: str) -> None:
    run = train(sample, "frozen", f"model.frozen_until={stage}")
    first, last = first_weights(run), last_weights(run)
    changed = {key for key, value in first.items() if not torch.equal(value, last[key])}
    frozen = {key for key in first if key.startswith("encoder." if stage == "all" else "encoder.stem.")}
    assert frozen
    assert not changed & frozen
    assert changed
    if stage == "stem":
        assert any(key.startswith("encoder.") for key in changed)


def test_two_batches_a_step_train_as_one_of_twice_the_size(sample: Path) -> None:
    two = losses(train(sample, "two", "train.accumulate=2"))
    one = losses(train(sample, "one", "train.batch_size=2"))
    assert len(two) == 4
    assert two == pytest.approx(one, rel=1e-4)  # float32: kernels round differently by size


@pytest.mark.parametrize("option", ["train.channels_last=true", "train.deterministic=true", "train.save_minutes=null"])
def test_what_is_no_matter_of_results_changes_none(sample: Path, option: str) -> None:
    got, expected = losses(train(sample, "with", option)), losses(train(sample, "without"))
    assert got == pytest.approx(expected, rel=1e-4)  # float32: another memory format rounds differently


def test_bf16_learns_as_float32_does(sample: Path) -> None:
    got, expected = losses(train(sample, "bf16", "train.precision=bf16")), losses(train(sample, "float32"))
    assert got == pytest.approx(expected, rel=2e-2)
    assert got != expected


def test_parts_learn_at_their_own_rates(sample: Path) -> None:
    run = train(sample, "slow", "train.lr_factor.encoder=1e-9", "train.optimiser=sgd", "train.schedule=constant")
    first, last = first_weights(run), last_weights(run)
    assert all(torch.allclose(first[key], last[key], atol=1e-7) for key in first if key.startswith("encoder."))
    assert not torch.allclose(first["head.decoder.weight"], last["head.decoder.weight"], atol=1e-5)
    with open(run / "steps.csv", newline="") as file:
        assert {float(row["lr"]) for row in csv.DictReader(file)} == {2e-3}


def test_an_average_of_weights_is_what_best_pt_holds(sample: Path) -> None:
    run = train(sample, "average", "train.ema=0.5")
    state = load_snapshot(run / "best.pt")
    assert not torch.equal(state["model"]["head.decoder.weight"], state["trained_model"]["head.decoder.weight"])


def test_fused_layers_learn_as_others_do_and_are_taken_where_they_can_be(
    sample: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resnet = ("model.encoder=resnet18", "data.clip_length=20", "memory.chunk_size=7", "data.split.train=[1]")
    fused = losses(train(sample, "fused", *resnet))
    assert "layers fused" in capsys.readouterr().out
    as_they_are = losses(train(sample, "not", *resnet, "memory.fuse=false"))
    assert "layers fused" not in capsys.readouterr().out
    assert fused == pytest.approx(as_they_are, rel=1e-3)  # float32, eight steps of AdamW
    assert fused != as_they_are
    assert main(arguments(sample, "memory.fuse=true")) == 2
    assert "memory.fuse=true: fuse=True, but no convolution" in capsys.readouterr().err
    train(sample, "small")
    assert "layers fused" not in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler on the CPU")
@pytest.mark.filterwarnings("default")  # torch.compile's own
def test_a_compiled_encoder_learns_as_the_plain_one_does(sample: Path) -> None:
    run = train(sample, "compiled", "train.compile=true")
    assert losses(run) == pytest.approx(losses(train(sample, "plain")), rel=1e-3)
    assert last_weights(run).keys() == first_weights(run).keys()


def test_a_compiled_encoder_is_called_and_keeps_the_names_of_its_weights(
    sample: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the compiler replaced by one that counts, since a real one takes a minute."""
    calls: list[int] = []

    def compile_nothing(function: Any, **options: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            calls.append(1)
            return function(*args, **named)

        return call

    monkeypatch.setattr(torch, "compile", compile_nothing)
    run = train(sample, "compiled", "train.compile=true")
    assert calls
    assert last_weights(run).keys() == first_weights(run).keys()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("train.bptt=truncated",), "train.bptt=truncated, train.truncate=null: expected both"),
        (("train.truncate=5",), "train.bptt=full, train.truncate=5: expected both"),
        (("train.bptt=carry", "data.order=shuffled"), "train.bptt=carry, data.order=shuffled"),
        (("train.bptt=carry", "model.rnn=none"), "train.bptt=carry, model.rnn=none"),
        (("model.frozen_until=layer9",), "model.frozen_until=layer9: the encoder has no stage 'layer9'"),
        (("train.precision=fp8",), "train.precision=fp8"),
    ],
)
def test_what_cannot_be_is_one_message(
    sample: Path, more: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments(sample, *more)) == 2
    shown = capsys.readouterr().err
    assert words in shown
    assert not Path("runs").exists()

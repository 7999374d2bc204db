"""Opening a run again: the model that trained, its weights, and what is said where there is none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from seqckpt.cli import main
from seqckpt.errors import ConfigError, SnapshotError, UsageError
from seqckpt.inference import open_run
from seqckpt.training import find_run, load_snapshot


def test_a_run_opens_with_its_best_weights(run: Path) -> None:
    opened = open_run(run)
    assert opened.snapshot == run / "best.pt"
    assert not opened.model.training
    assert opened.phase_names == load_snapshot(run / "best.pt")["phase_names"]
    for key, value in load_snapshot(run / "best.pt")["model"].items():
        assert torch.equal(opened.model.state_dict()[key], value)


def test_a_run_is_found_by_name_or_folder(run: Path) -> None:
    assert find_run(run.name, parent=run.parent) == run
    assert find_run(str(run)) == run
    with pytest.raises(UsageError, match=r"no such run.*did you mean trained\?"):
        find_run("traimed", parent=run.parent)
    with pytest.raises(UsageError, match=r"holds no config.yaml"):
        find_run(run / "predictions")


def test_a_run_opens_where_the_file_of_its_first_weights_is_gone(run: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(run, tmp_path / "moved")
    text = (moved / "config.yaml").read_text().replace("weights: null", "weights: /nowhere/weights.pt")
    (moved / "config.yaml").write_text(text)
    assert open_run(moved).model is not None


def test_changes_are_read_as_on_the_command_line(run: Path) -> None:
    assert open_run(run, changes=["data.tail=strict"]).config.data.tail == "strict"
    with pytest.raises(ConfigError, match=r"data\.tial \(command line\): unknown key; did you mean data\.tail\?"):
        open_run(run, changes=["data.tial=strict"])


def test_weights_of_another_model_are_refused_by_name(run: Path) -> None:
    with pytest.raises(SnapshotError, match=r"another model: of another shape: rnn\.weight_ih_l0 \(\d+, \d+\), here"):
        open_run(run, changes=["model.hidden_size=3"])
    with pytest.raises(SnapshotError, match=r"not in the snapshot: rnn.weight_ih_l1"):
        open_run(run, changes=["model.num_layers=2"])


def test_a_run_without_a_snapshot_says_so(run: Path, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text((run / "config.yaml").read_text())
    with pytest.raises(SnapshotError, match=r"neither best\.pt nor last\.pt: no epoch"):
        open_run(tmp_path)


def test_the_command_that_trained_it_succeeded(run: Path) -> None:
    assert sorted(path.name for path in (run / "predictions").iterdir()) == ["video04.csv"]
    assert main(["train", "--help"]) == 0

"""Opening a finished run: its configuration, its phases, and its model with the weights of the best epoch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from seqckpt import build, training
from seqckpt.config import Config, load_config
from seqckpt.errors import SnapshotError
from seqckpt.models import VideoModel

__all__ = ["Run", "open_run"]

_SNAPSHOTS = ("best.pt", "last.pt")  # the best epoch, or the last where none could be validated


@dataclass(frozen=True)
class Run:
    """A run in its folder. `model` is in eval mode and holds the weights of `snapshot`."""

    folder: Path
    config: Config
    phase_names: list[str]
    model: VideoModel
    snapshot: Path

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return next(self.model.parameters()).device


def open_run(name: str | Path, *, changes: Sequence[str] = ()) -> Run:
    """Open a run by its folder or name, for prediction.

    `changes` are `key=value` texts that change its configuration, such as data.root=... where the data has moved, or
    train.device=cpu. Raises UsageError where there is no such run, ConfigError for what is wrong with a change, and
    SnapshotError where the weights are missing, damaged, or those of another model. Memory: the model.
    """
    folder = training.find_run(name)
    fixed = ["model.weights=null"]  # the snapshot holds all weights; the file that they began from may be gone
    _, config = load_config(
        [f"config={(folder / 'config.yaml').absolute()}", *changes, *fixed], find_more=build.find_unusable_names
    )
    snapshot = next((folder / name for name in _SNAPSHOTS if (folder / name).is_file()), None)
    if snapshot is None:
        raise SnapshotError(f"the run {folder} holds neither {' nor '.join(_SNAPSHOTS)}: no epoch of it was finished")
    device = build.choose_device(config.train.device)
    state = training.load_snapshot(snapshot, device=device, keys=("model", "phase_names"))
    config.data.phase_names = list(state["phase_names"])
    model = build.build_model(config).to(device)
    training.load_weights(model, state["model"], snapshot)
    return Run(folder, config, config.data.phase_names, model.eval(), snapshot)

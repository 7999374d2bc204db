"""Where a training run writes, and what it goes on from: the answer to `run=` and `resume=`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqckpt import build, training
from seqckpt.config import Config

__all__ = ["Origin", "choose_place", "name_config"]


def choose_place(config: Config, config_name: str) -> tuple[Path, Origin | None]:
    """Return the folder of the run, and what it goes on from."""
    origin = _find_origin(config, config_name)
    if origin is not None:
        return origin.folder, origin
    return training.choose_run_path(config.run, config_name, may_be_begun=_is_auto(config)), None


@dataclass(frozen=True)
class Origin:
    """What a run goes on from: its folder, and a snapshot of it; `told` is what was said of it."""

    told: str
    folder: Path
    snapshot: Path
    state: Mapping[str, Any]


def name_config(arguments: Sequence[str]) -> list[str]:
    """Add the configuration of the run that is resumed, where none is given."""
    named = {text.partition("=")[0]: text.partition("=")[2] for text in arguments}
    if "config" in named or named.get("resume") in (None, "", "auto", "null"):
        return list(arguments)
    folder = training.find_run(_folder_of(named["resume"]), key="resume")
    return [f"config={(folder / 'config.yaml').absolute()}", *arguments]


def _folder_of(resume: str) -> str:
    return str(Path(resume).parent) if resume.endswith(".pt") else resume


def _is_auto(config: Config) -> bool:
    return config.resume == "auto"


def _find_origin(config: Config, config_name: str) -> Origin | None:
    """Load what `resume` asks for; None where a run is to begin anew. The configuration is held against it."""
    if config.resume is None:
        return None
    snapshot = "last.pt"
    if _is_auto(config):
        found = training.find_resumable(config.run, config_name)
        if found is None:
            return None
        folder = found
    else:
        folder = training.find_run(_folder_of(config.resume), key="resume")
    keys = (*training.RUN_KEYS, "config")
    if config.resume.endswith(".pt"):
        snapshot = Path(config.resume).name
        state = training.load_snapshot(folder / snapshot, keys=keys)
    else:
        state = training.load_last(folder, keys=keys)
    if lost := training.forget_lost_best(folder, state, put_aside=True):
        print(f"warning: {lost}", file=sys.stderr)
    config.resume = None  # so that the run's own configuration begins and goes on alike
    config.data.phase_names = build.choose_phase_names(config.data)
    differing = build.check_resumable(state["config"], config)
    told = f"goes on with {folder} after step {state['progress']['step']}"
    if differing:
        told += "\nwith other settings from here on:\n" + "\n".join(f"  {line}" for line in differing)
    print(told, flush=True)
    return Origin(told, folder, folder / snapshot, state)

"""Where a training run writes, and what it goes on from: the answer to `run=` and `resume=`.

Both are decided while the run's folder is locked: what was seen of it before only says which folder to look at.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seqckpt import build, training
from seqckpt.atomic import FolderTakenError
from seqckpt.config import Config

__all__ = ["Origin", "Place", "name_config", "open_place"]

_SUMMARY = "summary.json"  # written when all else is there


@dataclass(frozen=True)
class Origin:
    """What a run goes on from: its folder, and a snapshot of it; `told` is what was said of it."""

    told: str
    folder: Path
    snapshot: Path
    state: Mapping[str, Any]


@dataclass(frozen=True)
class Place:
    """The folder that a run writes into, and what it goes on from; `ended` is what to say of a run that has come to its
    end already, else ""."""

    folder: Path
    origin: Origin | None = None
    ended: str = ""


@contextmanager
def open_place(config: Config, config_name: str) -> Iterator[Place]:
    """Choose the folder of the run, and hold it for this process alone; say what the run goes on from.

    The configuration is held against that of the run that is resumed.
    """
    while True:
        folder, is_new = _choose_folder(config, config_name)
        with ExitStack() as stack:
            try:
                unnamed = config.run is None and is_new
                opened = training.open_run_directory(folder, may_exist=not is_new, must_be_made=unnamed)
                stack.enter_context(opened)
            except FolderTakenError:  # by another run that begins in the same second
                continue
            if _is_auto(config) and config.run is None and not is_new and (folder / _SUMMARY).exists():
                continue  # it came to its end while its lock was waited for
            yield _look(folder, config, is_new=is_new)
            return


def _choose_folder(config: Config, config_name: str) -> tuple[Path, bool]:
    """Return the folder that `run=` and `resume=` speak of, and whether it must be a new one."""
    if config.resume is not None and not _is_auto(config):
        return training.find_run(_folder_of(config.resume), key="resume"), False
    if _is_auto(config) and (found := training.find_resumable(config.run, config_name)):
        return found, False
    if config.run is None:
        training.remove_unbegun(config_name)
        return training.choose_run_path(None, config_name), True
    path = training.choose_run_path(config.run, config_name, may_be_begun=_is_auto(config), may_be_empty=True)
    return path, not _is_auto(config)


def _look(folder: Path, config: Config, *, is_new: bool) -> Place:
    """Say what is in a run's folder, which this process holds."""
    auto = _is_auto(config)
    if is_new or (auto and not training.has_snapshot(folder)):
        if not (training.is_unbegun(folder) or (folder / "config.yaml").exists()):
            raise training.taken_error(folder)
        return Place(folder)
    epochs = config.train.epochs
    origin, differing = _find_origin(folder, config)
    is_written = all((folder / name).is_file() for name in (_SUMMARY, "report.html"))
    if auto and is_written and not differing and origin.state["progress"]["epoch"] >= epochs:
        ended = f"the run {folder} has come to its end already, after epoch {epochs}: nothing is left to do"
        return Place(folder, origin, f"{ended}. Raise train.epochs to train on, or choose another name")
    print(origin.told, flush=True)
    return Place(folder, origin)


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


def _find_origin(folder: Path, config: Config) -> tuple[Origin, list[str]]:
    """Load what `resume` asks for, and hold the configuration against it; return the settings that differ, too."""
    snapshot, resume = "last.pt", str(config.resume)
    keys = (*training.RUN_KEYS, "config")
    if resume.endswith(".pt"):
        snapshot = Path(resume).name
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
    return Origin(told, folder, folder / snapshot, state), differing

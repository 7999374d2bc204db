"""In what environment a run was made: packages, machine, git, so that it can be made again."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from datetime import datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from seqckpt.atomic import write_text

__all__ = ["describe_environment", "note_environment"]

_PACKAGES = ("seqckpt", "torch", "torchvision", "numpy", "av", "omegaconf", "pillow")
_GIT_SECONDS = 10


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Return versions, machine, command and the state of the source's git repository (None where it is in none)."""
    on_cuda = device.type == "cuda"
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "device": torch.cuda.get_device_name(device) if on_cuda else platform.processor() or platform.machine(),
        "cuda": torch.version.cuda if on_cuda else None,
        "cudnn": torch.backends.cudnn.version() if on_cuda else None,
        "num_threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "git": _describe_git(Path(__file__).resolve().parent),
    }


def note_environment(folder: Path, device: torch.device, *, step: int) -> None:
    """Add to environment.json of a run that it began, or goes on, at `step` in this environment."""
    path = folder / "environment.json"
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        entries = []
    entries.append({"from_step": step, **describe_environment(device)})
    write_text(path, json.dumps(entries, indent=2) + "\n")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _describe_git(folder: Path) -> dict[str, Any] | None:
    """Return commit and changed files, if the source is a part of a git repository (and not installed inside one)."""
    tracked = _run_git(folder, "ls-files", "--error-unmatch", Path(__file__).name)
    commit = _run_git(folder, "rev-parse", "HEAD") if tracked else None
    if commit is None:
        return None
    changed = _run_git(folder, "status", "--porcelain", "--untracked-files=no") or ""
    return {"commit": commit, "changed_files": [line[3:] for line in changed.splitlines()]}


def _run_git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=_GIT_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.rstrip("\n")

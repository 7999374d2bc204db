"""Where things lie: configs that can be given by name, and the sample data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from seqckpt.config.schema import DEFAULT_ROOT
from seqckpt.errors import ConfigError

__all__ = ["config_folders", "find_config", "sample_root"]


def config_folders() -> list[Path]:
    """Return where a bare name is looked up: configs/ here, then the repository's, or the installed copy of it."""
    repository = _repository()
    own = repository / "configs" if repository else Path(__file__).resolve().parents[1] / "configs"
    return list(dict.fromkeys([Path.cwd() / "configs", own]))


def sample_root() -> Path:
    """Return where the sample data lives: data/sample of the repository, or here where there is no repository."""
    return (_repository() or Path.cwd()) / DEFAULT_ROOT


def find_config(arguments: Sequence[str]) -> Path:
    """Return the file that the one argument `config=...` among `arguments` names, with or without ".yaml".

    Raises ConfigError, with a list of the configs there are, where it is missing, given twice, or names no file.
    """
    names = [text.partition("=")[2] for text in arguments]
    if len(names) != 1 or not names[0]:
        wrong = "is given more than once" if len(names) > 1 else "is missing"
        raise ConfigError(f"config= {wrong}: give one, such as config=surgical_video.yaml\n{_list_configs()}")
    name = Path(names[0]).expanduser()
    bare = "/" not in names[0] and "\\" not in names[0]
    places = [folder / name for folder in config_folders()] if bare else [name]
    candidates = [*places, *(place.with_name(f"{place.name}.yaml") for place in places)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    hint = f"; there is one here, write config=./{name} for it" if bare and name.is_file() else ""
    where = " or ".join(str(place.parent) for place in places)
    raise ConfigError(f"config={names[0]}: there is no such file in {where}{hint}\n{_list_configs()}")


def _list_configs() -> str:
    files = [path for folder in config_folders() if folder.is_dir() for path in sorted(folder.glob("*.y*ml"))]
    listed = "".join(f"\n  {path.name:<24} {path.parent}" for path in files) or "\n  (none)"
    return f"These configs can be given by name:{listed}"


def _repository() -> Path | None:
    folder = Path(__file__).resolve().parents[2]
    return folder if (folder / "pyproject.toml").is_file() and (folder / "configs").is_dir() else None

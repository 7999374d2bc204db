"""The configuration of a run: every key with its type, default, meaning and range; read, merged and checked.

A key is one line of a dataclass below, and the only place where it is described: types, ranges, `--help` and the
messages come from there. All that is wrong is reported together.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seqckpt.errors import ConfigError

__all__ = [
    "Config",
    "DataConfig",
    "MemoryConfig",
    "ModelConfig",
    "SplitConfig",
    "TrainConfig",
    "config_folders",
    "describe_keys",
    "load_config",
    "sample_root",
    "write_config",
]

_PHASES = (
    "Preparation",
    "CalotTriangleDissection",
    "ClippingCutting",
    "GallbladderDissection",
    "GallbladderPackaging",
    "CleaningCoagulation",
    "GallbladderRetraction",
)
_DEFAULT_ROOT = "data/sample"


def _key(
    default: Any,
    meaning: str,
    *,
    choices: Sequence[str] = (),
    at_least: float | None = None,
    above: float | None = None,
    at_most: float | None = None,
    below: float | None = None,
) -> Any:
    """Declare one key: its default, what it means (for --help), and which values are possible."""
    limits = {"at least": at_least, "above": above, "at most": at_most, "below": below}
    metadata = {"meaning": meaning, "choices": choices, "limits": limits}
    if isinstance(default, (list, tuple)):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass
class SplitConfig:
    """Which videos are for what; all three null: the sample data's own split."""

    train: list[Any] | None = _key(None, "videos to train on: ids or ranges, such as [1, 4-8, video12]")
    val: list[Any] | None = _key(None, "videos to choose the best epoch by")
    test: list[Any] | None = _key(None, "videos that the results are for")


@dataclass
class DataConfig:
    root: str = _key(_DEFAULT_ROOT, "data set in the Cholec80 layout; the default is the sample data, made when absent")
    fps: float = _key(1.0, "frames sampled per second of video", above=0)
    image_size: int = _key(64, "height and width that frames are resized to, in pixels", at_least=16)
    clip_length: int = _key(500, "frames that one loss is computed over", at_least=1)
    phase_names: list[str] = _key(_PHASES, "names of the phases, in the order of their ids")
    cache_dir: str | None = _key(None, "folder for decoded frames; null: beside the data")
    num_workers: int = _key(0, "processes that prepare clips; 0: none beside the main one", at_least=0)
    split: SplitConfig = field(default_factory=SplitConfig)


@dataclass
class ModelConfig:
    encoder: str = _key("small", "network per frame: small, or one of torchvision's, such as resnet18, convnext_tiny")
    weights: str | None = _key(None, "encoder's first weights: null (random), DEFAULT (torchvision's), or a file")
    batch_norm: str = _key("frozen", "what batch norm layers become", choices=("frozen", "group", "chunk"))
    rnn: str = _key("lstm", "network over time; none: each frame by itself", choices=("lstm", "gru", "rnn", "none"))
    hidden_size: int = _key(128, "size of the hidden state of lstm, gru, rnn", at_least=1)
    num_layers: int = _key(1, "layers of lstm, gru, rnn", at_least=1)
    dropout: float = _key(0.0, "dropout between the layers of lstm, gru, rnn", at_least=0, below=1)


@dataclass
class MemoryConfig:
    enabled: bool = _key(True, "true: chunks and segments, recomputed in backward; false: the plain run")
    chunk_size: int = _key(25, "frames that go through the encoder at once", at_least=1)
    segment_length: int = _key(50, "time steps of the recurrent network between two stored states", at_least=1)


@dataclass
class TrainConfig:
    epochs: int = _key(20, "times that every training clip is seen", at_least=1)
    batch_size: int = _key(1, "clips per step", at_least=1)
    lr: float = _key(1e-3, "highest learning rate of AdamW", above=0)
    warmup: float = _key(0.05, "share of all steps in which the learning rate rises", at_least=0, below=1)
    weight_decay: float = _key(0.01, "decoupled weight decay of matrices and kernels", at_least=0)
    clip_norm: float | None = _key(1.0, "longest gradient (2-norm over all parameters); null: no limit", above=0)
    class_weights: str = _key("none", "weights of phases in the loss", choices=("none", "inverse_frequency"))
    seed: int = _key(0, "first weights, order of clips and dropout follow from it", at_least=0)
    device: str = _key("auto", "auto, cpu, cuda or cuda:N")


@dataclass
class Config:
    """A whole run. The sections are read by `seqckpt.build`."""

    run: str | None = _key(None, "name of the results' folder in runs/; null: the config's name with date and time")
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    train: TrainConfig = field(default_factory=TrainConfig)


Problems = Callable[[Config], Iterable[str]]


def load_config(arguments: Sequence[str], *, find_more: Problems | None = None) -> tuple[str, Config]:
    """Read `config=FILE` and merge the other `key=value` arguments over it; return the file's stem and the config.

    A bare file name is looked up in `config_folders()`; anything with a `/` is a path. A relative `data.root` is taken
    from the current directory, unless it is left to its default. `find_more` adds problems that only other layers know
    (names of encoders, say), as messages. Raises ConfigError with every problem found.
    """
    path = _find_file([text for text in arguments if text.partition("=")[0] == "config"])
    problems: list[str] = []
    config = OmegaConf.structured(Config)
    keys = dict(_keys())
    given: dict[str, str] = {}
    for source, tree in _read_sources(path, arguments, problems):
        for key, value in _leaves(tree, keys, source, problems):
            given[key] = source
            try:
                OmegaConf.update(config, key, value)
            except OmegaConfBaseException:
                problems.append(f"{_shown(key, value)} ({source}): expected {_describe_type(keys[key].type)}")
    problems += [
        f"{key} is mandatory and missing: give it as {key}=... on the command line" if key in keys else key
        for key in sorted(OmegaConf.missing_keys(config))
    ]
    try:
        OmegaConf.resolve(config)
        problems += _impossible_values(config, keys, given)
    except OmegaConfBaseException as error:
        problems.append(str(error).splitlines()[0])
    if not problems:
        loaded = typing.cast(Config, OmegaConf.to_object(config))
        loaded.data.root = str(
            Path(loaded.data.root).expanduser().absolute() if "data.root" in given else sample_root()
        )
        problems += find_more(loaded) if find_more is not None else []
    elif find_more is not None and not OmegaConf.missing_keys(config):
        problems += find_more(typing.cast(Config, OmegaConf.to_object(config)))
    if problems:
        raise ConfigError(_listed(problems))
    return path.stem, loaded


def config_folders() -> list[Path]:
    """Return where a bare name is looked up: configs/ here, then the repository's, or the installed copy of it."""
    repository = _repository()
    own = repository / "configs" if repository else Path(__file__).resolve().parent / "configs"
    return list(dict.fromkeys([Path.cwd() / "configs", own]))


def sample_root() -> Path:
    """Return where the sample data lives: data/sample of the repository, or here where there is no repository."""
    return (_repository() or Path.cwd()) / _DEFAULT_ROOT


def write_config(config: Config) -> str:
    """Write a config as YAML text that loads again to an equal one."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def describe_keys() -> str:
    """List every key with its default and meaning, for --help."""
    lines = []
    for key, entry in _keys():
        default = entry.default_factory() if callable(entry.default_factory) else entry.default
        choices = f" ({', '.join(entry.metadata['choices'])})" if entry.metadata["choices"] else ""
        shown = f"[{len(default)} names]" if isinstance(default, list) else _yaml_scalar(default)
        lines.append(f"  {f'{key}={shown}':<36} {entry.metadata['meaning']}{choices}")
    return "\n".join(lines)


def _repository() -> Path | None:
    folder = Path(__file__).resolve().parents[1]
    return folder if (folder / "pyproject.toml").is_file() and (folder / "configs").is_dir() else None


def _find_file(arguments: Sequence[str]) -> Path:
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


def _keys() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
    """Yield every key with its declaration, its type resolved."""

    def walk(section: type, prefix: str) -> Iterator[tuple[str, dataclasses.Field[Any]]]:
        hints = typing.get_type_hints(section)
        for entry in dataclasses.fields(section):
            entry.type = hints[entry.name]
            if dataclasses.is_dataclass(entry.type):
                yield from walk(typing.cast(type, entry.type), f"{prefix}{entry.name}.")
            else:
                yield f"{prefix}{entry.name}", entry

    yield from walk(Config, "")


def _read_sources(path: Path, arguments: Sequence[str], problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the file and then each argument as nested plain mappings, with the name of the source."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, UnicodeDecodeError, OSError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}: expected `key: value` lines")
    yield str(path), typing.cast(Mapping[str, Any], tree)
    for text in arguments:
        key, equals, value = text.partition("=")
        if key == "config":
            continue
        if not equals or not key:
            problems.append(f"{text!r} (command line): expected key=value")
            continue
        try:
            parsed = typing.cast(dict[str, Any], OmegaConf.to_container(OmegaConf.from_dotlist([text]), resolve=False))
        except (yaml.YAMLError, OmegaConfBaseException, ValueError):
            problems.append(f"{text} (command line): the value is not valid YAML; quote it if it holds [ ] {{ }} : # '")
            continue
        yield "command line", _keep_text(parsed, key, value)


def _keep_text(tree: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    """Give keys of text the argument as it was typed: run=01 is "01", not the number 1."""
    entry = dict(_keys()).get(key)
    if entry is not None and entry.type in (str, str | None):
        section = tree
        for part in key.split(".")[:-1]:
            section = section[part]
        name = key.rpartition(".")[2]
        if section[name] is not None and not isinstance(section[name], str):
            section[name] = text
    return tree


def _leaves(
    tree: Mapping[str, Any], keys: Mapping[str, Any], source: str, problems: list[str], prefix: str = ""
) -> Any:
    """Yield (key, value) for each known key in a nested mapping; note unknown ones, and sections that are none."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if key in keys:
            yield key, value
        elif not any(known.startswith(f"{key}.") for known in keys):
            near = _nearest(key, keys)
            problems.append(f"{key} ({source}): unknown key{f'; did you mean {near}?' if near else ''}")
        elif isinstance(value, Mapping):
            yield from _leaves(value, keys, source, problems, f"{key}.")
        elif value is not None:
            inside = ", ".join(known for known in keys if known.startswith(f"{key}."))
            problems.append(f"{_shown(key, value)} ({source}): {key} is a section, with the keys {inside}")


def _nearest(key: str, keys: Iterable[str]) -> str | None:
    """Return the valid key that looks most like this one, by the whole of it or by its last part."""

    def likeness(known: str) -> float:
        pairs = (key, known), (key.rpartition(".")[2], known.rpartition(".")[2])
        whole, last = (difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)
        return max(whole, last) + 0.1 * min(whole, last)

    best = max(keys, key=likeness)
    return best if likeness(best) >= 0.65 else None


def _impossible_values(config: Any, keys: Mapping[str, Any], given: Mapping[str, str]) -> Iterator[str]:
    for key, entry in keys.items():
        if OmegaConf.is_missing(*_parent(config, key)):
            continue
        value = OmegaConf.select(config, key)
        expected = _what_is_wrong(value, entry.metadata)
        if expected:
            yield f"{_shown(key, value)} ({given.get(key, 'default')}): expected {expected}"
    if not _any_missing(config, "model", "dropout", "num_layers", "rnn"):
        model = config.model
        if model.dropout > 0 and model.num_layers == 1 and model.rnn != "none":
            yield f"model.dropout={model.dropout}: it acts between layers, so expected model.num_layers of at least 2"
    names = config.data.phase_names
    if len(set(names)) != len(names) or len(names) < 2:
        yield f"data.phase_names={list(names)}: expected at least two names, each of them once"


def _parent(config: Any, key: str) -> tuple[Any, str]:
    section, _, name = key.rpartition(".")
    return (OmegaConf.select(config, section) if section else config), name


def _any_missing(config: Any, section: str, *names: str) -> bool:
    return any(OmegaConf.is_missing(config[section], name) for name in names)


def _what_is_wrong(value: Any, metadata: Mapping[str, Any]) -> str | None:
    """Return what was expected, where the value is none of the choices or outside the limits."""
    choices, limits = metadata["choices"], metadata["limits"]
    if choices and value not in choices:
        return f"one of {', '.join(choices)}"
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if value is None or isinstance(value, (str, bool)):
        return None
    inside = {
        "at least": lambda limit: value >= limit,
        "above": lambda limit: value > limit,
        "at most": lambda limit: value <= limit,
        "below": lambda limit: value < limit,
    }
    set_limits = {name: limit for name, limit in limits.items() if limit is not None}
    if all(inside[name](limit) for name, limit in set_limits.items()):
        return None
    return "a number " + " and ".join(f"{name} {limit:g}" for name, limit in set_limits.items())


def _describe_type(kind: Any) -> str:
    arguments = typing.get_args(kind)
    if isinstance(kind, types.UnionType):
        inner = " or ".join(_describe_type(part) for part in arguments if part is not type(None))
        return f"{inner}, or null"
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    if typing.get_origin(kind) is list:
        return "a list, such as [a, b]" if arguments[0] is str else "a list, such as [1, 4-8]"
    return names[kind]


def _shown(key: str, value: Any) -> str:
    return f"{key}={_yaml_scalar(value)}"


def _yaml_scalar(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return repr(value) if isinstance(value, str) and value == "" else str(value)


def _listed(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} things are wrong in the configuration:\n" + "\n".join(f"  {text}" for text in problems)

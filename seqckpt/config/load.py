"""Reading a configuration: the file, the arguments merged over it, every problem collected."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import Field
from pathlib import Path
from typing import Any, cast

import yaml  # type: ignore[import-untyped]
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from seqckpt.config.check import describe_type, nearest_key, show, show_pair, what_is_expected
from seqckpt.config.files import find_config, sample_root
from seqckpt.config.references import find_call
from seqckpt.config.schema import Config, list_keys
from seqckpt.errors import ConfigError
from seqckpt.units import parse_bytes

__all__ = ["describe_keys", "list_values", "load_config", "read_config", "write_config"]

_KEYS: dict[str, Field[Any]] = dict(list_keys())
_COMMAND_LINE = "command line"
_ONLY_KEYS = "a configuration may refer to its keys alone, as in ${train.lr}; give the value itself"


def load_config(
    arguments: Sequence[str], *, find_more: Callable[[Config], Iterable[str]] | None = None
) -> tuple[str, Config]:
    """Read `config=FILE` and merge the other `key=value` arguments over it; return the file's stem and the config.

    A bare file name is looked up in `config_folders()`; anything with a `/` is a path. Relative paths in values are
    taken from the current directory; a `data.root` that nobody gives is the sample data. `find_more` finds what only
    other layers know to be wrong (names of encoders, say). Raises ConfigError with every problem found.
    """
    path = find_config([text for text in arguments if text.partition("=")[0] == "config"])
    config = OmegaConf.structured(Config)
    problems: list[str] = []
    sources: dict[str, str] = {}
    for source, tree in _read(path, arguments, problems):
        for key, value in _leaves(tree, source, problems):
            sources[key] = source
            if call := find_call(value):
                problems.append(f"{key} ({source}): {call} calls a function; {_ONLY_KEYS}")
                continue
            try:
                OmegaConf.update(config, key, value)
            except OmegaConfBaseException:
                problems.append(f"{show_pair(key, value)} ({source}): expected {describe_type(_KEYS[key].type)}")
    problems += _find_impossible(config, sources)
    if find_more is not None:
        problems += find_more(_without_gaps(config))
    if problems:
        raise ConfigError(_join(problems))
    loaded = cast(Config, OmegaConf.to_object(config))
    loaded.data.root = _absolute(loaded.data.root) if "data.root" in sources else str(sample_root())
    if loaded.data.cache_dir is not None:
        loaded.data.cache_dir = _absolute(loaded.data.cache_dir)
    if loaded.model.weights not in (None, "DEFAULT"):
        loaded.model.weights = _absolute(loaded.model.weights)
    return path.stem, loaded


def read_config(text: str) -> Config:
    """Read what `write_config` wrote; raise ConfigError for what this version does not know."""
    try:
        created = OmegaConf.create(text)
        if call := find_call(OmegaConf.to_container(created, resolve=False)):
            raise ConfigError(f"the configuration that was saved calls a function, {call}: {_ONLY_KEYS}")
        merged = OmegaConf.merge(OmegaConf.structured(Config), created)
        return cast(Config, OmegaConf.to_object(merged))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"the configuration that was saved is one of another version: {reason}") from error


def list_values(config: Config) -> dict[str, Any]:
    """Return the value of every key, such as "train.lr"."""
    return {key: functools.reduce(getattr, key.split("."), config) for key in _KEYS}


def write_config(config: Config) -> str:
    """Write a config as YAML text that loads again to an equal one."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def describe_keys(*, without: Collection[str] = ()) -> str:
    """List every key but some with its default and meaning, for --help."""
    defaults = OmegaConf.structured(Config)
    lines = []
    for key, entry in _KEYS.items():
        if key in without:
            continue
        default = OmegaConf.select(defaults, key)
        choices = f" ({', '.join(entry.metadata['choices'])})" if entry.metadata["choices"] else ""
        lines.append(f"  {f'{key}={show(default)}':<28} {entry.metadata['meaning']}{choices}")
    return "\n".join(lines)


def _read(path: Path, arguments: Sequence[str], problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the file and then each argument as nested plain mappings, with the name of the source."""
    try:
        tree = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    except (yaml.YAMLError, UnicodeDecodeError, OSError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ConfigError(f"{path} holds a {type(tree).__name__}: expected lines of the form `key: value`")
    yield str(path), cast(Mapping[str, Any], tree)
    for text in arguments:
        key, equals, value = text.partition("=")
        if key == "config":
            continue
        if not text.isascii() and not _is_unicode(text):
            problems.append(
                f"{text!r} ({_COMMAND_LINE}): no text in the encoding of this terminal; set LC_ALL=C.UTF-8, or "
                "PYTHONUTF8=1, or write it in UTF-8"
            )
            continue
        if not equals or not key:
            problems.append(f"{text!r} ({_COMMAND_LINE}): expected key=value")
            continue
        try:
            parsed = OmegaConf.to_container(OmegaConf.from_dotlist([text]), resolve=False)
        except (yaml.YAMLError, OmegaConfBaseException, ValueError):
            problems.append(f"{text} ({_COMMAND_LINE}): the value is not valid YAML; quote [ ] {{ }} in it")
            continue
        yield _COMMAND_LINE, _keep_text(cast(dict[str, Any], parsed), key, value)


def _is_unicode(text: str) -> bool:
    """Say whether an argument was read as text: what was not has surrogates in the place of its bytes."""
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _keep_text(tree: dict[str, Any], key: str, text: str) -> dict[str, Any]:
    """Give a key of text its argument as it was typed: run=01 is "01", not the number 1; ~ is a text, null is none."""
    if key in _KEYS and _KEYS[key].type in (str, str | None):
        *sections, name = key.split(".")
        section = tree
        for part in sections:
            section = section[part]
        if not isinstance(section[name], str) and text.lower() not in ("", "null"):
            section[name] = text
    return tree


def _leaves(tree: Mapping[str, Any], source: str, problems: list[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for every known key in a nested mapping; note unknown keys, and values for whole sections."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        inside = [known for known in _KEYS if known.startswith(f"{key}.")]
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, source, problems, f"{key}.")
        elif key in _KEYS:
            yield key, value
        elif not inside:
            near = nearest_key(key, _KEYS)
            hint = f"did you mean {near}?" if near else "--help lists them"
            problems.append(f"{key} ({source}): unknown key; {hint}")
        elif value is not None:  # a section of the file with every line commented out is None
            problems.append(f"{show_pair(key, value)} ({source}): a section, with the keys {', '.join(inside)}")


def _find_impossible(config: Any, sources: Mapping[str, str]) -> Iterator[str]:
    """Resolve interpolations in place, and yield what is missing or has a value that cannot be."""
    values = {}
    for key, entry in _KEYS.items():
        section_name, _, name = key.rpartition(".")
        section = OmegaConf.select(config, section_name) if section_name else config
        if OmegaConf.is_missing(section, name):
            yield f"{key} is missing: give it on the command line, as {key}=..."
            continue
        try:
            value = section[name]
            values[key] = section[name] = (
                OmegaConf.to_container(value, resolve=True) if OmegaConf.is_list(value) else value
            )
        except OmegaConfBaseException as error:
            yield f"{key} ({sources.get(key)}): {str(error).splitlines()[0]}"
            continue
        expected = what_is_expected(values[key], entry.metadata)
        if expected:
            yield f"{show_pair(key, values[key])} ({sources.get(key, 'default')}): expected {expected}"
    yield from _find_contradictions(values)


def _find_contradictions(values: Mapping[str, Any]) -> Iterator[str]:
    dropout = values.get("model.dropout", 0)
    if dropout > 0 and values.get("model.num_layers") == 1 and values.get("model.rnn") != "none":
        yield f"model.dropout={dropout}: it acts between layers, so expected model.num_layers of at least 2"
    yield from _find_impossible_memory(values)
    yield from _find_impossible_bptt(values)
    names = values.get("data.phase_names")
    if names is not None and (len(set(names)) != len(names) or len(names) < 2):
        yield f"data.phase_names={names}: expected at least two names, each of them once"


def _find_impossible_bptt(values: Mapping[str, Any]) -> Iterator[str]:
    bptt, truncate, order = (values.get(key) for key in ("train.bptt", "train.truncate", "data.order"))
    if (bptt == "truncated") != (truncate is not None):
        yield f"train.bptt={bptt}, train.truncate={show(truncate)}: expected both, truncated and a length, or neither"
    if bptt == "carry" and order == "shuffled":
        yield "train.bptt=carry, data.order=shuffled: state is carried in sequential order only; expected auto"
    if bptt in ("carry", "truncated") and values.get("model.rnn") == "none":
        yield f"train.bptt={bptt}, model.rnn=none: without a network over time there is no state"


def _find_impossible_memory(values: Mapping[str, Any]) -> Iterator[str]:
    budget = values.get("memory.budget")
    if budget is not None and not values.get("memory.enabled", True):
        yield f"memory.budget={budget}: the plain run (memory.enabled=false) has nothing to plan"
    if budget not in (None, "auto"):
        try:
            if parse_bytes(budget) <= 0:
                yield f"memory.budget={budget}: expected more than 0 bytes, such as 8GiB, or auto"
        except ValueError as error:
            yield f"memory.budget: {error}, or auto"
    if values.get("memory.fuse") and values.get("train.compile"):
        yield "memory.fuse=true, train.compile=true: a compiled encoder fuses its layers itself; expected one of them"
    outer, inner = values.get("memory.outer_segment_length"), values.get("memory.segment_length")
    if outer is not None and (inner is None or inner >= outer):
        yield f"memory.outer_segment_length={outer}: expected a shorter memory.segment_length inside, got {show(inner)}"


def _without_gaps(config: Any) -> Config:
    """Return the config with defaults where mandatory values are missing or cannot be resolved."""
    defaults = OmegaConf.structured(Config)
    for key in _KEYS:
        with suppress(OmegaConfBaseException):  # reported already
            value = OmegaConf.select(config, key, throw_on_missing=True)
            resolved = OmegaConf.to_container(value, resolve=True) if OmegaConf.is_list(value) else value
            OmegaConf.update(defaults, key, resolved)
    return cast(Config, OmegaConf.to_object(defaults))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _join(problems: Sequence[str]) -> str:
    if len(problems) == 1:
        return problems[0]
    return f"{len(problems)} things are wrong in the configuration:\n" + "\n".join(f"  {text}" for text in problems)

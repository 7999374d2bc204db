"""Configurations: what is found where, what wins, and what is said about mistakes."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from seqckpt.config import Config, config_folders, describe_keys, load_config, read_config, sample_root, write_config
from seqckpt.data import list_formats
from seqckpt.errors import ConfigError

REPOSITORY = Path(__file__).parent.parent


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return `config=` of an empty file; the current directory is its folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.yaml").write_text("")
    return "config=./empty.yaml"


def complaint(*arguments: str) -> str:
    """Return what is said about arguments that cannot be."""
    with pytest.raises(ConfigError) as caught:
        load_config(arguments)
    return str(caught.value)


# --- finding the file ---


def test_a_bare_name_is_looked_up_in_the_repository_from_any_directory(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for argument in ("config=surgical_video.yaml", "config=surgical_video"):
        name, config = load_config([argument])
        assert name == "surgical_video"
        assert config.data.root == str(sample_root()) == str(REPOSITORY / "data" / "sample")


def test_configs_of_the_current_directory_come_first(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "surgical_video.yaml").write_text("train: {epochs: 77}")
    assert load_config(["config=surgical_video.yaml"])[1].train.epochs == 77
    assert config_folders() == [tmp_path / "configs", REPOSITORY / "configs"]


def test_a_path_is_taken_as_it_is(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my.v2.yaml").write_text("train:\n  epochs: 3\n")
    for argument in ("config=./my.v2.yaml", f"config={tmp_path}/my.v2.yaml"):
        name, config = load_config([argument])
        assert (name, config.train.epochs) == ("my.v2", 3)


@pytest.mark.parametrize("arguments", [[], ["config="], ["config=a.yaml", "config=b.yaml"], ["config=nowhere.yaml"]])
def test_no_or_a_wrong_file_lists_the_configs_there_are(arguments: list[str]) -> None:
    message = complaint(*arguments)
    assert "config=" in message
    assert "surgical_video.yaml" in message
    assert "cholec80.yaml" in message


def test_a_bare_name_of_a_file_here_gets_a_hint(empty: str) -> None:
    assert "config=./empty.yaml" in complaint("config=empty.yaml")


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a: [", "cannot be read as YAML"), ("- 1", "expected lines of the form"), ("a: 1\na: 2", "duplicate")],
)
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    message = complaint(f"config={tmp_path}/bad.yaml")
    assert "bad.yaml" in message
    assert expected in message


# --- merging ---


def test_the_command_line_wins_over_the_file_and_the_file_over_the_defaults(empty: str, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("train: {epochs: 3, seed: 5}\nmemory:\n")
    _, config = load_config([empty, "train.epochs=4"])
    assert (config.train.epochs, config.train.seed, config.train.batch_size) == (4, 5, 1)


@pytest.mark.parametrize("text", ["1e-4", "1E-4", "1.0e-4", "0.0001", "'1e-4'"])
def test_numbers_in_scientific_notation_are_floats(empty: str, tmp_path: Path, text: str) -> None:
    assert load_config([empty, f"train.lr={text}"])[1].train.lr == 0.0001
    (tmp_path / "empty.yaml").write_text(f"train:\n  lr: {text}\n")
    assert load_config([empty])[1].train.lr == 0.0001


def test_texts_stay_as_they_were_typed(empty: str) -> None:
    _, config = load_config([empty, "run=01", "model.encoder=resnet18", "model.weights=null"])
    assert (config.run, config.model.encoder, config.model.weights) == ("01", "resnet18", None)


def test_relative_paths_are_taken_from_the_current_directory(empty: str, tmp_path: Path) -> None:
    _, config = load_config([empty, "data.root=some/where", "data.cache_dir=cache", "model.weights=w.pt"])
    assert config.data.root == str(tmp_path / "some" / "where")
    assert config.data.cache_dir == str(tmp_path / "cache")
    assert config.model.weights == str(tmp_path / "w.pt")
    assert load_config([empty, "model.weights=DEFAULT"])[1].model.weights == "DEFAULT"


def test_a_split_is_given_in_parts(empty: str) -> None:
    split = load_config([empty, "data.split.train=[1-6, 8]", "data.split.test=[video09]"])[1].data.split
    assert (split.train, split.val, split.test) == (["1-6", 8], None, ["video09"])


def test_a_clip_is_a_number_of_frames_or_a_whole_video(empty: str) -> None:
    assert load_config([empty, "data.clip_length=300"])[1].data.clip_length == 300
    assert load_config([empty, "data.clip_length=video"])[1].data.clip_length == "video"


def test_interpolations_are_resolved(empty: str) -> None:
    _, config = load_config([empty, "memory.segment_length=${memory.chunk_size}", "memory.chunk_size=7"])
    assert config.memory.segment_length == 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("data: {root: '${x}'}", "data.root (c.yaml): Interpolation key 'x' not found"),
        ("data: {phase_names: ['${x}', b]}", "data.phase_names (c.yaml): Interpolation key 'x' not found"),
        ("train: {lr: '${train.lr}'}", "train.lr (c.yaml): Recursive interpolation detected"),
        ("data: {root: '${oc.env:HOME}/x'}", "data.root (c.yaml): ${oc.env:HOME}/x calls a function"),
        ("data: {ignored_labels: ['${oc.decode:1}']}", "data.ignored_labels (c.yaml): ${oc.decode:1} calls a function"),
    ],
)
def test_a_reference_that_leads_nowhere_is_told_with_key_and_file(tmp_path: Path, text: str, expected: str) -> None:
    """And what a configuration of somebody else's calls is not called."""
    (tmp_path / "c.yaml").write_text(text)
    message = complaint(f"config={tmp_path}/c.yaml").replace(f"{tmp_path}/", "")
    assert message.startswith(expected)
    assert "\n" not in message


def test_a_saved_configuration_calls_nothing_either() -> None:
    with pytest.raises(ConfigError, match=r"calls a function, \$\{oc\.env:HOME\}"):
        read_config("data: {root: '${oc.env:HOME}'}")


def test_a_tilde_is_a_text_and_null_is_none(empty: str) -> None:
    """YAML reads both as null; who types run=~ or data.cache_dir=~ means something else."""
    _, config = load_config([empty, "run=~", "data.cache_dir=~"])
    assert (config.run, config.data.cache_dir) == ("~", str(Path.home()))
    for nothing in ("null", "Null", ""):
        assert load_config([empty, f"run={nothing}"])[1].run is None


def test_what_is_written_loads_again_to_an_equal_config(tmp_path: Path) -> None:
    arguments = ["run=x", "train.lr=1e-4", "data.split.train=[1-6, 8]", "model.weights=DEFAULT", "train.clip_norm=null"]
    _, config = load_config(["config=surgical_video.yaml", *arguments])
    (tmp_path / "config.yaml").write_text(write_config(config))
    assert load_config([f"config={tmp_path}/config.yaml"]) == ("config", config)


# --- mistakes ---


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        (
            "memory.segment_lenght=32",
            r"memory.segment_lenght (command line): unknown key; did you mean memory.segment_length?",
        ),
        ("epochs=3", "epochs (command line): unknown key; did you mean train.epochs?"),
        ("qqq=3", "qqq (command line): unknown key; --help lists them"),
        ("train.epochs.x=3", "train.epochs.x (command line): unknown key; did you mean train.epochs?"),
        ("train.epochs=abc", "train.epochs=abc (command line): expected a whole number"),
        ("train.epochs=2.5", "train.epochs=2.5 (command line): expected a whole number"),
        ("train.epochs=null", "train.epochs=null (command line): expected a whole number"),
        ("train.epochs=-1", "train.epochs=-1 (command line): expected a number of at least 1"),
        ("memory.chunk_size=0", "memory.chunk_size=0 (command line): expected a number of at least 1"),
        ("data.clip_length=0", "data.clip_length=0 (command line): expected a number of at least 1"),
        ("data.clip_length=long", "data.clip_length=long (command line): expected a number, or one of video"),
        ("data.clip_length=2.5", "data.clip_length=2.5 (command line): expected a whole number or a text"),
        ("data.order=random", "data.order=random (command line): expected one of auto, shuffled, sequential"),
        ("data.augment.flip=2", "data.augment.flip=2.0 (command line): expected a number of at least 0 and of at most"),
        ("memory.enabled=maybe", "memory.enabled=maybe (command line): expected true or false"),
        ("train.lr=nan", "train.lr=nan (command line): expected a number above 0"),
        ("train.lr=fast", "train.lr=fast (command line): expected a number"),
        ("train.warmup=1", "train.warmup=1.0 (command line): expected a number of at least 0 and below 1"),
        ("train.clip_norm=0", "train.clip_norm=0.0 (command line): expected a number above 0"),
        ("model.rnn=lsmt", "model.rnn=lsmt (command line): expected one of lstm, gru, rnn, none"),
        ("model.dropout=0.5", "model.dropout=0.5: it acts between layers, so expected model.num_layers of at least 2"),
        ("data.split.test=3", "data.split.test=3 (command line): expected a list, such as [1, 4-8] or null"),
        ("data.phase_names=[a,a]", "data.phase_names=['a', 'a']: expected at least two names, each of them once"),
        ("memory=4", "memory=4 (command line): a section, with the keys memory.enabled, memory.budget"),
        ("train.epochs", "'train.epochs' (command line): expected key=value"),
        ("train.epochs=[", "train.epochs=[ (command line): the value is not valid YAML"),
        ("data.root=${nope}", "data.root (command line): Interpolation key 'nope' not found"),
        ("data.phase_names=['${nope}',b]", "data.phase_names (command line): Interpolation key 'nope' not found"),
        ("data.root=${oc.env:HOME}", "data.root (command line): ${oc.env:HOME} calls a function; a configuration may"),
        ("data.split.test=['${oc.env:HOME}']", "data.split.test (command line): ${oc.env:HOME} calls a function"),
        ("run=\udce9", r"'run=\udce9' (command line): no text in the encoding of this terminal"),
        ("data.root=???", "data.root is missing: give it on the command line, as data.root=..."),
    ],
)
def test_each_mistake_has_its_message(empty: str, argument: str, expected: str) -> None:
    message = complaint(empty, argument)
    assert message.startswith(expected)
    assert "\n" not in message


def test_mistakes_in_the_file_name_the_file(empty: str, tmp_path: Path) -> None:
    (tmp_path / "empty.yaml").write_text("memory: {segment_lenght: 3}\ntrain: {epochs: 0}")
    message = complaint(empty)
    assert "memory.segment_lenght (empty.yaml): unknown key" in message
    assert "train.epochs=0 (empty.yaml): expected" in message


def test_all_mistakes_are_reported_together_with_those_of_other_layers(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("data:\n  root: ???\ntrain: {epochs: many}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(
            [f"config={path}", "memory.chunk_size=0", "model.encoder=nonsense", "memori.x=1"],
            find_more=lambda config: [f"no encoder {config.model.encoder}"],
        )
    message = str(caught.value)
    assert message.startswith("5 things are wrong")
    for part in ("data.root is missing", "train.epochs=many", "chunk_size=0", "no encoder nonsense", "memori.x"):
        assert part in message


def test_cholec80_needs_a_root(tmp_path: Path) -> None:
    assert "data.root is missing" in complaint("config=cholec80.yaml")
    _, config = load_config(["config=cholec80.yaml", f"data.root={tmp_path}"])
    assert (config.model.batch_norm, config.data.image_size, config.data.split.train) == ("frozen", 224, ["1-40"])


# --- the schema itself ---


def test_every_key_has_a_meaning_and_a_possible_default() -> None:
    described = describe_keys()
    defaults = OmegaConf.to_container(OmegaConf.structured(Config))
    assert isinstance(defaults, dict)
    for section in dataclasses.fields(Config):
        assert section.name in described
    assert "memory.chunk_size=null" in described
    assert "train.class_weights=none" in described


def test_every_format_is_named() -> None:
    """They stand in two layers that may not import each other."""
    (line,) = (line for line in describe_keys().splitlines() if line.startswith("  data.format="))
    assert set(re.findall(r"\w+", line)) >= set(list_formats())

"""From a configuration to objects: the only file that knows both.

config.data  -> videos of each split          config.model, config.memory -> VideoModel
config.train -> device, optimiser, settings, class weights
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import nn

from seqckpt.config import Config, DataConfig, ModelConfig, sample_root
from seqckpt.core import ChunkedEncoder, SegmentedLoss, SegmentedRNN
from seqckpt.data import (
    SAMPLE_SPLIT,
    Augmentation,
    CacheEstimate,
    Checkup,
    Clip,
    DataSet,
    Finding,
    Labels,
    SampledVideo,
    Sources,
    Video,
    check_balance,
    check_names,
    choose_cache_dir,
    count_classes,
    cut_clips,
    estimate_cache,
    examine,
    expand_split,
    find_entries,
    find_format,
    list_sources,
    make_sample,
    parse_split,
    report_findings,
    sample_videos,
)
from seqckpt.data import read_videos as read_data_set
from seqckpt.errors import ConfigError, DataError
from seqckpt.models import (
    FrameTransform,
    NoRecurrence,
    PerFrame,
    PlainLoss,
    VideoModel,
    apply_batch_norm_policy,
    build_encoder,
    list_encoders,
)
from seqckpt.training import TrainSettings, build_adamw, inverse_frequency

__all__ = [
    "Videos",
    "build_model",
    "build_optimiser",
    "build_settings",
    "check_image_size",
    "choose_phase_names",
    "choose_videos",
    "choose_window",
    "estimate_frame_cache",
    "examine_videos",
    "fill_frame_cache",
    "find_unusable_names",
    "read_videos",
    "set_class_weights",
    "weigh_classes",
]

_SAMPLE_SEED = 0
_USUAL_WINDOW = 500
_RECURRENT = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


@dataclass(frozen=True)
class Videos:
    """The videos of each split."""

    train: list[Video]
    val: list[Video]
    test: list[Video]

    def clips(self, clip_length: int | str) -> list[Clip]:
        """Cut the training videos into clips of that many frames, or into one each ("video")."""
        return cut_clips(self.train, None if isinstance(clip_length, str) else clip_length)


def find_unusable_names(config: Config) -> Iterator[str]:
    """Yield what is wrong with names that only the models and this machine know, for `load_config`."""
    try:
        find_format(config.data.format)
    except DataError as error:
        yield f"data.format={config.data.format}: {error}"
    known = list_encoders()
    if config.model.encoder not in known:
        try:
            build_encoder(config.model.encoder)
        except ValueError as error:
            yield f"model.encoder: {error}"
    weights = config.model.weights
    if weights not in (None, "DEFAULT") and not Path(weights).is_file():
        yield f"model.weights={weights}: there is no such file; expected null, DEFAULT, or a file of weights"
    try:
        choose_device(config.train.device)
    except ConfigError as error:
        yield str(error)


def choose_device(name: str) -> torch.device:
    """Return the device of that name; "auto" is CUDA where there is one, else the CPU."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"train.device={name}: expected auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(f"train.device={name}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu")
    return device


def build_model(config: Config) -> VideoModel:
    """Build the model with the first weights that `train.seed` gives, the same with and without `memory.enabled`."""
    torch.manual_seed(config.train.seed)
    encoder, num_features = _build_encoder(config.model)
    rnn, hidden_size = _build_rnn(config.model, num_features)
    decoder = nn.Linear(hidden_size, len(choose_phase_names(config.data)))
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    transform, memory = FrameTransform(), config.memory
    if not memory.enabled:
        return VideoModel(PerFrame(encoder, transform=transform), rnn, PlainLoss(decoder, criterion))
    return VideoModel(
        ChunkedEncoder(encoder, memory.chunk_size, transform=transform),
        rnn if isinstance(rnn, NoRecurrence) else SegmentedRNN(rnn, memory.segment_length),
        SegmentedLoss(decoder, criterion, memory.segment_length),
    )


def check_image_size(model: VideoModel, image_size: int) -> None:
    """Encode one empty frame, so that a size that the encoder cannot take is found before any data is read."""
    frame = torch.zeros(1, 3, image_size, image_size, dtype=torch.uint8)
    training = model.training
    try:
        with torch.no_grad():
            model.eval().encoder([frame])
    except RuntimeError as error:
        raise ConfigError(
            f"data.image_size={image_size}: model.encoder cannot take frames of this size ({error}); try a larger one"
        ) from error
    model.train(training)


def choose_phase_names(data: DataConfig) -> list[str]:
    """Return the phases in the order of their ids: those of the configuration, or else the format's own.

    Raises DataError where the format takes them from a file that is not there.
    """
    return list(data.phase_names or find_format(data.format).names_in(Path(data.root)))


def choose_videos(data: DataConfig) -> dict[str, list[str]]:
    """Find the ids of each split's videos; the sample data is made first, if it is asked for and absent.

    Nothing is read yet: what is wrong with the folder or the split is known before a model is built for it.
    """
    data_set = _open_data_set(data)  # first: a folder that is not there is the mistake to name
    return parse_split(_choose_split(data, data_set), data_set.video_ids, lists=data_set.lists)


def read_videos(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> Videos:
    """Read the videos chosen, after the checks that cost nothing; what is odd is said in the log."""
    names = choose_phase_names(data)
    videos = read_data_set(
        _open_data_set(data),
        [video_id for part in ids.values() for video_id in part],
        fps=data.fps,
        image_size=data.image_size,
        cache_dir=choose_cache_dir(Path(data.root), data.cache, data.cache_dir),
        frame_rate=data.frame_rate,
        annotation_fps=data.annotation_fps,
        tail=data.tail,
        corrupt=data.corrupt,
        unlabelled=data.unlabelled,
    )
    by_id = {video.video_id: video for video in videos}
    parts = {name: [by_id[video_id] for video_id in part] for name, part in ids.items()}
    counts = {name: count_classes(part, len(names)) for name, part in parts.items()}
    report_findings([*_check_phase_names(data), *check_balance(counts, names)])
    return Videos(**parts)


def examine_videos(data: DataConfig, *, full: bool) -> Checkup:
    """Examine the videos of all parts of the split, or all there are where none is given; `full`: every frame."""
    data_set = _open_data_set(data)
    findings = _check_phase_names(data)
    try:
        split = _choose_split(data, data_set)
    except ConfigError as error:
        findings.append(Finding("warning", "split", str(error)))
        split = {"all": data_set.video_ids}
    parts, problems = expand_split(split, data_set.video_ids, lists=data_set.lists)
    findings += [Finding("error", "split", problem) for problem in problems]
    checkup = examine(
        data_set,
        parts,
        choose_phase_names(data),
        fps=data.fps,
        frame_rate=data.frame_rate,
        annotation_fps=data.annotation_fps,
        tail=data.tail,
        corrupt=data.corrupt,
        full=full,
    )
    return dataclasses.replace(checkup, findings=findings + checkup.findings)


def estimate_frame_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> tuple[Path, CacheEstimate]:
    """Return the folder of the frame cache, and what the videos chosen will take in it."""
    cache_dir, sources = _describe_cache(data, ids)
    return cache_dir, estimate_cache(**vars(sources), cache_dir=cache_dir)


def fill_frame_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> list[SampledVideo]:
    """Decode the videos chosen into the cache, with a progress bar; those that are there are checked."""
    cache_dir, sources = _describe_cache(data, ids)
    return sample_videos(**vars(sources), cache_dir=cache_dir, corrupt=data.corrupt)


def choose_window(data: DataConfig) -> int:
    """Return how many frames evaluation takes at once; any number gives the same predictions."""
    return _USUAL_WINDOW if isinstance(data.clip_length, str) else data.clip_length


def set_class_weights(model: VideoModel, rule: str, videos: Sequence[Video], *, num_phases: int) -> None:
    """Weigh the phases in the model's loss by the rule `none` or `inverse_frequency` over the training videos."""
    if rule == "inverse_frequency":
        weights = inverse_frequency(count_classes(videos, num_phases))
        model.head.get_submodule("criterion").weight = weights


def weigh_classes(rule: str, counts: torch.Tensor | None) -> torch.Tensor | None:
    """Return the weights in the loss that training would have by these frame counts; None where it would have none."""
    return inverse_frequency(counts) if rule == "inverse_frequency" and counts is not None and counts.any() else None


def build_optimiser(model: VideoModel, config: Config) -> torch.optim.AdamW:
    """Build AdamW over the model's trainable parameters."""
    return build_adamw(model, lr=config.train.lr, weight_decay=config.train.weight_decay)


def build_settings(config: Config) -> TrainSettings:
    """Collect the plain numbers that the trainer needs."""
    train = config.train
    return TrainSettings(
        num_epochs=train.epochs,
        batch_size=train.batch_size,
        lr=train.lr,
        warmup=train.warmup,
        clip_norm=train.clip_norm,
        seed=train.seed,
        validation_window=choose_window(config.data),
        order=config.data.order,
        augmentation=Augmentation(**vars(config.data.augment)),
        num_workers=config.data.num_workers,
    )


def _open_data_set(data: DataConfig) -> DataSet:
    """Find the videos; the sample data is made first, if it is asked for and absent."""
    root = Path(data.root)
    if root == sample_root() and not root.exists():
        make_sample(root, seed=_SAMPLE_SEED)
    names = tuple(choose_phase_names(data))
    labels = Labels(names, ignored=tuple(data.ignored_labels), priority=tuple(data.overlap_priority))
    return find_format(data.format).open(root, labels, frames_from=data.frames_from)


def _describe_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> tuple[Path, Sources]:
    entries = find_entries(_open_data_set(data), [video_id for part in ids.values() for video_id in part])
    sources = list_sources(entries, fps=data.fps, image_size=data.image_size, frame_rate=data.frame_rate)
    cache_dir = choose_cache_dir(Path(data.root), "memory_map", data.cache_dir)
    assert cache_dir is not None
    return cache_dir, sources


def _choose_split(data: DataConfig, data_set: DataSet) -> Mapping[str, Sequence[str | int]]:
    given = {name: entries for name, entries in vars(data.split).items() if entries is not None}
    if not given and Path(data.root) == sample_root():
        return SAMPLE_SPLIT
    parts = ("train", "val", "test")
    if not given and set(parts) <= set(data_set.lists):
        return {name: [name] for name in parts}
    missing = [f"data.split.{name}" for name in parts if name not in given]
    if missing:
        own = f"; the data set's own lists are {', '.join(data_set.lists)}" if data_set.lists else ""
        raise ConfigError(
            f"{', '.join(missing)}: missing; say which videos are for what, as in data.split.test=[9-12]{own}"
        )
    return given


def _check_phase_names(data: DataConfig) -> list[Finding]:
    """Say where the ids are others than the format's usual ones."""
    usual = find_format(data.format).phase_names
    difference = None if callable(usual) else check_names(choose_phase_names(data), usual)
    if difference is None:
        return []
    hint = "predictions and snapshots of others have other ids"
    return [Finding("warning", "data.phase_names", f"another order than usual: {difference}", hint)]


def _build_encoder(model: ModelConfig) -> tuple[nn.Module, int]:
    """Return the network per frame and the number of its features."""
    encoder = build_encoder(model.encoder, weights=model.weights)
    num_features = cast(int, encoder.num_features)
    return apply_batch_norm_policy(encoder, model.batch_norm), num_features


def _build_rnn(model: ModelConfig, num_features: int) -> tuple[nn.Module, int]:
    """Return the network over time and the size of what it gives for each frame."""
    if model.rnn == "none":
        return NoRecurrence(), num_features
    rnn = _RECURRENT[model.rnn](
        num_features, model.hidden_size, model.num_layers, batch_first=True, dropout=model.dropout
    )
    return rnn, model.hidden_size

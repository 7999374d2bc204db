"""From a configuration to objects: the only file that knows both.

config.data  -> videos of each split          config.model, config.memory -> VideoModel
config.train -> device, optimiser, settings, class weights
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from seqckpt.config import Config, DataConfig, MemoryConfig, ModelConfig, sample_root
from seqckpt.core import ChunkedEncoder, Keep, Schedule, SegmentedLoss, SegmentedRNN
from seqckpt.data import (
    SAMPLE_SPLIT,
    Augmentation,
    CacheEstimate,
    Clip,
    SampledVideo,
    Video,
    choose_cache_dir,
    count_classes,
    cut_clips,
    estimate_cache,
    list_recordings,
    list_video_ids,
    make_sample,
    parse_split,
    read_cholec80,
    sample_videos,
)
from seqckpt.errors import ConfigError
from seqckpt.memory import Fixed, Sample, hold_chunk_size, measure, resolve_budget, solve
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
    "Planning",
    "Videos",
    "build_model",
    "build_optimiser",
    "build_schedule",
    "build_settings",
    "check_image_size",
    "choose_videos",
    "choose_window",
    "estimate_frame_cache",
    "fill_frame_cache",
    "find_unusable_names",
    "read_videos",
    "set_class_weights",
    "with_schedule",
]

_SAMPLE_SEED = 0
_USUAL_WINDOW = 500
_CHUNK_SIZE, _SEGMENT_LENGTH = 25, 50  # where neither the configuration nor a plan says otherwise
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
    decoder = nn.Linear(hidden_size, len(config.data.phase_names))
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    transform = FrameTransform()
    if not config.memory.enabled:
        return VideoModel(PerFrame(encoder, transform=transform), rnn, PlainLoss(decoder, criterion))
    model = VideoModel(
        ChunkedEncoder(encoder, _CHUNK_SIZE, transform=transform),
        rnn if isinstance(rnn, NoRecurrence) else SegmentedRNN(rnn, _SEGMENT_LENGTH),
        SegmentedLoss(decoder, criterion, _SEGMENT_LENGTH),
    )
    try:
        build_schedule(config.memory).apply(model)
    except ValueError as error:
        raise ConfigError(f"memory.keep_depth={config.memory.keep_depth}: {error}") from error
    return model


def build_schedule(memory: MemoryConfig) -> Schedule:
    """Return the schedule that the configuration gives, with defaults for what it leaves open."""
    inner = memory.segment_length or _SEGMENT_LENGTH
    return Schedule(
        chunk_size=memory.chunk_size or _CHUNK_SIZE,
        segment_length=inner if memory.outer_segment_length is None else (memory.outer_segment_length, inner),
        loss_segment_length=memory.loss_segment_length,
        keep=Keep(
            depth=0 if memory.keep_depth is None else memory.keep_depth,
            chunks=memory.keep_chunks or 1,
            frozen=memory.keep_frozen is not False,
        ),
    )


def with_schedule(config: Config, schedule: Schedule) -> Config:
    """Return the configuration with every key of a schedule filled in: it gives that schedule without a plan."""
    levels = schedule.segment_length
    outer, inner = (None, levels) if isinstance(levels, int) else (levels[0], levels[-1])
    memory = replace(
        config.memory,
        chunk_size=schedule.chunk_size,
        segment_length=inner,
        outer_segment_length=outer,
        loss_segment_length=schedule.loss_segment_length,
        keep_depth=float(schedule.keep.depth),
        keep_chunks=schedule.keep.chunks,
        keep_frozen=schedule.keep.frozen,
    )
    return replace(config, memory=memory)


class Planning:
    """The choice of a schedule for a model under the configuration's budget: pieces are measured once, when made.

    `clips` are those of training; the sample is the largest batch of them. Raises BudgetError, in the words of the
    configuration, where `choose` finds that nothing fits.
    """

    def __init__(
        self, config: Config, model: VideoModel, clips: Sequence[Clip], optimiser: torch.optim.Optimizer
    ) -> None:
        batch = sorted(clips, key=len, reverse=True)[: config.train.batch_size]
        if config.data.num_workers:  # these load clips into memory; without them frames are read when needed
            batch = [clip.load() for clip in batch]
        sample = Sample([clip.frames for clip in batch], [clip.targets for clip in batch])
        self.model, self.sample, self.optimiser = model.train(), sample, optimiser
        budget = config.memory.budget or "auto"
        self.budget_bytes = resolve_budget(budget, model, sample, optimiser=optimiser)
        self.fixed = hold_chunk_size(model, _fixed_by(config.memory))
        self.costs = measure(model, sample, optimiser=optimiser, budget_bytes=self.budget_bytes)

    def choose(self, budget_bytes: int | None = None) -> Schedule:
        """Return the fastest schedule within the configuration's budget, or another one."""
        return solve(self.costs, self.budget_bytes if budget_bytes is None else budget_bytes, self.fixed)

    @property
    def resident_bytes(self) -> int:
        """What is there before a first step: parameters and frames; the optimiser's state comes with the step."""
        return self.costs.parameter_bytes + self.costs.frame_bytes


def _fixed_by(memory: MemoryConfig) -> Fixed:
    inner, outer = memory.segment_length, memory.outer_segment_length
    return Fixed(
        chunk_size=memory.chunk_size,
        segment_length=inner if inner is None or outer is None else (outer, inner),
        loss_segment_length=memory.loss_segment_length,
        depth=memory.keep_depth,
        chunks=memory.keep_chunks,
        frozen=memory.keep_frozen,
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


def choose_videos(data: DataConfig) -> dict[str, list[str]]:
    """Find the ids of each split's videos; the sample data is made first, if it is asked for and absent.

    Nothing is read yet: what is wrong with the folder or the split is known before a model is built for it.
    """
    root = Path(data.root)
    is_sample = root == sample_root()
    if is_sample and not root.exists():
        make_sample(root, seed=_SAMPLE_SEED)
    split = {name: entries for name, entries in vars(data.split).items() if entries is not None}
    available = list_video_ids(root)  # first: a folder that is not there is the mistake to name
    return parse_split(_choose_split(split, is_sample=is_sample), available)


def read_videos(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> Videos:
    """Read the videos chosen."""
    videos = read_cholec80(
        Path(data.root),
        [video_id for part in ids.values() for video_id in part],
        phase_names=data.phase_names,
        fps=data.fps,
        image_size=data.image_size,
        cache=data.cache,
        cache_dir=data.cache_dir,
    )
    by_id = {video.video_id: video for video in videos}
    return Videos(**{name: [by_id[video_id] for video_id in part] for name, part in ids.items()})


def estimate_frame_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> tuple[Path, CacheEstimate]:
    """Return the folder of the frame cache, and what the videos chosen will take in it."""
    cache_dir, options = _describe_sampling(data, ids)
    return cache_dir, estimate_cache(**options, cache_dir=cache_dir)


def fill_frame_cache(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> list[SampledVideo]:
    """Decode the videos chosen into the cache, with a progress bar; those that are there are checked."""
    cache_dir, options = _describe_sampling(data, ids)
    return sample_videos(**options, cache_dir=cache_dir)


def choose_window(data: DataConfig) -> int:
    """Return how many frames are taken at once where any will do: in evaluation, and to profile whole videos."""
    return _USUAL_WINDOW if isinstance(data.clip_length, str) else data.clip_length


def set_class_weights(model: VideoModel, rule: str, videos: Sequence[Video], *, num_phases: int) -> None:
    """Weigh the phases in the model's loss by the rule `none` or `inverse_frequency` over the training videos."""
    if rule == "inverse_frequency":
        weights = inverse_frequency(count_classes(videos, num_phases))
        model.head.get_submodule("criterion").weight = weights


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


def _describe_sampling(data: DataConfig, ids: Mapping[str, Sequence[str]]) -> tuple[Path, dict[str, Any]]:
    recordings = list_recordings(data.root)
    paths = [recordings[video_id] for part in ids.values() for video_id in part]
    cache_dir = choose_cache_dir(Path(data.root), "memory_map", data.cache_dir)
    assert cache_dir is not None
    return cache_dir, {"paths": paths, "fps": data.fps, "image_size": (data.image_size, data.image_size)}


def _choose_split(given: Mapping[str, Sequence[str | int]], *, is_sample: bool) -> Mapping[str, Sequence[str | int]]:
    if not given and is_sample:
        return SAMPLE_SPLIT
    missing = [f"data.split.{name}" for name in ("train", "val", "test") if name not in given]
    if missing:
        raise ConfigError(f"{', '.join(missing)}: missing; say which videos are for what, as in data.split.test=[9-12]")
    return given


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

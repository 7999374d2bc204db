"""Models and training from a configuration.

config.model, config.memory -> VideoModel          config.train -> device, optimiser, settings, class weights
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import torch
from torch import nn

from seqckpt.build.data import choose_phase_names, choose_window
from seqckpt.config import Config, MemoryConfig, ModelConfig
from seqckpt.core import ChunkedEncoder, Keep, Schedule, SegmentedLoss, SegmentedRNN
from seqckpt.data import Augmentation, Video, count_classes, find_format
from seqckpt.errors import ConfigError, DataError, UsageError
from seqckpt.launch import launched_as
from seqckpt.models import (
    FrameTransform,
    NoRecurrence,
    PerFrame,
    PlainLoss,
    VideoModel,
    apply_batch_norm_policy,
    build_encoder,
    freeze_until,
    list_encoders,
)
from seqckpt.training import TrainSettings, inverse_frequency
from seqckpt.training import build_optimiser as build_optimiser_of

__all__ = [
    "build_model",
    "build_optimiser",
    "build_schedule",
    "build_settings",
    "check_image_size",
    "choose_device",
    "compile_encoder",
    "find_unusable_names",
    "list_class_weights",
    "set_class_weights",
    "weigh_classes",
    "with_schedule",
]

_CHUNK_SIZE, _SEGMENT_LENGTH = 25, 50  # where neither the configuration nor a plan says otherwise
_RECURRENT = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}


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
    """Return the device of that name; "auto" is CUDA where there is one, else the CPU.

    Of several processes on a machine each has a CUDA device of its own, by its number.
    """
    launched = launched_as()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cpu", "cuda"):
        raise ConfigError(f"train.device={name}: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if device.type == "cuda" and launched.world_size > 1:
        if device.index is not None:
            raise ConfigError(f"train.device={name} for {launched.world_size} processes: expected cuda, one for each")
        device = torch.device("cuda", launched.local_rank)
        if launched.local_rank >= count:
            raise ConfigError(
                f"process {launched.local_rank + 1} of this machine finds {count} CUDA devices; lower --nproc-per-node "
                "to that, or use train.device=cpu"
            )
    if device.type == "cuda" and (device.index or 0) >= count:
        raise ConfigError(f"train.device={name}: this machine has {count} CUDA devices; use cpu")
    return device


def build_model(config: Config) -> VideoModel:
    """Build the model with the first weights that `train.seed` gives, the same with and without `memory.enabled`."""
    torch.manual_seed(config.train.seed)
    encoder, num_features = _build_encoder(config)
    rnn, hidden_size = _build_rnn(config.model, num_features)
    decoder = nn.Linear(hidden_size, len(choose_phase_names(config.data)))
    criterion = nn.CrossEntropyLoss(ignore_index=-100)
    transform = FrameTransform()
    if not config.memory.enabled:
        plain = PerFrame(encoder, transform=transform), rnn, PlainLoss(decoder, criterion)
        return VideoModel(*plain, truncate=config.train.truncate)
    model = VideoModel(
        ChunkedEncoder(encoder, _CHUNK_SIZE, transform=transform, fuse=_is_fused(encoder, config)),
        rnn if isinstance(rnn, NoRecurrence) else SegmentedRNN(rnn, _SEGMENT_LENGTH),
        SegmentedLoss(decoder, criterion, _SEGMENT_LENGTH),
        truncate=config.train.truncate,
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


def set_class_weights(model: VideoModel, rule: str, videos: Sequence[Video], *, num_phases: int) -> None:
    """Weigh the phases in the model's loss by the rule `none` or `inverse_frequency` over the training videos."""
    if rule == "inverse_frequency":
        criterion = model.head.get_submodule("criterion")
        if not hasattr(criterion, "weight"):
            raise UsageError(
                f"train.class_weights=inverse_frequency, and the criterion, a {type(criterion).__name__}, weighs no "
                "classes: expected one with an attribute `weight`, as nn.CrossEntropyLoss has, or class_weights=none"
            )
        criterion.weight = inverse_frequency(count_classes(videos, num_phases))


def list_class_weights(model: VideoModel) -> list[float] | None:
    """Return the weights of the phases in the model's loss; None where they all weigh the same."""
    weights = cast(torch.Tensor | None, getattr(model.head.get_submodule("criterion"), "weight", None))
    return None if weights is None else weights.tolist()


def weigh_classes(rule: str, counts: torch.Tensor | None) -> torch.Tensor | None:
    """Return the weights in the loss that training would have by these frame counts; None where it would have none."""
    return inverse_frequency(counts) if rule == "inverse_frequency" and counts is not None and counts.any() else None


def build_optimiser(model: VideoModel, config: Config) -> torch.optim.Optimizer:
    """Build the optimiser over the model's trainable parameters."""
    train = config.train
    factors = {"encoder": train.lr_factor.encoder, "rnn": train.lr_factor.rnn, "head": train.lr_factor.decoder}
    return build_optimiser_of(
        model,
        train.optimiser,
        lr=train.lr,
        weight_decay=train.weight_decay,
        momentum=train.momentum,
        lr_factors=factors,
    )


def compile_encoder(model: VideoModel) -> None:
    """Let torch compile the encoder at its first call; weights keep their names."""
    model.encoder.get_submodule("encoder").compile()


def build_settings(config: Config) -> TrainSettings:
    """Collect the plain values that the trainer needs."""
    train, data = config.train, config.data
    carry = train.bptt == "carry"
    return TrainSettings(
        num_epochs=train.epochs,
        batch_size=train.batch_size,
        accumulate=train.accumulate,
        lr=train.lr,
        warmup=train.warmup,
        schedule=train.schedule,
        clip_norm=train.clip_norm,
        seed=train.seed,
        validation_window=choose_window(data),
        order=("sequential" if carry else "shuffled") if data.order == "auto" else data.order,
        carry=carry,
        augmentation=Augmentation(**vars(data.augment)),
        num_workers=data.num_workers,
        precision=train.precision,
        averaging=train.ema,
        skip_not_finite=train.on_nan == "skip",
        save_minutes=train.save_minutes,
        tensorboard=train.tensorboard,
    )


def _build_encoder(config: Config) -> tuple[nn.Module, int]:
    """Return the network per frame and the number of its features."""
    settings = config.model
    encoder = build_encoder(settings.encoder, weights=settings.weights)
    num_features = cast(int, encoder.num_features)
    if settings.frozen_until is not None:
        try:
            freeze_until(encoder, settings.frozen_until)
        except UsageError as error:
            raise ConfigError(f"model.frozen_until={settings.frozen_until}: {error}") from error
    apply_batch_norm_policy(encoder, settings.batch_norm)
    if config.train.channels_last:
        encoder.to(memory_format=torch.channels_last)
    return encoder, num_features


def _is_fused(encoder: nn.Module, config: Config) -> bool:
    """Whether layers of the encoder are run together: if asked for, or if nobody says and the encoder allows it."""
    fuse = config.memory.fuse
    if fuse is False or (fuse is None and (config.train.compile or config.train.precision != "float32")):
        return False
    try:
        ChunkedEncoder(encoder, _CHUNK_SIZE, fuse=True).stages  # noqa: B018 - it finds out, and raises
    except ValueError as error:
        if fuse:
            raise ConfigError(f"memory.fuse=true: {error}") from error
        return False
    return True


def _build_rnn(model: ModelConfig, num_features: int) -> tuple[nn.Module, int]:
    """Return the network over time and the size of what it gives for each frame."""
    if model.rnn == "none":
        return NoRecurrence(), num_features
    rnn = _RECURRENT[model.rnn](
        num_features, model.hidden_size, model.num_layers, batch_first=True, dropout=model.dropout
    )
    return rnn, model.hidden_size

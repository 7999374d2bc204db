# ruff: noqa: RUF009 - every default is declared by _key, which returns a dataclasses.field
"""Every key of a run's configuration with its type, default, meaning and range: one line of a dataclass each.

This is the only place where a key is described: types, ranges, `--help` and the messages come from here.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DEFAULT_ROOT",
    "AugmentConfig",
    "Config",
    "DataConfig",
    "DistributedConfig",
    "LearningRateFactors",
    "MemoryConfig",
    "ModelConfig",
    "SplitConfig",
    "TrainConfig",
    "list_keys",
]

DEFAULT_ROOT = "data/sample"


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
    limits = {"of at least": at_least, "above": above, "of at most": at_most, "below": below}
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
class AugmentConfig:
    """Random changes to training clips, drawn once per clip and epoch; the defaults change nothing."""

    smallest_crop: float = _key(1.0, "least share of the picture's area that a random crop keeps", above=0, at_most=1)
    flip: float = _key(0.0, "probability that a clip is flipped left to right", at_least=0, at_most=1)
    rotation_degrees: float = _key(0.0, "clips are turned by up to that much either way", at_least=0, at_most=180)
    brightness: float = _key(0.0, "factor drawn from 1 - x to 1 + x", at_least=0, at_most=1)
    contrast: float = _key(0.0, "factor drawn from 1 - x to 1 + x", at_least=0, at_most=1)
    saturation: float = _key(0.0, "factor drawn from 1 - x to 1 + x", at_least=0, at_most=1)
    hue: float = _key(0.0, "shift by up to that share of the colour circle either way", at_least=0, at_most=0.5)


@dataclass
class DataConfig:
    root: str = _key(DEFAULT_ROOT, "folder of the data set; the default is the sample data, made when absent")
    format: str = _key(
        "cholec80",
        "layout of the data set: cholec80, m2cai16, autolaparo, heichole, cataract101, mstcn, frames, csv, or your own",
    )
    frames_from: str = _key(
        "auto",
        "videos: from video files; frames: from folders of extracted frames; auto: whichever is there",
        choices=("auto", "videos", "frames"),
    )
    frame_rate: float | None = _key(
        None,
        "how many numbers in the names of extracted frames make a second; null: the data set says",
        above=0,
        at_most=1000,
    )
    annotation_fps: float | None = _key(
        None,
        "frames a second that annotations count, where that is another rate than the video's",
        above=0,
        at_most=1000,
    )
    fps: float = _key(1.0, "frames sampled per second of video", at_least=0.001, at_most=1000)
    image_size: int = _key(64, "height and width of frames, resized to it, in pixels", at_least=16, at_most=4096)
    cache: str = _key(
        "memory_map",
        "memory_map: frames are decoded once, into data.cache_dir; none: from the files whenever they are read",
        choices=("memory_map", "none"),
    )
    clip_length: int | str = _key(
        500, "frames that one loss is computed over; video: whole videos", choices=("video",), at_least=1
    )
    order: str = _key(
        "auto",
        "shuffled: clips in random order; sequential: videos from start to end, train.batch_size of them side by side; "
        "auto: sequential where train.bptt=carry, else shuffled",
        choices=("auto", "shuffled", "sequential"),
    )
    phase_names: list[str] | None = _key(None, "names of the phases, in the order of their ids; null: the format's own")
    ignored_labels: list[str] = _key([], "what annotations write where there is no label, such as -1")
    overlap_priority: list[str] = _key([], "of intervals that overlap, the phase that stands first here wins")
    tail: str = _key(
        "trim",
        "if a video and its annotation differ in length, trim: use what both have (2 % at most); strict: an error",
        choices=("trim", "strict"),
    )
    corrupt: str = _key(
        "error",
        "if a frame cannot be decoded, error: stop; repeat: the last good frame once more, counted in the log",
        choices=("error", "repeat"),
    )
    unlabelled: str = _key(
        "ignore",
        "if frames have no label, ignore: they are seen, but nothing is learnt of them; error: stop",
        choices=("ignore", "error"),
    )
    cache_dir: str | None = _key(None, "folder for decoded frames; null: beside the data")
    num_workers: int = _key(0, "processes that prepare clips; 0: none beside the main one", at_least=0)
    split: SplitConfig = field(default_factory=SplitConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)


@dataclass
class ModelConfig:
    encoder: str = _key("small", "network per frame: small, or one of torchvision's, such as resnet18, convnext_tiny")
    weights: str | None = _key(None, "encoder's first weights: null (random), DEFAULT (torchvision's), or a file")
    frozen_until: str | None = _key(
        None, "encoder's stages up to and with this one are not trained, such as layer2; all: none is"
    )
    batch_norm: str = _key("frozen", "what batch norm layers become", choices=("frozen", "group", "chunk"))
    rnn: str = _key("lstm", "network over time; none: each frame by itself", choices=("lstm", "gru", "rnn", "none"))
    hidden_size: int = _key(128, "size of the hidden state of lstm, gru, rnn", at_least=1)
    num_layers: int = _key(1, "layers of lstm, gru, rnn", at_least=1)
    dropout: float = _key(0.0, "dropout between the layers of lstm, gru, rnn", at_least=0, below=1)


@dataclass
class MemoryConfig:
    """Keys that are null have their default; under a budget they are planned, and what is given is kept."""

    enabled: bool = _key(True, "true: chunks and segments, recomputed in backward; false: the plain run")
    budget: str | None = _key(None, "most memory for a step, such as 8GiB, or auto: plans the keys below that are null")
    fuse: bool | None = _key(
        None,
        "true: convolutions run together with the frozen batch norm and ReLU behind them, in less memory and time, the "
        "same to rounding; null: where the encoder allows it",
    )
    chunk_size: int | None = _key(None, "frames that go through the encoder at once; null: 25, or planned", at_least=1)
    segment_length: int | None = _key(
        None, "time steps of the recurrent network between two stored states; null: 50, or planned", at_least=1
    )
    outer_segment_length: int | None = _key(None, "a second, longer level of segments around those", at_least=2)
    loss_segment_length: int | None = _key(
        None, "frames per segment of the loss; null: segment_length, or planned", at_least=1
    )
    keep_depth: float | None = _key(
        None, "last stages of the encoder that are kept, not recomputed; null: 0, or planned", at_least=0
    )
    keep_chunks: int | None = _key(None, "last chunks that are kept whole; null: 1, or planned", at_least=1)
    keep_frozen: bool | None = _key(
        None, "true: the output of frozen first stages is stored; false: recomputed; null: true, or planned"
    )


@dataclass
class LearningRateFactors:
    """Factors of train.lr for the parts of the model."""

    encoder: float = _key(1.0, "factor of train.lr for the encoder", above=0)
    rnn: float = _key(1.0, "factor of train.lr for the network over time", above=0)
    decoder: float = _key(1.0, "factor of train.lr for the decoder", above=0)


@dataclass
class TrainConfig:
    epochs: int = _key(20, "times that every training clip is seen", at_least=1)
    batch_size: int = _key(1, "clips that go through the model together", at_least=1)
    accumulate: int = _key(1, "batches that a step adds up: the gradient of all their clips in one batch", at_least=1)
    bptt: str = _key(
        "full",
        "full: exact gradients over each clip; carry: clips of a video in order, state handed on without gradient; "
        "truncated: gradients within the clip end every train.truncate frames",
        choices=("full", "carry", "truncated"),
    )
    truncate: int | None = _key(None, "frames after which gradients end, with train.bptt=truncated", at_least=1)
    optimiser: str = _key("adamw", "adamw or sgd (with momentum)", choices=("adamw", "sgd"))
    lr: float = _key(1e-3, "highest learning rate", above=0)
    lr_factor: LearningRateFactors = field(default_factory=LearningRateFactors)
    schedule: str = _key(
        "cosine", "how the learning rate falls after its rise", choices=("cosine", "linear", "constant")
    )
    warmup: float = _key(0.05, "share of all steps in which the learning rate rises", at_least=0, below=1)
    weight_decay: float = _key(0.01, "decay of matrices and kernels (AdamW: decoupled)", at_least=0)
    momentum: float = _key(0.9, "momentum of sgd", at_least=0, below=1)
    clip_norm: float | None = _key(1.0, "longest gradient (2-norm over all parameters); null: no limit", above=0)
    ema: float | None = _key(
        None, "decay, such as 0.999, of the average of weights that is validated and kept; null: none", above=0, below=1
    )
    class_weights: str = _key("none", "weights of phases in the loss", choices=("none", "inverse_frequency"))
    precision: str = _key("float32", "bf16, fp16: mixed precision, by autocast", choices=("float32", "bf16", "fp16"))
    compile: bool = _key(False, "true: torch.compile the encoder")
    channels_last: bool = _key(False, "true: the encoder's kernels and pictures in channels-last memory format")
    on_nan: str = _key(
        "stop",
        "if loss or gradient is not finite, stop: with the clip named; skip: leave that step out",
        choices=("stop", "skip"),
    )
    save_minutes: float | None = _key(
        10.0, "minutes after which last.pt is saved within an epoch; null: only after each epoch", above=0
    )
    seed: int = _key(0, "first weights, order of clips and dropout follow from it", at_least=0, at_most=2**32 - 1)
    deterministic: bool = _key(False, "true: only kernels that repeat bit for bit, slower on GPUs")
    device: str = _key("auto", "auto, cpu, cuda or cuda:N")
    tensorboard: bool = _key(False, "true: write TensorBoard's files into the run, too")


@dataclass
class DistributedConfig:
    """For runs that torchrun starts with several processes; train.batch_size counts the clips of all of them."""

    frame_parallel: int = _key(
        1, "processes that share the frames of the same clips; the others have clips of their own", at_least=1
    )
    timeout_seconds: float = _key(
        600.0, "how long a step waits for the other processes before the run ends", at_least=1, at_most=1e6
    )


@dataclass
class Config:
    """A whole run. The sections are read by `seqckpt.build`."""

    run: str | None = _key(None, "name of the results' folder in runs/; null: the config's name with date and time")
    resume: str | None = _key(
        None,
        "go on with a run: its name or folder, a snapshot, or auto: the run of this config or name, if there is one",
    )
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    distributed: DistributedConfig = field(default_factory=DistributedConfig)


def list_keys() -> Iterator[tuple[str, dataclasses.Field[Any]]]:
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

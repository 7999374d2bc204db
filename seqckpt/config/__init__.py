"""The configuration of a run: a YAML file, `key=value` arguments over it, and all that is wrong reported together."""

from __future__ import annotations

from seqckpt.config.files import config_folders, sample_root
from seqckpt.config.load import describe_keys, list_values, load_config, read_config, write_config
from seqckpt.config.schema import Config, DataConfig, MemoryConfig, ModelConfig, SplitConfig, TrainConfig

__all__ = [
    "Config",
    "DataConfig",
    "MemoryConfig",
    "ModelConfig",
    "SplitConfig",
    "TrainConfig",
    "config_folders",
    "describe_keys",
    "list_values",
    "load_config",
    "read_config",
    "sample_root",
    "write_config",
]

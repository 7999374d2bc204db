"""Encoders by name, what to do about batch norm, and the whole model with its plain, unchunked twin."""

from __future__ import annotations

from seqckpt.models.batch_norm import FrozenBatchNorm, apply_batch_norm_policy, find_batch_norm
from seqckpt.models.encoders import build_encoder, list_encoders
from seqckpt.models.freezing import freeze_until
from seqckpt.models.small_encoder import SmallEncoder
from seqckpt.models.stages import StagedEncoder
from seqckpt.models.transform import FrameTransform
from seqckpt.models.video_model import NoRecurrence, PerFrame, PlainLoss, VideoModel

__all__ = [
    "FrameTransform",
    "FrozenBatchNorm",
    "NoRecurrence",
    "PerFrame",
    "PlainLoss",
    "SmallEncoder",
    "StagedEncoder",
    "VideoModel",
    "apply_batch_norm_policy",
    "build_encoder",
    "find_batch_norm",
    "freeze_until",
    "list_encoders",
]

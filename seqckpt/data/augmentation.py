"""Random changes to the pictures of training clips: torchvision's transforms, their parameters drawn once per clip.

The parameters are a function of (seed, epoch, video, first frame of the clip) alone. So they are the same for all
frames of a clip, in every chunk, in the replay, in every worker process and after a resumption, and differ between
clips and between epochs. An augmented clip is a FrameSource: each read gives the frames as stored, uint8, changed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import v2

from seqckpt.data.frame_source import FrameSource, span_of
from seqckpt.errors import DataError

__all__ = ["Augmentation", "Augmented"]


@dataclass(frozen=True)
class Augmentation:
    """What is varied, and how widely; the defaults vary nothing.

    Args:
        smallest_crop: the least share of the picture's area that a random crop, resized to the full size, keeps.
        flip: probability that a clip is flipped left to right.
        rotation_degrees: clips are turned by up to that many degrees either way; corners become black.
        brightness, contrast, saturation: factors are drawn from 1 - x to 1 + x.
        hue: hues are shifted by up to that share of the colour circle either way, at most 0.5.
    """

    smallest_crop: float = 1.0
    flip: float = 0.0
    rotation_degrees: float = 0.0
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0

    def __post_init__(self) -> None:
        limits = {"smallest_crop": (0.01, 1.0), "flip": (0.0, 1.0), "rotation_degrees": (0.0, 180.0), "hue": (0.0, 0.5)}
        limits |= dict.fromkeys(("brightness", "contrast", "saturation"), (0.0, 1.0))
        for name, (lowest, highest) in limits.items():
            if not lowest <= getattr(self, name) <= highest:
                raise DataError(f"{name} is {getattr(self, name)}; expected {lowest:g} to {highest:g}")

    @property
    def changes_anything(self) -> bool:
        return self != Augmentation()

    def apply_to(
        self,
        source: FrameSource,
        *,
        seed: int,
        epoch: int,
        video_id: str,
        start: int,
        device: torch.device | None = None,
    ) -> FrameSource:
        """Return the frames of a clip, augmented when read; the source itself where nothing is varied.

        `start` is the clip's first frame in its video. The work is done on `device`, and the frames stay there; None:
        where the source has them. Costs of one core at 224 pixels: see README. torch's random state is left alone.
        """
        if not self.changes_anything or len(source) == 0:
            return source
        text = json.dumps([seed, epoch, video_id, start])
        number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        shape = source[0:1].shape
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(number)
            changes = [(change, change.make_params([torch.empty(shape)])) for change in self._build(shape)]
        return Augmented(source, changes, device)

    def _build(self, shape: torch.Size) -> list[v2.Transform]:
        """The transforms that vary something. Called with the generator seeded: whether to flip is drawn here."""
        size = (shape[-2], shape[-1])
        flips = torch.rand(1).item() < self.flip
        changes: list[v2.Transform] = []
        if self.smallest_crop < 1:
            changes.append(v2.RandomResizedCrop(size, scale=(self.smallest_crop, 1.0)))
        if flips:
            changes.append(v2.RandomHorizontalFlip(p=1.0))
        if self.rotation_degrees:
            changes.append(v2.RandomRotation(self.rotation_degrees, interpolation=v2.InterpolationMode.BILINEAR))
        if self.brightness or self.contrast or self.saturation or self.hue:
            changes.append(v2.ColorJitter(self.brightness, self.contrast, self.saturation, self.hue))
        return changes


class Augmented:
    """A FrameSource whose frames are those of another, put through transforms with fixed parameters."""

    def __init__(
        self,
        source: FrameSource,
        changes: list[tuple[v2.Transform, dict[str, Any]]],
        device: torch.device | None = None,
    ) -> None:
        self.source, self.changes, self.device = source, changes, device

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: slice) -> Tensor:
        start, stop = span_of(index, len(self))
        frames = self.source[start:stop].to(self.device)
        for change, params in self.changes:
            frames = change.transform(frames, params) if len(frames) else frames
        return frames

"""From stored bytes to what an encoder expects: uint8 frames to normalised floats, inside the encoder's chunk."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from seqckpt.errors import UsageError

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "FrameTransform"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class FrameTransform(nn.Module):
    """Frames uint8 (..., C, H, W) -> (frames / 255 - mean) / std, in the module's own dtype and on its device.

    `mean` and `std` hold one value per channel, for pixels in [0, 1]; the defaults are ImageNet's, which torchvision's
    weights expect. The result is float32 unless the module was converted (`.double()`). The input is never modified
    and the module adds no keys to a `state_dict`. One new float tensor is all the memory it takes.

    >>> FrameTransform(mean=[0.5], std=[0.5])(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
    tensor([[[[-1.,  1.]]]])
    """

    scale: Tensor
    shift: Tensor

    def __init__(self, mean: Sequence[float] = IMAGENET_MEAN, std: Sequence[float] = IMAGENET_STD) -> None:
        super().__init__()
        if len(mean) != len(std) or not mean or min(std) <= 0:
            raise UsageError(
                f"FrameTransform got mean={list(mean)} and std={list(std)}: both need one value per channel, "
                "and every std must be above 0"
            )
        deviation = torch.tensor(std, dtype=torch.float64).view(-1, 1, 1)
        shift = -torch.tensor(mean, dtype=torch.float64).view(-1, 1, 1) / deviation
        self.register_buffer("scale", (1 / (255 * deviation)).float(), persistent=False)
        self.register_buffer("shift", shift.float(), persistent=False)

    def forward(self, frames: Tensor) -> Tensor:
        """Normalise frames; raise UsageError for frames that are not uint8 or have another number of channels."""
        if frames.dtype != torch.uint8:
            raise UsageError(f"frames came as {frames.dtype}: expected torch.uint8 with values 0 to 255, as decoded")
        if frames.dim() < 3 or frames.shape[-3] != self.scale.shape[0]:
            raise UsageError(
                f"frames came with shape {tuple(frames.shape)}: expected (..., {self.scale.shape[0]}, height, width)"
            )
        # `to` makes a new tensor (the dtype differs), so what follows in place never reaches the caller's frames.
        return frames.to(self.scale).mul_(self.scale).add_(self.shift)

    def extra_repr(self) -> str:
        """Show the constants as they were given."""
        std = 1 / (255 * self.scale.flatten())
        mean = -self.shift.flatten() * std
        return f"mean={[round(x, 4) for x in mean.tolist()]}, std={[round(x, 4) for x in std.tolist()]}"

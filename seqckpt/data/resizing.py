"""How a picture becomes a frame of the size that networks see: the same in training, prediction and online.

Both ways average areas where the picture shrinks and interpolate linearly where it grows; the aspect ratio is not kept.
They differ by rounding: swscale turns YUV into RGB in the same pass, Pillow starts from RGB.
"""

from __future__ import annotations

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray
from PIL import Image

from seqckpt.data.display import find_turn, turn_frame
from seqckpt.errors import DataError

__all__ = ["resize_decoded", "resize_picture"]


def resize_decoded(
    frame: av.VideoFrame, size: tuple[int, int], *, reformatter: VideoReformatter | None = None
) -> NDArray[np.uint8]:
    """Turn a decoded frame into RGB, uint8 (3, height, width), by FFmpeg's swscale, upright as players show it.

    One pass in C over the decoded planes, where a resize of tensors would first need the full-size RGB picture. A
    `reformatter` that is used for all frames of a video keeps its tables. Colours are converted by the matrix, range
    and chroma position that the frame states. Raises DataError where it is to be turned by other than quarter turns,
    or where its colours cannot be converted.
    """
    quarters = find_turn(frame).quarters
    height, width = size
    reformatter = reformatter or VideoReformatter()
    try:
        upright = turn_frame(frame, quarters)
        shrinks = height < upright.height or width < upright.width
        method = Interpolation.AREA if shrinks else Interpolation.BILINEAR
        resized = reformatter.reformat(upright, width, height, "rgb24", interpolation=method, threads=1)
    except DataError:
        raise
    except (OSError, ValueError) as error:
        raise DataError(
            f"its colours cannot be turned into RGB (pixel format {frame.format.name}, matrix number "
            f"{int(frame.colorspace)} of ITU-T H.273: {error}); expected BT.601, BT.709 or BT.2020, for instance: "
            "convert the video to one of them"
        ) from error
    return np.ascontiguousarray(resized.to_ndarray().transpose(2, 0, 1))


def resize_picture(picture: Image.Image, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Turn an RGB picture into uint8 (3, height, width), by Pillow; one of that size stays as it is."""
    height, width = size
    if picture.size != (width, height):
        shrinks = height < picture.height or width < picture.width
        picture = picture.resize((width, height), Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR)
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))

"""Phases while a video is being shown: one frame in, its phase out, the recurrent state kept in between."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from seqckpt.data import resize_decoded, resize_picture
from seqckpt.errors import UsageError
from seqckpt.inference.run import open_run
from seqckpt.models import VideoModel

__all__ = ["Frame", "OnlinePredictor", "check_causal"]

Frame = NDArray[np.uint8] | Tensor | av.VideoFrame


class OnlinePredictor:
    """Predicts the frames of one video one by one, as they come: each from itself and those before it.

    Args:
        model: a VideoModel, put into eval mode; it may be shared by several predictors, which keep states of their own.
        phase_names: what the model's outputs are called, in their order.
        image_size: height and width (one number: both) that the model was trained with.

    Frames must come as far apart in time as those that the model was trained on (`data.fps`, once a second, say). The
    results are those of `predict` for the same frames, to the rounding of kernels: of one frame instead of many.

    Raises UsageError for a network that reads videos from the end too, and where names and outputs differ in number.
    A core of your own is taken to be causal, unless it or a module in it has a true attribute `bidirectional`.
    """

    def __init__(self, model: VideoModel, phase_names: Sequence[str], *, image_size: int | tuple[int, int]) -> None:
        check_causal(model)
        num_outputs = getattr(model.head.get_submodule("decoder"), "out_features", len(phase_names))
        if num_outputs != len(phase_names):
            raise UsageError(f"{len(phase_names)} phase names were given for a model of {num_outputs} outputs")
        self.model = model.eval()
        self.phase_names = list(phase_names)
        self.image_size = (image_size, image_size) if isinstance(image_size, int) else image_size
        self._state: Any = None

    @classmethod
    def from_run(cls, run: str | Path, *, changes: Sequence[str] = ()) -> OnlinePredictor:
        """Open a trained run by its folder or name; `changes` and what is raised are those of `open_run`."""
        opened = open_run(run, changes=changes)
        return cls(opened.model, opened.phase_names, image_size=opened.config.data.image_size)

    def reset(self) -> None:
        """Forget the frames so far: the next one is the first of another video."""
        self._state = None

    @torch.no_grad()
    def step(self, frame: Frame) -> tuple[str, NDArray[np.float32]]:
        """Return the name of the phase at the next frame, and the probabilities of all phases, (K,).

        `frame` is an RGB picture, uint8 (H, W, 3) or (3, H, W), or a frame decoded by PyAV; of any size. It is resized
        as training does it: an av.VideoFrame as frames of video files are, and turned as its display matrix says; an
        array as images in folders are (the two differ by some grey levels, since a video's colours are stored coarser).
        Raises UsageError for anything else; the state is then as it was.
        """
        if self.model.training:
            raise UsageError(
                "the model is in training mode, where it predicts otherwise; call model.eval() before step"
            )
        picture = _resize(frame, self.image_size)
        (logits,), self._state = self.model.predict([torch.from_numpy(picture).unsqueeze(0)], self._state)
        probabilities = logits[0].float().cpu().softmax(dim=-1).numpy()
        return self.phase_names[int(probabilities.argmax())], probabilities


def check_causal(model: VideoModel) -> None:
    """Raise UsageError where a network over time reads frames from the end too."""
    for name, module in model.rnn.named_modules():
        if getattr(module, "bidirectional", False):
            shown = f"{type(module).__name__} ({name})" if name else type(module).__name__
            raise UsageError(
                f"the model's {shown} is bidirectional: it reads a video from its end too, so that a frame cannot be "
                "predicted before the last one is there; predict whole videos, or train one with bidirectional=False"
            )


def _resize(frame: Frame, size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the frame as uint8 (3, height, width)."""
    if isinstance(frame, av.VideoFrame):
        return resize_decoded(frame, size)
    array = frame.detach().cpu().numpy() if isinstance(frame, Tensor) else frame
    is_picture = isinstance(array, np.ndarray) and array.dtype == np.uint8 and array.ndim == 3 and array.size > 0
    channels = [axis for axis in (0, -1) if is_picture and array.shape[axis] == 3]
    if len(channels) != 1:
        given = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else type(frame).__name__
        raise UsageError(f"frame is {given}; expected one RGB picture, uint8 (height, width, 3) or (3, height, width)")
    rows = array.transpose(1, 2, 0) if channels == [0] else array
    return resize_picture(Image.fromarray(np.ascontiguousarray(rows)), size)

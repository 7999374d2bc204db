"""An exponential moving average of the weights, to validate and predict with in place of the last ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from seqckpt.models import VideoModel

__all__ = ["WeightAverage"]


class WeightAverage:
    """Average weights: after each step, average = decay * average + (1 - decay) * weights; buffers are the last ones.

    The first update copies the weights. Memory: the parameters once more. Polyak & Juditsky, "Acceleration of
    stochastic approximation by averaging" (1992).
    """

    def __init__(self, model: VideoModel, decay: float) -> None:
        self._averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay))

    @property
    def model(self) -> VideoModel:
        """A copy of the model with the average weights."""
        return cast(VideoModel, self._averaged.module)

    def update(self, model: VideoModel) -> None:
        """Take a step's weights into the average."""
        self._averaged.update_parameters(model)

    @property
    def num_updates(self) -> int:
        """How many steps were taken in."""
        return int(self._averaged.n_averaged)

    def load(self, weights: Mapping[str, Tensor], num_updates: int) -> None:
        """Go on with these weights as the average of so many steps."""
        self.model.load_state_dict(weights)
        self._averaged.n_averaged.fill_(num_updates)

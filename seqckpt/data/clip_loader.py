"""An epoch's clips on their way to the step: augmented, and read ahead by a thread or by worker processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from seqckpt.data.augmentation import Augmentation
from seqckpt.data.clips import Clip
from seqckpt.data.prefetch import Prefetched, WaitingTime
from seqckpt.errors import DataError, TrainingError

__all__ = ["clip_loader"]


def clip_loader(
    batches: Sequence[Sequence[Clip]],
    *,
    seed: int,
    epoch: int,
    augmentation: Augmentation | None = None,
    device: torch.device | None = None,
    num_workers: int = 0,
    waiting: WaitingTime | None = None,
) -> DataLoader[list[Clip]]:
    """Return the batches in their order, with frames as training reads them.

    Without workers frames are read where they are used, chunk by chunk, and a background thread reads ahead;
    augmentation is done by that thread, on `device`. With `num_workers` processes these load and augment whole clips
    ahead, in memory. Either way the pixels are the same, and torch's global random state is left as it is. `waiting`
    takes the time in which the thread's frames were not yet there.
    """
    if num_workers < 0:
        raise DataError(f"num_workers={num_workers}; expected at least 0")
    dataset: Dataset[Any] = _Clips(
        list(chain.from_iterable(batches)),
        augmentation or Augmentation(),
        seed=seed,
        epoch=epoch,
        device=None if num_workers else device,
        in_memory=num_workers > 0,
        waiting=waiting,
    )
    numbers = count()
    return _Loader(
        [", ".join(f"{clip.video.video_id} frames {clip.start} to {clip.stop}" for clip in batch) for batch in batches],
        dataset,
        batch_sampler=[list(islice(numbers, len(batch))) for batch in batches],
        collate_fn=list,
        num_workers=num_workers,
        generator=torch.Generator().manual_seed(0),
    )


class _Loader(DataLoader[Any]):
    """A DataLoader that raises a worker's DataError as it is, and names the batch at which a worker died.

    torch would wrap a traceback around the one, and tell only a process number of the other. `names` are the batches'.
    """

    def __init__(self, names: Sequence[str], *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.names = names

    def __iter__(self) -> Iterator[list[Clip]]:  # type: ignore[override]
        batches = super().__iter__()
        for name in self.names:
            try:
                batch = next(batches)
            except RuntimeError as error:
                if "DataLoader worker" not in str(error):
                    raise
                raise TrainingError(
                    f"a process that loads clips ended unexpectedly while {name} was waited for, or the batch after "
                    f"it: {str(error).splitlines()[0]}\nIf it was killed for memory, lower data.num_workers, "
                    "data.clip_length or train.batch_size; data.num_workers=0 reads frames in the main process"
                ) from error
            for clip in batch:
                if isinstance(clip, DataError):
                    raise clip
            yield batch


class _Clips(Dataset[Clip | DataError]):
    def __init__(
        self,
        clips: Sequence[Clip],
        augmentation: Augmentation,
        *,
        seed: int,
        epoch: int,
        device: torch.device | None,
        in_memory: bool,
        waiting: WaitingTime | None,
    ) -> None:
        self.clips, self.augmentation, self.seed, self.epoch = clips, augmentation, seed, epoch
        self.device, self.in_memory, self.waiting = device, in_memory, waiting

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> Clip | DataError:
        if not self.in_memory:
            return self._prepare(index)
        try:
            return self._prepare(index).load()
        except DataError as error:
            return error

    def _prepare(self, index: int) -> Clip:
        clip = self.clips[index]
        source = self.augmentation.apply_to(
            clip.frames,
            seed=self.seed,
            epoch=self.epoch,
            video_id=clip.video.video_id,
            start=clip.start,
            device=self.device,
        )
        clip = clip.read_from(source)
        if self.in_memory:
            return clip
        if isinstance(clip.video.frames, Tensor) and not self.augmentation.changes_anything:
            return clip
        return clip.read_from(Prefetched(source, waiting=self.waiting))

"""An epoch's clips on their way to the step: augmented, and read ahead by a thread or by worker processes."""

from __future__ import annotations

import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from seqckpt.data.augmentation import Augmentation
from seqckpt.data.clips import Clip
from seqckpt.data.frame_source import FrameSource, Stretch, Window
from seqckpt.data.prefetch import Prefetched, WaitingTime
from seqckpt.errors import DataError, TrainingError

__all__ = ["clip_loader", "explain_dead_workers"]


def clip_loader(
    batches: Sequence[Sequence[Clip]],
    *,
    spans: Sequence[Sequence[tuple[int, int]]] | None = None,
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
    takes the time in which the thread's frames were not yet there. `spans`, where clips are shared with other
    processes, says which frames (start, stop) of each clip of each batch are to be read here; others cannot be.
    """
    if num_workers < 0:
        raise DataError(f"num_workers={num_workers}; expected at least 0")
    dataset: Dataset[Any] = _Clips(
        list(chain.from_iterable(batches)),
        None if spans is None else list(chain.from_iterable(spans)),
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


@contextmanager
def explain_dead_workers(describe: Callable[[], str]) -> Iterator[None]:
    """Name what was going on when a worker process died: TrainingError in place of torch's RuntimeError.

    torch raises that from a signal's handler, wherever the main process happens to be: put this around all that goes on
    while workers live. Where it was just taking what the worker had sent, it may notice the broken connection first.
    `describe` says what was going on.
    """
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError, FileNotFoundError) as error:
        of_torch = "DataLoader worker" in str(error) and not str(error).startswith("Caught ")  # what a worker raised
        of_connection = not isinstance(error, RuntimeError) and _is_from_multiprocessing(error)
        if not (of_torch or of_connection):
            raise
        _let_children_end_unnoticed()
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise TrainingError(
            f"a process that loads clips ended unexpectedly while {describe()}: {reason}\nIf it was killed for memory, "
            "lower data.num_workers, data.clip_length or train.batch_size; data.num_workers=0 reads frames in the main "
            "process"
        ) from error


def _let_children_end_unnoticed() -> None:
    """Take torch's handler away, which would raise once more, in the middle of the message, when the signal comes late.

    Loaders of later on notice dead workers by looking for them, every five seconds.
    """
    if hasattr(signal, "SIGCHLD") and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _is_from_multiprocessing(error: BaseException) -> bool:
    frames = traceback.extract_tb(error.__traceback__)
    return bool(frames) and "multiprocessing" in Path(frames[-1].filename).parts


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
            with explain_dead_workers(lambda name=name: f"{name} was waited for, or what comes after it"):  # type: ignore[misc]
                batch = next(batches)
            for clip in batch:
                if isinstance(clip, DataError):
                    raise clip
            yield batch


class _Clips(Dataset[Clip | DataError]):
    def __init__(
        self,
        clips: Sequence[Clip],
        spans: Sequence[tuple[int, int]] | None,
        augmentation: Augmentation,
        *,
        seed: int,
        epoch: int,
        device: torch.device | None,
        in_memory: bool,
        waiting: WaitingTime | None,
    ) -> None:
        self.clips, self.spans, self.augmentation, self.seed, self.epoch = clips, spans, augmentation, seed, epoch
        self.device, self.in_memory, self.waiting = device, in_memory, waiting

    def __len__(self) -> int:
        return len(self.clips)

    def __getitem__(self, index: int) -> Clip | DataError:
        clip = self.clips[index]
        start, stop = (0, len(clip)) if self.spans is None else self.spans[index]
        is_whole = stop - start == len(clip)
        try:
            frames = self._prepare(clip, clip.frames if is_whole else Stretch(clip.frames, start, stop))
        except DataError as error:
            if not self.in_memory:
                raise
            return error
        return clip.read_from(frames if is_whole else Window(frames, start, len(clip)))

    def _prepare(self, clip: Clip, frames: FrameSource) -> FrameSource:
        """Augment all or some of a clip's frames, and read them ahead or now."""
        source = self.augmentation.apply_to(
            frames,
            seed=self.seed,
            epoch=self.epoch,
            video_id=clip.video.video_id,
            start=clip.start,
            device=self.device,
        )
        if self.in_memory:
            return source[0 : len(source)]
        if isinstance(clip.video.frames, Tensor) and not self.augmentation.changes_anything:
            return source
        return Prefetched(source, waiting=self.waiting)

"""A model for the steps of several ranks: frames shared out, gradients averaged, random numbers in order.

    DistributedDataParallel( VideoModel( FrameParallel(encoder), rnn, head ) )

The parts are the model's own, so that it sees every update; validation and snapshots use the model itself, which knows
nothing of other ranks. Let rank r of F frame ranks in replica d of D have the loss w_d * L_d, where w_d is D times the
share that the replica's labelled frames have in the step's. DDP's mean over the D * F ranks then is the sum over d of
(w_d / D) * gradient of L_d: that of the mean over all labelled frames, on one process (frame_parallel.py says why F
drops out).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from seqckpt.core import FrameParallel
from seqckpt.core.random_states import RandomStates
from seqckpt.models import VideoModel
from seqckpt.training.ranks import Ranks

__all__ = [
    "own_random_numbers",
    "parallelise",
    "share_buffers",
    "share_random_states",
    "without_reduction",
    "without_statistics",
]


def parallelise(model: VideoModel, ranks: Ranks) -> nn.Module:
    """Return what to call in the place of `model` in training steps; the model itself where there is one process.

    One reduction of gradients a step; parameters start as rank 0 has them.
    """
    if ranks.world_size == 1:
        return model
    step_model: nn.Module = model
    if ranks.num_frame_ranks > 1 and ranks.mesh is not None:
        encoder = FrameParallel(model.encoder, ranks.mesh.get_group("frame"))
        step_model = VideoModel(encoder, model.rnn, model.head, truncate=model.truncate)
    # No device_ids: with them DDP would move the frames of whole clips to the GPU, which go there chunk by chunk.
    return DistributedDataParallel(step_model, gradient_as_bucket_view=True)


def without_reduction(model: nn.Module) -> AbstractContextManager[None]:
    """Within this context forward and backward only add up this rank's gradients: for all but a step's last batch."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


@contextmanager
def without_statistics(model: nn.Module) -> Iterator[None]:
    """Let batch norm neither take statistics nor update its own: for a rank with one frame, that counts for nothing.

    One value per channel would be an error, and one frame's statistics would be shared with all ranks.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, _BatchNorm) and layer.training]
    for layer in layers:
        layer.eval()
    try:
        yield
    finally:
        for layer in layers:
            layer.train()


@contextmanager
def own_random_numbers(ranks: Ranks, device: torch.device) -> Iterator[None]:
    """Let replicas draw different numbers (dropout), and the ranks of one the same; afterwards all states are equal.

    So a snapshot of any rank's generators is one of all. With one replica the generators are used as they are: a run
    with frame parallel draws what a single process does.
    """
    if ranks.num_replicas == 1:
        yield
        return
    seed = int(torch.randint(2**62, ()))
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed + ranks.replica)
        yield


def share_buffers(model: nn.Module, ranks: Ranks) -> None:
    """Give every rank rank 0's buffers, so that all validate the same model: running statistics differ by rank."""
    if ranks.world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def share_random_states(ranks: Ranks, device: torch.device) -> None:
    """Give torch's generators of every rank the state of rank 0's: the ranks of a replica must draw the same."""
    states = RandomStates([device] if device.type == "cuda" else [])
    states.write(ranks.share(states.read()))

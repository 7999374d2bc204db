"""Any module, checkpointed: its activations are forgotten after forward and recomputed, identically, in backward."""

from __future__ import annotations

from typing import Any

from torch import nn

from seqckpt.core.replay import Loop, replay_loop
from seqckpt.transparent import hide_in_state_dict

__all__ = ["Checkpointed"]


class Checkpointed(nn.Module):
    """A module that keeps no activations between forward and backward; otherwise it is the module itself.

    Called as the module would be, with any nesting of tensors in arguments, keyword arguments and results.
    `state_dict()` has the module's own keys. Batch norm statistics and other buffers are updated once, dropout is the
    same in the replay, and the replay runs in forward's train/eval mode. `check_replay` compares values of replay and
    first run.

    Memory: arguments and results. Time: one more forward. Raises ReplayError in backward if the module uses a trainable
    tensor that is neither its parameter nor among the arguments. Chen et al., Training Deep Nets with Sublinear Memory
    Cost (2016).

    >>> import torch
    >>> block = Checkpointed(nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU()))
    >>> block(torch.randn(2, 4)).sum().backward()
    >>> sorted(block.state_dict())
    ['0.bias', '0.weight']
    """

    def __init__(self, module: nn.Module, *, check_replay: bool = False) -> None:
        super().__init__()
        self.module = module
        self.check_replay = check_replay
        hide_in_state_dict(self, "module")

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        loop = Loop(
            run=lambda k, x, state, weights: (self.module(*x[0], **x[1]), None),
            name=type(self.module).__name__,
            modules=[self.module],
            num_kept=0,
            check=self.check_replay,
        )
        return replay_loop(loop, (args, kwargs), None)[0]

"""Recurrent cores of one's own, as SegmentedRNN takes them: `core(x_segment, state) -> (y_segment, state)`.

Two that torch does not have, to copy from: a convolutional LSTM and a diagonal linear state-space layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["ConvLSTM", "DiagonalStateSpace", "Leaky"]


class ConvLSTM(nn.Module):
    """An LSTM whose matrix products are convolutions: (B, T, C, H, W) -> (B, T, D, H, W), state (h, c).

    Shi et al., Convolutional LSTM Network (2015), without peepholes.
    """

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.channels = channels
        self.gates = nn.Conv2d(in_channels + channels, 4 * channels, 3, padding=1)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor] | None) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        if state is None:
            zeros = x.new_zeros(len(x), self.channels, *x.shape[-2:])
            state = (zeros, zeros)
        h, c = state
        hidden = []
        for x_t in x.unbind(1):
            i, f, g, o = self.gates(torch.cat([x_t, h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            hidden.append(h)
        return torch.stack(hidden, 1), (h, c)


class DiagonalStateSpace(nn.Module):
    """s_t = a * s_(t-1) + B x_t, y_t = Re(C s_t), a complex and diagonal: (B, T, D) -> (B, T, D).

    The state is {"s": (B, N) complex, "steps": int64}. Gu et al., On the Parameterization and Initialization of
    Diagonal State Space Models (2022), already discretised.
    """

    def __init__(self, width: int, num_states: int) -> None:
        super().__init__()
        self.log_decay = nn.Parameter(torch.linspace(-3, 0, num_states))
        self.angle = nn.Parameter(torch.linspace(0, 3, num_states))
        self.into = nn.Linear(width, num_states)
        self.out_of = nn.Parameter(torch.randn(num_states, width, 2) / num_states)  # two real parts, for .double()

    def forward(self, x: Tensor, state: dict[str, Tensor] | None) -> tuple[Tensor, dict[str, Tensor]]:
        a = torch.polar((-self.log_decay.exp()).exp(), self.angle)
        driven = self.into(x)
        s = driven.new_zeros(len(x), len(a), dtype=a.dtype) if state is None else state["s"]
        steps = x.new_zeros((), dtype=torch.int64) if state is None else state["steps"]
        states = []
        for driven_t in driven.unbind(1):
            s = a * s + driven_t
            states.append(s)
        y = (torch.stack(states, 1) @ torch.view_as_complex(self.out_of)).real
        return y, {"s": s, "steps": steps + x.shape[1]}


class Leaky(nn.Module):
    """A small core with dropout, batch norm and a weight that is used at every step."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.linear, self.dropout, self.norm = nn.Linear(width, width), nn.Dropout(0.5), nn.BatchNorm1d(width)

    def forward(self, x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        state = x.new_zeros(len(x), x.shape[-1]) if state is None else state
        steps = []
        for x_t in x.unbind(1):
            state = (0.9 * state + self.norm(self.dropout(self.linear(x_t)))).tanh()
            steps.append(state)
        return torch.stack(steps, 1), state

"""SegmentedRNN on PackedSequence: sorted or not, one direction or both, every sequence with its own end.

The padded input is packed inside the run, so that its gradient is compared too.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from reference import CELLS, assert_same, cut_lengths, cut_run, given_state, run_once, sequence
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence

from seqckpt import SegmentedRNN

OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("gru", {}),
    ("lstm", {}),
    ("lstm", {"bidirectional": True}),
    ("gru", {"dropout": 0.5}),
    ("lstm", {"bidirectional": True, "dropout": 0.5, "proj_size": 2}),
    ("rnn_relu", {"bidirectional": True}),
]


@pytest.mark.parametrize("segment_length", [1, 3, 20, [4, 2]])
@pytest.mark.parametrize("lengths", [[6, 4], [3, 6, 1], [1, 1], [2, 7, 7, 4, 1]])
@pytest.mark.parametrize(("cell", "options"), OPTIONS)
def test_packed_case_7(cell: str, options: dict[str, Any], lengths: list[int], segment_length: Any) -> None:
    core = CELLS[cell](3, 4, 2, batch_first=True, **options).double()
    x = sequence(core, max(lengths), len(lengths))
    state = None if segment_length == 3 else given_state(core, len(lengths))
    levels = segment_length if isinstance(segment_length, list) else [segment_length]

    def packed(x: torch.Tensor) -> PackedSequence:
        return pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)

    def segmented(core: nn.RNNBase, x: torch.Tensor, state: Any) -> Any:
        return SegmentedRNN(core, segment_length)(packed(x), state)

    def cut(core: nn.RNNBase, x: torch.Tensor, state: Any) -> Any:
        return cut_run(core, packed(x), state, cut_lengths(max(lengths), *levels))

    def undivided(core: nn.RNNBase, x: torch.Tensor, state: Any) -> Any:
        return core(packed(x), state)

    run, *twins = (run_once(core, how, (x, state)) for how in (segmented, cut, undivided))
    assert isinstance(run.result[0], PackedSequence)  # its batch sizes and indices are compared with the results
    assert_same(run, twins[0])
    assert_same(run, twins[1], tolerance=1e-10)


def test_sorted_input_has_no_indices() -> None:
    core = nn.GRU(3, 4).double()
    x = pack_padded_sequence(sequence(core, 6, 2), torch.tensor([6, 4]))
    hidden, h = SegmentedRNN(core, 2)(x)
    expected, expected_h = core(x)
    assert hidden.sorted_indices is None
    assert hidden.unsorted_indices is None
    assert torch.equal(hidden.batch_sizes, expected.batch_sizes)
    assert (h - expected_h).abs().max() < 1e-10


def test_final_state_is_that_of_each_sequence_at_its_own_end() -> None:
    core = nn.LSTM(3, 4, batch_first=True).double()
    lengths = [2, 7, 5]
    x = sequence(core, 7, 3)
    rnn = SegmentedRNN(core, 3)
    _, (h, c) = rnn(pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False))
    for i, length in enumerate(lengths):
        _, (own_h, own_c) = core(x[i : i + 1, :length])
        assert (h[:, i : i + 1] - own_h).abs().max() < 1e-10  # batch of one: another matrix product, another rounding
        assert (c[:, i : i + 1] - own_c).abs().max() < 1e-10

"""Peers compute what they are said to: the exact ones plain gradients, the tutorial's recipe others, by hand values."""

from __future__ import annotations

import copy
import importlib.util
import math
import re

import pytest
import torch
from torch import Tensor, nn

from seqckpt.bench.peers import PEERS, Cut, Parts
from seqckpt.bench.subject import Subject, relative_error
from seqckpt.bench.video_model import OURS, build_video_subject, parse_choice
from seqckpt.errors import UsageError

NUM_FRAMES, NUM_PIECES = 20, 4
EXACT = ("checkpoint", "gradcache", "save_on_cpu")


class ToFloat(nn.Module):
    def forward(self, frames: Tensor) -> Tensor:
        return frames.double() / 255


@pytest.fixture(scope="module")
def parts() -> Parts:
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return Parts(encoder.double(), ToFloat(), nn.LSTM(4, 6, batch_first=True).double(), nn.Linear(6, 7).double())


def gradients(parts: Parts, peer: str, cut: Cut) -> dict[str, Tensor]:
    parts = copy.deepcopy(parts)
    generator = torch.Generator().manual_seed(1)
    frames = torch.randint(256, (NUM_FRAMES, 3, 8, 8), dtype=torch.uint8, generator=generator)
    targets = torch.randint(7, (NUM_FRAMES,), generator=generator)
    PEERS[peer](parts, cut)(frames, targets)
    named = {"encoder": parts.encoder, "rnn": parts.rnn, "decoder": parts.decoder}
    return {f"{k}.{name}": p.grad for k, module in named.items() for name, p in module.named_parameters()}


@pytest.mark.parametrize("peer", EXACT)
@pytest.mark.parametrize("cut", [Cut(5, 5), Cut(7, 6)], ids=["even", "with a rest"])
def test_exact_peers_have_the_plain_gradients(parts: Parts, peer: str, cut: Cut) -> None:
    assert relative_error(gradients(parts, peer, cut), gradients(parts, "plain", cut)) < 1e-12


def test_the_recipe_sums_means_and_keeps_the_last_piece_only(parts: Parts) -> None:
    """Four pieces of equal length: the decoder's gradient is four times the plain one, an error of 3; and what the
    recurrent network gets is the last piece's mean alone."""
    cut = Cut(5, NUM_FRAMES // NUM_PIECES)
    wrong, plain = gradients(parts, "recipe", cut), gradients(parts, "plain", cut)
    torch.testing.assert_close(wrong["decoder.weight"], NUM_PIECES * plain["decoder.weight"], rtol=1e-10, atol=1e-14)
    only_decoder = {"decoder.weight": wrong["decoder.weight"]}
    assert relative_error(only_decoder, {"decoder.weight": plain["decoder.weight"]}) == pytest.approx(3)
    cosine = torch.cosine_similarity(wrong["rnn.weight_hh_l0"].flatten(), plain["rnn.weight_hh_l0"].flatten(), 0)
    assert cosine < 0.99


def test_fairscale_is_exact_or_says_that_it_is_not_there(parts: Parts) -> None:
    if importlib.util.find_spec("fairscale") is None:
        with pytest.raises(UsageError, match=r"not installed here .*: pip install fairscale"):
            gradients(parts, "fairscale", Cut(5, 5))
        return
    found = gradients(parts, "fairscale", Cut(5, 5))
    assert relative_error(found, gradients(parts, "plain", Cut(5, 5))) < 1e-12


def test_relative_error_is_the_worst_parameters() -> None:
    reference = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.0])}
    assert relative_error({"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([0.25])}, reference) == 0.25
    assert relative_error({"a": torch.tensor([3.0, 4.5]), "b": torch.tensor([0.0])}, reference) == pytest.approx(0.1)
    for bad in (
        {"a": reference["a"], "b": torch.tensor([math.nan])},
        {"a": torch.tensor([math.nan, 4.0]), "b": reference["b"]},
    ):
        assert math.isnan(relative_error(bad, reference))
        assert math.isnan(relative_error(reference, bad))
    with pytest.raises(ValueError, match=r"gradients of \['a'\] cannot be compared with those of \['a', 'b'\]"):
        relative_error({"a": torch.zeros(1)}, reference)


def subject(way: str, **more: object) -> Subject:
    settings = {"encoder": "small", "pixels": 32, "num_frames": 40, "choice": "4", "segment_length": 4}
    return build_video_subject(way=way, **{**settings, **more})


@pytest.mark.parametrize("choice", ["4", "4+1", "4+2x2"])
def test_ours_has_the_plain_gradients_and_a_lower_peak(choice: str, tmp_path: object) -> None:
    path = f"{tmp_path}/plain.pt"
    plain, ours = subject("plain", dtype="float64"), subject(OURS, choice=choice, dtype="float64")
    plain.write_gradients(path)
    assert ours.gradient_error(path) < 1e-12
    assert 0 < ours.peak()["peak_bytes"] < plain.peak()["peak_bytes"]


def test_peaks_are_given_with_and_without_gradients() -> None:
    found = subject("plain")
    peak = found.peak()
    assert peak["gradient_bytes"] == found.parameter_bytes()
    assert peak["with_gradients_bytes"] - peak["gradient_bytes"] <= peak["peak_bytes"] <= peak["with_gradients_bytes"]


def test_a_peak_without_gradients_is_what_else_is_there() -> None:
    weight = torch.nn.Parameter(torch.ones(2**18))  # 1 MiB

    def step() -> None:
        other = torch.ones(10 * 2**18)  # alive in backward, when the gradient is there
        (weight * 2).sum().backward()
        del other

    peak = Subject(step, {"weight": weight}).peak()
    assert peak["gradient_bytes"] == 2**20
    assert 10 * 2**20 <= peak["peak_bytes"] <= 12 * 2**20
    assert peak["with_gradients_bytes"] >= 11 * 2**20


def test_a_schedule_in_short_is_read_or_refused() -> None:
    assert parse_choice("25").describe() == "chunks of 25"
    assert parse_choice("10+2.5x3").describe() == "chunks of 10, kept: the last 2.5 stages and the last 3 chunks"
    assert parse_choice("25+2f").describe() == "chunks of 25, fused, kept: the last 2 stages"
    for text in ("fast", "0", "-5", "25+-1", "25+nan", "25x0", ""):
        with pytest.raises(UsageError, match=f"'{re.escape(text)}' is no schedule: expected chunk size"):
            parse_choice(text)

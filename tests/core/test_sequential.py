"""checkpoint_sequential: exact, and cut where the measured bytes say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from measures import count_calls, kept_bytes, saved_bytes
from reference import hold_against
from torch import Tensor, nn

from seqckpt import checkpoint_sequential


def run_plain(layers: Any, x: Any) -> Any:
    for layer in layers:
        x = layer(*x) if isinstance(x, tuple) else layer(x)
    return x


def layers() -> nn.Sequential:
    """Eight layers with batch norm, dropout and a layer in place at many places where a cut may fall."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Dropout(0.3),
        nn.Conv2d(4, 4, 3),
        nn.LeakyReLU(0.2, inplace=True),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    ).double()


def images(requires_grad: bool = False) -> Tensor:
    return torch.randn(6, 3, 8, 8, dtype=torch.float64, requires_grad=requires_grad)


@pytest.mark.parametrize("segments", [1, 2, 3, 5, 8, 50])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("requires_grad", [True, False])
def test_equals_plain(segments: int, training: bool, requires_grad: bool) -> None:
    """Bitwise, and with buffers and random state: the measuring run leaves no trace."""
    hold_against(
        run_plain,
        lambda m, x: checkpoint_sequential(m, x, segments=segments),
        layers().train(training),
        [images(requires_grad)],
    )


@pytest.mark.parametrize("memory", ["40kB", 10**6, "1GiB"])
def test_equals_plain_within_memory(memory: int | str) -> None:
    hold_against(run_plain, lambda m, x: checkpoint_sequential(m, x, memory=memory), layers(), [images(True)])


@pytest.mark.parametrize("segments", [1, 2, 4])
def test_first_layer_in_place_on_the_callers_tensor(segments: int) -> None:
    model = nn.Sequential(nn.LeakyReLU(0.3, inplace=True), *layers())
    hold_against(
        lambda m, x: run_plain(m, x.clone()),
        lambda m, x: checkpoint_sequential(m, x, segments=segments),
        model,
        [images(True)],
    )


class Two(nn.Module):
    """Two inputs, two outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return self.a(x).tanh() + y, self.b(y) * x


class Nested(nn.Module):
    """A tuple of a dict and a list: what a recurrent layer's output and state look like."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4).double()

    def forward(self, x: Any, y: Any) -> Any:
        if isinstance(x, dict):
            x, y = x["x"] + y[1]["deep"], y[0]
        return {"x": self.a(x)}, [y, {"deep": x * y}]


@pytest.mark.parametrize("segments", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", [Two, Nested])
def test_several_and_nested_inputs(segments: int, kind: Callable[[], nn.Module]) -> None:
    x = [torch.randn(3, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    hold_against(
        lambda m, *x: run_plain(m, x),
        lambda m, *x: checkpoint_sequential(m, x, segments=segments),
        nn.Sequential(*(kind() for _ in range(4))),
        x,
    )


def test_functions_among_the_layers() -> None:
    model = layers()
    hold_against(
        lambda m, x: run_plain(m, x * 2).sin(),
        lambda m, x: checkpoint_sequential([lambda t: t * 2, *m, torch.sin], x, segments=3),
        model,
        [images(True)],
    )


# ------------------------------------------------------------------ what is run and what is kept


def test_one_segment_does_checkpoint() -> None:
    """torch's own runs the plain graph for segments=1, as the published notebook's comparison did."""
    model, x = layers(), images()
    plain = saved_bytes(lambda: run_plain(model, x), x, *model.parameters())
    torchs = saved_bytes(
        lambda: torch.utils.checkpoint.checkpoint_sequential(model, 1, x, use_reentrant=False), x, *model.parameters()
    )
    checkpoint_sequential(model, x, segments=1)  # measured once
    ours = saved_bytes(lambda: checkpoint_sequential(model, x, segments=1), x, *model.parameters())
    assert torchs == plain > 10_000
    assert ours == 0
    with count_calls(model[0]) as calls:
        checkpoint_sequential(model, x, segments=1).sum().backward()
    assert len(calls) == 2


@pytest.mark.parametrize("segments", [2, 3])
def test_last_of_several_segments_runs_once(segments: int) -> None:
    model, x = layers(), images()
    checkpoint_sequential(model, x, segments=segments)
    with count_calls(model[0]) as first, count_calls(model[-1]) as last:
        checkpoint_sequential(model, x, segments=segments).sum().backward()
    assert (len(first), len(last)) == (2, 1)


def test_measured_once_per_input_shape_and_state() -> None:
    model = layers()
    with count_calls(model[0]) as calls:
        for size, rows in ((6, 2), (6, 1), (5, 2), (6, 1)):
            before = len(calls)
            checkpoint_sequential(model, images()[:size], segments=2)
            assert len(calls) - before == rows
        model.eval()
        checkpoint_sequential(model, images(), segments=2)
        assert len(calls) - 6 == 2


class Outputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


@pytest.mark.parametrize("layer", [nn.Tanh(), Outputs()], ids=str)
def test_measuring_leaves_no_memory_behind(layer: nn.Module) -> None:
    """Layers that save their own outputs: a saved-tensor hook that hands those on as they are keeps the whole graph."""
    x = torch.randn(1000, 1, 8, requires_grad=True)
    checkpoint_sequential(nn.Sequential(layer), x, segments=1)  # where replays are compared is kept for each shape
    # 32,000 bytes are one output; python's cache of measurements and the like are no tensors
    assert kept_bytes(lambda: checkpoint_sequential(nn.Sequential(layer), x, segments=1)) < 1000


def test_no_gradient_no_cost() -> None:
    model = layers().eval()
    for grad_mode in (torch.no_grad, torch.inference_mode):
        with grad_mode(), count_calls(model[0]) as calls:
            checkpoint_sequential(model, images(), segments=3)
        assert len(calls) == 1


def wide_then_narrow() -> nn.Sequential:
    """The first block saves over 100 times as much as the others together."""
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.Sigmoid()),
        nn.AdaptiveAvgPool2d(2),
        nn.Conv2d(64, 8, 1),
        nn.Sigmoid(),
        *(nn.Conv2d(8, 8, 1) for _ in range(4)),
    )


def test_cuts_follow_bytes_and_not_the_count_of_layers() -> None:
    """An early wide layer is a segment of its own."""
    model, x = wide_then_narrow(), torch.randn(4, 3, 32, 32)
    checkpoint_sequential(model, x, segments=2)
    with count_calls(model[0]) as wide, count_calls(model[2]) as narrow:
        checkpoint_sequential(model, x, segments=2).sum().backward()
    assert (len(wide), len(narrow)) == (2, 1)  # torch's own would put four layers into the first segment


def test_measured_bytes_are_those_that_autograd_saves() -> None:
    """Each storage once, and without the first input, which is there anyhow."""
    from seqckpt.core.sequential import _measure

    for model, x in ((wide_then_narrow(), torch.randn(4, 3, 32, 32)), (layers(), images(True))):
        saved, _ = _measure(list(model), x)
        assert sum(saved) == saved_bytes(lambda m=model, x=x: run_plain(m, x), x, *model.parameters())


def chain() -> nn.Sequential:
    """Twelve layers that save 8,000 bytes each: the result of tanh, once."""
    return nn.Sequential(*(nn.Tanh() for _ in range(12)))


@pytest.mark.parametrize(
    ("budget", "num_segments"),
    # largest segment + what lies between: 12 layers; 6 + 1; 4 + 2; 3 + 3 (the least)
    [(96_000, 1), (95_999, 2), (56_000, 2), (55_999, 3), (48_000, 3)],
)
def test_memory_takes_the_fewest_segments_that_fit(budget: int, num_segments: int) -> None:
    model, x = chain(), torch.randn(1000, dtype=torch.float64, requires_grad=True)
    checkpoint_sequential(model, x, memory=budget)
    replayed = []
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: replayed.append(1))
    checkpoint_sequential(model, x, memory=budget).sum().backward()
    last = {1: 0, 2: 6, 3: 4}[num_segments]  # not replayed; a single segment is
    assert len(replayed) == 2 * 12 - last


def test_memory_that_cannot_be_met_is_refused_with_the_least() -> None:
    x = torch.randn(1000, dtype=torch.float64, requires_grad=True)
    with pytest.raises(ValueError, match=r"memory=10\.0 KiB cannot be met: the least that segments need is 46\.9 KiB"):
        checkpoint_sequential(chain(), x, memory="10KiB")


@pytest.mark.parametrize("wrong", [0, -1, 2.5, "7"])
def test_wrong_segments_are_refused(wrong: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="segments is"):
        checkpoint_sequential(layers(), images(), segments=wrong)


def test_segments_or_memory_must_be_given() -> None:
    with pytest.raises(ValueError, match="give one of the two"):
        checkpoint_sequential(layers(), images())
    with pytest.raises(ValueError, match="give one of the two"):
        checkpoint_sequential(layers(), images(), segments=2, memory="1GiB")
    with pytest.raises(ValueError, match="no amount of memory"):
        checkpoint_sequential(layers(), images(), memory="much")


def test_no_layers_give_back_the_input() -> None:
    x = images()
    assert checkpoint_sequential(nn.Sequential(), x, segments=2) is x

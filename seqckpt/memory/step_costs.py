"""What a whole training step costs, measured on a few frames: the numbers that cost_model.py reckons with.

    chunks of several sizes   through the encoder's stages (stage_costs.py)
    short sequences           through the recurrent network and the loss, with given features
    real steps of few chunks  how much longer a step takes than its pieces do

Nothing is left behind: gradients, buffers, random states, and the settings of the parts are put back as they were.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._pytree import tree_flatten

from seqckpt.core.schedule import Schedule
from seqckpt.errors import UsageError
from seqckpt.memory.allocated import peak_allocated_bytes
from seqckpt.memory.as_found import as_found, without_gradients
from seqckpt.memory.clock import repeat_for_a_moment, time_step
from seqckpt.memory.cost_model import count_pieces, predict
from seqckpt.memory.costs import Costs
from seqckpt.memory.sample import Sample
from seqckpt.memory.stage_costs import measure_stages
from seqckpt.memory.tail_costs import measure_tail

__all__ = ["measure_costs", "resident_bytes"]

_SIZES = (4, 16, 64)  # frames in the chunks that are measured


def measure_costs(model: nn.Module, sample: Sample, *, optimiser: Optimizer | None = None, memory_bytes: int) -> Costs:
    """Measure what a step of `model` on `sample` consists of; no measurement takes more than about `memory_bytes`.

    `model` has the parts `encoder` (a ChunkedEncoder), `rnn` and `head`, and is called as model(frames, targets).
    Cost: forward and backward of about 300 frames, whatever the sample's length.
    """
    if not any(p.requires_grad for p in model.parameters()):
        raise UsageError("no parameter of the model requires a gradient: there is no training step to plan")
    encoder: Any = model.encoder
    device = next(model.parameters()).device
    stages = list(encoder.stages)
    with _nothing_left_behind(model), torch.enable_grad():
        _warm_up(model, sample)

        def load(rows: int) -> Tensor:
            frames = sample.rows(rows)
            return frames if encoder.transform is None else encoder.transform(frames)

        sizes = sorted({min(size, sum(sample.lengths)) for size in _SIZES})
        as_run = [stage.folded() if hasattr(stage, "folded") else stage for stage in stages]
        sizes = _affordable(sizes, as_run, load, device, memory_bytes)
        resident = resident_bytes(model, sample, optimiser)
        resident["parameter_bytes"] += _folded_bytes(as_run, model)
        costs = Costs(
            stages=tuple(measure_stages(as_run, _names(encoder, stages), load, sizes)),
            tail=measure_tail(model, sample, device),
            num_rows=sum(sample.lengths),
            num_steps=max(sample.lengths),
            num_frozen=_count_frozen(encoder, stages),
            handed_bytes=_handed_bytes(encoder, sample),
            kept_byte_seconds=_fresh_byte_seconds(device),
            **resident,
        )
        return _calibrate(costs, model, sample, device)


def resident_bytes(model: nn.Module, sample: Sample, optimiser: Optimizer | None) -> dict[str, Any]:
    """What is there all through a step: parameters and buffers, the optimiser's state, frames that are in memory."""
    device = next(model.parameters()).device
    frames = [clip for clip in sample.frames if isinstance(clip, Tensor) and clip.device == device]
    trained = sum(_bytes(p) for p in model.parameters() if p.requires_grad)
    on_gpu = optimiser is not None and device.type == "cuda"
    return {
        "parameter_bytes": sum(_bytes(t) for t in (*model.parameters(), *model.buffers())),
        "optimiser_bytes": round(trained * _state_ratio(optimiser)) if optimiser is not None else 0,
        "optimiser_work_bytes": 2 * trained if on_gpu else 0,  # the optimisers for many tensors at once make copies
        "frame_bytes": sum(_bytes(clip) for clip in frames),
    }


def _folded_bytes(as_run: Sequence[Any], model: nn.Module) -> int:
    """Bytes of scaled copies of weights that fused stages have beside the parameters, all through a step."""
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    used = [t for stage in as_run if hasattr(stage, "parameters") for t in stage.parameters()]
    return sum(_bytes(t) for t in used if t.untyped_storage().data_ptr() not in own)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _state_ratio(optimiser: Optimizer) -> float:
    """Bytes of state per byte of parameter, found by one step of the same optimiser on a parameter of its own."""
    parameter = nn.Parameter(torch.zeros(4096))
    parameter.grad = torch.zeros_like(parameter)
    settings = {
        **optimiser.defaults,
        **{k: v for k, v in optimiser.param_groups[0].items() if k not in ("params", "param_names")},
    }
    kind: Any = type(optimiser)
    try:
        twin = kind([{"params": [parameter], **settings}])
        twin.step()
        state: Any = twin.state[parameter]
    except Exception:  # an optimiser with another interface: what it holds now, or what Adam would
        held = sum(_bytes(t) for t in tree_flatten(dict(optimiser.state))[0] if isinstance(t, Tensor))
        total = sum(_bytes(p) for group in optimiser.param_groups for p in group["params"])
        return held / total if held else 2.0
    return sum(_bytes(t) for t in tree_flatten(state)[0] if isinstance(t, Tensor) and t.dim()) / _bytes(parameter)


def _count_frozen(encoder: Any, stages: Sequence[Any]) -> int:
    """The stages in front that nothing trains, reading included; 0 if there are none with parameters."""
    trained = [any(p.requires_grad for p in stage.parameters()) for stage in stages]
    in_front = trained.index(True) if True in trained else 0
    transform = encoder.transform
    if isinstance(transform, nn.Module) and any(p.requires_grad for p in transform.parameters()):
        return 0
    return in_front + 1 if any(True for stage in stages[:in_front] for _ in stage.parameters()) else 0


def _handed_bytes(encoder: Any, sample: Sample) -> float:
    """Bytes per frame of the copy that a first chunk is handed; without a transform it is what the encoder saves."""
    if not isinstance(sample.frames, Tensor) or encoder.transform is None:
        return 0.0
    return _bytes(sample.frames) / sum(sample.lengths)


def _names(encoder: Any, stages: Sequence[Any]) -> list[str]:
    known = {id(module): name for name, module in encoder.encoder.named_modules()}
    return [known.get(id(stage)) or f"stage {i + 1}" for i, stage in enumerate(stages)]


def _affordable(
    sizes: list[int], stages: Sequence[Any], load: Callable[[int], Tensor], device: torch.device, memory_bytes: int
) -> list[int]:
    """Those sizes of chunks that stay within the memory, judged by the smallest one."""

    def run() -> None:
        x: Any = load(sizes[0])
        for stage in stages:
            x = stage(x)

    peak = peak_allocated_bytes(run, device)
    fitting = [size for size in sizes if 2 * peak * size / sizes[0] <= memory_bytes]
    return fitting or sizes[:1]


def _calibrate(costs: Costs, model: nn.Module, sample: Sample, device: torch.device) -> Costs:
    """Hold predicted seconds against real steps of few chunks, and take in what they leave out.

    Bytes need no such thing: their sums are those of real steps to within a few per cent.
    """
    points = costs.stages[0].forward_seconds.points
    small, large = points[0][0], points[-1][0]
    medium = min(large, _SIZES[1])
    predicted_seconds, measured_seconds = _time_steps(costs, model, sample, device, small, 6)
    costs = replace(costs, chunk_seconds=max(0.0, (measured_seconds - predicted_seconds) / 6))
    factors = []
    for size, num_chunks in ((medium, 4), (large, 2)):
        predicted_seconds, measured_seconds = _time_steps(costs, model, sample, device, size, num_chunks)
        factors.append((size, min(1.3, max(0.7, measured_seconds / predicted_seconds))))
    return replace(costs, seconds_factors=tuple(sorted(dict(factors).items())))


def _of_chunks(sample: Sample, size: int, num_chunks: int) -> Sample:
    """Clips of so many frames in all that they make so many chunks."""
    return sample.cut(count_pieces(num_chunks * size * max(sample.lengths), sum(sample.lengths)))


def _time_steps(
    costs: Costs, model: nn.Module, sample: Sample, device: torch.device, size: int, num_chunks: int
) -> tuple[float, float]:
    """Predicted and measured seconds of a step of so many chunks; the least of two."""
    few = _of_chunks(sample, size, num_chunks)
    schedule = Schedule(chunk_size=size, segment_length=max(few.lengths))
    known = replace(costs, num_rows=sum(few.lengths), num_steps=max(few.lengths))
    step = _step(schedule, model, few)

    def timed() -> float:
        model.zero_grad(set_to_none=True)
        return time_step(step, device)

    return predict(known, schedule).step_seconds, min(repeat_for_a_moment(timed))


def _step(schedule: Schedule, model: nn.Module, sample: Sample) -> Callable[[], None]:
    def step() -> None:
        loss, _ = model(sample.frames, sample.targets)
        loss.backward()

    schedule.apply(model)
    return step


def _warm_up(model: nn.Module, sample: Sample) -> None:
    """What torch and its kernels set up at their first use is not a step's."""
    _step(Schedule(chunk_size=2, segment_length=2), model, sample.cut(2))()
    model.zero_grad(set_to_none=True)


def _fresh_byte_seconds(device: torch.device, num_bytes: int = 64 * 2**20) -> float:
    """Seconds for a byte of memory that the system has to make first, beyond those for writing it; 0 on CUDA."""
    if device.type == "cuda":
        return 0.0
    fresh, again = [], []
    for _ in range(3):
        started = time.perf_counter()
        block = torch.empty(num_bytes, dtype=torch.uint8).fill_(1)
        middle = time.perf_counter()
        block.fill_(2)
        again.append(time.perf_counter() - middle)
        fresh.append(middle - started)
        del block
    return max(0.0, min(fresh) - min(again)) / num_bytes


@contextmanager
def _nothing_left_behind(model: Any) -> Iterator[None]:
    """Put gradients, buffers, random states, settings and the head's `collect` back at the end."""
    settings = [
        (part, name, getattr(part, name))
        for part in (model.encoder, model.rnn, model.head)
        for name in ("chunk_size", "keep", "segment_length", "collect")
        if hasattr(part, name)
    ]
    with as_found([model], [*model.parameters(), *model.buffers()]), without_gradients(model.parameters()):
        if hasattr(model.head, "collect"):
            model.head.collect = None
        try:
            yield
        finally:
            for part, name, value in settings:
                setattr(part, name, value)

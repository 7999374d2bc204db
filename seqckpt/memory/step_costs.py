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
from torch.utils._pytree import tree_flatten, tree_map

from seqckpt.core.schedule import Schedule
from seqckpt.errors import UsageError
from seqckpt.memory.allocated import AllocationRecord, peak_allocated_bytes
from seqckpt.memory.as_found import as_found, without_gradients
from seqckpt.memory.cost_model import Costs, TailCosts, count_pieces, predict
from seqckpt.memory.stage_costs import Clock, measure_stages, repeat_for_a_moment

__all__ = ["Pipeline", "Sample", "measure_costs", "resident_bytes"]

_SIZES = (4, 16, 64)  # frames in the chunks that are measured
_TAIL_STEPS, _FAR_STEPS = 96, 1000  # time steps of the sequences that are measured, and of one long one


class Sample:
    """A batch of clips as the model takes it: frames and targets, (B, T, ...) or lists with one entry for each clip."""

    def __init__(self, frames: Any, targets: Any) -> None:
        self.frames, self.targets = frames, targets
        self.lengths = [len(clip) for clip in frames]
        if not self.lengths or 0 in self.lengths:
            raise UsageError(f"a sample of clips of {self.lengths} frames: expected one or more, none of them empty")

    def cut(self, num_steps: int) -> Sample:
        """As if the longest clip had so many steps, and the others their share; where that is more, gone through again.

        Clips of unequal lengths stay unequal: what is packed costs less than what is padded.
        """
        lengths = self._shares(num_steps)
        frames = [_tile([clip], length) for clip, length in zip(self.frames, lengths, strict=True)]
        return self._with(frames, lengths)

    def stretched(self, num_steps: int) -> Sample:
        """As `cut`, where nobody looks at the frames: the first one of each clip again and again, in no memory."""
        lengths = self._shares(num_steps)
        if isinstance(self.frames, Tensor):
            targets = [_tile([target], num_steps) for target in self.targets]
            first = self.frames[:, :1]
            return Sample(first.expand(-1, num_steps, *first.shape[2:]), torch.stack(targets))
        firsts = [clip[0:1] for clip in self.frames]
        return self._with([one.expand(n, *one.shape[1:]) for one, n in zip(firsts, lengths, strict=True)], lengths)

    def _shares(self, num_steps: int) -> list[int]:
        longest = max(self.lengths)
        return [max(1, round(num_steps * length / longest)) for length in self.lengths]

    def _with(self, frames: list[Tensor], lengths: list[int]) -> Sample:
        targets = [_tile([target], length) for target, length in zip(self.targets, lengths, strict=True)]
        if isinstance(self.frames, Tensor):
            return Sample(torch.stack(frames), torch.stack(targets))
        return Sample(frames, targets)

    def rows(self, num_rows: int) -> Tensor:
        """So many frames of the clips, one after the other."""
        return _tile(self.frames, num_rows)


def _tile(clips: Any, num_rows: int) -> Tensor:
    parts: list[Tensor] = []
    missing = num_rows
    while missing:
        for clip in clips:
            parts.append(clip[0 : min(len(clip), missing)])
            missing -= len(parts[-1])
            if not missing:
                break
    return torch.cat(parts)


class Pipeline(nn.Module):
    """Encoder, recurrent network and loss in a row, for those who have the parts and no model around them."""

    def __init__(self, encoder: nn.Module, rnn: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.encoder, self.rnn, self.head = encoder, rnn, head

    def forward(self, frames: Any, targets: Any) -> tuple[Tensor, Any]:
        """Return the loss of frames (B, T, C, H, W) and targets (B, T, ...), and the state at the end."""
        hidden, state = self.rnn(self.encoder(frames))
        return self.head(hidden, targets), state


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
        sizes = _affordable(sizes, stages, load, device, memory_bytes)
        costs = Costs(
            stages=tuple(measure_stages(stages, _names(encoder, stages), load, sizes)),
            tail=_measure_tail(model, sample, device),
            num_rows=sum(sample.lengths),
            num_steps=max(sample.lengths),
            num_frozen=_count_frozen(encoder, stages),
            handed_bytes=_handed_bytes(encoder, sample),
            kept_byte_seconds=_fresh_byte_seconds(device),
            **resident_bytes(model, sample, optimiser),
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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _state_ratio(optimiser: Optimizer) -> float:
    """Bytes of state per byte of parameter, found by one step of the same optimiser on a parameter of its own."""
    parameter = nn.Parameter(torch.zeros(4096))
    parameter.grad = torch.zeros_like(parameter)
    settings = {**optimiser.defaults, **{k: v for k, v in optimiser.param_groups[0].items() if k != "params"}}
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


class _GivenFeatures(nn.Module):
    """In the encoder's place: features that are there already."""

    def __init__(self, features: Any) -> None:
        super().__init__()
        self.features = features

    def forward(self, frames: Any) -> Any:
        return self.features


def _measure_tail(model: Any, sample: Sample, device: torch.device) -> TailCosts:
    """Run the recurrent network and the loss on given features, in few and in many segments, and take the differences.

    With T steps, segments of s and loss segments of l, what is there at the end of forward is taken for
    fixed + step T + segment s + state T / s + loss l: five numbers, the state's known from the state itself. Backward's
    own needs come on top: gradients of weights at once, of features and hidden states with every step; the greater of
    both counts, so that it takes a long sequence to see it grow with T.
    """
    longest = max(sample.lengths)
    steps = max(2, min(longest, _TAIL_STEPS))
    far = min(longest, _FAR_STEPS) if longest >= 2 * steps else max(1, steps // 2)
    short, piece = max(1, steps // 8), max(1, far // 8)
    is_segmented = hasattr(model.rnn, "segment_length")
    run = _TailRun(model, sample, device)
    whole = run(steps, steps, steps)
    both = run(steps, short if is_segmented else steps, short)
    far_whole = run(far, far, far, is_timed=False)
    far_cut = run(far, piece, far, is_timed=False) if is_segmented else far_whole
    far_both = run(far, piece if is_segmented else far, piece, is_timed=False)
    state, num_segments, longer = run.state_bytes, -(-steps // short), max(1, far - piece)
    more_states = state * (-(-far // piece) - 1)
    segment = max(0.0, (far_whole.alive - far_cut.alive + more_states) / longer) if is_segmented else 0.0
    loss = max(0.0, (far_cut.alive - far_both.alive) / longer)

    def per_step(of_both: float, of_far: float) -> float:
        return (of_both - of_far) / (steps - far) if steps != far else of_both / steps

    def of_segments(length: int, segment_length: int, loss_length: int) -> float:
        cut = segment * segment_length + state * -(-length // segment_length) if is_segmented else 0.0
        return cut + loss * loss_length

    step = per_step(both.alive - of_segments(steps, short, short), far_both.alive - of_segments(far, piece, piece))
    fixed = far_whole.alive - step * far - of_segments(far, far, far)
    work = max(0.0, per_step(both.work, far_both.work))
    fixed_work = max(result.work - work * far for result in (far_whole, far_cut, far_both))
    fixed_work = max(fixed_work, whole.work - work * steps, both.work - work * steps)
    end_step = per_step(both.end, far_both.end)
    forward, backward = whole.forward / steps, whole.backward / steps
    replays = forward * (steps - short) if is_segmented else 0.0
    extra = both.forward + both.backward - whole.forward - whole.backward - replays
    return TailCosts(
        fixed_bytes=fixed + fixed_work,
        step_bytes=step + work,
        segment_bytes=segment,
        state_bytes=float(state),
        loss_bytes=loss,
        end_bytes=both.end - end_step * steps,
        end_step_bytes=end_step,
        forward_seconds=forward,
        backward_seconds=backward,
        segment_seconds=max(0.0, extra / (2 * num_segments)),
        is_segmented=is_segmented,
    )


class _TailResult:
    alive = work = end = 0  # bytes: at the end of forward; at the peak, beyond those; at the end of backward
    forward = backward = 0.0  # seconds


class _TailRun:
    """One run behind the encoder, of so many steps, in segments of such lengths."""

    def __init__(self, model: Any, sample: Sample, device: torch.device) -> None:
        self.model, self.sample, self.device = model, sample, device
        with torch.no_grad():
            self.features = model.encoder(sample.cut(1).frames)  # one frame of each clip
        self.state_bytes = 0

    def __call__(self, steps: int, segment_length: int, loss_length: int, *, is_timed: bool = True) -> _TailResult:
        sample = self.sample.stretched(steps)
        features = self.given(sample.lengths)
        result = _TailResult()
        with _replaced(self.model, _GivenFeatures(features), segment_length, loss_length):
            if is_timed:
                seconds = repeat_for_a_moment(lambda: self.timed(sample))
                result.forward, result.backward = (min(values) for values in zip(*seconds, strict=True))
            self.clear(features)
            with AllocationRecord(self.device) as record:
                loss, state = self.model(sample.frames, sample.targets)
                self.state_bytes = sum(_bytes(t) for t in tree_flatten(state)[0] if isinstance(t, Tensor))
                del state
                record.mark("backward")
                loss.backward()
                del loss
            result.alive, result.end = (interval.end_bytes for interval in record.intervals)
            result.work = max(0, record.peak_bytes - result.alive)
            self.clear(features)
        return result

    def given(self, lengths: Sequence[int]) -> Any:
        """Features of clips of such lengths, which ask for gradients where the encoder's would."""
        wanted = any(p.requires_grad for p in self.model.encoder.parameters())

        def make(one: Tensor, shape: tuple[int, ...]) -> Tensor:
            return torch.randn(shape, dtype=one.dtype, device=one.device).requires_grad_(wanted)

        if isinstance(self.sample.frames, Tensor):
            return tree_map(lambda one: make(one, (one.shape[0], lengths[0], *one.shape[2:])), self.features)
        clips = zip(self.features, lengths, strict=True)
        return [
            tree_map(lambda one, length=length: make(one, (length, *one.shape[1:])), features)
            for features, length in clips
        ]

    def timed(self, sample: Sample) -> list[float]:
        clock = Clock(self.device)
        clock.mark()
        loss, _ = self.model(sample.frames, sample.targets)
        clock.mark()
        loss.backward()
        clock.mark()
        return clock.seconds()

    def clear(self, features: Any) -> None:
        for tensor in (*self.model.parameters(), *tree_flatten(features)[0]):
            tensor.grad = None


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


def _time_steps(
    costs: Costs, model: nn.Module, sample: Sample, device: torch.device, size: int, num_chunks: int
) -> tuple[float, float]:
    """Predicted and measured seconds of a step of so many chunks; the least of two."""
    steps = count_pieces(num_chunks * size * max(sample.lengths), sum(sample.lengths))
    schedule = Schedule(chunk_size=size, segment_length=steps)
    cut = sample.cut(steps)
    few = replace(costs, num_rows=sum(cut.lengths), num_steps=steps)
    step = _step(schedule, model, cut)

    def timed() -> float:
        model.zero_grad(set_to_none=True)
        started = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    return predict(few, schedule).step_seconds, min(repeat_for_a_moment(timed))


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
def _replaced(model: Any, encoder: nn.Module, segment_length: int, loss_length: int) -> Iterator[None]:
    own, model.encoder = model.encoder, encoder
    try:
        if hasattr(model.rnn, "segment_length"):
            model.rnn.segment_length = segment_length
        if hasattr(model.head, "segment_length"):
            model.head.segment_length = loss_length
        yield
    finally:
        model.encoder = own


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

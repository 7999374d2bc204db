"""What is known of a model and a sample, and what is predicted from it: plain records in bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Costs", "Curve", "Prediction", "StageCosts", "TailCosts"]


@dataclass(frozen=True)
class Curve:
    """Bytes or seconds over a number of rows: straight between measured points, and as the last two go on beyond them.

    >>> Curve(((4, 10.0), (8, 18.0)))(6), Curve(((4, 10.0), (8, 18.0)))(100), Curve(((4, 10.0),))(8)
    (14.0, 202.0, 20.0)
    """

    points: tuple[tuple[int, float], ...]

    def __call__(self, rows: float) -> float:
        if len(self.points) == 1:
            (size, value) = self.points[0]
            return value * rows / size
        i = 1
        while i < len(self.points) - 1 and rows > self.points[i][0]:
            i += 1
        (x0, y0), (x1, y1) = self.points[i - 1], self.points[i]
        return max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


@dataclass(frozen=True, kw_only=True)
class StageCosts:
    """One stage of an encoder, measured on chunks of several sizes; all curves are over the rows of a chunk.

    Peaks are bytes above those before the chunk, while this stage is at work in a run of the whole encoder: without
    gradients, in grad mode, and backward (parameters' gradients being there already).

    Args:
        saved_bytes: storages that autograd saves in this stage and in none before; parameters not counted.
        output_is_saved: whether this stage, or one before, saves the storage of what it returns.
        output_is_saved_later: whether it is first saved behind this stage.
        gradient_bytes: gradients of the parameters that no stage before has; `largest_gradient_bytes`: of one of them.
        copied_gradient_bytes: of the largest matrix among them. torch adds a kernel's gradient to the sum of the chunks
            before in place, that of a linear layer, which comes transposed, into a third tensor.
    """

    name: str
    no_grad_seconds: Curve
    forward_seconds: Curve
    backward_seconds: Curve
    output_bytes: Curve
    saved_bytes: Curve
    no_grad_peak: Curve
    forward_peak: Curve
    backward_peak: Curve
    output_is_saved: bool
    output_is_saved_later: bool
    gradient_bytes: int
    largest_gradient_bytes: int = 0
    copied_gradient_bytes: int = 0


@dataclass(frozen=True, kw_only=True)
class TailCosts:
    """The part behind the encoder: recurrent network, decoder and loss over T steps of all clips, in segments.

    Bytes at its peak, above features: `fixed_bytes`, `replay_bytes` where segments are replayed, `step_bytes` per step
    of T, `segment_bytes` per step of a segment of the recurrent network, `state_bytes` per stored state, `loss_bytes`
    per step of a segment of the loss.
    `end_bytes` and `end_step_bytes` (per step of T) are still there when the encoder's backward begins.
    """

    fixed_bytes: float = 0.0
    replay_bytes: float = 0.0
    step_bytes: float = 0.0
    segment_bytes: float = 0.0
    state_bytes: float = 0.0
    loss_bytes: float = 0.0
    end_bytes: float = 0.0
    end_step_bytes: float = 0.0
    forward_seconds: float = 0.0  # per step
    backward_seconds: float = 0.0  # per step
    segment_seconds: float = 0.0  # per segment: what cutting costs beside the replay
    is_segmented: bool = True  # whether there is a recurrent network to be cut


@dataclass(frozen=True, kw_only=True)
class Costs:
    """All that is known of a model and a sample; bytes, seconds, and counts."""

    stages: tuple[StageCosts, ...]
    tail: TailCosts
    num_rows: int  # frames of all clips
    num_steps: int  # of the longest clip
    num_frozen: int = 0  # stages in front that nothing trains, the reading among them
    parameter_bytes: int = 0  # and buffers
    optimiser_bytes: int = 0  # its state
    optimiser_work_bytes: int = 0
    frame_bytes: int = 0
    handed_bytes: float = 0.0  # per row of a first chunk: a copy of its frames, where they are cut out of one tensor
    chunk_seconds: float = 0.0  # per chunk: bookkeeping of the engine
    seconds_factors: tuple[
        tuple[int, float], ...
    ] = ()  # by size of chunk: a real step's time over the sum of its pieces
    kept_byte_seconds: float = 0.0  # memory that is held rather than used again has to be made by the system first


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What a schedule will cost; `moment` is where the peak is, `parts` are the bytes at that moment by their use."""

    peak_bytes: int
    step_seconds: float
    recompute_seconds: float
    forward_seconds: float
    moment: str
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def recompute_fraction(self) -> float:
        """Of one forward, how much is run again."""
        return self.recompute_seconds / self.forward_seconds if self.forward_seconds else 0.0

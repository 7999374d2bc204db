"""What a user would write instead: each peer as its own documentation recommends, over the same parts.

A peer is a function from parts and a cut to a step, `step(frames, targets)`: frames uint8 (T, C, H, W), targets (T,);
it runs forward and backward and leaves gradients in `.grad`. The tutorial's recipe computes other gradients than the
plain run; it is here because that is worth a column of its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from seqckpt.errors import UsageError

__all__ = ["CUTTERS", "LABELS", "PEERS", "Cut", "Parts", "Step", "lose_by_hand"]

Step = Callable[[Tensor, Tensor], None]


@dataclass(frozen=True)
class Parts:
    """An encoder (n, C, H, W) -> (n, D) behind a transform, a recurrent network, a decoder; the loss is the mean cross
    entropy of all frames."""

    encoder: nn.Module
    transform: nn.Module
    rnn: nn.LSTM
    decoder: nn.Module

    def encode(self, frames: Tensor) -> Tensor:
        """Features of some frames."""
        return self.encoder(self.transform(frames))

    def finish(self, features: Tensor, targets: Tensor) -> Tensor:
        """The loss, from the features (T, D) of all frames: recurrent network, decoder and criterion undivided."""
        hidden, _ = self.rnn(features[None])
        return functional.cross_entropy(self.decoder(hidden[0]), targets)


@dataclass(frozen=True)
class Cut:
    """Frames of a chunk, steps of a segment: the same for every way that cuts."""

    chunk_size: int
    segment_length: int


def take_plain(parts: Parts, cut: Cut) -> Step:
    """Everything at once."""

    def step(frames: Tensor, targets: Tensor) -> None:
        parts.finish(parts.encode(frames), targets).backward()

    return step


def lose_by_hand(parts: Parts, cut: Cut, frames: Tensor, targets: Tensor) -> Tensor:
    """The loss, with torch.utils.checkpoint, not reentrant, around each chunk and segment but the last of either."""

    def run(function: Callable[..., Any], *inputs: Any, is_last: bool) -> Any:
        return function(*inputs) if is_last else checkpoint(function, *inputs, use_reentrant=False)

    def lose(hidden: Tensor, targets: Tensor) -> Tensor:
        return functional.cross_entropy(parts.decoder(hidden), targets, reduction="sum")

    chunks = frames.split(cut.chunk_size)
    features = torch.cat([run(parts.encode, chunk, is_last=chunk is chunks[-1]) for chunk in chunks])
    hidden: list[Tensor] = []
    state = None
    pieces = features[None].split(cut.segment_length, 1)
    for piece in pieces:
        y, state = run(parts.rnn, piece, state, is_last=piece is pieces[-1])
        hidden.append(y[0])
    losses = [
        run(lose, part, wanted, is_last=part is hidden[-1])
        for part, wanted in zip(hidden, targets.split(cut.segment_length), strict=True)
    ]
    return torch.stack(losses).sum() / len(targets)


def checkpoint_by_hand(parts: Parts, cut: Cut) -> Step:
    """As PyTorch's documentation recommends: checkpoints without reentry around what is called in a row."""

    def step(frames: Tensor, targets: Tensor) -> None:
        lose_by_hand(parts, cut, frames, targets).backward()

    return step


def follow_recipe(parts: Parts, cut: Cut) -> Step:
    """The checkpointing tutorial's recipe, its errors included: its gradients are not the plain run's.

    Run functions are given whole sequences and slice them; checkpoints are reentrant, with a dummy that requires grad.
    Decoder and loss go piece by piece, each with a backward of its own: the means of pieces are summed, and of the
    gradients of the hidden states a hook keeps that of the last piece only.
    """

    def slice_and_encode(start: int, stop: int) -> Callable[..., Any]:
        return lambda frames, dummy: parts.encode(frames[start:stop])

    def slice_and_run(start: int, stop: int) -> Callable[..., Any]:
        def custom_forward(features: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            hidden, (h, c) = parts.rnn(features[start:stop], (h, c))
            return hidden, h, c

        return custom_forward

    def step(frames: Tensor, targets: Tensor) -> None:
        num_frames = len(frames)
        dummy = torch.zeros(1, requires_grad=True)
        outputs = []
        for start in range(0, num_frames, cut.chunk_size):
            run = slice_and_encode(start, start + cut.chunk_size)
            outputs.append(checkpoint(run, frames, dummy, use_reentrant=True))
        features = torch.cat(outputs)
        h = c = features.new_zeros(1, parts.rnn.hidden_size)
        outputs = []
        for start in range(0, num_frames, cut.segment_length):
            run = slice_and_run(start, start + cut.segment_length)
            hidden, h, c = checkpoint(run, features, h, c, use_reentrant=True)
            outputs.append(hidden)
        whole = torch.cat(outputs)
        detached = whole.detach().requires_grad_()
        noted: dict[str, Tensor] = {}
        detached.register_hook(lambda grad: noted.update(last=grad))
        for part, wanted in zip(detached.split(cut.segment_length), targets.split(cut.segment_length), strict=True):
            functional.cross_entropy(parts.decoder(part), wanted).backward()
        whole.backward(noted["last"])

    return step


def cache_gradients(parts: Parts, cut: Cut) -> Step:
    """Two passes, as in Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (2021).

    Features without a graph, chunk by chunk; the rest plain, down to the features' gradient; then every chunk once
    more, with a graph, and the scalar product of its features with their gradient backwards. Random states are put
    back for the second pass.
    """

    def step(frames: Tensor, targets: Tensor) -> None:
        chunks = frames.split(cut.chunk_size)
        states, outputs = [], []
        with torch.no_grad():
            for chunk in chunks:
                states.append(torch.get_rng_state())
                outputs.append(parts.encode(chunk))
        features = torch.cat(outputs).requires_grad_()
        parts.finish(features, targets).backward()
        assert features.grad is not None
        for chunk, state, grad in zip(chunks, states, features.grad.split(cut.chunk_size), strict=True):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(state)
                again = parts.encode(chunk)
            torch.dot(again.flatten(), grad.flatten()).backward()

    return step


def save_on_cpu(parts: Parts, cut: Cut) -> Step:
    """Saved tensors moved to the CPU's memory: for a GPU. On a CPU they are there already: the plain run."""

    def step(frames: Tensor, targets: Tensor) -> None:
        with torch.autograd.graph.save_on_cpu(pin_memory=frames.is_cuda):
            loss = parts.finish(parts.encode(frames), targets)
        loss.backward()

    return step


def wrap_by_fairscale(parts: Parts, cut: Cut) -> Step:
    """fairscale's checkpoint_wrapper around the encoder, which is called chunk by chunk."""
    try:
        from fairscale.nn.checkpoint import checkpoint_wrapper
    except ImportError as error:
        raise UsageError(f"not installed here ({error}): pip install fairscale") from error
    warnings.filterwarnings("ignore", message="None of the inputs have requires_grad")  # they are frames
    encoder = checkpoint_wrapper(parts.encoder)

    def step(frames: Tensor, targets: Tensor) -> None:
        features = [encoder(parts.transform(chunk)) for chunk in frames.split(cut.chunk_size)]
        parts.finish(torch.cat(features), targets).backward()

    return step


def compile_with_budget(parts: Parts, cut: Cut) -> Step:
    """torch.compile of the encoder, told to keep at most half of the activations."""
    import torch._functorch.config
    import torch._inductor.config

    torch._functorch.config.activation_memory_budget = 0.5
    torch._inductor.config.compile_threads = 1  # its pool of processes cannot be had inside a worker
    encoder = torch.compile(parts.encoder, dynamic=False)

    def step(frames: Tensor, targets: Tensor) -> None:
        parts.finish(encoder(parts.transform(frames)), targets).backward()

    return step


PEERS: dict[str, Callable[[Parts, Cut], Step]] = {
    "plain": take_plain,
    "checkpoint": checkpoint_by_hand,
    "recipe": follow_recipe,
    "gradcache": cache_gradients,
    "save_on_cpu": save_on_cpu,
    "fairscale": wrap_by_fairscale,
    "compile": compile_with_budget,
}
LABELS = {
    "plain": "plain",
    "checkpoint": "checkpoint by hand",
    "recipe": "tutorial's recipe",
    "gradcache": "GradCache",
    "save_on_cpu": "save_on_cpu",
    "fairscale": "fairscale",
    "compile": "torch.compile, budget 0.5",
}
CUTTERS = ("checkpoint", "recipe", "gradcache", "fairscale")  # those that the cut is given to

"""A trace tells what a step does to memory, module by module, and leaves no trace itself."""

from __future__ import annotations

import copy
import json
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.checkpoint import checkpoint
from traced_models import NAMES, make_job, make_video_model

from seqckpt import trace_memory
from seqckpt.core import Checkpointed, ChunkedEncoder, Keep
from seqckpt.errors import DataError, UsageError
from seqckpt.memory import MemoryTrace, ModuleCall, peak_allocated_bytes

KiB = 1024


def calls_of(trace: MemoryTrace, module: str, phase: str = "forward") -> list[ModuleCall]:
    return [call for call in trace.calls if call.module == module and call.phase == phase]


# -------------------------------------------------------------------- against the truth


@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_the_allocators_own(name: str) -> None:
    job = make_job(name, 2)
    trace = trace_memory(job.model, *job.args, loss=job.loss)
    assert trace.peak_bytes == pytest.approx(peak_allocated_bytes(job.step), rel=0.05)


def test_the_peak_of_a_scheduled_model_is_the_allocators_own() -> None:
    model = make_video_model(scheduled=True)
    args = [torch.randint(256, (40, 3, 32, 32), dtype=torch.uint8)], [torch.randint(7, (40,))]
    trace = trace_memory(model, *args)
    assert trace.peak_bytes == pytest.approx(peak_allocated_bytes(lambda: model(*args)[0].backward()), rel=0.05)


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_the_peak_is_the_allocators_own_on_cuda(name: str) -> None:
    job = make_job(name, 8)
    job.model.to("cuda")
    frames_and_targets = isinstance(job.args[0], list)
    args = [[t.cuda() for t in arg] if frames_and_targets else arg.cuda() for arg in job.args]
    loss = None if job.loss is None else lambda result: job.loss(result.cpu())  # type: ignore[misc]
    trace_memory(job.model, *args, loss=loss)  # cuBLAS and cuDNN take their work space once

    def step() -> None:
        result = job.model(*args)
        (result[0] if loss is None else loss(result)).backward()

    trace = trace_memory(job.model, *args, loss=loss)
    assert trace.device.startswith("cuda")
    assert trace.peak_bytes == pytest.approx(peak_allocated_bytes(step, "cuda"), rel=0.05)
    assert sum(row.forward_seconds for row in trace.rows()) > 0


class Greedy(torch.autograd.Function):
    """The identity, which takes 300 KiB for a while in forward and 700 KiB in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        torch.empty(300 * KiB, dtype=torch.uint8)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # type: ignore[override]
        torch.empty(700 * KiB, dtype=torch.uint8)
        return grad.clone()


class GreedyLayer(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Greedy.apply(x)


def test_each_run_has_the_memory_that_it_took() -> None:
    x = torch.randn(16 * KiB, requires_grad=True)  # 64 KiB
    trace = trace_memory(nn.Sequential(nn.Tanh(), GreedyLayer(), nn.Tanh()), x)
    (forward,), (backward,) = calls_of(trace, "1"), calls_of(trace, "1", "backward")
    assert forward.peak_bytes - forward.before_bytes == 300 * KiB
    assert forward.allocated_bytes == 364 * KiB
    assert forward.after_bytes - forward.before_bytes == 64 * KiB
    assert backward.peak_bytes - backward.before_bytes == 700 * KiB
    assert backward.allocated_bytes == 764 * KiB
    assert (trace.totals.peak_module, trace.totals.peak_phase) == ("1", "backward")
    assert trace.peak_bytes == max(call.peak_bytes for call in trace.calls)
    assert all(call.before_bytes <= call.peak_bytes >= call.after_bytes for call in trace.calls)


def test_what_holds_the_peak_adds_up() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Linear(64, 64))
    trace = trace_memory(model, torch.randn(32, 64))
    totals = trace.totals
    assert totals.parameter_bytes == totals.gradient_bytes == 4 * (2 * (64 * 64 + 64) + 2 * 64)
    assert totals.buffer_bytes == 4 * 128 + 8
    most = max(trace.timeline, key=lambda moment: moment.peak_bytes)
    assert most.peak_bytes == totals.activation_bytes + most.gradient_bytes + totals.temporary_bytes
    assert totals.temporary_bytes >= 0
    assert trace.timeline[-1].activation_bytes == 0
    assert trace.timeline[-1].gradient_bytes == totals.gradient_bytes


def test_the_optimisers_state_counts_once_it_is_there() -> None:
    model, x = nn.Linear(8, 8), torch.randn(2, 8)
    optimiser = torch.optim.Adam(model.parameters())
    assert trace_memory(model, x, optimiser=optimiser).totals.optimiser_bytes == 0
    model(x).sum().backward()
    optimiser.step()
    before = copy.deepcopy(optimiser.state_dict())
    assert trace_memory(model, x, optimiser=optimiser).totals.optimiser_bytes == 2 * (64 + 8) * 4 + 2 * 4
    assert str(optimiser.state_dict()) == str(before)


# -------------------------------------------------------------------- what autograd saves


def saved(model: nn.Module, *args: Any, **kwargs: Any) -> dict[str, int]:
    return {row.module: row.saved_bytes for row in trace_memory(model, *args, **kwargs).rows() if row.saved_bytes}


def test_a_storage_counts_once_where_it_is_saved_first() -> None:
    """tanh saves its result, and the layer after it the same storage as its input."""
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    assert saved(model, torch.randn(32, 8)) == {"1": 32 * 16 * 4}


def test_views_and_layers_in_place_share_their_storage() -> None:
    model = nn.Sequential(
        nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Flatten(), nn.Unflatten(1, (4, 4)), nn.Linear(4, 2)
    )
    assert saved(model, torch.randn(32, 8)) == {"1": 32 * 16 * 4}


def test_parameters_and_inputs_do_not_count() -> None:
    assert saved(nn.Sequential(nn.Linear(8, 8), nn.Flatten()), torch.randn(4, 8)) == {}


class Nested(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Any]:
        return {"out": (x.exp(), [x.detach(), None]), "n": 3}


class Reads(nn.Module):
    def forward(self, nested: dict[str, Any]) -> Tensor:
        return nested["out"][0].exp()


def test_nested_results_and_an_lstms_tuples() -> None:
    x = torch.randn(8, requires_grad=True)
    assert saved(nn.Sequential(Nested(), Reads()), x) == {"0": 32, "1": 32}
    lstm = nn.LSTM(4, 6, 2, batch_first=True)
    trace = trace_memory(lstm, torch.randn(2, 5, 4), loss=lambda result: result[1][0].sum())
    (row,) = trace.rows()
    assert (row.module, row.kind, row.num_calls, row.saved_bytes > 0) == ("", "LSTM", 1, True)
    assert len(calls_of(trace, "", "backward")) == 1


class Recurrent(nn.Module):
    def __init__(self, num_steps: int) -> None:
        super().__init__()
        self.cell, self.num_steps = nn.RNNCell(4, 4), num_steps

    def forward(self, x: Tensor) -> Tensor:
        state = x
        for _ in range(self.num_steps):
            state = self.cell(x, state)
        return state


def test_a_shared_module_has_500_calls_and_one_row() -> None:
    trace = trace_memory(Recurrent(500), torch.randn(2, 4))
    assert len(calls_of(trace, "cell")) == len(calls_of(trace, "cell", "backward")) == 500
    (row,) = [row for row in trace.rows() if row.module == "cell"]
    assert row.num_calls == 500
    assert row.saved_bytes == sum(call.saved_bytes for call in calls_of(trace, "cell")) >= 500 * 2 * 4 * 4
    assert row.backward_seconds == pytest.approx(sum(c.seconds for c in calls_of(trace, "cell", "backward")))
    starts = [call.start_seconds for call in calls_of(trace, "cell", "backward")]
    forwards = [call.forward for call in calls_of(trace, "cell", "backward")]
    assert starts == sorted(starts)
    assert forwards == sorted(forwards, reverse=True)  # the last step comes first


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.frozen = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x).tanh() + self.b(x) + self.frozen(x)


def test_branches_and_frozen_modules() -> None:
    trace = trace_memory(Branches(), torch.randn(2, 4))
    assert [call.module for call in trace.calls] == ["", "a", "b", "frozen", "", "b", "a"]
    assert [call.parent for call in trace.calls] == [None, 0, 0, 0, None, 4, 4]
    assert [call.forward for call in trace.calls] == [0, 1, 2, 3, 0, 2, 1]
    assert not calls_of(trace, "frozen", "backward")


def test_a_loss_that_is_a_module_is_traced_with_the_model() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Linear(1, 1)

        def forward(self, y: Tensor) -> Tensor:
            return self.scale(y).square().mean()

    trace = trace_memory(nn.Linear(3, 1), torch.randn(4, 3), loss=Loss())
    assert [row.module for row in trace.rows()] == ["", "loss", "loss.scale"]


# -------------------------------------------------------------------- replays


def test_replays_are_marked() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    trace = trace_memory(nn.Sequential(Checkpointed(block), nn.Linear(4, 4)), torch.randn(2, 4))
    assert [call.is_replay for call in calls_of(trace, "0.module.1")] == [False, True]
    assert [call.is_replay for call in calls_of(trace, "0.module.1", "backward")] == [True]
    (row,) = [row for row in trace.rows() if row.module == "0.module.1"]
    assert (row.num_calls, row.num_replays, row.saved_bytes, row.replay_saved_bytes) == (1, 1, 0, 32)
    replay = calls_of(trace, "0.module.0")[1]
    assert replay.parent is not None
    assert trace.calls[trace.calls[replay.parent].parent].phase == "backward"  # type: ignore[index]


def test_replays_of_torchs_own_checkpoint_are_marked() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.inner, x, use_reentrant=False)

    trace = trace_memory(Block(), torch.randn(2, 4, requires_grad=True), loss=lambda y: y.tanh().sum())
    assert [call.is_replay for call in calls_of(trace, "inner")] == [False, True]


def test_a_trace_does_not_change_what_the_engine_does() -> None:
    """An encoder with hooks of its own would not be cut into stages, and keep.depth would be refused."""
    stages = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 4))
    encoder = ChunkedEncoder(stages, 2, keep=Keep(depth=2))
    trace = trace_memory(encoder, torch.randn(1, 6, 3, 2, 2))
    assert [call.is_replay for call in calls_of(trace, "encoder.3")] == [False] * 3
    assert [call.is_replay for call in calls_of(trace, "encoder.1")] == [False] * 3 + [True] * 2


# -------------------------------------------------------------------- nothing is left behind


class Moody(nn.Module):
    """Draws random numbers of two kinds, counts its runs, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.fails_in: str | None = None
        self.register_buffer("num_runs", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.num_runs += 1
        y = self.norm(self.linear(x)) * random.random() + torch.rand(4)
        if self.fails_in == "forward":
            raise RuntimeError("failed in forward")
        if self.fails_in == "backward":
            y.register_hook(fail)
        return y


def fail(_: Tensor) -> None:
    raise RuntimeError("failed in backward")


def global_hooks() -> list[Any]:
    names = [
        name
        for name in vars(torch_module)
        if name.startswith("_global_") and name.endswith(("hooks", "called", "kwargs"))
    ]
    return [dict(getattr(torch_module, name)) for name in names]


@pytest.mark.parametrize("fails_in", [None, "forward", "loss", "backward"])
@pytest.mark.parametrize("with_gradients", [False, True])
def test_everything_is_as_it_was(fails_in: str | None, with_gradients: bool) -> None:
    model = Moody()
    model.fails_in = fails_in
    x = torch.randn(3, 4, requires_grad=True)
    apart = torch.randn(4, requires_grad=True)  # a leaf that only the loss knows
    leaves = [*model.parameters(), x, apart]
    if with_gradients:
        for leaf in leaves:
            leaf.grad = torch.randn_like(leaf)
    grads = [None if leaf.grad is None else (leaf.grad, leaf.grad.clone()) for leaf in leaves]
    state = {name: value.clone() for name, value in model.state_dict().items()}
    hooks, random_state, python_state = global_hooks(), torch.get_rng_state(), random.getstate()

    def loss(y: Tensor) -> Tensor:
        if fails_in == "loss":
            raise RuntimeError("failed in loss")
        return (y * apart).sum()

    if fails_in is None:
        trace_memory(model, x, loss=loss)
    else:
        with pytest.raises(RuntimeError, match=f"failed in {fails_in}"):
            trace_memory(model, x, loss=loss)
    assert torch.equal(torch.get_rng_state(), random_state)
    assert random.getstate() == python_state
    assert global_hooks() == hooks
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name
    for leaf, before in zip(leaves, grads, strict=True):
        assert leaf.grad is (None if before is None else before[0])
        assert before is None or torch.equal(before[0], before[1])
        assert not leaf._backward_hooks
        assert not leaf._post_accumulate_grad_hooks
    for module in model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert not torch.autograd._profiler_enabled()
    assert model.training
    model.fails_in = None
    with torch.autograd.graph.save_on_cpu():  # no hooks of the trace are left below
        model(x).sum().backward()


def test_tracing_twice_gives_the_same() -> None:
    """Weights, buffers and random states are the same again, so allocations are."""
    job = make_job("lstm language model", 1)
    first, second = (trace_memory(job.model, *job.args, loss=job.loss) for _ in range(2))
    assert [c.allocated_bytes for c in first.calls] == [c.allocated_bytes for c in second.calls]


def test_another_thread_is_not_recorded() -> None:
    other, errors, stop = nn.Linear(64, 64), [], threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                other(torch.randn(512, 64)).sum().backward()
        except BaseException as error:
            errors.append(error)

    job = make_job("lstm language model", 1)
    alone = trace_memory(job.model, *job.args, loss=job.loss)
    thread = threading.Thread(target=work)
    thread.start()
    try:
        beside = trace_memory(job.model, *job.args, loss=job.loss)
    finally:
        stop.set()
        thread.join()
    assert not errors
    assert [call.module for call in beside.calls] == [call.module for call in alone.calls]
    assert beside.peak_bytes == alone.peak_bytes


# -------------------------------------------------------------------- records and errors


@pytest.fixture(scope="module")
def small_trace() -> MemoryTrace:
    return trace_memory(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4)), torch.randn(32, 8))


def test_a_trace_goes_to_json_and_back(small_trace: MemoryTrace, tmp_path: Path) -> None:
    path = tmp_path / "traces" / "été.json"
    small_trace.to_json(path)
    assert MemoryTrace.from_json(path) == small_trace
    assert [file.name for file in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"format": "another"}', "\x00"])
def test_another_file_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"trace\.json is no memory trace"):
        MemoryTrace.from_json(path)


def test_a_json_file_of_another_shape_is_refused(small_trace: MemoryTrace, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    small_trace.to_json(path)
    record = json.loads(path.read_text())
    del record["calls"]["seconds"]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match="no memory trace"):
        MemoryTrace.from_json(path)


def test_the_table_and_the_top_producers(small_trace: MemoryTrace) -> None:
    (top,) = small_trace.top_activation_producers(1)
    assert (top.module, top.kind, top.saved_bytes) == ("1", "Tanh", 2048)
    assert len(small_trace.top_activation_producers(99)) == 4
    lines = small_trace.table(top=2).splitlines()
    assert lines[0].startswith("peak ")
    assert lines[4].split()[:2] == ["module", "kind"]
    assert lines[5].split()[:6] == ["1", "Tanh", "1", "0", "2.0", "KiB"]
    assert lines[-1] == "... and 2 modules more"
    assert "(the model)" in small_trace.table()


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y: y, r"a tensor of shape \(2, 4\): expected a scalar"),
        (lambda y: y.sum().detach(), "without a gradient"),
        (lambda y: 3.0, "a float: expected a scalar"),
    ],
)
def test_a_loss_must_be_a_scalar_with_a_gradient(loss: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        trace_memory(nn.Linear(4, 4), torch.randn(2, 4), loss=loss)


def test_a_result_without_tensors_needs_a_loss() -> None:
    class Nothing(nn.Module):
        def forward(self, x: Tensor) -> str:
            return "nothing"

    with pytest.raises(UsageError, match=r"give trace_memory a loss="):
        trace_memory(Nothing(), torch.randn(2))


def test_a_profiler_at_work_is_named() -> None:
    with torch.autograd.profiler.profile(), pytest.raises(UsageError, match="while a profiler runs"):
        trace_memory(nn.Linear(4, 4), torch.randn(2, 4))


def test_a_compiled_module_is_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].compile(backend="eager")
    with pytest.raises(UsageError, match=r"1 is compiled: trace the plain model"):
        trace_memory(model, torch.randn(2, 4))
    with pytest.raises(UsageError, match="the model is compiled"):
        trace_memory(torch.compile(nn.Linear(4, 4), backend="eager"), torch.randn(2, 4))

"""Ways to take a training step: one backward, several, shared graphs, other things done in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from .draws import Draw

__all__ = ["STEPS", "take_step"]

STEPS = (
    *("once", "siamese", "retain_graph", "two losses", "accumulated", "autograd.grad", "eval between", "draws between"),
    *("two backwards of two forwards", "no_grad between", "two steps"),
)
Run = Callable[[Tensor], tuple[Any, Tensor]]


def take_step(draw: Draw, model: nn.Module, leaf: Tensor) -> Callable[[Run], Any]:
    """A function that takes `run(leaf) -> (results, loss)` through forward and backward, and returns what there is."""
    kind = draw.one("step", STEPS, (10, *[1] * (len(STEPS) - 1)))
    other = torch.randn_like(leaf)
    if not any(t.requires_grad for t in (leaf, *model.parameters())):
        return lambda run: run(leaf)[::-1]
    return lambda run: _STEPS[kind](run, model, leaf, other)


def _once(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    loss.backward()
    return loss, results


def _siamese(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    first, loss = run(leaf)
    second, second_loss = run(other)
    total = loss * second_loss.sigmoid() + second_loss
    total.backward()
    return total, first, second


def _retain_graph(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    loss.backward(retain_graph=True)
    loss.backward()
    return loss, results


def _two_losses(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    (loss * 2).backward(retain_graph=True)
    loss.square().backward()
    return loss, results


def _accumulated(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    first = _once(run, model, leaf, other)
    return *first, _once(run, model, leaf, other)


def _autograd_grad(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    wanted = [t for t in (leaf, *model.parameters()) if t.requires_grad]
    for t, gradient in zip(wanted, torch.autograd.grad(loss, wanted, allow_unused=True), strict=True):
        t.grad = gradient
    return loss, results


def _eval_between(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    loss.backward()
    for module, mode in modes:
        module.training = mode
    return loss, results


def _draws_between(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    drawn = [float(torch.rand(())), random.random(), np.random.rand()]  # noqa: NPY002 - the global one is meant
    loss.backward()
    return loss, results, drawn, float(torch.rand(())), random.random(), np.random.rand()  # noqa: NPY002


def _two_of_two(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    first, loss = run(leaf)
    second, second_loss = run(other)
    loss.backward()  # the older graph first
    second_loss.backward()
    return loss, first, second


def _no_grad_between(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    results, loss = run(leaf)
    with torch.no_grad():
        validated = run(other)
    loss.backward()
    return loss, results, validated


def _two_steps(run: Run, model: nn.Module, leaf: Tensor, other: Tensor) -> Any:
    """Parameters change in place after backward, and another step follows."""
    results, loss = run(leaf)
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(0.01 * parameter.grad.sign())
                parameter.grad = None
    leaf.grad = None
    return loss, results, _once(run, model, leaf, other)


_STEPS: dict[str, Callable[[Run, nn.Module, Tensor, Tensor], Any]] = dict(
    zip(
        STEPS,
        (
            *(_once, _siamese, _retain_graph, _two_losses, _accumulated, _autograd_grad, _eval_between, _draws_between),
            *(_two_of_two, _no_grad_between, _two_steps),
        ),
        strict=True,
    )
)

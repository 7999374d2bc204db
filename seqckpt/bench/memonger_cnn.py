"""Case memonger-cnn: the largest batch of deep CNNs within a cap of memory, and the time of equal work.

Published with the checkpointing tutorial: 15 -> 51 images for ResNet-1001 and 5 -> 9 volumes for a V-Net. Batch norm is
in training mode; random images, since only sizes count.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint_sequential as torch_checkpoint_sequential

from seqckpt.bench.capped import Comparison, compare_within_cap
from seqckpt.bench.case import Case, Settings, check_known, read_bytes
from seqckpt.bench.hardware import default_device
from seqckpt.bench.networks import CheckpointedByHand, VNet, build_densenet, build_resnet
from seqckpt.bench.report import Report
from seqckpt.bench.subject import Subject
from seqckpt.core import Checkpointed, checkpoint_sequential
from seqckpt.errors import UsageError
from seqckpt.memory import apply_suggestions, suggest_checkpoint_location, trace_memory
from seqckpt.progress import progress_bar

__all__ = ["MEMONGER_CNN", "build_cnn_subject"]

_NETWORKS = ("resnet", "densenet", "vnet")
_WRAPS: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda stage: stage,
    "torch": CheckpointedByHand,
    "ours": Checkpointed,
}


def build_cnn_subject(*, network: str, way: str, size: int, depth: int, side: int, dtype: str = "float32") -> Subject:
    """A subject for a batch of `size`: network "resnet", "densenet" or "vnet"."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    if network == "vnet":
        model: nn.Module = VNet(_WRAPS[way])
        shape: tuple[int, ...] = (size, 1, side, side, side)
        run: Callable[[Tensor], Tensor] = model
        targets = torch.randint(2, (size, side, side, side), generator=generator)
    else:
        model = build_resnet(depth) if network == "resnet" else build_densenet(depth)
        shape, run = (size, 3, side, side), _forward_of(model, way, side)
        targets = torch.randint(10, (size,), generator=generator)
    model.to(device=default_device(), dtype=getattr(torch, dtype))
    images = torch.randn(shape, generator=generator, dtype=getattr(torch, dtype)).to(default_device())
    targets = targets.to(default_device())

    def step() -> None:
        functional.cross_entropy(run(images), targets).backward()

    numbered = {str(number): parameter for number, parameter in enumerate(model.parameters())}  # wraps change names
    return Subject(step, numbered)


def _forward_of(model: Any, way: str, side: int) -> Callable[[Tensor], Tensor]:
    num_segments = round(math.sqrt(len(model)))
    if way == "torch":
        return lambda x: torch_checkpoint_sequential(model, num_segments, x, use_reentrant=False)
    if way == "ours":
        return lambda x: checkpoint_sequential(model, x, segments=num_segments)
    if way == "suggested":
        traced = model.to(default_device())
        trace = trace_memory(traced, torch.randn(2, 3, side, side, device=default_device()))
        apply_suggestions(traced, suggest_checkpoint_location(trace, num_segments))
    return model


def run_memonger_cnn(settings: Settings, report: Report) -> None:
    """One table a network."""
    comparisons = [_comparison(network, settings) for network in settings["networks"]]
    total = sum(len(comparison.ways) * (3 + settings["steps"]) for comparison in comparisons)
    with progress_bar(total=total, desc="memonger-cnn", unit="step") as bar:

        def tick(name: str) -> None:
            bar.set_postfix_str(name, refresh=False)
            bar.update()

        for comparison in comparisons:
            compare_within_cap(comparison, read_bytes("cap", settings["cap"]), settings, report, tick=tick)


def _comparison(network: str, settings: Settings) -> Comparison:
    titles = {
        "resnet": (f"ResNet-{settings['resnet_depth']} (pre-activation), 32 x 32", settings["resnet_depth"], 32),
        "densenet": (f"DenseNet-BC-{settings['densenet_depth']}, 32 x 32", settings["densenet_depth"], 32),
        "vnet": (f"V-Net, half as wide, {settings['volume']}^3", 0, settings["volume"]),
    }
    title, depth, side = titles[network]
    names = {"plain": "plain", "torch": "torch's checkpoint_sequential", "ours": "our checkpoint_sequential"}
    names["suggested"] = "our suggest_checkpoint_location"
    if network == "vnet":
        names = {
            "plain": "plain",
            "torch": "torch's checkpoint for stages",
            "ours": "our Checkpointed for stages",
        }
    common = {"network": network, "depth": depth, "side": side}
    return Comparison(
        title=title,
        size_name="batch",
        build=build_cnn_subject,
        ways={name: {"way": way, **common} for way, name in names.items()},
        first=(2, 4),
        error_size=2,
        most_ratio=settings["most_ratio"],
    )


def _check(settings: Settings) -> None:
    check_known("networks", settings["networks"], _NETWORKS)
    read_bytes("cap", settings["cap"])
    for key, before, each in (("resnet_depth", 2, 9), ("densenet_depth", 4, 6), ("volume", 0, 8)):
        if settings[key] < before + each or (settings[key] - before) % each:
            formula = f"{each}n + {before}" if before else f"{each}n"
            raise UsageError(f"{key}={settings[key]}: expected {formula}, such as {before + 3 * each}")


MEMONGER_CNN = Case(
    "memonger-cnn",
    "ResNet-1001, a DenseNet and a V-Net: the largest batch within a cap of memory, and the time of equal work",
    run_memonger_cnn,
    settings={
        "networks": _NETWORKS,
        "cap": "2GiB",
        "resnet_depth": 1001,
        "densenet_depth": 100,
        "volume": 32,
        "most_ratio": 6.0,
        "steps": 3,
    },
    quick={
        "cap": "64MiB",
        "resnet_depth": 29,
        "densenet_depth": 16,
        "volume": 16,
        "most_ratio": 3.0,
        "steps": 1,
    },
    least={"most_ratio": 1, "steps": 0},
    check=_check,
)

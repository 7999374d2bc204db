"""What to do about batch norm when frames go through an encoder in chunks: `frozen`, `group` or `chunk`.

Batch norm in training mode normalises with the statistics of whatever goes through it together. Through chunks it is
therefore *another function* than over the whole clip, and changes with the chunk size; a policy says which function is
wanted. Background: Rivoir et al., "On the pitfalls of batch normalization for end-to-end video learning" (2022).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.lazy import LazyModuleMixin

from seqckpt.errors import UsageError

__all__ = ["BATCH_NORM_POLICIES", "FrozenBatchNorm", "apply_batch_norm_policy", "find_batch_norm"]

BATCH_NORM_POLICIES = ("frozen", "group", "chunk")

_MOST_GROUPS = 32
_LEAST_CHANNELS_PER_GROUP = 4


class FrozenBatchNorm(_NormBase):
    """Batch norm (1d, 2d, 3d) that always uses its stored statistics and never changes them, in training mode too.

    The keys of its `state_dict` are those of the batch norm layer that it replaces, so weights move to and fro.
    """

    uses_stored_statistics = True  # by which the engine knows that it may be folded into a convolution

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (n, C, ...) with the stored statistics, then scale and shift."""
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, training=False, eps=self.eps
        )


def find_batch_norm(module: nn.Module) -> list[str]:
    """Name the layers in which frames of one chunk influence each other: batch norm of every kind, not yet frozen.

    Names are those of `named_modules()`; a `module` that is itself such a layer has the name "". Layers that compute
    batch norm by calling `torch.nn.functional` cannot be seen from outside.

    >>> find_batch_norm(nn.Sequential(nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8), nn.ReLU()))
    ['1']
    """
    return [name for name, layer in module.named_modules() if isinstance(layer, _BatchNorm)]


def apply_batch_norm_policy(
    module: nn.Module,
    policy: Literal["frozen", "group", "chunk"] | str,
    *,
    train_affine: bool = True,
) -> nn.Module:
    """Make every batch norm layer in `module` follow one policy; change `module` in place and return it.

    - `frozen`: the stored statistics are used and never move, also after `model.train()`. Scale and shift are trained,
      unless `train_affine=False`. For encoders with pretrained weights; without them the statistics are 0 and 1, and
      nothing is normalised.
    - `group`: replaced by group norm (each frame by itself), scale and shift carried over: at most 32 groups, at
      least 4 channels in each where there are so many. Needs training; a pretrained encoder is no longer itself.
    - `chunk`: left as it is, with a warning: statistics come from one chunk, so results depend on the chunk size.

    SyncBatchNorm is replaced by `frozen` and `group`, and refused by `chunk`: it would communicate again in every
    replay. Only when `module` itself is a batch norm layer is what is returned another object. Hooks on replaced
    layers are lost. Raises UsageError for an unknown policy and for layers that a policy cannot treat, by name, before
    anything is changed.
    """
    if policy not in BATCH_NORM_POLICIES:
        raise UsageError(f"batch norm policy {policy!r} is unknown: choose one of {', '.join(BATCH_NORM_POLICIES)}")
    if not train_affine and policy != "frozen":
        raise UsageError(f"train_affine=False belongs to the batch norm policy 'frozen', not to {policy!r}")
    _refuse_untreatable(module, policy)
    if policy == "chunk":
        _warn_of_chunk_statistics(find_batch_norm(module))
        return module
    if policy == "group":
        return _replace_batch_norm(module, _to_group_norm)
    return _replace_batch_norm(module, lambda layer: _to_frozen(layer, train_affine=train_affine))


def _refuse_untreatable(module: nn.Module, policy: str) -> None:
    for name, layer in module.named_modules():
        if not isinstance(layer, _BatchNorm):
            continue
        shown = name or "(the module itself)"
        if isinstance(layer, LazyModuleMixin) and layer.has_uninitialized_params():
            raise UsageError(f"layer {shown} is a lazy batch norm: run the module once before applying a policy")
        if policy == "chunk" and isinstance(layer, nn.SyncBatchNorm):
            raise UsageError(
                f"layer {shown} is SyncBatchNorm, which would communicate between processes again in every replay: "
                "use the batch norm policy 'frozen' or 'group'"
            )
        if policy == "frozen" and layer.running_mean is None:
            raise UsageError(
                f"layer {shown} keeps no running statistics (track_running_stats=False), so it cannot be frozen: "
                "use the batch norm policy 'group'"
            )


def _warn_of_chunk_statistics(names: list[str]) -> None:
    if not names:
        return
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    warnings.warn(
        f"batch norm policy 'chunk': {len(names)} layers ({shown}) take their statistics from one chunk of frames. "
        "This is a different function from batch norm over the whole clip, and it changes with the chunk size",
        UserWarning,
        stacklevel=3,
    )


def _replace_batch_norm(module: nn.Module, convert: Callable[[_BatchNorm], nn.Module]) -> nn.Module:
    replaced: dict[nn.Module, nn.Module] = {}  # a layer that is used in two places stays one layer

    def replacement(layer: _BatchNorm) -> nn.Module:
        if layer not in replaced:
            replaced[layer] = convert(layer).train(layer.training)
        return replaced[layer]

    if isinstance(module, _BatchNorm):
        return replacement(module)
    for parent in list(module.modules()):
        for name, child in list(parent._modules.items()):
            if isinstance(child, _BatchNorm):
                setattr(parent, name, replacement(child))
    return module


def _to_frozen(layer: _BatchNorm, *, train_affine: bool) -> FrozenBatchNorm:
    frozen = FrozenBatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, device="meta")
    frozen._parameters.update(layer._parameters)
    frozen._buffers.update(layer._buffers)
    if not train_affine and layer.affine:
        frozen.weight.requires_grad_(False)
        frozen.bias.requires_grad_(False)
    return frozen


def _to_group_norm(layer: _BatchNorm) -> nn.GroupNorm:
    num_groups = _choose_num_groups(layer.num_features)
    group = nn.GroupNorm(num_groups, layer.num_features, layer.eps, layer.affine, device="meta")
    group._parameters.update(layer._parameters)
    return group


def _choose_num_groups(num_channels: int) -> int:
    """Return the largest divisor that makes at most 32 groups of at least 4 channels each.

    >>> [_choose_num_groups(num_channels) for num_channels in (3, 8, 24, 64, 112, 512)]
    [1, 2, 6, 16, 28, 32]
    """
    most = max(1, min(_MOST_GROUPS, num_channels // _LEAST_CHANNELS_PER_GROUP))
    return next(groups for groups in range(most, 0, -1) if num_channels % groups == 0)

"""Convolution, frozen batch norm, residual addition and ReLU as one layer that saves one tensor; ReLU and max pool too.

In a ResNet's graph the same picture is saved three times: by the convolution behind (its input), by batch norm (its
input) and by ReLU (its result). Frozen batch norm is a scale and a shift for each channel, and a convolution's output
times s is that of weights times s, so that

    y = relu(batch_norm(conv(x, w)) + residual) = relu(conv(x, s w) + b + residual)      s = gamma / sqrt(var + eps)

needs only x and y in backward, and the gradient g' of the weights (s w) gives those of w and gamma:

    dw = s g'        dgamma = sum(w g') / sqrt(var + eps) + (share through b)

This is the same function, and gradients are the same, to rounding: not bitwise. torch has such layers for inference
only (fuse_conv_bn_eval, which throws batch norm away).

Note 1. *No copy of large weights.* Small weights are multiplied once per step (`fold`). For large ones, whose copies
would take more memory than a chunk's pictures, conv(x, w) is multiplied instead; autograd is handed g' for w all the
same, and `_Unscaled` makes dw of it.

Note 2. *Layouts.* On CPUs (float32, oneDNN, measured with AVX-512 on ResNet-18) convolutions are up to 1.5x as fast on
channels_last pictures, but deep ones, of 7x7 or less, are faster on contiguous ones, their weight gradients twice as
fast in small chunks. Each layer hands its result on in the better layout. Elsewhere layouts are left as they are.

Note 3. *ReLU behind the pool.* Maxima and ReLU may change places, with equal gradients; ReLU is then on fewer values,
and the pool's indices within a picture fit into 16 bits, where torch's take 64. An index of -1 says that ReLU let
nothing through: the result itself is not needed, and a layer behind may write into it.

Note 4. *Weight gradients of the deepest layers.* A result of 4x4 pixels or less leaves oneDNN's kernel for the gradient
of a large weight at a third to a half of the processor's speed. One matrix product over all pixels of a chunk, with
every pixel's neighbourhood copied into a row, takes 0.5 to 0.7 of its time (ResNet-18 at 112 px, chunks of 10 and 25).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

__all__ = ["Folded", "FusedConv", "FusedPool", "is_frozen_norm"]

Folded = tuple[Tensor, ...]
"""What a FusedConv computes with: weight; shift, if any; the scale, where it is not in the weight already (Note 1)."""

_MOST_COPIED = 2**18  # elements of a weight that is multiplied rather than the convolution's result
_LARGEST_CONTIGUOUS = 64  # pixels
_LARGEST_MULTIPLIED = 16  # pixels of a result whose weight's gradient is one matrix product; see Note 4


def is_frozen_norm(layer: nn.Module) -> bool:
    """Whether this is batch norm that, as it is now, scales and shifts with stored statistics and leaves them alone."""
    if getattr(layer, "running_mean", None) is None or getattr(layer, "running_var", None) is None:
        return False
    if type(layer) in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d):
        return not layer.training
    return getattr(layer, "uses_stored_statistics", False) is True or type(layer).__name__ == "FrozenBatchNorm2d"


class FusedConv:
    """A convolution with what follows it: `norm` (frozen) if any, an addition if called with a residual, and ReLU.

    `fold()` gives what it computes with, with a graph to the parameters; where that is the same for many calls, hand
    it in. Under autocast the layers run one by one, each in its own precision; and for an input that is not of the
    weights' dtype or dimensions, where what they say of it is theirs to say.
    """

    def __init__(self, conv: nn.Module, norm: nn.Module | None, rectifies: bool) -> None:
        self.conv: Any = conv
        self.norm: Any = norm
        self.rectifies = rectifies
        self.__name__ = "fused_conv"  # torch.fx names a node by it

    def parameters(self) -> Iterator[nn.Parameter]:
        return chain(self.conv.parameters(), () if self.norm is None else self.norm.parameters())

    def fold(self) -> Folded:
        weight, bias = self.conv.weight, self.conv.bias
        if self.norm is None:
            return (weight,) if bias is None else (weight, bias)
        inverse = torch.rsqrt(self.norm.running_var + self.norm.eps)
        scale = inverse if self.norm.weight is None else self.norm.weight * inverse
        shift = (0 if bias is None else bias * scale) - self.norm.running_mean * scale
        if self.norm.bias is not None:
            shift = shift + self.norm.bias
        if weight.numel() <= _MOST_COPIED:
            return weight * _per_row(scale, weight), shift
        return _Unscaled.apply(weight, scale), shift, scale.detach()

    def __call__(self, x: Tensor, residual: Any = None, *, folded: Folded | None = None) -> Tensor:
        conv = self.conv
        if torch.is_autocast_enabled(x.device.type) or x.dtype != conv.weight.dtype or x.dim() != conv.weight.dim():
            y = conv(x) if self.norm is None else self.norm(conv(x))
            y = y if residual is None else y + residual
            return torch.relu(y) if self.rectifies else y
        settings = (conv.stride, conv.padding, conv.dilation, conv.groups)
        weight, shift, scale = (*(folded or self.fold()), None, None)[:3]
        return _Conv.apply(x, weight, shift, scale, residual, settings, self.rectifies)


class FusedPool:
    """ReLU and max pool of pictures, the pool first; see Note 3."""

    def __init__(self, pool: nn.MaxPool2d) -> None:
        self.settings = [
            _pair(pool.kernel_size),
            _pair(pool.kernel_size if pool.stride is None else pool.stride),
            _pair(pool.padding),
            _pair(pool.dilation),
            pool.ceil_mode,
        ]
        self.__name__ = "fused_pool"

    def parameters(self) -> Iterator[nn.Parameter]:
        return iter(())

    def __call__(self, x: Tensor) -> Tensor:
        return _Pool.apply(x, self.settings)


class _Unscaled(torch.autograd.Function):
    """The weight itself, in a graph that takes the gradient of the scaled one; see Note 1."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(weight, scale)
        return weight.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        weight, scale = ctx.saved_tensors
        grad_scale = None
        if ctx.needs_input_grad[1]:  # in pieces: products with the whole weight would be one more copy of it
            pieces = zip(grad.chunk(8), weight.chunk(8), strict=True)
            grad_scale = torch.cat([(g * w).flatten(1).sum(1) for g, w in pieces])
        return grad.mul_(_per_row(scale, weight)) if ctx.needs_input_grad[0] else None, grad_scale  # nobody else has it


class _Conv(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        shift: Tensor | None,
        scale: Tensor | None,
        residual: Any,
        settings: Any,
        rectifies: bool,
    ) -> Tensor:
        stride, padding, dilation, groups = settings
        ctx.settings = (stride, padding, dilation, False, [0] * len(stride), groups)
        x = _laid_out(x)
        y = torch.convolution(x, weight, shift if scale is None else None, *ctx.settings)
        y = _laid_out(y)
        if scale is not None:
            y.mul_(_per_channel(scale, y))
            if shift is not None:
                y.add_(_per_channel(shift, y))
        ctx.shape, ctx.dtype = y.shape, y.dtype
        ctx.residual = _facts(residual)
        if residual is not None:
            y = y.add_(residual) if _fits_into(residual, y) else y + residual
        if rectifies:
            y.relu_()
        ctx.save_for_backward(x, weight, scale, y if rectifies else None)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, scale, y = ctx.saved_tensors
        needs_x, needs_weight, needs_shift, _, needs_residual, *_ = ctx.needs_input_grad
        if y is not None:
            grad = torch.ops.aten.threshold_backward(grad, y, 0)
            del y
        grad_residual = None
        if needs_residual:
            shape, dtype, device = ctx.residual
            grad_residual = grad.sum_to_size(shape).to(device, dtype)
        grad = grad.sum_to_size(ctx.shape).to(ctx.dtype)

        def convolution_backward(grad: Tensor, *mask: bool) -> Sequence[Tensor | None]:
            if not any(mask):
                return None, None, None
            return torch.ops.aten.convolution_backward(grad, x, weight, [len(weight)], *ctx.settings, mask)

        if scale is None:
            grad_x, grad_weight, grad_shift = convolution_backward(grad, needs_x, needs_weight, needs_shift)
        else:
            if needs_weight and _is_multiplied(grad, ctx.settings):
                grad_weight = _weight_gradient(grad, x, weight, ctx.settings)
                grad_shift = grad.sum((0, 2, 3)) if needs_shift else None
            else:
                _, grad_weight, grad_shift = convolution_backward(grad, False, needs_weight, needs_shift)
            grad_x, _, _ = convolution_backward(grad * _per_channel(scale, grad), needs_x, False, False)
        return grad_x, grad_weight, grad_shift, None, grad_residual, None, None


class _Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: list[Any]) -> Tensor:
        y, indices = torch.ops.aten.max_pool2d_with_indices(x, *settings)
        indices.masked_fill_(y <= 0, -1)
        y.relu_()
        ctx.save_for_backward(indices.to(torch.int16 if x.shape[-2:].numel() <= 2**15 else torch.int32))
        ctx.shape, ctx.settings, ctx.layout = x.shape, settings, _layout_of(x)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        grad = grad.masked_fill(indices < 0, 0)
        x = torch.empty(ctx.shape, dtype=grad.dtype, device=grad.device, memory_format=ctx.layout)
        backward = torch.ops.aten.max_pool2d_with_indices_backward
        indices = indices.to(torch.int64).clamp_(min=0)
        return backward(grad, x, *ctx.settings, indices), None  # of x, only the layout is looked at


def _laid_out(x: Tensor) -> Tensor:
    """In the layout that suits the next convolution; see Note 2."""
    if x.dim() != 4 or x.device.type != "cpu" or x.dtype != torch.float32 or not torch.backends.mkldnn.enabled:
        return x
    is_deep = x.shape[-2:].numel() <= _LARGEST_CONTIGUOUS
    return x.contiguous(memory_format=torch.contiguous_format if is_deep else torch.channels_last)


def _fits_into(residual: Any, y: Tensor) -> bool:
    """Whether the sum has the shape and dtype of y."""
    if not isinstance(residual, Tensor):
        return False
    is_smaller = torch.broadcast_shapes(residual.shape, y.shape) == y.shape
    return is_smaller and torch.result_type(y, residual) == y.dtype


def _facts(residual: Any) -> tuple[Any, ...] | None:
    return (residual.shape, residual.dtype, residual.device) if isinstance(residual, Tensor) else None


def _is_multiplied(grad: Tensor, settings: Any) -> bool:
    """Whether the gradient of this large weight is better made by a matrix product; see Note 4."""
    few_pixels = grad.dim() == 4 and grad.shape[-2:].numel() <= _LARGEST_MULTIPLIED
    return few_pixels and grad.device.type == "cpu" and settings[-1] == 1


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, settings: Any) -> Tensor:
    (down, right), (top, left), (apart_down, apart_right), *_ = settings
    (n, channels_out, height, width), (_, channels, rows, columns) = grad.shape, weight.shape
    x = functional.pad(x.permute(0, 2, 3, 1), (0, 0, left, left, top, top)).contiguous()
    step, line, pixel, one = x.stride()
    neighbourhoods = x.as_strided(
        (n, height, width, rows, columns, channels),
        (step, line * down, pixel * right, line * apart_down, pixel * apart_right, one),
    ).reshape(n * height * width, -1)
    by_pixel = grad.permute(0, 2, 3, 1).reshape(-1, channels_out)
    return torch.mm(by_pixel.t(), neighbourhoods).view(channels_out, rows, columns, channels).permute(0, 3, 1, 2)


def _layout_of(x: Tensor) -> torch.memory_format:
    is_last = x.is_contiguous(memory_format=torch.channels_last) and not x.is_contiguous()
    return torch.channels_last if is_last else torch.contiguous_format


def _per_row(values: Tensor, weight: Tensor) -> Tensor:
    return values.view(-1, *[1] * (weight.dim() - 1))


def _per_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 2))


def _pair(value: Any) -> list[int]:
    return list(value) if isinstance(value, (tuple, list)) else [value, value]

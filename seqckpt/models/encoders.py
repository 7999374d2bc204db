"""Frame encoders by name: torchvision's classification networks without their last layer, and `small` for CPUs."""

from __future__ import annotations

import difflib
import typing
from collections import OrderedDict
from collections.abc import Iterator

import torchvision
from torch import nn
from torchvision import models

from seqckpt.errors import UsageError
from seqckpt.models.small_encoder import SmallEncoder
from seqckpt.models.stages import StagedEncoder
from seqckpt.models.weights import load_weights

__all__ = ["build_encoder", "list_encoders"]

# The order in which a family's forward calls its children. `name.*` stands for each child of that child, and a leading
# `+` for what forward does without a module of its own. The classification layer is left out by `_cut_classifier`.
_LAYOUTS: dict[type[nn.Module], str] = {
    models.AlexNet: "features.* avgpool +flatten classifier.*",
    models.ConvNeXt: "features.* avgpool classifier.*",
    models.DenseNet: "features.* +relu +avgpool +flatten",
    models.EfficientNet: "features.* avgpool +flatten classifier.*",
    models.MNASNet: "layers.* +avgpool +flatten classifier.*",
    models.MobileNetV2: "features.* +avgpool +flatten classifier.*",
    models.MobileNetV3: "features.* avgpool +flatten classifier.*",
    models.RegNet: "stem trunk_output.* avgpool +flatten",
    models.ResNet: "conv1 bn1 relu maxpool layer1 layer2 layer3 layer4 avgpool +flatten",
    models.ShuffleNetV2: "conv1 maxpool stage2 stage3 stage4 conv5 +avgpool +flatten",
    models.SqueezeNet: "features.* +avgpool +flatten",
    models.SwinTransformer: "features.* norm permute avgpool flatten",
    models.VGG: "features.* avgpool +flatten classifier.*",
}


def build_encoder(name: str, *, weights: str | None = None, num_features: int | None = None) -> nn.Sequential:
    """Build the encoder of that name: frames float (n, 3, H, W) -> features float (n, num_features).

    `name` is one of `list_encoders()`. `weights` is None (random, from torch's generator), "DEFAULT" (torchvision's
    best for that name, downloaded once) or the path of a file with a torchvision or own `state_dict`.
    `num_features` can be chosen for `small` only; elsewhere the network fixes it.

    The result is an `nn.Sequential` of named stages with an attribute `num_features`; its `state_dict` has
    torchvision's own keys, without the classification layer (and the dropout before it). Raises UsageError for an
    unknown name, and for weights that cannot be had or do not fit.
    """
    if name == "small":
        return _build_small(weights, 64 if num_features is None else num_features)
    builders = _torchvision_builders()
    if name not in builders:
        raise UsageError(_describe_unknown(name))
    if num_features is not None:
        raise UsageError(f"num_features={num_features} was given for encoder {name!r}: only 'small' lets it be chosen")
    encoder = _cut(builders[name](weights=None))
    if weights is not None:
        load_weights(encoder, name, weights, default=models.get_model_weights(name))
    return encoder


def list_encoders() -> list[str]:
    """List the names that `build_encoder` knows, `small` first.

    >>> names = list_encoders()
    >>> names[0], "resnet50" in names, "convnext_tiny" in names, "vit_b_16" in names
    ('small', True, True, False)
    """
    return ["small", *_torchvision_builders()]


def _build_small(weights: str | None, num_features: int) -> SmallEncoder:
    encoder = SmallEncoder(num_features)
    if weights is not None:
        load_weights(encoder, "small", weights, default=None)
    return encoder


def _torchvision_builders() -> dict[str, typing.Callable[..., nn.Module]]:
    builders = {name: models.get_model_builder(name) for name in models.list_models(module=torchvision.models)}
    return {
        name: builder for name, builder in builders.items() if typing.get_type_hints(builder).get("return") in _LAYOUTS
    }


def _cut(network: nn.Module) -> StagedEncoder:
    """Lay a torchvision network out as a row of stages, and leave its classification layer out."""
    classifier = _find_classifier(network)
    stages = OrderedDict(_walk(network, _LAYOUTS[type(network)].split()))
    while (last := list(stages)[-1]) and (stages[last] is classifier or isinstance(stages[last], nn.Dropout)):
        del stages[last]
    num_features = classifier.in_channels if isinstance(classifier, nn.Conv2d) else classifier.in_features
    return StagedEncoder(stages, num_features=typing.cast(int, num_features))


def _walk(network: nn.Module, layout: list[str]) -> Iterator[tuple[str, nn.Module]]:
    added = {"relu": nn.ReLU(), "avgpool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(1)}
    for part in layout:
        if part.startswith("+"):
            yield part[1:], added[part[1:]]
        elif part.endswith(".*"):
            container = part[: -len(".*")]
            for name, stage in network.get_submodule(container).named_children():
                yield f"{container}.{name}", stage
        else:
            yield part, network.get_submodule(part)


def _find_classifier(network: nn.Module) -> nn.Module:
    """Return the last layer with weights: torchvision defines its classification layers last."""
    return [layer for layer in network.modules() if isinstance(layer, (nn.Linear, nn.Conv2d))][-1]


def _describe_unknown(name: str) -> str:
    names = list_encoders()
    near = difflib.get_close_matches(name.lower(), names, n=5, cutoff=0.5)
    if near:
        return f"encoder {name!r} is unknown: did you mean {' or '.join(near)}?"
    return f"encoder {name!r} is unknown. Known are: {', '.join(names)}"

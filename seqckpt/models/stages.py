"""A frame encoder as a flat row of named stages, under the state_dict keys of the network that it was cut from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from torch import nn

__all__ = ["StagedEncoder"]


class StagedEncoder(nn.Sequential):
    """Rows of frames (n, C, H, W) -> features (n, num_features), one child per stage.

    An `nn.Sequential`, so that it can be cut between any two stages. `stages` maps the path of each stage in the
    network that it comes from ("layer1", "features.3") to its module. A child's name may hold no dot, so "features.3"
    becomes the child "features_3"; the keys of `state_dict()` keep the dot and thus stay those of the network.

    No stage changes its input in place: what stands between two stages may be kept and used again. In-place
    activations at the head of a stage are made ordinary ones for that, which costs no memory that autograd keeps.

    >>> encoder = StagedEncoder({"features.0": nn.Linear(4, 3), "features.1": nn.ReLU(inplace=True)}, num_features=3)
    >>> list(encoder.state_dict()), [name for name, stage in encoder.named_children()], encoder.features_1
    (['features.0.weight', 'features.0.bias'], ['features_0', 'features_1'], ReLU())
    """

    num_features: int

    def __init__(self, stages: Mapping[str, nn.Module], *, num_features: int) -> None:
        super().__init__(OrderedDict((path.replace(".", "_"), stage) for path, stage in stages.items()))
        self.num_features = num_features
        for stage in stages.values():
            if getattr(stage, "inplace", False) is True:
                stage.inplace = False  # type: ignore[assignment]
        paths = {path.replace(".", "_"): path for path in stages if "." in path}
        if paths:
            self.register_state_dict_post_hook(_NameByPath(paths))
            self.register_load_state_dict_pre_hook(_PathToName(paths))


class _NameByPath:
    """After saving: `prefix.features_3.key` becomes `prefix.features.3.key`. An object, so that it can be pickled."""

    def __init__(self, paths: dict[str, str]) -> None:
        self.paths = paths

    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            name, _, rest = key[len(prefix) :].partition(".")
            # Every key is taken out and put back, so that their order stays that of the stages.
            state_dict[f"{prefix}{self.paths.get(name, name)}.{rest}"] = state_dict.pop(key)


class _PathToName:
    """Before loading: `prefix.features.3.key` becomes `prefix.features_3.key`."""

    def __init__(self, paths: dict[str, str]) -> None:
        self.names = {path: name for name, path in paths.items()}

    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
        for key in [key for key in state_dict if key.startswith(prefix)]:
            first, _, rest = key[len(prefix) :].partition(".")
            second, _, rest = rest.partition(".")
            name = self.names.get(f"{first}.{second}")
            if name is not None:
                state_dict[f"{prefix}{name}.{rest}"] = state_dict.pop(key)

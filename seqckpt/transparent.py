"""Wrappers whose `state_dict` carries the keys of what they wrap, so that weights move to and from the plain module."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["hide_in_state_dict"]


def hide_in_state_dict(wrapper: nn.Module, child: str) -> None:
    """Leave the name of one child out of the wrapper's `state_dict` keys, when saving and when loading.

    Call it once, at the end of the wrapper's `__init__`; keys of the wrapper's other children stay. It works at any
    depth of nesting, and survives deepcopy and pickle.

    >>> import torch
    >>> class Wrapper(nn.Module):
    ...     def __init__(self, inner):
    ...         super().__init__()
    ...         self.inner = inner
    ...         hide_in_state_dict(self, "inner")
    >>> sorted(Wrapper(nn.Linear(2, 3)).state_dict())
    ['bias', 'weight']
    >>> Wrapper(nn.Linear(2, 3)).load_state_dict(nn.Linear(2, 3).state_dict())
    <All keys matched successfully>
    """
    wrapper.register_state_dict_post_hook(_StripName(child))
    wrapper.register_load_state_dict_pre_hook(_AddName(child))


class _StripName:
    """After saving: `prefix.child.key` becomes `prefix.key`. An object, so that it is copied with its module."""

    def __init__(self, child: str) -> None:
        self.child = child

    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, local_metadata: Any) -> None:
        inner = f"{prefix}{self.child}."
        for key in [key for key in state_dict if key.startswith(inner)]:
            state_dict[prefix + key[len(inner) :]] = state_dict.pop(key)


class _AddName:
    """Before loading: `prefix.key` becomes `prefix.child.key`."""

    def __init__(self, child: str) -> None:
        self.child = child

    def __call__(self, module: nn.Module, state_dict: dict[str, Any], prefix: str, *unused: Any) -> None:
        inner = module.get_submodule(self.child)
        others = {name for name, _ in module.named_children() if name != self.child and not hasattr(inner, name)}
        for key in [key for key in state_dict if key.startswith(prefix)]:
            if (own := key[len(prefix) :]).split(".")[0] not in others:
                state_dict[f"{prefix}{self.child}.{own}"] = state_dict.pop(key)

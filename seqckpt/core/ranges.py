"""Ranges of modules inside a model, checkpointed in place: the model keeps its modules, their names and its own code.

A model whose code calls `self.layer1(x)`, `self.layer2(x)`, ... cannot be told to call a wrapper of both instead. So
the modules of a range agree among themselves: when the first is called it runs all of them, as one Checkpointed, and
the others, called with that result, hand it on as it is.

    called by the model:   layer1(x)          layer2(y)   layer3(y)
    what it does:          y = Checkpointed    return y    return y
                           (layer1, layer2, layer3)(x)

Only `forward` of the instances is replaced, not the modules: attributes, `state_dict`, `isinstance` stay.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from types import TracebackType
from typing import Any
from weakref import ReferenceType, ref

from torch import Tensor, nn
from torch.utils._pytree import tree_flatten

from seqckpt.core.checkpointed import Checkpointed
from seqckpt.errors import ReplayError, UsageError

__all__ = ["CheckpointedRanges", "checkpoint_ranges"]


class CheckpointedRanges:
    """What `checkpoint_ranges` did, to undo it: by `undo()`, or at the end of a `with` block."""

    def __init__(self, members: Sequence[_Member]) -> None:
        self._members = list(members)

    def undo(self) -> None:
        """Give the modules their own forward back; calling it twice does no harm."""
        for member in self._members:
            if member.module.__dict__.get("forward") is member:
                del member.module.__dict__["forward"]
                if member.own is not None:
                    member.module.__dict__["forward"] = member.own
        self._members = []

    def __enter__(self) -> CheckpointedRanges:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.undo()


def checkpoint_ranges(
    model: nn.Module, ranges: Iterable[Sequence[str]], *, sharing: Collection[str] = ()
) -> CheckpointedRanges:
    """Checkpoint each range of modules of a model as one, in place.

    Args:
        ranges: names of modules, in the order in which they run; each one's result, unchanged, must be the first
            argument of the next and be used nowhere else.
        sharing: those that are given, beside it, the further arguments that the range's first module is given; the
            others are called with one argument.

    Works through deepcopy and pickle; `state_dict` keys stay. A module that is called out of turn, with something else
    than the range's result, or with other further arguments than the first, raises ReplayError: the model's code is
    no row there. What cannot be noticed: code that reads a result in the middle of a range without handing on another
    (its shape, say) finds the range's result there.

    Memory and time: those of Checkpointed, once a range. Raises UsageError for a name that the model does not have, for
    a module that is in a range already, and for hooks on modules of a range of several, which would see other values.
    """
    members: list[_Member] = []
    for names in ranges:
        shared = [name in sharing for name in names]
        row = _Range([_find(model, name) for name in names], list(names), shared)
        for index, module in enumerate(row.modules):
            if len(names) > 1:
                _refuse_hooks(module, names[index])
            if isinstance(module.__dict__.get("forward"), _Member) or any(m.module is module for m in members):
                raise UsageError(f"{names[index]} is checkpointed in a range already: undo that first")
            members.append(_Member(row, index))
    for member in members:
        member.module.__dict__["forward"] = member
    return CheckpointedRanges(members)


class _Row(nn.Module):
    """The modules of a range, one after the other."""

    def __init__(self, modules: Sequence[nn.Module], shares: Sequence[bool]) -> None:
        super().__init__()
        self.row = nn.ModuleList(modules)
        self.shares = list(shares)
        self.is_running = False

    def forward(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        self.is_running = True
        try:
            for index, module in enumerate(self.row):
                x = module(x, *args, **kwargs) if index == 0 or self.shares[index] else module(x)
        finally:
            self.is_running = False
        return x


class _Range:
    """A range at work: what its first module returned, and whose turn it is to hand that on."""

    def __init__(self, modules: Sequence[nn.Module], names: Sequence[str], shares: Sequence[bool]) -> None:
        self.modules, self.names = list(modules), list(names)
        self.row = _Row(modules, shares)
        self.checkpointed = Checkpointed(self.row)
        self.end()

    def end(self) -> None:
        self.turn = 0
        self.result: ReferenceType[Any] | None = None
        self.arguments: tuple[tuple[Any, ...], dict[str, Any]] = (), {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "turn": 0, "result": None, "arguments": ((), {})}

    def start(self, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.end()
        result = self.checkpointed(x, *args, **kwargs)
        if len(self.modules) > 1:
            self.turn, self.result, self.arguments = 1, ref(result), (args, kwargs)
        return result

    def hand_on(self, index: int, x: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        expected: Any = self.arguments if self.row.shares[index] else ((), {})
        is_result = self.result is not None and self.result() is x
        if index != self.turn or not is_result or not _are_same((args, kwargs), expected):
            self.end()
            raise ReplayError(
                f"{self.names[index]} is checkpointed in one range with {', '.join(self.names[:index])}, and was "
                "called out of turn, with something else than the result of the module before it, or with other "
                "further arguments than that: the model's code is no row there; checkpoint these modules one by one"
            )
        self.turn += 1
        if self.turn == len(self.modules):
            self.end()
        return x


class _Member:
    """The forward of one module of a range; a class, so that it is copied and pickled with its module."""

    def __init__(self, row: _Range, index: int) -> None:
        self.range, self.index = row, index
        self.own = self.module.__dict__.get("forward")

    @property
    def module(self) -> nn.Module:
        return self.range.modules[self.index]

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        if self.range.row.is_running:
            return self._run(x, *args, **kwargs)
        if self.index == 0:
            return self.range.start(x, args, kwargs)
        return self.range.hand_on(self.index, x, args, kwargs)

    def _run(self, *args: Any, **kwargs: Any) -> Any:
        """As if it were in no range."""
        if self.own is not None:
            return self.own(*args, **kwargs)
        return type(self.module).forward(self.module, *args, **kwargs)


def _find(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        raise UsageError(
            f"the model has no module {name!r}: expected names as in its named_modules(); was another model traced?"
        ) from None


def _refuse_hooks(module: nn.Module, name: str) -> None:
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    if any(hooks):
        raise UsageError(
            f"{name} has hooks, which would see other values in a range of several modules: remove them, or checkpoint "
            "the module by itself"
        )


def _are_same(arguments: Any, others: Any) -> bool:
    (flat, spec), (flat_others, spec_of_others) = tree_flatten(arguments), tree_flatten(others)
    return spec == spec_of_others and all(
        a is b or (not isinstance(a, Tensor) and not isinstance(b, Tensor) and bool(a == b))
        for a, b in zip(flat, flat_others, strict=True)
    )

"""The layers of a traced model: a row of modules, each one's result being the next one's argument and no other's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from seqckpt.memory.trace_records import MemoryTrace, ModuleCall

__all__ = ["Layer", "find_layers"]


@dataclass
class Layer:
    """One module of the row: its forward, its backward if it had one, and all storages saved inside it."""

    forward: ModuleCall
    backward: ModuleCall | None
    has_children: bool
    saves: set[int] = field(default_factory=set)


def find_layers(trace: MemoryTrace) -> list[Layer]:
    """Return the row of modules that has most to gain from cuts; empty where a model is no row anywhere.

    An nn.Sequential stands for its children, at any depth, where each of them is called once. Of several rows (an
    encoder's, a decoder's) that one is taken whose layers but the largest save most.
    """
    tree = _Tree(trace)
    rows = [tree.layers_of(row) for row in tree.rows()]
    sizes = [[sum(trace.storage_bytes[s] for s in layer.saves) for layer in row] for row in rows]
    gains = [(sum(of_row) - max(of_row), sum(of_row), -i) for i, of_row in enumerate(sizes)]
    return rows[-max(gains)[2]] if gains else []


class _Tree:
    """First runs of modules by the run that they are inside of; positions in `trace.calls`."""

    def __init__(self, trace: MemoryTrace) -> None:
        self.calls = trace.calls
        first_runs = [i for i, call in enumerate(trace.calls) if call.phase == "forward" and not call.is_replay]
        self.num_calls = Counter(trace.calls[i].module for i in first_runs)
        self.children: dict[int | None, list[int]] = {}
        for i in first_runs:
            self.children.setdefault(trace.calls[i].parent, []).append(i)
        self.backward_of: dict[int, ModuleCall] = {}
        for call in trace.calls:
            if call.phase == "backward":
                self.backward_of.setdefault(call.forward, call)

    def rows(self) -> Iterator[list[int]]:
        """All maximal rows, from the outermost inwards."""
        waiting = [i for i in self.children.get(None, []) if self.calls[i].module == ""]  # not those of a loss
        yield from ([root] for root in waiting)
        while waiting:
            row: list[int] = []
            for i, is_linked in self._flattened(waiting.pop(0), links_to_outside=False):
                if row and not is_linked:
                    yield row
                    row = []
                row.append(i)
                waiting.append(i)
            if row:
                yield row

    def _flattened(self, parent: int, *, links_to_outside: bool) -> Iterator[tuple[int, bool]]:
        """Children of a run, those of nn.Sequentials in their stead, and whether each is linked to the one before."""
        before = None
        for i in self.children.get(parent, []):
            is_linked = links_to_outside if before is None else self.calls[i].follows and self._is_single(before)
            if self._is_row(i):
                yield from self._flattened(i, links_to_outside=is_linked)
            else:
                yield i, is_linked and self._is_single(i)
            before = i

    def _is_row(self, i: int) -> bool:
        inside = self.children.get(i, [])
        return (
            self.calls[i].is_row
            and bool(inside)
            and all(self._is_single(child) for child in inside)
            and all(self.calls[child].follows for child in inside[1:])
        )

    def _is_single(self, i: int) -> bool:
        return self.num_calls[self.calls[i].module] == 1

    def layers_of(self, row: list[int]) -> list[Layer]:
        return [Layer(self.calls[i], self.backward_of.get(i), i in self.children, self._saves(i)) for i in row]

    def _saves(self, root: int) -> set[int]:
        saves: set[int] = set()
        waiting = [root]
        while waiting:
            i = waiting.pop()
            saves.update(self.calls[i].saves)
            waiting += self.children.get(i, [])
        return saves

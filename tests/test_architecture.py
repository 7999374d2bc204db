"""The layers of the package, held against every import in it: one table says which edges are allowed.

    L5  cli  __main__  bench
    L4  inference  report      a trained run, used and shown
    L3  build                  the only unit that knows both config and library
    L2  training
    L1  core  memory  models  data  metrics  plots
    L0  config  errors  units  atomic  launch  progress  transparent  partition

An import may only point downward, and siblings on one level do not import each other.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = "seqckpt"
REPOSITORY = Path(__file__).parent.parent
MODULES = sorted((REPOSITORY / PACKAGE).rglob("*.py"))

PLAIN = {"errors", "units"}  # L0 for everyone; the configuration is not
ENGINE = PLAIN | {"transparent", "partition"}
LIBRARY = {"core", "memory", "models", "data", "metrics", "plots"}
APPLICATION = {"atomic", "launch", "progress"}  # for those who write files and talk to people
BELOW_APPLICATION = ENGINE | APPLICATION | LIBRARY | {"config", "training", "build"}

# What each unit (a file or folder right under the package) may import of the package. A dotted entry allows that one
# module and no other of its unit. "" is the package itself, its __init__.py with the public names.
ALLOWED: dict[str, set[str]] = {
    "": {"core", "memory"},
    "errors": set(),
    "units": set(),
    "atomic": {"errors"},
    "launch": set(),
    "progress": {"launch"},
    "transparent": set(),
    "partition": set(),
    "config": PLAIN,
    "core": ENGINE,
    # It knows a Schedule and its lengths, and wrappers for ranges of modules, not how the engine cuts and replays; two
    # of the engine's files about plain torch (graphs; random states and buffers) keep it from leaving anything behind.
    "memory": ENGINE
    | {"atomic", "core.schedule", "core.cuts", "core.ranges", "core.graph", "core.surroundings", "core.random_states"},
    "models": ENGINE,
    "data": PLAIN | APPLICATION,
    "metrics": PLAIN,
    "plots": PLAIN | {"atomic"},
    "training": ENGINE | APPLICATION | LIBRARY,
    "build": ENGINE | LIBRARY | {"config", "launch", "training"},
    "inference": BELOW_APPLICATION,
    "report": BELOW_APPLICATION,
    "bench": BELOW_APPLICATION | {"inference"},
    "cli": BELOW_APPLICATION | {"inference", "report", "bench"},
    "__main__": {"cli", "launch"},
}

# Of everything outside the package and the standard library, these units may import only this.
THIRD_PARTY: dict[str, set[str]] = {
    "": {"torch"},
    "errors": set(),
    "units": set(),
    "atomic": set(),
    "launch": set(),
    "progress": {"tqdm"},
    "transparent": {"torch"},
    "partition": set(),
    "core": {"torch"},
    "memory": {"torch"},
    "metrics": {"numpy"},
    "plots": {"matplotlib", "numpy", "PIL", "av"},
    "models": {"torch", "torchvision"},
    "report": {"numpy", "PIL"},
}

BANNED_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}
TOP_LEVEL = {
    *("pyproject.toml", "README.md", "LICENSE", "train.py"),
    *("configs", "data", "tests", "seqckpt", ".ci", ".github", ".gitignore"),
}


def module_name(path: Path) -> str:
    """`seqckpt/core/replay.py` -> "core.replay"; the package itself is ""."""
    parts = list(path.relative_to(REPOSITORY / PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_imports(source: str, module: str, *, is_package: bool) -> Iterator[str]:
    """Name everything that a module imports, wherever in it; relative names made absolute.

    `from a.b import c` counts as "a.b.c", since c may be a module.
    """
    here = [PACKAGE, *(module.split(".") if module else [])]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            up = node.level - is_package if node.level else 0
            start = here[: len(here) - up] if node.level else []
            origin = ".".join([*start, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("__import__", "importlib.import_module"):
            yield str(ast.literal_eval(node.args[0])) if isinstance(node.args[0], ast.Constant) else "(computed name)"


def find_forbidden(source: str, module: str, *, is_package: bool = False) -> list[str]:
    """Return the imports of a module that its unit is not allowed."""
    unit = module.partition(".")[0]
    if unit not in ALLOWED:
        return [f"{unit} is in no layer: add it to ALLOWED"]
    forbidden = []
    for name in find_imports(source, module, is_package=is_package):
        first, _, inside = name.partition(".")
        if first == PACKAGE:
            if not is_allowed_inside(unit, inside):
                forbidden.append(name)
        elif first == "(computed name)" or (unit in THIRD_PARTY and not is_allowed_outside(unit, first)):
            forbidden.append(name)
    return forbidden


def is_allowed_inside(unit: str, target: str) -> bool:
    """Say whether a unit may import a dotted name within the package, such as "core.replay.replay_loop"."""
    if target.partition(".")[0] == unit and unit:
        return True
    return any(target == edge or target.startswith(f"{edge}.") for edge in ALLOWED[unit])


def is_allowed_outside(unit: str, library: str) -> bool:
    return library in sys.stdlib_module_names or library in THIRD_PARTY[unit]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path) or PACKAGE)
def test_imports_point_downward(path: Path) -> None:
    is_package = path.name == "__init__.py"
    assert find_forbidden(path.read_text(encoding="utf-8"), module_name(path), is_package=is_package) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: module_name(path) or PACKAGE)
def test_every_module_says_what_it_is_and_what_it_offers(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{path} has no docstring"
    names = [
        target.id
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    ]
    assert "__all__" in names, f"{path} has no __all__"


def test_no_module_has_an_empty_name() -> None:
    """A name such as utils says nothing of what belongs in it."""
    names = {part for path in MODULES for part in module_name(path).split(".")}
    assert names & BANNED_NAMES == set()


def test_the_table_itself_points_downward() -> None:
    """No two units may import each other, directly or round about."""
    level: dict[str, int] = {}
    for unit, edges in ALLOWED.items():  # in the order of the table, each unit after all that it may import
        units = {edge.partition(".")[0] for edge in edges}
        assert unit == "" or units <= set(level), unit
        level[unit] = 1 + max((level[other] for other in units if other in level), default=0)


def test_the_top_level_is_as_fixed() -> None:
    if not (REPOSITORY / ".git").exists():
        pytest.skip("not a git checkout: what belongs to the repository is unknown")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=REPOSITORY, capture_output=True, text=True, check=True, encoding="utf-8"
    )
    assert {line.partition("/")[0] for line in listed.stdout.splitlines()} - TOP_LEVEL == set()


def test_train_is_three_lines() -> None:
    """And the guard that worker processes need: they import the file again."""
    tree = ast.parse((REPOSITORY / "train.py").read_text(encoding="utf-8"))
    lines = {node.lineno for node in ast.walk(tree) if isinstance(node, ast.stmt) and not isinstance(node, ast.If)}
    docstring = {tree.body[0].lineno} if ast.get_docstring(tree) else set()
    assert len(lines - docstring) <= 3, sorted(lines)


BAD_EDGES = {
    "upward": ("core.replay", "from seqckpt.training import trainer"),
    "to a sibling": ("models.video_model", "from seqckpt.core import ChunkedEncoder"),
    "to config": ("training.trainer", "from seqckpt.config import load_config"),
    "by the package's name": ("training.trainer", "import seqckpt.config"),
    "by from the package": ("core.replay", "from seqckpt import config"),
    "to the public names": ("models.video_model", "from seqckpt import ChunkedEncoder"),
    "to the whole package": ("models.video_model", "import seqckpt"),
    "inside a function": ("data.sources", "def read():\n    from seqckpt import models\n"),
    "for type checking": ("data.sources", "if TYPE_CHECKING:\n    from seqckpt.core import Keep\n"),
    "relative": ("core.replay", "from ..config import load_config"),
    "relative without a module": ("core.replay", "from .. import config"),
    "relative from a file": ("plots", "from . import metrics"),
    "of another module than the allowed one": ("memory.planner", "from seqckpt.core.replay import replay_loop"),
    "of a name that begins like an allowed one": ("memory.planner", "from seqckpt.core.schedules import X"),
    "from outside": ("core.replay", "import numpy as np"),
    "from outside, inside a function": ("core.replay", "def f():\n    from omegaconf import OmegaConf\n"),
    "by a function": ("core.replay", "import importlib\nimportlib.import_module('seqckpt.config')"),
    "by a computed name": ("core.replay", "import importlib\nimportlib.import_module(name)"),
    "of an unknown unit": ("utils.things", "import os"),
}


@pytest.mark.parametrize("kind", BAD_EDGES)
def test_a_bad_edge_is_found(kind: str) -> None:
    module, source = BAD_EDGES[kind]
    assert len(find_forbidden(source, module)) == 1


def test_a_bad_edge_in_a_package_is_found() -> None:
    """Dots count from the package itself in an __init__.py, from its parent in a file."""
    assert find_forbidden("from .replay import f", "core", is_package=True) == []
    assert find_forbidden("from ..config import f", "core", is_package=True) == ["seqckpt.config.f"]
    assert find_forbidden("from .core import f", "", is_package=True) == []
    assert find_forbidden("from .training import f", "", is_package=True) == ["seqckpt.training.f"]


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("core.replay", "import contextlib\nimport torch.nn as nn\nfrom torch import Tensor\nfrom . import graph"),
        ("core.replay", "from seqckpt.errors import ReplayError\nfrom ..units import format_bytes"),
        ("memory.planner", "from seqckpt.core.schedule import Schedule\nfrom seqckpt.core import schedule"),
        ("build", "from seqckpt.config import Config\nfrom seqckpt import training\nimport seqckpt.data.clips"),
        ("__main__", "from seqckpt.cli import main"),
    ],
)
def test_good_edges_are_let_pass(module: str, source: str) -> None:
    assert find_forbidden(source, module) == []

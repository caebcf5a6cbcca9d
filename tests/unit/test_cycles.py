"""The modules of the package stand one above another."""

from __future__ import annotations

import ast
import gc
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import limpet

ROOT = Path(limpet.__file__).parent


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its name, parsed."""
    trees = {}
    gc.disable()  # millions of nodes, none of them garbage: collecting takes longer than parsing
    try:
        for file in ROOT.rglob("*.py"):
            parts = file.relative_to(ROOT.parent).with_suffix("").parts
            trees[".".join(parts).removesuffix(".__init__")] = ast.parse(file.read_text())
        gc.freeze()
    finally:
        gc.enable()
    return trees


def imported(tree: ast.Module, known: dict[str, ast.Module]) -> set[str]:
    """The modules of ours that a module imports anywhere in it, also for its types only."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            names |= {name if name in known else node.module for name in whole}
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return (names & known.keys()) - {limpet.__name__}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and under TYPE_CHECKING count: CycleError names the modules."""
    known = modules()
    order = TopologicalSorter({name: imported(tree, known) for name, tree in known.items()})
    order.prepare()

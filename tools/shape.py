"""Print the shape of the package: what a reader meets on the way.

    python -m tools.shape

Information, not a gate: a figure that gets worse is a reason to look. `make check` runs it last; it
never fails. The laws of `limpet.testing` are left out.
"""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"


def main() -> None:
    """Read every module once and print the figures."""
    texts = read()
    trees = {name: ast.parse(text) for name, text in texts.items()}
    sizes = sorted(size(node) for tree in trees.values() for node in functions(tree))
    lone = one_importer(trees)
    twice = defined_twice(trees)
    bags = sum(len(re.findall(r"\*\*how\b|\bhow: (?:dict|Any)", text)) for text in texts.values())
    lines = sum(text.count("\n") for text in texts.values())
    print(f"shape: {lines} lines in {len(texts)} modules, {len(lone)} of them with one importer")
    print(
        f"       functions: median {sizes[len(sizes) // 2]} lines, p90 "
        f"{sizes[len(sizes) * 9 // 10]}, longest {sizes[-1]}; keyword bags: {bags}"
    )
    print(f"       class names defined twice: {len(twice)} {' '.join(twice)}".rstrip())


def read() -> dict[str, str]:
    """Return the text of each module by its dotted name."""
    texts = {}
    for file in sorted(SOURCE.rglob("*.py")):
        name = ".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
        if not name.startswith("limpet.testing"):
            texts[name] = file.read_text()
    return texts


def functions(tree: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return every function and method of a module."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [node for node in ast.walk(tree) if isinstance(node, kinds)]


def size(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function without its docstring."""
    docstring = ast.get_docstring(node, clean=False)
    written = docstring.count("\n") + 1 if docstring else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - written


def one_importer(trees: dict[str, ast.Module]) -> list[str]:
    """Return the modules that exactly one other module imports, packages left out."""
    importers: Counter[str] = Counter()
    for name, tree in trees.items():
        imported: set[str] = set()
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                whole = [f"{node.module}.{alias.name}" for alias in node.names]
                imported |= {each if each in trees else node.module for each in whole}
            elif isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
        importers.update(imported - {name})
    packages = {name.rpartition(".")[0] for name in trees}
    return [name for name in trees if importers[name] == 1 and name not in packages]


def defined_twice(trees: dict[str, ast.Module]) -> list[str]:
    """Return the class names that several modules define, with their number."""
    defined: defaultdict[str, set[str]] = defaultdict(set)
    for module, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                defined[node.name].add(module)
    return [f"{name}×{len(where)}" for name, where in sorted(defined.items()) if len(where) > 1]


if __name__ == "__main__":
    main()

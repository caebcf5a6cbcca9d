"""The shape of the house: private names stay private, and the documents describe what is there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from tests.unit.test_cycles import ROOT, modules

_REPOSITORY = ROOT.parents[1]
_OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields"}  # public, so that no field is called so

# Names that two rooms may share, each with its reason.
_SHARED_NAMES = {
    "State": "limpet.graph follows the names of the graph specification",
    "Message": "limpet.graph follows the names of the graph specification",
    "LimpetSessionStore": "the Claude Agent SDK calls its store as graphs call theirs",
}


def test_one_word_names_one_type() -> None:
    """A class name is defined in one module of the package only."""
    defined: dict[str, set[str]] = {}
    for module, tree in modules().items():
        for node in _statements(tree):
            if isinstance(node, ast.ClassDef):
                defined.setdefault(node.name, set()).add(module)
    twice = {name: sorted(where) for name, where in defined.items() if len(where) > 1}
    assert {name: twice[name] for name in twice.keys() - _SHARED_NAMES.keys()} == {}


def _statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Every statement below a node: classes stand among them, and expressions hold none."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.stmt):
            yield child
            yield from _statements(child)
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            yield from _statements(child)


def test_no_variable_is_called_how_found_or_told() -> None:
    """Such a name says nothing of its value."""
    empty = []
    for module, tree in modules().items():
        for node in ast.walk(tree):
            is_set = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            name = node.id if is_set else node.arg if isinstance(node, ast.arg) else None
            if name in ("how", "found", "told") and not _is_field(tree, node):
                empty.append(f"{module}:{node.lineno} {name}")
    assert empty == []


def _is_field(tree: ast.Module, target: ast.AST) -> bool:
    """True if the name is a field of a class: of an error, or of a finding."""
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fields = [node for each in classes for node in each.body if isinstance(node, ast.AnnAssign)]
    return any(node.target is target for node in fields)


def test_no_module_reaches_into_anothers_private_names() -> None:
    """What begins with an underscore is used on objects of one's own module only."""
    foreign = [f"{name}: {each}" for name, tree in modules().items() for each in _foreign(tree)]
    assert foreign == []


def _foreign(tree: ast.Module) -> Iterator[str]:
    """The private names that a module uses and does not define; inherited ones are its own."""
    own, nodes = set(_OF_NAMED_TUPLES), list(ast.walk(tree))
    for node in nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            own.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            own.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            own |= {node.attr} if _is_self(node.value) else set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("limpet"):
            yield from [alias.name for alias in node.names if alias.name.startswith("_")]
        elif isinstance(node, ast.Attribute) and re.match("_[a-z]", node.attr):
            of = node.value.id if isinstance(node.value, ast.Name) else None
            if of not in ("self", "cls") and node.attr not in own:
                yield f"{node.attr} in line {node.lineno}"


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def test_the_list_of_rooms_names_every_folder() -> None:
    """Who reads ARCHITECTURE finds each room of the source, and no other."""
    text = (_REPOSITORY / "docs" / "ARCHITECTURE.md").read_text()
    listed = text.partition("## The rooms")[2].partition("`model` has no await")[0]
    named = set(re.findall(r"(\w+)/(?=[\s:;,.]|$)", listed))
    assert {file.parent.name for file in ROOT.rglob("*/__init__.py")} - {"limpet"} <= named
    indented = set(re.findall(r"(?m)^    (?:  )?(\w+)/ ", listed))
    assert {name for name in indented if not [*ROOT.rglob(f"{name}/__init__.py")]} == set()


def test_the_reading_order_names_files_that_there_are() -> None:
    """The files that follow one event to the disk, and those where things are added."""
    text = (_REPOSITORY / "docs" / "ARCHITECTURE.md").read_text()
    order = text.partition("\n## Where to add")[2].partition("\n## One append")[0]
    files = re.findall(r"\(\.\./(src/[^)]+)\)", order)
    assert len(files) > 15
    assert [file for file in files if not (_REPOSITORY / file).is_file()] == []

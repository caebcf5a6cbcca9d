"""Mutants: copies of a module with one small fault each, made on its syntax tree.

A statement is deleted, a condition negated or one of its operands dropped, a comparison moved by
one, a raise dropped, a constant changed, an answer replaced by None. Texts for people, types and
asserts stay as they are: no promise hangs on them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any, Final


@dataclass(frozen=True)
class Mutant:
    """One fault: where it is, what was there and what is there now."""

    line: int
    function: str  # qualified; "" at the top of the module
    before: str
    after: str
    code: CodeType

    @property
    def change(self) -> str:
        return f"{self.before} -> {self.after}"


@dataclass
class _Place:
    """A node where it hangs in the tree: in a field, or at an index of one."""

    parent: ast.AST
    field: str
    index: int | None
    function: str
    node: Any
    around: ast.AST  # the statement it is in, or the head of a compound one, to be shown

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.field, node)
        else:
            getattr(self.parent, self.field)[self.index] = node


_SKIPPED_FIELDS: Final = frozenset(("annotation", "returns", "decorator_list"))
_SKIPPED: Final = (ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_CONDITIONS: Final = frozenset(("test", "ifs", "guard"))
_OPPOSITE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_BESIDE: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
_OTHER: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
}


def mutants(source: str, filename: str) -> Iterator[Mutant]:
    """Every mutant of a module, from top to bottom."""
    tree = ast.parse(source)
    for place in list(_places(tree, "", None)):
        for new in _variants(place):
            yield _made(tree, filename, place, new)


def _made(tree: ast.Module, filename: str, place: _Place, new: ast.AST) -> Mutant:
    old, before = place.node, _shown(place.around)
    ast.copy_location(new, old)
    place.put(new)
    try:
        code = compile(ast.fix_missing_locations(tree), filename, "exec")
        after = _shown(new if place.around is old else place.around)
    finally:
        place.put(old)
    return Mutant(old.lineno, place.function, before, after, code)


def _shown(node: ast.AST) -> str:
    """A node in one line."""
    return " ".join(ast.unparse(node).split())


def _places(node: ast.AST, function: str, around: ast.AST | None) -> Iterator[_Place]:
    for field, value in ast.iter_fields(node):
        if field in _SKIPPED_FIELDS:
            continue
        for index, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if not isinstance(child, ast.AST) or _skipped(child):
                continue
            shown = around or child
            yield _Place(node, field, index, function, child, shown)
            if isinstance(child, ast.Raise):
                continue  # dropped whole; its text is for people
            inner = function
            if isinstance(child, _SCOPES):
                inner = f"{function}.{child.name}".lstrip(".")
            compound = isinstance(child, (ast.stmt, ast.match_case, ast.ExceptHandler)) and (
                hasattr(child, "body") or isinstance(child, ast.Match)
            )
            yield from _places(child, inner, None if compound else shown)


def _skipped(node: ast.AST) -> bool:
    match node:
        case ast.Expr(value=ast.Constant()):  # a docstring
            return True
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return True
        case ast.AnnAssign(annotation=ast.Name(id="TypeAlias")):
            return True
        case ast.Assign(targets=[ast.Name(id="__slots__")]):
            return True
        case ast.keyword(arg="gc"):  # a matter of speed
            return True
        case _:
            return isinstance(node, _SKIPPED)


def _variants(place: _Place) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    node = place.node
    if isinstance(node, ast.stmt):
        yield from _statements(node)
    elif isinstance(node, ast.expr):
        if place.field in _CONDITIONS and not _has_opposite(node):
            yield ast.UnaryOp(ast.Not(), node)
        yield from _expressions(node)


def _statements(node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.Return(value=ast.Constant(value=None | True | False)) | ast.Return(value=None):
            return
        case ast.Return():
            yield ast.Return(ast.Constant(None))
        case ast.Assign(targets=[ast.Name() | ast.Tuple(elts=[ast.Name(), *_])]):
            return  # what follows would not even run
        case ast.Expr() | ast.Raise() | ast.AugAssign() | ast.Assign() | ast.Delete():
            yield ast.Pass()
        case _:
            return


def _expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.BoolOp():
            for at in range(len(node.values)):
                rest = [value for n, value in enumerate(node.values) if n != at]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
        case ast.Compare():
            yield from _comparisons(node)
        case ast.BinOp() if type(node.op) in _OTHER:
            yield ast.BinOp(node.left, _OTHER[type(node.op)](), node.right)
        case ast.Constant():
            yield from map(ast.Constant, _constants(node.value))
        case _:
            return


def _comparisons(node: ast.Compare) -> Iterator[ast.Compare]:
    for at, op in enumerate(node.ops):
        other = _OPPOSITE.get(type(op)) or _BESIDE[type(op)]
        ops = [other() if n == at else each for n, each in enumerate(node.ops)]
        yield ast.Compare(node.left, ops, node.comparators)


def _constants(value: Any) -> Iterator[Any]:
    match value:
        case bool():
            yield not value
        case int() | float():
            yield value + 1
        case str() if " " not in value:  # with a space it is a text for people
            yield value + "!"
        case bytes():
            yield value + b"!"
        case _:
            return


def _has_opposite(node: ast.expr) -> bool:
    """Whether negating this condition is among its other variants."""
    match node:
        case ast.UnaryOp(op=ast.Not()):
            return True
        case ast.Compare(ops=[op]):
            return type(op) in _OPPOSITE
        case _:
            return False

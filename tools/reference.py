"""The reference of the site: a page for each subject of `limpet` and for each public module.

Everything is read from the source with griffe: nothing is imported, so the adapters are described
without their frameworks. The public names of a package are those of its `_HOMES` table, and of a
module its `__all__`, or what it defines without an underscore.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import griffe

# The subjects of `limpet`: page, title, and the modules whose names belong to it. A name belongs to
# the first subject that lists its module or a package above it.
_SUBJECTS: Final = (
    ("analytics", "Analytics", ("limpet.analytics",)),
    ("errors", "Errors", ("limpet.errors",)),
    ("sync", "Without await", ("limpet.session.sync",)),
    ("state", "Typed state", ("limpet.model.state",)),
    ("diff", "Diff, merge and envelopes", ("limpet.model.diff", "limpet.model.envelope")),
    (
        "agents",
        "Agents, turns and workers",
        ("limpet.runtime", "limpet.session.runs", "limpet.model.facts.running"),
    ),
    ("history", "History and checkpoints", ("limpet.session.history",)),
    (
        "life",
        "Life, time and outcomes",
        (
            "limpet.session.life",
            "limpet.model.facts.outcomes",
            "limpet.model.facts.timeouts",
            "limpet.model.facts.timers",
            "limpet.model.due",
        ),
    ),
    ("moving", "Moving sessions", ("limpet.session.move",)),
    (
        "security",
        "Access, tokens, keys and audit",
        (
            "limpet.security",
            "limpet.session.audit",
            "limpet.session.tokens",
            "limpet.model.facts.isolation",
        ),
    ),
    (
        "store",
        "Stores",
        (
            "limpet",
            "limpet.session.limpet",
            "limpet.session.overview",
            "limpet.session.services",
            "limpet.session.typing",
            "limpet.store",
        ),
    ),
    ("session", "Sessions", ("limpet.session",)),
    ("events", "Events and keys", ("limpet.model",)),
)
_ORDER: Final = (
    "store",
    "session",
    "events",
    "agents",
    "state",
    "history",
    "life",
    "diff",
    "moving",
    "security",
    "analytics",
    "sync",
)
# Modules that are used by their own names: page, module, and the modules that it gathers.
_MODULES: Final = (
    "limpet.graph",
    "limpet.ops",
    "limpet.facts",
    "limpet.providers",
    "limpet.server",
    "limpet.otel",
    "limpet.testing",
    "limpet.adapters.a2a",
    "limpet.adapters.adk",
    "limpet.adapters.agent_framework",
    "limpet.adapters.claude_agent_sdk",
    "limpet.adapters.langgraph",
    "limpet.adapters.openai_agents",
    "limpet.adapters.pydantic_ai",
    "limpet.adapters.strands",
)
# Names of `limpet` that are modules, and where their contents are.
_INNER: Final = {
    "envelope": "limpet.model.envelope.envelope",
    "reducers": "limpet.model.state.reducers",
    "facts": "limpet.facts",
    "graph": "limpet.graph",
    "ops": "limpet.ops",
    "providers": "limpet.providers",
    "errors": "limpet.errors",
}
_TESTING: Final = ("limpet.testing.clock", "limpet.testing.contract", "limpet.testing.seals")
# What a reader comes for stands first on its page; the rest keeps its order.
_FIRST: Final = {
    name: place
    for place, name in enumerate(
        (
            "limpet.open",
            "limpet.open_sync",
            "limpet.Limpet",
            "limpet.Session",
            "limpet.Event",
            "limpet.Agent",
            "limpet.tool",
            "limpet.Worker",
            "limpet.Turn",
            "limpet.State",
            "limpet.Principal",
            "limpet.Analytics",
        )
    )
}
# Classes that no user constructs: what returns one.
_RETURNED_BY: Final = {
    "limpet.Limpet": "`limpet.open()`",
    "limpet.Session": "`lp.create()`, `lp.get()`, `lp.get_or_create()` and others",
    "limpet.App": "`lp.app()`",
    "limpet.Documents": "`lp.documents()`",
    "limpet.Vaults": "`lp.vaults`",
    "limpet.Buffer": "`s.memory.session_state` and its neighbors",
    "limpet.Turn": "a worker, which passes it to the agent",
    "limpet.Child": "`turn.delegate()`",
    "limpet.SyncLimpet": "`limpet.open_sync()`",
    "limpet.SyncSession": "`lp.create()`, `lp.get()`, `lp.get_or_create()` and others",
    "limpet.SyncApp": "`lp.app()`",
    "limpet.SyncDocuments": "`lp.documents()`",
    "limpet.graph.CompiledGraph": "`GraphBuilder.compile()`",
}
_WIDTH: Final = 88


class Name(NamedTuple):
    """A public name: as it is used, its page, and what defines it."""

    path: str
    page: str
    source: Any  # a griffe Object


def write_reference(root: Path, folder: Path) -> None:
    """Write every page of the reference into `folder`."""
    package = griffe.load("limpet", search_paths=[str(root / "src")], resolve_aliases=True)
    names = sorted(_names(package), key=lambda name: _FIRST.get(name.path, len(_FIRST)))
    book = _Book(names)
    folder.mkdir(parents=True, exist_ok=True)
    titles = {page: title for page, title, _ in _SUBJECTS}
    for page in _ORDER:
        inside = [name for name in names if name.page == page]
        (folder / f"{page}.md").write_text(book.page(f"{titles[page]}", "", inside))
    for module in (*_MODULES, "limpet.envelope", "limpet.reducers"):
        home = _INNER.get(module.removeprefix("limpet."), module)
        inside = [name for name in names if name.page == module]
        text = _docstring(package[home.removeprefix("limpet.")])
        (folder / f"{module}.md").write_text(book.page(f"`{module}`", text, inside))
    (folder / "index.md").write_text(book.index(titles))


def _names(package: Any) -> Iterator[Name]:
    """Every public name, by the page that it is described on."""
    homes = ast.literal_eval(str(package["_HOMES"].value))
    places = {name: home for home, listed in homes.items() for name in listed.split()}
    places |= dict.fromkeys(("open", "open_sync", "restore"), "limpet")
    for name, home in places.items():
        if name in _INNER or home == "limpet.errors":
            continue
        source = _resolved(package, f"{home}.{name}")
        page = _subject(home)
        yield Name(f"limpet.{name}", page, source)
        if name in ("Limpet", "Session"):
            yield from _facets(package, source, page, set(places))
    for module in _MODULES:
        yield from _of_module(package, module, module)
    for inner in ("envelope", "reducers"):
        yield from _of_module(package, _INNER[inner], f"limpet.{inner}")


def _of_module(package: Any, module: str, page: str) -> Iterator[Name]:
    if module == "limpet.testing":
        for one in _TESTING:
            yield from _in(package, one, page, shown=one)
    else:
        yield from _in(package, module, page, shown=page)


def _in(package: Any, module: str, page: str, *, shown: str) -> Iterator[Name]:
    source = package[module.removeprefix("limpet.")]
    if "_HOMES" in source.members:
        homes = ast.literal_eval(str(source["_HOMES"].value))
        listed = {name: home for home, names in homes.items() for name in names.split()}
        for name, home in sorted(listed.items()):
            if home != "limpet.errors":
                yield Name(f"{shown}.{name}", page, _resolved(package, f"{home}.{name}"))
        return
    exported = {str(name) for name in source.exports or ()}
    for name, member in source.members.items():
        own = not member.is_alias and not name.startswith("_") and not member.is_module
        if name in exported or (not exported and own and _documented(member)):
            yield Name(f"{shown}.{name}", page, _resolved(package, f"{module}.{name}"))


def _facets(package: Any, source: Any, page: str, listed: set[str]) -> Iterator[Name]:
    """The classes that are reached as attributes: `s.history`, `lp.work`."""
    seen: set[str] = set()
    for member in source.all_members.values():
        if member.name.startswith("_") or not member.is_attribute:
            continue
        for path in _paths(member.annotation):
            kind = path.rpartition(".")[2]
            if not path.startswith("limpet.") or kind in listed or kind in seen:
                continue
            target = _resolved(package, path)
            if target is not None and target.is_class and kind.startswith(("Session", "Store")):
                seen.add(kind)
                yield Name(f"{source.name}.{member.name}", page, target)


def _resolved(package: Any, path: str) -> Any:
    """What a path defines, through every import; None if griffe cannot find it."""
    try:
        found = package[path.removeprefix("limpet.")] if path != "limpet" else package
    except KeyError:
        return None
    return found.final_target if found.is_alias else found


def _subject(home: str) -> str:
    for page, _, modules in _SUBJECTS:
        for module in modules:
            if home == module or (module != "limpet" and home.startswith(f"{module}.")):
                return page
    return "events"


def _documented(member: Any) -> bool:
    return bool(member.docstring) and (member.is_class or member.is_function)


def _docstring(source: Any) -> str:
    return str(source.docstring.value) if source is not None and source.docstring else ""


def _paths(expression: Any) -> Iterator[str]:
    """The full names in an annotation."""
    if isinstance(expression, griffe.ExprName):
        yield expression.canonical_path
    elif isinstance(expression, griffe.Expr):
        for part in expression.iterate(flat=True):
            if isinstance(part, griffe.ExprName):
                yield part.canonical_path


class _Book:
    """All names, so that one page can link to another."""

    def __init__(self, names: Sequence[Name]) -> None:
        self._names = names
        self._by_source = {name.source.path: name for name in names if name.source is not None}
        self._by_kind = {
            name.source.name: name
            for name in names
            if name.source is not None and name.source.is_class
        }
        self._by_word = {name.path.rpartition(".")[2]: name for name in reversed(names)}

    def page(self, title: str, text: str, names: Iterable[Name]) -> str:
        """One page: what the module says of itself, then each name."""
        parts = [f"# {title}\n", self._linked(text, "")]
        for name in names:
            parts += self._entry(name)
        return "\n".join(parts) + "\n"

    def index(self, titles: dict[str, str]) -> str:
        """Every name with its first sentence, by page."""
        parts = ["# Reference\n", _INTRODUCTION]
        for page in _ORDER:
            parts += [f"\n## [{titles[page]}]({page}.md)\n", *self._table(page)]
        for module in (*_MODULES, "limpet.envelope", "limpet.reducers"):
            parts += [f"\n## [`{module}`]({module}.md)\n", *self._table(module)]
        return "\n".join(parts) + "\n"

    def _table(self, page: str) -> Iterator[str]:
        yield "| name | |\n|---|---|"
        for name in self._names:
            if name.page == page:
                first = _first_sentence(_docstring(name.source))
                yield f"| [`{name.path}`]({page}.md#{name.path}) | {first} |"

    def _entry(self, name: Name) -> Iterator[str]:
        source = name.source
        yield f"\n## `{name.path}` {{ #{name.path} }}\n"
        if source is None:
            return
        if source.is_class:
            yield from self._class(name)
            return
        if source.is_function:
            yield _signature(source, name.path)
        elif source.is_attribute and source.value is not None and len(str(source.value)) < 200:
            yield f"```python\n{name.path} = {source.value}\n```\n"
        text = _docstring(source)
        if (
            not text
            and source.is_attribute
            and (made := re.match(r"(\w+)\(\)$", str(source.value)))
        ):
            text = _docstring(source.parent.members.get(made[1]))  # the only one of its class
        yield self._linked(text, name.page)
        yield self._mentioned(source, name)

    def _class(self, name: Name) -> Iterator[str]:
        kind = name.source
        init = kind.all_members.get("__init__")
        own = init is not None and init.path.startswith("limpet.") and init.is_function
        if name.path in _RETURNED_BY:
            yield f"Returned by {_RETURNED_BY[name.path]}.\n{{ .see }}\n"
        elif own and name.path.startswith("limpet."):
            yield _signature(init, name.path, returns=False)
        yield self._linked(_docstring(kind), name.page)
        given = {each.name: each.annotation for each in init.parameters} if own else {}
        members = [m for m in kind.all_members.values() if _public(m) and self._usable(m, given)]
        fields = [m for m in members if m.is_attribute and not _has_text(m)]
        if fields:
            notes = [
                self._awaited(field, name) or self._linked(_note(field), name.page).strip()
                for field in fields
            ]
            yield "| attribute | type |" + (" |\n|---|---|---|" if any(notes) else "\n|---|---|")
            for field, note in zip(fields, notes, strict=True):
                row = f"| `{field.name}` | {self._type(_annotation(field, given), name)} |"
                yield f"{row} {note} |" if any(notes) else row
            yield ""
        laws = [m for m in members if m.name.startswith("test_")]
        if laws:
            yield "| law | |\n|---|---|"
            yield from (f"| `{m.name}` | {_first_sentence(_docstring(m))} |" for m in laws)
            yield ""
        for member in members:
            if member in fields or member in laws:
                continue
            yield f"\n### `{member.name}` {{ #{name.path}.{member.name} }}\n"
            if member.is_function:
                yield _signature(member, member.name)
            elif member.annotation is not None:
                yield f"```python\n{member.name}: {member.annotation}\n```\n"
            yield self._linked(self._text(member, kind), name.page)
            yield self._mentioned(member, name)

    def _text(self, member: Any, kind: Any) -> str:
        """A member's docstring, or that of the one that it stands for in a class above, or, for a
        verb without await, in the class with it."""
        above = [each.members.get(member.name) for each in kind.mro()]
        twin = self._by_kind.get(kind.name.removeprefix("Sync"))
        above += [] if twin is None else [twin.source.all_members.get(member.name)]
        return next((text for each in (member, *above) if (text := _docstring(each))), "")

    def _awaited(self, field: Any, name: Name) -> str:
        """For a verb without await: a link to the one with it, whose arguments it has."""
        verb = re.search(r"\b(\w+)(?:\[\w+\])?\.(\w+)\)$", str(field.value))
        if name.page != "sync" or verb is None:
            return ""
        target = self._by_kind.get(verb[1])
        if target is None:
            return f"`{verb[1]}.{verb[2]}` without await"
        there = f"{target.page}.md#{target.path}.{verb[2]}"
        return f"[`{target.path.removeprefix('limpet.')}.{verb[2]}`]({there}) without await"

    def _usable(self, member: Any, given: dict[str, Any]) -> bool:
        """False for what `__init__` keeps for the package: no type, or one that is not public."""
        if not member.is_attribute or not _assigned(member) or member.docstring:
            return True
        annotation = _annotation(member, given)
        ours = [path for path in _paths(annotation) if path.startswith("limpet.")]
        words = [path.rpartition(".")[2] for path in ours]
        return annotation is not None and all(word in self._by_word for word in words)

    def _type(self, annotation: Any, name: Name) -> str:
        if annotation is None:
            return ""
        # A façade without await names the type of the attribute behind it.
        inner = re.fullmatch(r"Attribute\[(.+)\]", str(annotation))
        shown = f"`{inner[1] if inner else annotation}`"
        links = [self._link(target, name.page) for target in self._targets(annotation, name)]
        if links and shown in links[0]:
            return links[0]  # the type is the name that the link shows
        return f"{shown} → {', '.join(links)}" if links else shown

    def _mentioned(self, source: Any, name: Name) -> str:
        """Links to the types of a signature."""
        annotations = [getattr(source, "returns", None), getattr(source, "annotation", None)]
        if source.is_function:
            annotations += [parameter.annotation for parameter in source.parameters]
        targets = dict.fromkeys(t for a in annotations for t in self._targets(a, name))
        if not targets:
            return ""
        links = ", ".join(self._link(target, name.page) for target in targets)
        return f"\nSee {links}.\n{{ .see }}\n"

    def _targets(self, annotation: Any, name: Name) -> Iterator[Name]:
        for path in _paths(annotation):
            word = path.rpartition(".")[2]
            target = self._by_source.get(path) or (
                self._by_word.get(word) if path.startswith("limpet.") else None
            )
            if target is not None and target.path != name.path:
                yield target

    def _link(self, target: Name, page: str) -> str:
        there = "" if target.page == page else f"{target.page}.md"
        return f"[`{target.path.removeprefix('limpet.')}`]({there}#{target.path})"

    def _linked(self, text: str, page: str) -> str:
        """A docstring in which a class that is public leads to its entry."""

        def link(match: re.Match[str]) -> str:
            target = self._by_word.get(match[1])
            known = target is not None and target.path.startswith("limpet.")
            return self._link(target, page) if known and target is not None else match[0]

        lines, code = [], False
        for line in text.splitlines():
            code = line.startswith("    ") if line.strip() else code
            lines.append(line if code else re.sub(r"`(?:limpet\.)?([A-Z]\w+)`", link, line))
        return "\n".join(lines) + "\n" if lines else ""


_INTRODUCTION: Final = """Every public name, with its signature, as the docstrings describe it.
Names of `limpet` are grouped by subject; each error has [its own section](../errors.md), and each
command [its own](../cli.md). `lp` is an open `limpet.Limpet`, `s` a `limpet.Session`.
"""


def _public(member: Any) -> bool:
    if member.name.startswith("_") or not member.path.startswith("limpet."):
        return False
    return bool(member.is_attribute or member.is_function)


def _has_text(member: Any) -> bool:
    return len(_docstring(member)) > 160 or ("property" in member.labels and bool(member.docstring))


def _assigned(field: Any) -> bool:
    """True for an attribute that a method assigns; the class body declares the others."""
    return bool(field.lines) and field.lines[0].lstrip().startswith("self.")


def _annotation(field: Any, given: dict[str, Any]) -> Any:
    """The type of a field: its own, or that of the argument of `__init__` that is assigned."""
    own = field.annotation
    return given.get(str(field.value)) if own is None and _assigned(field) else own


def _note(field: Any) -> str:
    """The note on a field: its docstring, or the comment behind its declaration."""
    if field.docstring:
        return " ".join(str(field.docstring.value).split())
    if _assigned(field):
        return ""  # a comment in the code of a method is for those who read the code
    lines = field.lines or [""]
    return lines[-1].partition("  # ")[2].strip() if "noqa" not in lines[-1] else ""


def _first_sentence(text: str) -> str:
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s", paragraph)[0]


def _signature(function: Any, shown: str, *, returns: bool = True) -> str:
    """The call as one would write it, over several lines if it is long."""
    parts: list[str] = []
    star = False
    for parameter in function.parameters:
        if parameter.name in ("self", "cls"):
            continue
        kind = parameter.kind
        if kind is griffe.ParameterKind.keyword_only and not star:
            parts.append("*")
            star = True
        star = star or kind is griffe.ParameterKind.var_positional
        parts.append(_parameter(parameter))
    before = "async def " if "async" in function.labels else "def "
    result = f" -> {function.returns}" if returns and function.returns is not None else ""
    before = before if returns else "class "
    line = f"{before}{shown}({', '.join(parts)}){result}"
    if len(line) > _WIDTH:
        line = f"{before}{shown}(\n" + "".join(f"    {part},\n" for part in parts) + f"){result}"
    return f"```python\n{line}\n```\n"


def _parameter(parameter: Any) -> str:
    stars = {
        griffe.ParameterKind.var_positional: "*",
        griffe.ParameterKind.var_keyword: "**",
    }.get(parameter.kind, "")
    text = f"{stars}{parameter.name}"
    if parameter.annotation is not None:
        text += f": {parameter.annotation}"
    if parameter.default is None or stars:
        return text
    default = "…" if str(parameter.default).isupper() else str(parameter.default)
    return f"{text} = {default}" if parameter.annotation is not None else f"{text}={default}"

"""The synchronous face as a type checker and a reader see it, held to the classes it stands for."""

from __future__ import annotations

import inspect
import re

import pytest

import limpet
from limpet.session.limpet import Limpet
from limpet.session.sync import facade, tokens, verbs as sync
from limpet.session.sync.facade import Facade

assert sync.SyncLimpet  # the stand-ins are known once they are imported
assert tokens.SyncTokens
PAIRS = [pytest.param(cls, of, id=cls.__name__) for of, cls in Facade._stands_for.items()]
VERBS = [
    pytest.param(cls, of, name, id=f"{cls.__name__}.{name}")
    for of, cls in Facade._stands_for.items()
    for name in facade.public(of)
    if not isinstance(inspect.getattr_static(of, name), property)
]


def described(way: inspect.Signature) -> list[str]:
    """Names, kinds, annotations and defaults, in the words of the synchronous face."""
    each = [
        f"{p.kind.name} {p.name}: {facade.renamed(p.annotation)} = {p.default!r}"
        for p in way.parameters.values()
    ]
    return [*each, str(facade.renamed(way.return_annotation))]


@pytest.mark.parametrize(("cls", "of", "name"), VERBS)
def test_every_verb_has_the_signature_of_its_async_twin(cls: type, of: type, name: str) -> None:
    """Parameter by parameter; if this fails, add or repair its line in sync/verbs.py."""
    here, twin = getattr(cls, name), getattr(of, name)
    assert described(inspect.signature(here)) == described(inspect.signature(twin))
    assert here.__qualname__.endswith(f".{name}")
    assert here.__doc__ or not twin.__doc__


@pytest.mark.parametrize(("cls", "of"), PAIRS)
def test_a_stand_in_declares_all_names_and_no_others(cls: type, of: type) -> None:
    """Verbs, properties, and what every object has: what is not declared does not type."""
    declared = {name for base in cls.__mro__ for name in inspect.get_annotations(base)}
    declared |= {*facade.public(cls)}
    assert {name for name in declared if not name.startswith("_")} >= {*facade.public(of)}
    attributes = {*declared} - {*facade.public(of)}
    assert attributes <= {"key", "actor", "name", "url", "state_type", "migrations"} | {
        "collection",
        "owner",
        "events",
        "token",
        "documents",
        "policy",
        "_stands_for",
    }


@pytest.mark.parametrize(("cls", "of"), PAIRS)
def test_a_property_is_declared_with_the_type_it_has_on_its_async_twin(cls: type, of: type) -> None:
    """A facet is the stand-in of the facet there; anything else is the same type."""
    facets = {of.__name__: cls.__name__ for of, cls in Facade._stands_for.items()}
    facets |= {"Permissions": "SyncDocuments", "SessionLayer": "SyncLayer", "Episodes": "SyncLayer"}
    for name in facade.public(of):
        found = inspect.getattr_static(of, name)
        if isinstance(found, property):
            there = str(inspect.signature(found.fget).return_annotation)  # type: ignore[arg-type]
            here = re.fullmatch(r"Attribute\[(.*)\]", cls.__annotations__[name])
            assert here is not None
            expected = re.sub(r"\w+", lambda word: facets.get(word[0], word[0]), there)
            assert here[1] == expected, name


def test_a_commit_has_what_its_async_twin_has() -> None:
    """Attributes of the object, beside the verbs of its class."""
    with limpet.open_sync("memory://") as lp:
        s = lp.create("a", "u")
        with lp.commit() as c:
            c.append(s, "a.b", actor="agent:a")
        assert [event.type for event in c.events] == ["a.b"]
        for one in (lp, s, c, lp.app("a"), lp.documents("a")):
            names = {*type(one).__annotations__, *facade.public(type(one))}
            assert {name for name in names if not name.startswith("_")} == {*facade.public(one)}


def test_the_stand_ins_show_themselves() -> None:
    """dir, help and inspect say what there is, without await."""
    with limpet.open_sync("memory://") as lp:
        assert {"create", "get", "watch", "close", "url"} <= {*dir(lp)}
        assert {"key", "actor", "state", "append", "follow"} <= {*dir(lp.create("a", "u"))}
        asked = inspect.signature(lp.get)
        assert list(asked.parameters) == list(inspect.signature(Limpet.get).parameters)[1:]
        assert asked.return_annotation == "SyncSession[T]"
        assert lp.get.__doc__ == Limpet.get.__doc__
        assert "await" not in (lp.commit.__doc__ or "")
        assert "`with lp.commit() as c" in (lp.commit.__doc__ or "")
        assert not inspect.iscoroutinefunction(lp.get)
        assert lp.get.__qualname__ == "SyncLimpet.get"


def test_only_what_the_object_has_can_be_had_or_set() -> None:
    """An actor bound later is bound to the session; a misspelt name is an ordinary error."""
    with limpet.open_sync("memory://") as lp:
        s = lp.create("a", "u")
        s.actor = "agent:a"
        assert s.append("a.b").actor == "agent:a"
        assert s.refresh() is s
        for wrong in (lambda: lp.nonsense(), lambda: setattr(s, "acter", "x")):  # type: ignore[attr-defined]
            with pytest.raises(AttributeError, match=r"Sync.* object has no attribute"):
                wrong()
        with pytest.raises(AttributeError):
            s.state = {}  # type: ignore[misc]
        assert (limpet.SyncLimpet, limpet.SyncSession) == (type(lp), type(s))

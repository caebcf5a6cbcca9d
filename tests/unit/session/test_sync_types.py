"""The synchronous face as a type checker and a reader see it, held to the classes it stands for."""

from __future__ import annotations

import inspect
import re
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_overloads

import pytest

import limpet
from limpet.session.app import App
from limpet.session.commit import CommitBuilder
from limpet.session.documents import Documents
from limpet.session.limpet import Limpet
from limpet.session.session import Session
from limpet.session.sync import facade, verbs as sync
from tools import sync_stub

STUB = Path(sync.__file__).with_suffix(".pyi")
PAIRS = [
    ("SyncLimpet", Limpet),
    ("SyncApp", App),
    ("SyncSession", Session),
    ("SyncDocuments", Documents),
    ("SyncCommit", CommitBuilder),
]
VERBS = [
    pytest.param(name, of, verb, id=f"{name}.{verb}")
    for name, of in PAIRS
    for verb in facade.public(of)
]


@pytest.fixture(scope="module")
def stub() -> Any:
    """sync.pyi as a module: its classes have signatures and nothing else."""
    loader = SourceFileLoader("sync_stub", str(STUB))
    spec = spec_from_loader("sync_stub", loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def ways(of: Any, verb: str) -> list[inspect.Signature]:
    """Each way to call a member of a class: its overloads if it has any, or else the one."""
    found = inspect.getattr_static(of, verb)
    owner = next(cls for cls in of.__mro__ if verb in cls.__dict__)
    named = SimpleNamespace(__module__=owner.__module__, __qualname__=f"{owner.__name__}.{verb}")
    one = found.fget if isinstance(found, property) else found
    overloads = get_overloads(named) or get_overloads(one)  # type: ignore[arg-type]
    return [inspect.signature(way) for way in overloads or [one]]


def shown(way: inspect.Signature) -> str:
    """Names, kinds, annotations, and whether there is a default."""
    return " ".join([*map(_parameter, way.parameters.values()), _text(way.return_annotation)])


def _parameter(of: inspect.Parameter) -> str:
    default = "" if of.default is of.empty else "= …"
    return f"{of.kind.name} {of.name}: {_text(of.annotation)} {default};"


def _text(annotation: Any) -> str:
    """As it is written, in the words of the synchronous face."""
    return re.sub(r"\b(S_co|A)\b", "S", str(facade.renamed(annotation)))


@pytest.mark.parametrize(("name", "of", "verb"), VERBS)
def test_every_verb_is_typed_as_its_async_twin(stub: Any, name: str, of: type, verb: str) -> None:
    """Parameter by parameter; if this fails, bring sync.pyi up to date."""
    ours = getattr(stub, name)
    kinds = [isinstance(inspect.getattr_static(cls, verb), property) for cls in (ours, of)]
    assert kinds[0] == kinds[1]
    assert [shown(way) for way in ways(ours, verb)] == [shown(way) for way in ways(of, verb)]


def test_the_stub_is_what_is_generated() -> None:
    """If this fails, run python -m tools.sync_stub."""
    assert STUB.read_text() == sync_stub.stub()


@pytest.mark.parametrize(("name", "of", "verb"), VERBS)
def test_defaults_are_those_of_the_async_twin(stub: Any, name: str, of: type, verb: str) -> None:
    """Where the stub gives a default rather than `...`, it is the one."""
    for mine, twin in zip(ways(getattr(stub, name), verb), ways(of, verb), strict=True):
        for given in mine.parameters.values():
            assert given.default in (..., twin.parameters[given.name].default), given


@pytest.mark.parametrize(("name", "of"), PAIRS)
def test_the_stub_has_all_names_and_no_others(stub: Any, name: str, of: type) -> None:
    """Verbs, properties, and what every object has: what is not there does not type."""
    typed = getattr(stub, name)
    with limpet.open_sync("memory://") as lp:
        s = lp.create("a", "u")
        all_: Any = {"SyncLimpet": lp, "SyncSession": s, "SyncCommit": lp.commit()}
        one: Any = {**all_, "SyncApp": lp.app("a"), "SyncDocuments": lp.documents("a")}[name]
        assert type(one) is getattr(sync, name)
        assert isinstance(one._of, of)
        assert {*facade.public(typed), *typed.__annotations__} == {*facade.public(one)}


def test_the_stand_ins_show_themselves() -> None:
    """dir, help and inspect say what there is, without await."""
    with limpet.open_sync("memory://") as lp:
        assert {"create", "get", "watch", "close", "url"} <= {*dir(lp)}
        assert {"key", "actor", "state", "append", "follow"} <= {*dir(lp.create("a", "u"))}
        asked = inspect.signature(lp.get)
        assert list(asked.parameters) == list(inspect.signature(Limpet.get).parameters)[1:]
        assert asked.return_annotation == "SyncSession[Any]"
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

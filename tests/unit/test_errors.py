"""Errors: one root, stable codes, documented, and words that help."""

from __future__ import annotations

import copy
import inspect
import pickle  # noqa: TID251  # as a pool of processes does
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import pytest

import limpet
from limpet import errors, reducers

DOCS = Path(__file__).parents[2] / "docs" / "errors.md"
CLASSES = {
    name: kind
    for name, kind in vars(errors).items()
    if inspect.isclass(kind) and issubclass(kind, errors.LimpetError)
}
TOP = {
    "AccessDenied",
    "BudgetReached",
    "EffectFailed",
    "EffectUnknown",
    "Interrupted",
    "InvalidInput",
    "LimpetError",
    "NotDone",
    "SessionConflict",
    "SessionEnded",
    "SessionError",
    "SessionExists",
    "SessionMoved",
    "SessionNotFound",
    "StoreError",
    "ToolDenied",
}
BRANCHES = {
    "AccessError",
    "CheckpointError",
    "GraphError",
    "GraphInvalid",
    "GraphRunError",
    "InvalidInput",
    "LimpetError",
    "MigrationError",
    "SessionError",
    "SessionStoreError",
    "StateError",
    "StoreError",
    "SuspensionError",
    "TokenError",
    "TurnError",
    "TurnMisused",
}
RAISED = {"GraphInvalid", "InvalidInput", "SessionError", "TurnMisused"}  # branches that are, too
# For each kind of argument a plausible one, so that every message can be built.
ARGUMENTS: dict[str, Any] = {
    "denial": "access_denied",
    "scope": "write",
    "source": limpet.Key("shop", "ada", "1"),
    "action": "read",
    "resource": "shop/ada/1",
    "policy": None,
    "at": datetime(2030, 1, 1, tzinfo=UTC),
    "principal": "user:ada",
    "operation": "read",
    "count": 3,
    "limit": 600,
    "retry_after_seconds": 12.5,
    "signals": ("address",),
    "agent": "support",
    "text": "Ask first.",
    "unmet": ("it is a lesson",),
    "decision": "refused",
    "position": "4.2",
    "part": "app",
    "app": "shop",
    "user": "ada",
    "field": "plan.steps[0]",
    "reason": "is empty",
    "asked": "read",
    "advice": "give it to somebody",
    "actor": "agent:main",
    "allowed": ("agent", "system"),
    "url": "x://",
    "where": "data",
    "theirs": "1.aa",
    "ours": "1.bb",
    "size_bytes": 9,
    "bytes_max": 8,
    "what": "events",
    "size": 9,
    "steps_max": 9,
    "resumed_as": "i2",
    "now": "completed",
    "size_max": 8,
    "minimum": 50,
    "type": "session.x",
    "name": "apps:b",
    "path": "plan.steps[0]",
    "missing": "name 'plan'",
    "of": "feed",
    "op": "add",
    "expected": "a list",
    "computed": "a dict",
    "actual": "a number",
    "seq": 3,
    "key": limpet.Key("shop", "ada", "1"),
    "route": "GET /v1/nothing",
    "memory": "mem_1",
    "work": "work_1",
    "current_state": {"state": "active"},
    "on": "session",
    "fence": 1,
    "worker": "w1",
    "owner": "uid",
    "until": datetime(2030, 1, 1, tzinfo=UTC),
    "current": 2,
    "after": 5,
    "waiting": 8,
    "waiting_max": 8,
    "unrecorded": (
        errors.Unrecorded(
            limpet.Key("shop", "ada", "1"),
            (limpet.Draft(type="a.b", id="e-1"),),
            errors.SessionNotFound("shop/ada/1"),
        ),
    ),
    "during": "flush",
    "places": ("plan.steps[0]", "owner"),
    "findings": ("shop/ada/1 event 2 has a damaged body", "label is not listed"),
    "found": 2,
    "known": 1,
    "file_system": "nfs",
    "package": "rich",
    "extra": "cli",
    "from_version": "1.0.0",
    "to_version": "2.0.0",
    "registered_migrations_count": 1,
    "registry_description": "1.0.0 → 1.1.0 (renamed)",
    "paths": ((("1.0.0", "1.1.0"), ("1.1.0", "2.0.0")), (("1.0.0", "1.2.0"), ("1.2.0", "2.0.0"))),
    "step": ("1.0.0", "1.1.0"),
    "stored": "2.0.0",
    "schema_version": "2.0.0",
    "wanted": "1.0.0",
    "owners": ("01a1e4b9", '["shop",""]'),
    "doing": "provide",
    "forks": (limpet.Key("shop", "ada", "2"),),
    "message": "something is wrong. Do something else.",
    "node": "plan",
    "target": "'nowhere'",
    "branch_name": "left",
    "invalid_fields": ("messages.0.role",),
    "ids": (),
    "lifecycle": "session",
    "recoverable_state": {"n": 1},
    "invocation_id": "i-1",
    "session_id": "s-1",
    "result": {"n": 2},
    "expected_version": 1,
    "actual_version": 2,
    "number": 3,
    "conflicts": (),
    "collection": "agents",
    "version": 3,
    "hash": "9f86d081",
    "phase": "suspended",
    "to": "eu-2",
    "epoch": 3,
    "event": "complete",
    "note": "changed my mind",
    "recorded": {"eur": 900},
    "occurrence": 2,
    "why": "was recorded with other arguments",
    "error": "ValueError: no",
    "left": 0.5,
    "amount": 2.0,
    "id": "r-1",
    "kind": "approval",
    "verb": "confirm",
    "output": {"why": "no"},
    "available": 100,
    "tool": "search",
    "failures": ("tools: search not bound",),
    "needed": 200,
}


def build(kind: type[errors.LimpetError]) -> errors.LimpetError:
    if not kind.field_names and not kind.template:
        return kind("something is wrong. Do something else.")
    return kind(**{name: ARGUMENTS[name] for name in kind.field_names})


def documented() -> dict[str, tuple[str, ...]]:
    """The rows of the tables in docs/errors.md: class → code, retryable, status, exit code."""
    rows = re.findall(
        r"^\| <a id=\"[\w.]+\"></a>`([^`]+)` \| `(\w+)` \|.*\| (\w+) \| (\d+) \| (\d+) \|$",
        _text(),
        re.M,
    )
    return {name: (code, *rest) for code, name, *rest in rows}


def _text() -> str:
    return DOCS.read_text()


def test_codes_are_unique() -> None:
    """No two classes share a code."""
    codes = [kind.code for kind in CLASSES.values()]
    assert len(codes) == len(set(codes))


@pytest.mark.parametrize("name", CLASSES)
def test_a_class_is_whole(name: str) -> None:
    """Its code is its own, of the form noun.what, with a status and an exit code that fit."""
    kind = CLASSES[name]
    assert "code" in vars(kind)
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", kind.code)
    assert 400 <= kind.status <= 599
    assert 1 <= kind.exit_code <= 125
    assert isinstance(kind.retryable, bool)


def test_the_documentation_is_complete_and_true() -> None:
    """docs/errors.md has exactly one row for each class, and every column agrees with it."""
    table = documented()
    assert table == {
        name: (kind.code, "yes" if kind.retryable else "no", str(kind.status), str(kind.exit_code))
        for name, kind in CLASSES.items()
    }
    assert len(re.findall(r"^\| <a id=", _text(), re.M)) == len(table)


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_leads_to_its_explanation(name: str) -> None:
    """Its page is an anchor in docs/errors.md: the code itself."""
    page, _, anchor = build(CLASSES[name]).page.partition("/#")
    assert (page, anchor) == ("errors", CLASSES[name].code)
    assert f'<a id="{anchor}"></a>`{anchor}`' in _text() or name == "LimpetError"


def test_the_tree_in_the_docstring_is_complete() -> None:
    """The room begins with a picture of every class it has."""
    shown = set(re.findall(r"\b[A-Z]\w+", (errors.__doc__ or "").split("An error is")[0]))
    assert set(CLASSES) <= shown
    assert {word for word in shown if word.startswith(("Invalid", "Session", "Store"))} <= set(
        CLASSES
    )


def test_the_top_level_has_the_root_and_the_dozen_that_users_catch() -> None:
    """The same classes as in limpet.errors, which has all of them."""
    assert {name for name in limpet.__all__ if name in CLASSES} == TOP
    assert {name: getattr(limpet, name) for name in TOP} == {name: CLASSES[name] for name in TOP}


@pytest.mark.parametrize("name", [n for n in CLASSES if n not in BRANCHES or n in RAISED])
def test_a_message_is_whole_sentences(name: str) -> None:
    """It is not empty, names what is wrong, and ends as a sentence does."""
    error = build(CLASSES[name])
    message = str(error)
    assert len(message) > 20
    assert message.endswith(".")
    assert "  " not in message


def test_a_message_that_is_written_where_it_is_raised_is_whole_sentences_too() -> None:
    """These classes add nothing to their text, so it ends with a full stop, or with advice."""
    text = r'(?:InvalidInput|TurnMisused)\(\s*((?:f?"(?:[^"\\\n]|\\.)*"\s*)+)\)'
    source = Path(limpet.__file__).parent
    raised = [one for path in source.rglob("*.py") for one in re.findall(text, path.read_text())]
    assert len(raised) > 100
    assert [one for one in raised if not re.search(r'(?:\.|\. \{\w+\})"\s*$', one)] == []


def test_a_summary_is_what_happened_without_the_advice() -> None:
    """It can stand within another error's sentence."""
    error = errors.SessionCorrupt("a/b/c", "event 3 cannot be read")
    assert str(error).startswith(f"{error.summary}. ")
    assert "event 3 cannot be read" in error.summary


@pytest.mark.parametrize("name", CLASSES)
def test_what_a_message_is_built_from_is_kept(name: str) -> None:
    """Every argument is a field that code can read, so that nobody parses messages."""
    kind = CLASSES[name]
    error = build(kind)
    kept = {"ids": ("e-1",)} if kind is errors.FlushFailed else {}
    assert {field: getattr(error, field) for field in kind.field_names} == {
        field: ARGUMENTS[field] for field in kind.field_names
    } | kept
    again = kind(**error.fields)
    assert (str(again), again.fields) == (str(error), error.fields)


def test_an_argument_that_is_missing_or_unknown_is_a_type_error() -> None:
    """As with any other constructor."""
    make: Any = errors.SessionEnded
    for args, named in ((("a/b/c",), {}), (("a/b/c", "completed", 1), {}), ((), {"phase": "x"})):
        with pytest.raises(TypeError):
            make(*args, **named)
    with pytest.raises(TypeError, match="has no field why"):
        make("a/b/c", "completed", why="no")
    with pytest.raises(TypeError, match="each once"):
        make("a/b/c", "completed", phase="completed")


@pytest.mark.parametrize("name", CLASSES)
def test_an_error_crosses_to_another_process(name: str) -> None:
    """The same class, message and fields: a pool of processes is not broken by it."""
    error = build(CLASSES[name])
    error.add_note("told in a worker")
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(again) is type(error)
        assert (str(again), again.args) == (str(error), error.args)
        assert vars(again).keys() == vars(error).keys()
        assert repr(vars(again)) == repr(vars(error))


def test_branches_are_for_except() -> None:
    """The standard exceptions that people catch already still fit."""
    assert issubclass(errors.InvalidInput, ValueError)
    assert issubclass(errors.SessionNotFound, LookupError)
    for name, kind in CLASSES.items():
        if name not in BRANCHES:
            assert issubclass(kind, tuple(CLASSES[b] for b in BRANCHES - {"LimpetError"}))


def test_the_advice_of_a_schema_is_about_what_is_wrong_with_it() -> None:
    """A reducer that does not fit is not mended by another version."""
    with pytest.raises(errors.InvalidSchema) as info:
        type("Plan", (limpet.State,), {"__annotations__": {"n": Annotated[int, reducers.append]}})
    assert "append needs a list" in info.value.reason
    assert "MAJOR.MINOR.PATCH" not in str(info.value)
    with pytest.raises(errors.InvalidSchema) as info:
        limpet.SchemaVersion.parse("1.2")
    assert "as in '1.2.0'" in info.value.advice
    with pytest.raises(errors.InvalidSchema) as info:
        limpet.MigrationRegistry().register("1.0.0", "1.0.1", dict)
    assert "MAJOR or MINOR" in info.value.advice
    with pytest.raises(errors.InvalidSchema) as info:
        reducers.bounded_append(0)
    assert "argument" in info.value.advice


class Message(limpet.Record):
    text: str


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Message, "the class Message is a Record, not a State"),
        (int, "the class int is not a State class. Derive it from limpet.State"),
        (limpet.State(), "Pass its class"),
        (5, "int 5 is not a State class"),
    ],
)
async def test_what_is_no_state_is_told_by_what_it_is(given: Any, words: str) -> None:
    """Nobody has to know what a metaclass is called."""
    async with limpet.open("memory://") as lp:
        with pytest.raises(errors.InvalidInput) as info:
            lp.session(("shop", "ada", "1"), state_type=given)
    assert words in str(info.value)
    assert "ModelMetaclass" not in str(info.value)

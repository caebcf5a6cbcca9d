"""Bad input: each mistake has its error, and leaves store and object as they were."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Draft, Limpet, Session, errors, ops
from limpet.model import events
from tests.support.views import shown, stored

Call = Callable[[Limpet, Session], Awaitable[Any]]


def cyclic() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


def deep() -> Any:
    value: Any = 1
    for _ in range(1_000):
        value = [value]
    return value


async def refused(
    lp: Limpet, s: Session, call: Call, error: type[errors.LimpetError]
) -> errors.LimpetError:
    """The call raises exactly this error, with a code and a sentence, and changes nothing."""
    object_before, store_before = shown(s), await stored(lp)
    with pytest.raises(errors.LimpetError) as info:
        await call(lp, s)
    assert info.type is error
    assert info.value.code == error.code
    assert str(info.value).endswith(".")
    assert shown(s) == object_before
    assert await stored(lp) == store_before
    assert (await s.append("still.works", actor="x")).seq == s.version
    return info.value


async def silent_in_a_commit(lp: Limpet, s: Session) -> None:
    async with lp.commit() as c:
        c.append(s, "a.b", actor="x")
        c.append(s, "user.message", actor="x")


async def silent_soon(lp: Limpet, s: Session) -> None:
    s.append_soon("user.message", {}, actor="x")


def cases(table: dict[str, tuple[type[errors.LimpetError], Call]]) -> pytest.MarkDecorator:
    rows = [pytest.param(error, call, id=name) for name, (error, call) in table.items()]
    return pytest.mark.parametrize(("error", "call"), rows)


BAD_PARTS = {
    "empty": "",
    "over-long": "x" * 257,
    "padded": " x",
    "NUL": "a\x00b",
    "surrogate": "a\ud800",
    "no text": 5,
}
KEY_CALLS: dict[str, Callable[[Limpet, Any], Awaitable[Any]]] = {
    "create id": lambda lp, part: lp.create("a", "u", id=part),
    "create user": lambda lp, part: lp.create("a", part),
    "create app": lambda lp, part: lp.create(part, "u"),
    "get": lambda lp, part: lp.get(("a", "u", part)),
    "find": lambda lp, part: lp.find((part, "u", "i")),
    "get_or_create": lambda lp, part: lp.get_or_create("a", "u", id=part),
    "delete": lambda lp, part: lp.delete(("a", part, "i")),
    "erase": lambda lp, part: lp.erase(("a", "u", part)),
    "verify": lambda lp, part: lp.maintenance.verify(("a", "u", part)),
}


@pytest.mark.arguments
@pytest.mark.parametrize("part", BAD_PARTS.values(), ids=BAD_PARTS.keys())
@pytest.mark.parametrize("call", KEY_CALLS.values(), ids=KEY_CALLS.keys())
async def test_an_unfit_key_is_refused_everywhere(
    lp: Limpet, s: Session, call: Any, part: Any
) -> None:
    """Whatever verb it is given to."""
    await refused(lp, s, lambda lp, _: call(lp, part), errors.InvalidKey)


@pytest.mark.arguments
@pytest.mark.parametrize(
    "key", ["a/u/i", ("a", "u"), ("a", "u", "i", "x"), None, 5, ["a", "u", "i"]]
)
async def test_what_is_no_key_is_refused(lp: Limpet, s: Session, key: Any) -> None:
    """A key is a Key or three texts in a tuple."""
    await refused(lp, s, lambda lp, _: lp.get(key), errors.InvalidKey)
    with pytest.raises(errors.InvalidKey):
        lp.session(key)


BAD_VALUES = {
    "nan": math.nan,
    "infinity": -math.inf,
    "2**63": 2**63,
    "-2**63-1": -(2**63) - 1,
    "bytes": b"x",
    "set": {1},
    "int key": {1: 1},
    "cycle": cyclic(),
    "deep": deep(),
    "surrogate": "\ud800",
    "object": object(),
}
VALUE_CALLS: dict[str, Callable[[Limpet, Session, Any], Awaitable[Any]]] = {
    "data": lambda lp, s, v: s.append("a.b", {"v": v}, actor="x"),
    "set": lambda lp, s, v: s.append("a.b", actor="x", set={"n": 9, "v": [v]}),
    "app:": lambda lp, s, v: s.append("a.b", actor="x", set={"app:v": v}),
    "temp:": lambda lp, s, v: s.append("a.b", actor="x", set={"temp:t": 9, "temp:v": v}),
    "merge": lambda lp, s, v: s.append("a.b", actor="x", merge={"plan": {"v": v}}),
    "add": lambda lp, s, v: s.append("a.b", actor="x", add={"log": [v]}),
    "ops": lambda lp, s, v: s.append("a.b", actor="x", ops=[ops.Set(("v",), v)]),
    "state": lambda lp, s, v: lp.create("a", "u", state={"v": v}),
    "update": lambda lp, s, v: s.update(lambda _: {"v": v}, actor="x"),
    "append_many": lambda lp, s, v: s.append_many(
        [Draft(type="a.b", actor="x"), Draft(type="a.b", actor="x", data={"v": v})]
    ),
    "partial": lambda lp, s, v: s.append("a.b", {"v": v}, actor="x", partial=True),
}


@pytest.mark.arguments
@pytest.mark.parametrize("value", BAD_VALUES.values(), ids=BAD_VALUES.keys())
@pytest.mark.parametrize("call", VALUE_CALLS.values(), ids=VALUE_CALLS.keys())
async def test_an_unfit_value_is_refused_everywhere(
    lp: Limpet, s: Session, call: Any, value: Any
) -> None:
    """Wherever it would enter data or state."""
    await refused(lp, s, lambda lp, s: call(lp, s, value), errors.InvalidValue)


@pytest.mark.arguments
@cases(
    {
        "no dot": (errors.InvalidEvent, lambda lp, s: s.append("message", actor="x")),
        "no type": (errors.InvalidEvent, lambda lp, s: s.append("", actor="x")),
        "type of another kind": (errors.InvalidEvent, lambda lp, s: s.append(5, actor="x")),  # type: ignore[arg-type]  # wrong on purpose
        "reserved session": (errors.ReservedType, lambda lp, s: s.append("session.x", actor="x")),
        "reserved state": (errors.ReservedType, lambda lp, s: s.append("state.x", actor="x")),
        "reserved audit": (errors.ReservedType, lambda lp, s: s.append("audit.x", actor="x")),
        "reserved among many": (
            errors.ReservedType,
            lambda lp, s: s.append_many([Draft(type="a.b"), Draft(type="audit.x")], actor="x"),
        ),
        "no actor": (errors.ActorMissing, lambda lp, s: s.append("a.b")),
        "no actor in update": (errors.ActorMissing, lambda lp, s: s.update(lambda _: {"n": 1})),
        "no actor in label": (errors.ActorMissing, lambda lp, s: s.label({"a": "b"})),
        "no actor in many": (errors.ActorMissing, lambda lp, s: s.append_many([Draft(type="a.b")])),
        "unfit actor": (errors.InvalidEvent, lambda lp, s: s.append("a.b", actor=" x")),
        "unfit id": (errors.InvalidEvent, lambda lp, s: s.append("a.b", actor="x", id="")),
        "unfit cause": (
            errors.InvalidEvent,
            lambda lp, s: s.append("a.b", actor="x", trace=limpet.Trace(cause="\n")),
        ),
        "silent message": (
            errors.InvalidEvent,
            lambda lp, s: s.append("user.message", {"txt": "hi"}, actor="x"),
        ),
        "silent message among many": (
            errors.InvalidEvent,
            lambda lp, s: s.append_many([Draft(type="a.b"), Draft(type="user.message")], actor="x"),
        ),
        "silent message in an update": (
            errors.InvalidEvent,
            lambda lp, s: s.update(lambda _: {"n": 1}, type="user.message", actor="x"),
        ),
        "silent message in a commit": (errors.InvalidEvent, silent_in_a_commit),
        "silent message soon": (errors.InvalidEvent, silent_soon),
        "no draft": (errors.InvalidInput, lambda lp, s: s.append_many([{"type": "a.b"}])),  # type: ignore[list-item]  # wrong on purpose
        "over the size bound": (
            errors.EventTooLarge,
            lambda lp, s: s.append("a.b", {"x": "y" * 2**23}, actor="x"),
        ),
        "too many events": (
            errors.CommitTooLarge,
            lambda lp, s: s.append_many([Draft(type="a.b", actor="x")] * 10_001),
        ),
        "partial with ops": (
            errors.InvalidEvent,
            lambda lp, s: s.append("a.b", actor="x", set={"n": 1}, partial=True),
        ),
        "partial with temp": (
            errors.InvalidEvent,
            lambda lp, s: s.append("a.b", actor="x", set={"temp:t": 1}, partial=True),
        ),
        "labels": (errors.InvalidEvent, lambda lp, s: s.label({"a": ""}, actor="x")),
        "labels at creation": (
            errors.InvalidEvent,
            lambda lp, s: lp.create("a", "u", labels={"a": 5}),  # type: ignore[dict-item]  # wrong on purpose
        ),
        "too many labels": (
            errors.InvalidEvent,
            lambda lp, s: s.label({f"l{n}": "x" for n in range(64)}, actor="x"),
        ),
        "timer without zone": (
            errors.InvalidEvent,
            lambda lp, s: s.lifecycle.set_timer("t", datetime(2030, 1, 1), actor="x"),  # noqa: DTZ001  # wrong on purpose
        ),
        "timer of no kind": (
            errors.InvalidEvent,
            lambda lp, s: s.lifecycle.set_timer("t", s.events[0].at, kind="x", actor="x"),  # type: ignore[arg-type]  # wrong on purpose
        ),
        "cleared timer without a name": (
            errors.InvalidEvent,
            lambda lp, s: s.lifecycle.clear_timer(5, actor="x"),  # type: ignore[arg-type]  # wrong on purpose
        ),
        "processed nothing": (errors.InvalidEvent, lambda lp, s: s.mark_processed([], actor="x")),
        "processed twice": (errors.NotPending, lambda lp, s: s.mark_processed([2, 1], actor="x")),
        "processed the unknown": (
            errors.NotPending,
            lambda lp, s: s.mark_processed([99], actor="x"),
        ),
    }
)
async def test_an_unfit_event_is_refused(
    lp: Limpet, s: Session, call: Call, error: type[errors.LimpetError]
) -> None:
    """Types, actors, ids, sizes, labels, timers."""
    await refused(lp, s, call, error)


def op(*given: Any, **short: Any) -> Call:
    return lambda lp, s: s.append("a.b", actor="x", ops=given, **short)


@cases(
    {
        "add to a number": (errors.OpTypeMismatch, op(add={"n": [1]})),
        "add to text": (errors.OpTypeMismatch, op(add={"text": ["y"]})),
        "add to a dict": (errors.OpTypeMismatch, op(add={"plan": [1]})),
        "merge into a number": (errors.OpTypeMismatch, op(merge={"n": {"a": 1}})),
        "inc of text": (errors.OpTypeMismatch, op(inc={"text": 1})),
        "inc past 64 bits": (errors.OpTypeMismatch, op(inc={"app:a": 2**63 - 1})),
        "cut of a dict": (errors.OpTypeMismatch, op(ops.Cut(("plan",), 0, 0))),
        "cut past the end": (errors.OpPathUnknown, op(ops.Cut(("plan", "steps"), 0, 3))),
        "delete of nothing": (errors.OpPathUnknown, op(delete=["nothing"])),
        "delete of a scope's nothing": (errors.OpPathUnknown, op(delete=["user:nothing"])),
        "delete of a temp nothing": (errors.OpPathUnknown, op(delete=["temp:nothing"])),
        "a path through nothing": (errors.OpPathUnknown, op(ops.Set(("no", "x"), 1))),
        "a path through a number": (errors.OpPathUnknown, op(ops.Set(("n", "x"), 1))),
        "an index past the end": (errors.OpPathUnknown, op(ops.Set(("plan", "steps", 2), 1))),
        "a path into temp": (errors.OpPathUnknown, op(ops.Set(("temp:t", "x"), 1))),
        "an empty path": (errors.InvalidOp, op(ops.Set((), 1))),
        "a negative index": (errors.InvalidOp, op(ops.Set(("plan", "steps", -1), 1))),
        "an unknown op": (errors.InvalidOp, op(("push", "n", 1))),
        "a text for an op": (errors.InvalidOp, op("set n 1")),
        "a dangling reference": (errors.InvalidOp, op(ops.SetRef(("n",), ("nothing",)))),
        "too many": (errors.InvalidOp, op(*[ops.Inc(("n",), 1)] * 1_001)),
        "an unfit name": (errors.InvalidOp, op(set={"": 1})),
        "a name that is no text": (errors.InvalidOp, op(set={5: 1})),
        "good ones before a bad one": (
            errors.OpTypeMismatch,
            op(ops.Set("app:a", 9), ops.Set("n", 9), ops.Set("temp:t", 9), ops.Inc("text", 1)),
        ),
        "a bad scope op after good ones": (
            errors.OpTypeMismatch,
            op(ops.Set("n", 9), ops.Set("temp:t", 9), ops.Add("user:u", [1])),
        ),
        "a bad temp op after good ones": (
            errors.OpTypeMismatch,
            op(ops.Set("n", 9), ops.Set("app:a", 9), ops.Add("temp:t", [1])),
        ),
    }
)
async def test_an_op_that_does_not_fit_is_refused(
    lp: Limpet, s: Session, call: Call, error: type[errors.LimpetError]
) -> None:
    """Wrong type, unknown path, unknown op; whatever was good in the same event is not done."""
    await refused(lp, s, call, error)


MISSING, DELETED, ERASED = (("support", "ada", end) for end in ("missing", "deleted", "erased"))
SESSION_CALLS: dict[str, Callable[[Limpet, Any], Awaitable[Any]]] = {
    "get": lambda lp, key: lp.get(key),
    "append": lambda lp, key: lp.session(key).append("a.b", actor="x"),
    "append with expect": lambda lp, key: lp.session(key).append("a.b", actor="x", expect=1),
    "append with expect 0": lambda lp, key: lp.session(key).append("a.b", actor="x", expect=0),
    "append with an id": lambda lp, key: lp.session(key).append("a.b", actor="x", id="i"),
    "append_many": lambda lp, key: lp.session(key, actor="x").append_many([Draft(type="a.b")]),
    "update": lambda lp, key: lp.session(key, actor="x").update(lambda _: {"n": 1}),
    "refresh": lambda lp, key: lp.session(key).refresh(),
    "read": lambda lp, key: lp.session(key).read(),
    "follow": lambda lp, key: anext(lp.session(key).follow()),
    "label": lambda lp, key: lp.session(key, actor="x").label({"a": "b"}),
    "mark_processed": lambda lp, key: lp.session(key, actor="x").mark_processed([2]),
    "verify": lambda lp, key: lp.maintenance.verify(key),
}


@pytest.mark.parametrize(
    ("key", "error"),
    [
        (MISSING, errors.SessionNotFound),
        (DELETED, errors.SessionDeleted),
        (ERASED, errors.SessionErased),
    ],
    ids=["unknown", "deleted", "erased"],
)
@pytest.mark.parametrize("call", SESSION_CALLS.values(), ids=SESSION_CALLS.keys())
async def test_a_session_that_is_not_there_is_told_everywhere(
    lp: Limpet, s: Session, call: Any, key: Any, error: type[errors.LimpetError]
) -> None:
    """Unknown, deleted and erased are three errors, from every verb."""
    await lp.create(*DELETED[:2], id=DELETED[2])
    await lp.create(*ERASED[:2], id=ERASED[2])
    await lp.delete(DELETED)
    await lp.erase(ERASED)
    found = await refused(lp, s, lambda lp, _: call(lp, key), error)
    assert "/".join(key) in str(found)


@cases(
    {
        "create again": (errors.SessionExists, lambda lp, s: lp.create("support", "ada", id="one")),
        "stale expect": (
            errors.SessionConflict,
            lambda lp, s: s.append("a.b", actor="x", set={"temp:t": 9}, expect=1),
        ),
        "expect too new": (
            errors.SessionConflict,
            lambda lp, s: s.append("a.b", actor="x", expect=3),
        ),
        "expect nothing": (
            errors.SessionConflict,
            lambda lp, s: s.append("a.b", actor="x", expect=0),
        ),
        "stale expect of many": (
            errors.SessionConflict,
            lambda lp, s: s.append_many([Draft(type="a.b", actor="x")], expect=1),
        ),
    }
)
async def test_a_stale_condition_is_refused(
    lp: Limpet, s: Session, call: Call, error: type[errors.LimpetError]
) -> None:
    """Only what is expected and true is recorded."""
    await refused(lp, s, call, error)


@pytest.mark.arguments
@cases(
    {
        "limit 0": (errors.InvalidQuery, lambda lp, s: s.read(limit=0)),
        "limit too large": (errors.InvalidQuery, lambda lp, s: s.read(limit=1_001)),
        "after negative": (errors.InvalidQuery, lambda lp, s: s.read(after=-1)),
        "after of another kind": (errors.InvalidQuery, lambda lp, s: s.read(after="1")),  # type: ignore[arg-type]  # wrong on purpose
        "types as text": (errors.InvalidQuery, lambda lp, s: s.read(types="user.message")),
        "tail negative": (errors.InvalidQuery, lambda lp, s: lp.get(s.key, tail=-1)),
        "tail too large": (errors.InvalidQuery, lambda lp, s: lp.get(s.key, tail=1_001)),
        "refresh tail": (errors.InvalidQuery, lambda lp, s: s.refresh(tail=1.5)),  # type: ignore[arg-type]  # wrong on purpose
        "list limit": (errors.InvalidQuery, lambda lp, s: lp.list(limit=0)),
        "list user alone": (errors.InvalidQuery, lambda lp, s: lp.list(user="ada")),
        "list label alone": (errors.InvalidQuery, lambda lp, s: lp.list(labels={"a": "b"})),
        "list label of numbers": (
            errors.InvalidQuery,
            lambda lp, s: lp.list(app="a", labels={"a": 1}),  # type: ignore[dict-item]  # wrong on purpose
        ),
        "list label as text": (errors.InvalidQuery, lambda lp, s: lp.list(app="a", labels="gold")),  # type: ignore[arg-type]  # wrong on purpose
        "list order": (errors.InvalidQuery, lambda lp, s: lp.list(order="size")),  # type: ignore[arg-type]  # wrong on purpose
        "list cursor": (errors.InvalidCursor, lambda lp, s: lp.list(cursor="nonsense")),
    }
)
async def test_a_query_that_makes_no_sense_is_refused(
    lp: Limpet, s: Session, call: Call, error: type[errors.LimpetError]
) -> None:
    """Pages have sizes, positions are seqs, filters are texts."""
    await refused(lp, s, call, error)


@pytest.mark.arguments
@pytest.mark.parametrize("after", [-1, "1", 1.0, None, True])
async def test_a_follower_begins_at_a_seq(s: Session, after: Any) -> None:
    """The mistake is told at once, not at the first event."""
    with pytest.raises(errors.InvalidQuery):
        s.follow(after=after)


async def test_a_memory_store_cannot_be_backed_up(s: Session, tmp_path: Any) -> None:
    """It says so, and no file appears."""
    async with limpet.open("memory://") as lp:
        with pytest.raises(errors.BackupRefused):
            await lp.maintenance.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()


async def test_a_silent_message_of_an_earlier_release_is_read_and_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log is taken as it was recorded: opened, exported, imported, copied, verified."""
    key, path = ("a", "u", "s"), tmp_path / "s.limpet"
    async with limpet.open(f"sqlite:///{tmp_path}/old.db") as lp:
        with monkeypatch.context() as earlier:
            earlier.setattr(events, "says_nothing", lambda _: False)
            await (await lp.create(*key)).append("user.message", {"order": 7}, actor="user:u")
    async with (
        limpet.open(f"sqlite:///{tmp_path}/old.db") as lp,
        limpet.open("memory://") as one,
        limpet.open("memory://") as two,
    ):
        assert (await lp.get(*key)).events[-1].data == {"order": 7}
        assert [each.role for each in await (await lp.get(*key)).messages()] in ([], ["user"])
        await lp.export(key, path)
        await one.import_(path)
        await lp.copy(key, to=two)
        for other in (one, two):
            assert (await other.get(*key)).events[-1].data == {"order": 7}
            assert (await other.maintenance.verify()).ok

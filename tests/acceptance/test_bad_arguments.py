"""Every verb × every kind of wrong argument: the caller is told, the store never blamed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import holdfast
from holdfast import Draft, Holdfast, Key, Lease, Session, errors
from holdfast.model.values import described
from holdfast.session.commit import CommitBuilder
from tests.support.views import shown, stored

# Kinds of arguments, and what is wrong for each. Where None is wrong it comes first.
OBJECT = object()
HUGE = 10**5_000  # which Python refuses to print
NO_TEXT: list[Any] = [5, 1.5, True, b"x", OBJECT, ["x"], {"x": 1}, ("a", "b")]
UNFIT: list[Any] = ["", " x", "a\x00b", "\ud800", "x" * 5_000]
TEXT = [*NO_TEXT, *UNFIT]
NUMBER = [None, "1", 1.5, math.nan, math.inf, True, -1, 10**30, HUGE, OBJECT, [1], b"1"]
SECONDS = [None, "1", math.nan, math.inf, -math.inf, True, 0, -1, HUGE, OBJECT, [1], 1e-9]
MAPPING = [5, "x", b"x", OBJECT, ["x"], [("a", "b")], True]
TEXTS = [{5: "x"}, {"": "x"}, {"a": 5}, {"a": ["b"]}, {"a": "\x00"}, {None: "x"}]
LABELS = [*MAPPING, 0, "", [], *TEXTS]
TIME = ["2030-01-01", 5, 1.5, True, OBJECT, datetime(2030, 1, 1), datetime(2030, 1, 1).date()]  # noqa: DTZ001  # wrong on purpose
KEY = [None, 5, "a/b/c", b"x", OBJECT, ["a", "b", "c"], ("a", "b"), ("a", "b", 5), ("a", "", "c")]
LEASE = [
    None,
    "x",
    5,
    OBJECT,
    ("a", "b", "c"),
    {"fence": 1},
    Lease("a", "w", 1, 2),  # type: ignore[arg-type]  # wrong on purpose
    Lease(Key("support", "ada", "one"), "w", "1", 2),  # type: ignore[arg-type]  # wrong on purpose
    Lease(Key("support", "ada", "one"), "w", True, 2),
    Lease(Key("support", "ada", "one"), "w", 10**30, 2),
]
CALL = [5, "x", OBJECT, [1]]
LISTED = [5, "user.message", b"x", OBJECT, True]
CLASS = [5, "x", OBJECT, int, [int]]

Make = Callable[[Holdfast, Session, Any], Any]


def rows(kind: list[Any], verbs: dict[str, Make]) -> list[tuple[str, list[Any], Make]]:
    return [(name, kind, make) for name, make in verbs.items()]


def one(hf: Holdfast, s: Session, use: Callable[[CommitBuilder], Any]) -> Awaitable[Any]:
    async def commit() -> None:
        async with hf.commit() as c:
            use(c)

    return commit()


K_PARTS = ("support", "ada")
K = Key(*K_PARTS, "one")
AT = datetime(2030, 1, 1, tzinfo=UTC)
VERBS: list[tuple[str, list[Any], Make]] = [
    *rows(
        TEXT,
        {
            "create app": lambda hf, s, v: hf.create(v, "u"),
            "create user": lambda hf, s, v: hf.create("a", v),
            "create id": lambda hf, s, v: hf.create("a", "u", id=v),
            "get_or_create app": lambda hf, s, v: hf.get_or_create(v, "u", id="i"),
            "get_or_create user": lambda hf, s, v: hf.get_or_create("a", v, id="i"),
            "get_or_create id": lambda hf, s, v: hf.get_or_create("a", "u", id=v),
            "list app": lambda hf, s, v: hf.list(app=v),
            "list user": lambda hf, s, v: hf.list(app="a", user=v),
            "list cursor": lambda hf, s, v: hf.list(cursor=v),
            "watch app": lambda hf, s, v: hf.watch(app=v),
            "watch after": lambda hf, s, v: hf.watch(after=v),
            "migrate app": lambda hf, s, v: hf.migrate(holdfast.MigrationRegistry(), app=v),
            "claim worker": lambda hf, s, v: hf.claim(v),
            "claim app": lambda hf, s, v: hf.claim("w", app=v),
            "acquire_lock owner": lambda hf, s, v: hf.acquire_lock(K, v),
            "append type": lambda hf, s, v: s.append(v, actor="x"),
            "append id": lambda hf, s, v: s.append("a.b", actor="x", id=v),
            "append cause": lambda hf, s, v: s.append("a.b", actor="x", cause=v),
            "append invocation_id": lambda hf, s, v: s.append("a.b", actor="x", invocation_id=v),
            "append correlation_id": lambda hf, s, v: s.append("a.b", actor="x", correlation_id=v),
            "append wake_id": lambda hf, s, v: s.append("a.b", actor="x", wake_id=v),
            "clear_timer name": lambda hf, s, v: s.clear_timer(v, actor="x"),
            "set_timer name": lambda hf, s, v: s.set_timer(v, AT, actor="x"),
            "set_timer kind": lambda hf, s, v: s.set_timer("t", AT, kind=v, actor="x"),
            "envelope format": lambda hf, s, v: s.envelope(format=v),
            "list order": lambda hf, s, v: hf.list(app="a", order=v),
            "commit append type": lambda hf, s, v: one(hf, s, lambda c: c.append(s, v, actor="x")),
        },
    ),
    *rows(
        TEXT,
        {
            "create actor": lambda hf, s, v: hf.create("a", "u", actor=v),
            "get_or_create actor": lambda hf, s, v: hf.get_or_create("a", "u", id="i", actor=v),
            "get actor": lambda hf, s, v: hf.get(K, actor=v),
            "find actor": lambda hf, s, v: hf.find(K, actor=v),
            "session actor": lambda hf, s, v: hf.session(K, actor=v),
            "append actor": lambda hf, s, v: s.append("a.b", actor=v),
            "append_many actor": lambda hf, s, v: s.append_many([Draft(type="a.b")], actor=v),
            "update actor": lambda hf, s, v: s.update(lambda _: {"n": 1}, actor=v),
            "label actor": lambda hf, s, v: s.label({"a": "b"}, actor=v),
            "set_timer actor": lambda hf, s, v: s.set_timer("t", AT, actor=v),
            "clear_timer actor": lambda hf, s, v: s.clear_timer("t", actor=v),
            "set_priority actor": lambda hf, s, v: s.set_priority(1, actor=v),
            "mark_processed actor": lambda hf, s, v: s.mark_processed([2], actor=v),
        },
    ),
    *rows(
        NUMBER,
        {
            "get tail": lambda hf, s, v: hf.get(K, tail=v),
            "find tail": lambda hf, s, v: hf.find(K, tail=v),
            "get_or_create tail": lambda hf, s, v: hf.get_or_create(*K_PARTS, id="one", tail=v),
            "get_or_create tail, new": lambda hf, s, v: hf.get_or_create("a", "u", id="i", tail=v),
            "refresh tail": lambda hf, s, v: s.refresh(tail=v),
            "list limit": lambda hf, s, v: hf.list(limit=v),
            "claim limit": lambda hf, s, v: hf.claim("w", limit=v),
            "read after": lambda hf, s, v: s.read(after=v),
            "read limit": lambda hf, s, v: s.read(limit=v),
            "pending limit": lambda hf, s, v: s.pending(limit=v),
            "follow after": lambda hf, s, v: s.follow(after=v),
            "mark_processed seqs": lambda hf, s, v: s.mark_processed([v], actor="x"),
        },
    ),
    *rows(
        [v for v in NUMBER if v != -1],
        {"set_priority": lambda hf, s, v: s.set_priority(v, actor="x")},
    ),
    *rows(
        NUMBER[1:],
        {
            "append expect": lambda hf, s, v: s.append("a.b", actor="x", expect=v),
            "append_many expect": lambda hf, s, v: s.append_many(
                [Draft(type="a.b", actor="x")], expect=v
            ),
            "commit expect": lambda hf, s, v: one(
                hf, s, lambda c: c.append(s, "a.b", actor="x", expect=v)
            ),
        },
    ),
    *rows(
        SECONDS,
        {
            "claim lease_seconds": lambda hf, s, v: hf.claim("w", lease_seconds=v),
            "acquire_lock lease_seconds": lambda hf, s, v: hf.acquire_lock(K, "w", lease_seconds=v),
        },
    ),
    *rows(
        SECONDS[1:],
        {"renew lease_seconds": lambda hf, s, v: hf.renew(held(s), lease_seconds=v)},
    ),
    *rows(
        [v for v in SECONDS[1:] if v not in (0, 1e-9) or v is False],
        {"release retry_seconds": lambda hf, s, v: hf.release(held(s), retry_seconds=v)},
    ),
    *rows(
        LEASE,
        {
            "renew": lambda hf, s, v: hf.renew(v),
            "release": lambda hf, s, v: hf.release(v),
            "release_lock": lambda hf, s, v: hf.release_lock(v),
        },
    ),
    *rows(LEASE[1:], {"session lease": lambda hf, s, v: hf.session(K, lease=v)}),
    *rows(
        KEY,
        {
            "get key": lambda hf, s, v: hf.get(v),
            "find key": lambda hf, s, v: hf.find(v),
            "session key": lambda hf, s, v: hf.session(v),
            "delete key": lambda hf, s, v: hf.delete(v),
            "erase key": lambda hf, s, v: hf.erase(v),
            "acquire_lock key": lambda hf, s, v: hf.acquire_lock(v, "w"),
        },
    ),
    *rows(
        KEY[1:],
        {
            "watch key": lambda hf, s, v: hf.watch(key=v),
            "verify key": lambda hf, s, v: hf.verify(v),
        },
    ),
    *rows(
        LABELS,
        {
            "create labels": lambda hf, s, v: hf.create("a", "u", labels=v),
            "get_or_create labels": lambda hf, s, v: hf.get_or_create("a", "u", id="i", labels=v),
            "label": lambda hf, s, v: s.label(v, actor="x"),
            "list label": lambda hf, s, v: hf.list(app="a", label=v),
            "commit label": lambda hf, s, v: one(hf, s, lambda c: c.label(s, v, actor="x")),
        },
    ),
    *rows(
        MAPPING,
        {
            "create state": lambda hf, s, v: hf.create("a", "u", state=v),
            "get_or_create state": lambda hf, s, v: hf.get_or_create("a", "u", id="i", state=v),
            "append data": lambda hf, s, v: s.append("a.b", v, actor="x"),
            "append set": lambda hf, s, v: s.append("a.b", actor="x", set=v),
            "append merge": lambda hf, s, v: s.append("a.b", actor="x", merge=v),
            "append add": lambda hf, s, v: s.append("a.b", actor="x", add=v),
            "append inc": lambda hf, s, v: s.append("a.b", actor="x", inc=v),
            "update to": lambda hf, s, v: s.update(lambda _: v, actor="x"),
            "apply": lambda hf, s, v: s.apply(v, actor="x"),
        },
    ),
    *rows(
        LISTED,
        {
            "read types": lambda hf, s, v: s.read(types=v),
            "read a type": lambda hf, s, v: s.read(types=[v] if v != "user.message" else [""]),
            "append delete": lambda hf, s, v: s.append("a.b", actor="x", delete=v),
            "append ops": lambda hf, s, v: s.append("a.b", actor="x", ops=v),
            "append an op": lambda hf, s, v: s.append("a.b", actor="x", ops=[v]),
            "append_many": lambda hf, s, v: s.append_many(v, actor="x"),
            "append_many of": lambda hf, s, v: s.append_many([v], actor="x"),
            "mark_processed": lambda hf, s, v: s.mark_processed(v, actor="x"),
        },
    ),
    *rows(
        TIME,
        {
            "get since": lambda hf, s, v: hf.get(K, since=v),
            "find since": lambda hf, s, v: hf.find(K, since=v),  # type: ignore[call-overload]  # as get
            "list created_after": lambda hf, s, v: hf.list(app="a", created_after=v),
            "list updated_after": lambda hf, s, v: hf.list(
                app="a", order="updated", updated_after=v
            ),
            "set_timer at": lambda hf, s, v: s.set_timer("t", v, actor="x"),
        },
    ),
    *rows(
        CALL,
        {
            "update": lambda hf, s, v: s.update(v, actor="x"),
            "verify progress": lambda hf, s, v: hf.verify(progress=v),
            "doctor progress": lambda hf, s, v: hf.doctor(progress=v),
            "migrate progress": lambda hf, s, v: hf.migrate(registered(), progress=v),
            "backup progress": lambda hf, s, v: hf.backup("copy.db", progress=v),
        },
    ),
    *rows(
        CLASS,
        {
            "get state_type": lambda hf, s, v: hf.get(K, state_type=v),
            "session state_type": lambda hf, s, v: hf.session(K, state_type=v),
            "migrate registry": lambda hf, s, v: hf.migrate(v),
            "migrate state_type": lambda hf, s, v: hf.migrate(holdfast.MigrationRegistry(), v),
            "get migrations": lambda hf, s, v: hf.get(K, state_type=holdfast.State, migrations=v),
        },
    ),
    *rows([None, 5, OBJECT, b"x"], {"backup target": lambda hf, s, v: hf.backup(v)}),
    *rows(
        [None, 5, "x", OBJECT, K],
        {"commit session": lambda hf, s, v: one(hf, s, lambda c: c.append(v, "a.b", actor="x"))},
    ),
]


def registered() -> holdfast.MigrationRegistry:
    registry = holdfast.MigrationRegistry()
    registry.register("1.0.0", "2.0.0", dict)
    return registry


def held(s: Session) -> Lease:
    return Lease(s.key, "w", 1, 2)


def test_every_verb_that_takes_arguments_is_tried() -> None:
    """A new verb is not forgotten here."""
    tried = {name.split()[0] for name, _, _ in VERBS}
    for of in (Holdfast, Session):
        verbs = {name for name, found in vars(of).items() if inspect.isfunction(found)}
        asked = {name for name in verbs if not name.startswith("_")}
        assert asked - tried - {"close", "position"} == set()


@pytest.mark.parametrize(
    ("kind", "make"), [pytest.param(kind, make, id=name) for name, kind, make in VERBS]
)
async def test_a_wrong_argument_is_the_callers_mistake(
    hf: Holdfast, s: Session, kind: list[Any], make: Make
) -> None:
    """Told at the call, as InvalidInput with advice; nothing has changed, and the store works."""
    object_before, store_before = shown(s), await stored(hf)
    wrong = []
    for value in kind:
        try:
            made = make(hf, s, value)
            answer = await made if inspect.isawaitable(made) else made
            wrong.append(f"{described(value)} was taken: {answer!r:.60}")
        except errors.InvalidInput as error:
            if not str(error).endswith("."):
                wrong.append(f"{described(value)}: {error}")
        except Exception as error:
            wrong.append(f"{described(value)} raised {type(error).__name__}: {error!s:.120}")
    assert not wrong, "\n".join(wrong)
    assert shown(s) == object_before
    assert await stored(hf) == store_before
    assert (await s.append("still.works", actor="x")).seq == s.version


WORDS: dict[str, tuple[str, Make]] = {
    "claim limit": ("1 to 1,000 sessions", lambda hf, s, _: hf.claim("w", limit=0)),
    "claim worker": ("the worker's name", lambda hf, s, _: hf.claim("")),
    "get tail": ("tail is 0 to 1,000", lambda hf, s, _: hf.get(K, tail=-1)),
    "renew": ("hf.claim or hf.acquire_lock", lambda hf, s, _: hf.renew("x")),  # type: ignore[arg-type]  # wrong on purpose
    "a lease of another session": (
        "given on this session",
        lambda hf, s, _: hf.session(("a", "b", "c"), lease=held(s)),
    ),
    "a position": ("change.position", lambda hf, s, _: hf.watch(after="nonsense")),
    "a position of another store": (
        "change.position",
        lambda hf, s, _: anext(hf.watch(after="1.2.3")),
    ),
    "another app": ("not of the app 'x'", lambda hf, s, _: hf.watch(app="x", key=K)),
    "since": ("since is a datetime", lambda hf, s, _: hf.get(K, since=5)),  # type: ignore[call-overload]  # wrong on purpose
}


@pytest.mark.parametrize(("words", "make"), WORDS.values(), ids=WORDS)
async def test_a_mistake_is_told_in_words_of_its_own(
    hf: Holdfast, s: Session, words: str, make: Make
) -> None:
    """Not in those of paging, nor of an event, when it is about something else."""
    with pytest.raises(errors.InvalidInput) as info:
        await make(hf, s, None)
    text = str(info.value)
    assert words in text
    assert [word for word in ("page holds", "page.cursor", "the event is") if word in text] == []


async def test_a_session_may_be_watched_with_its_app(hf: Holdfast, s: Session) -> None:
    """The app says no more than the key does, and no less."""
    change = await anext(hf.watch(app="support", key=K))
    assert (change.key, change.event.seq) == (K, 1)

"""Every verb × every kind of wrong argument: the caller is told, the store never blamed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

import limpet
from limpet import Draft, Key, Lease, Limpet, Session, errors
from limpet.model.values import described
from limpet.session.commit import CommitBuilder
from limpet.session.work import StoreWork
from tests.support.views import shown, stored


class Array:
    """As some libraries have them: asking whether it is empty is an error."""

    def __bool__(self) -> bool:
        raise ValueError("the truth value of an array is ambiguous")


# Kinds of arguments, and what is wrong for each. Where None is wrong it comes first.
OBJECT = object()
HUGE = 10**5_000  # which Python refuses to print
NO_TEXT: list[Any] = [5, 1.5, True, b"x", OBJECT, ["x"], {"x": 1}, ("a", "b")]
UNFIT: list[Any] = ["", " x", "a\x00b", "\ud800", "x" * 5_000]
TEXT = [*NO_TEXT, *UNFIT]
NUMBER = [None, "1", 1.5, math.nan, math.inf, True, -1, 10**30, HUGE, OBJECT, [1], b"1"]
SECONDS = [None, "1", math.nan, math.inf, -math.inf, True, 0, -1, HUGE, OBJECT, [1], 1e-9]
MAPPING = [5, "x", b"x", OBJECT, ["x"], [("a", "b")], True, Array()]
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

Make = Callable[[Limpet, Session, Any], Any]


def rows(kind: list[Any], verbs: dict[str, Make]) -> list[tuple[str, list[Any], Make]]:
    return [(name, kind, make) for name, make in verbs.items()]


def one(lp: Limpet, s: Session, use: Callable[[CommitBuilder], Any]) -> Awaitable[Any]:
    async def commit() -> None:
        async with lp.commit() as c:
            use(c)

    return commit()


K_PARTS = ("support", "ada")
K = Key(*K_PARTS, "one")
AT = datetime(2030, 1, 1, tzinfo=UTC)
VERBS: list[tuple[str, list[Any], Make]] = [
    *rows(
        TEXT,
        {
            "create app": lambda lp, s, v: lp.create(v, "u"),
            "create user": lambda lp, s, v: lp.create("a", v),
            "create id": lambda lp, s, v: lp.create("a", "u", id=v),
            "get_or_create app": lambda lp, s, v: lp.get_or_create(v, "u", id="i"),
            "get_or_create user": lambda lp, s, v: lp.get_or_create("a", v, id="i"),
            "get_or_create id": lambda lp, s, v: lp.get_or_create("a", "u", id=v),
            "list app": lambda lp, s, v: lp.list(app=v),
            "inbox app": lambda lp, s, v: lp.inbox(app=v),
            "status app": lambda lp, s, v: lp.status(app=v),
            "each app": lambda lp, s, v: anext(lp.each(app=v)),
            "list user": lambda lp, s, v: lp.list(app="a", user=v),
            "list task": lambda lp, s, v: lp.list(app="a", task=v),
            "each task": lambda lp, s, v: anext(lp.each(app="a", task=v)),
            "erase_user app": lambda lp, s, v: lp.erase_user(v, "u"),
            "erase_user user": lambda lp, s, v: lp.erase_user("a", v),
            "documents collection": lambda lp, s, v: lp.documents(v),
            "acting_as principal": lambda lp, s, v: lp.acting_as(v),
            "list cursor": lambda lp, s, v: lp.list(cursor=v),
            "inbox cursor": lambda lp, s, v: lp.inbox(cursor=v),
            "watch app": lambda lp, s, v: lp.watch(app=v),
            "watch after": lambda lp, s, v: lp.watch(after=v),
            "app name": lambda lp, s, v: lp.app(v),
            "app create user": lambda lp, s, v: lp.app("a").create(v),
            "app get id": lambda lp, s, v: lp.app("a").get("u", v),
            "app session user": lambda lp, s, v: lp.app("a").session(v, "i"),
            "app claim worker": lambda lp, s, v: lp.app("a").claim(v),
            "get user": lambda lp, s, v: lp.get("a", v, "i"),
            "get id": lambda lp, s, v: lp.get("a", "u", v),
            "migrate app": lambda lp, s, v: lp.maintenance.migrate(
                limpet.MigrationRegistry(), app=v
            ),
            "claim worker": lambda lp, s, v: lp.work.claim(v),
            "claim app": lambda lp, s, v: lp.work.claim("w", app=v),
            "acquire_lock worker": lambda lp, s, v: lp.work.lock(K, worker=v),
            "append type": lambda lp, s, v: s.append(v, actor="x"),
            "append id": lambda lp, s, v: s.append("a.b", actor="x", id=v),
            "append cause": lambda lp, s, v: s.append(
                "a.b", actor="x", trace=limpet.Trace(cause=v)
            ),
            "append invocation_id": lambda lp, s, v: s.append(
                "a.b", actor="x", trace=limpet.Trace(invocation_id=v)
            ),
            "append correlation_id": lambda lp, s, v: s.append(
                "a.b", actor="x", trace=limpet.Trace(correlation_id=v)
            ),
            "append wake_id": lambda lp, s, v: s.append(
                "a.b", actor="x", trace=limpet.Trace(wake_id=v)
            ),
            "clear_timer name": lambda lp, s, v: s.lifecycle.clear_timer(v, actor="x"),
            "set_timer name": lambda lp, s, v: s.lifecycle.set_timer(v, AT, actor="x"),
            "set_timer kind": lambda lp, s, v: s.lifecycle.set_timer("t", AT, kind=v, actor="x"),
            "envelope format": lambda lp, s, v: s.envelope(format=v),
            "list order": lambda lp, s, v: lp.list(app="a", order=v),
            "commit append type": lambda lp, s, v: one(lp, s, lambda c: c.append(s, v, actor="x")),
        },
    ),
    *rows(
        TEXT,
        {
            "app actor": lambda lp, s, v: lp.app("a", actor=v),
            "app create actor": lambda lp, s, v: lp.app("a").create("u", actor=v),
            "app session actor": lambda lp, s, v: lp.app("a").session("u", "i", actor=v),
            "migrate actor": lambda lp, s, v: lp.maintenance.migrate(registered(), actor=v),
            "create actor": lambda lp, s, v: lp.create("a", "u", actor=v),
            "get_or_create actor": lambda lp, s, v: lp.get_or_create("a", "u", id="i", actor=v),
            "get actor": lambda lp, s, v: lp.get(K, actor=v),
            "get_many actor": lambda lp, s, v: lp.get_many([K], actor=v),
            "find actor": lambda lp, s, v: lp.find(K, actor=v),
            "session actor": lambda lp, s, v: lp.session(K, actor=v),
            "append actor": lambda lp, s, v: s.append("a.b", actor=v),
            "append_many actor": lambda lp, s, v: s.append_many([Draft(type="a.b")], actor=v),
            "update actor": lambda lp, s, v: s.update(lambda _: {"n": 1}, actor=v),
            "draft actor": lambda lp, s, v: s.append_many([Draft(type="a.b", actor=v)], actor="x"),
            "update actor, no change": lambda lp, s, v: s.update(lambda _: None, actor=v),
            "commit append actor": lambda lp, s, v: one(
                lp, s, lambda c: c.append(s, "a.b", actor=v)
            ),
            "commit label actor": lambda lp, s, v: one(
                lp, s, lambda c: c.record(s, limpet.facts.labeled({"a": "b"}, actor=v))
            ),
            "label actor": lambda lp, s, v: s.label({"a": "b"}, actor=v),
            "set_timer actor": lambda lp, s, v: s.lifecycle.set_timer("t", AT, actor=v),
            "clear_timer actor": lambda lp, s, v: s.lifecycle.clear_timer("t", actor=v),
            "set_priority actor": lambda lp, s, v: s.lifecycle.set_priority(1, actor=v),
            "mark_processed actor": lambda lp, s, v: s.mark_processed([2], actor=v),
        },
    ),
    *rows(
        NUMBER[1:],  # None: as many as fit the question
        {
            "get tail": lambda lp, s, v: lp.get(K, tail=v),
            "find tail": lambda lp, s, v: lp.find(K, tail=v),
        },
    ),
    *rows(
        NUMBER,
        {
            "get_or_create tail": lambda lp, s, v: lp.get_or_create(*K_PARTS, id="one", tail=v),
            "get_or_create tail, new": lambda lp, s, v: lp.get_or_create("a", "u", id="i", tail=v),
            "get_many tail": lambda lp, s, v: lp.get_many([K], tail=v),
            "refresh tail": lambda lp, s, v: s.refresh(tail=v),
            "list limit": lambda lp, s, v: lp.list(limit=v),
            "inbox limit": lambda lp, s, v: lp.inbox(limit=v),
            "claim limit": lambda lp, s, v: lp.work.claim("w", limit=v),
            "read after": lambda lp, s, v: s.read(after=v),
            "read before": lambda lp, s, v: s.read(before=v if v is not None else 0),
            "read limit": lambda lp, s, v: s.read(limit=v),
            "pending limit": lambda lp, s, v: s.pending(limit=v),
            "follow after": lambda lp, s, v: s.follow(after=v),
            "mark_processed seqs": lambda lp, s, v: s.mark_processed([v], actor="x"),
        },
    ),
    *rows(
        [None, 5, 1.5, True, OBJECT, "x", b"x", ["x"], {"x": 1}],
        {
            "get_blob ref": lambda lp, s, v: s.blobs.get(v),
            "stream_blob ref": lambda lp, s, v: s.blobs.stream(v),
        },
    ),
    *rows(
        [5, True, OBJECT, "text", {"x": 1}],
        {"put_blob data": lambda lp, s, v: s.blobs.put(v, "text/plain")},
    ),
    *rows(
        [*TEXT, "x" * 1_001],
        {
            "reclaim target": lambda lp, s, v: lp.reclaim(
                s.key, target_is_lost=v, epoch=1, reason="x"
            ),
            "reclaim reason": lambda lp, s, v: lp.reclaim(
                s.key, target_is_lost="b", epoch=1, reason=v
            ),
        },
    ),
    *rows(
        [*NUMBER, 0],
        {
            "reclaim epoch": lambda lp, s, v: lp.reclaim(
                s.key, target_is_lost="b", epoch=v, reason="x"
            ),
        },
    ),
    *rows(
        [5, 1.5, True, OBJECT, ["x"], {"x": 1}],
        {
            "import_ path": lambda lp, s, v: lp.import_(v),
            "export path": lambda lp, s, v: lp.export(K, v),
            "copy to": lambda lp, s, v: lp.copy(to=v),
            "move to": lambda lp, s, v: lp.move(s.key, to=v),
            "prestage to": lambda lp, s, v: lp.prestage(s.key, to=v),
            "drain to": lambda lp, s, v: lp.drain(v),
        },
    ),
    *rows(
        [v for v in NUMBER if v != -1],
        {"set_priority": lambda lp, s, v: s.lifecycle.set_priority(v, actor="x")},
    ),
    *rows(
        NUMBER[1:],
        {
            "append expect": lambda lp, s, v: s.append("a.b", actor="x", expect=v),
            "append_many expect": lambda lp, s, v: s.append_many(
                [Draft(type="a.b", actor="x")], expect=v
            ),
            "commit expect": lambda lp, s, v: one(
                lp, s, lambda c: c.append(s, "a.b", actor="x", expect=v)
            ),
        },
    ),
    *rows(
        SECONDS,
        {
            "claim lease_seconds": lambda lp, s, v: lp.work.claim("w", lease_seconds=v),
            "acquire_lock lease_seconds": lambda lp, s, v: lp.work.lock(
                K, worker="w", lease_seconds=v
            ),
        },
    ),
    *rows(
        SECONDS[1:],
        {"renew lease_seconds": lambda lp, s, v: lp.work.renew(held(s), lease_seconds=v)},
    ),
    *rows(
        [v for v in SECONDS[1:] if v not in (0, 1e-9) or v is False],
        {"release retry_seconds": lambda lp, s, v: lp.work.release(held(s), retry_seconds=v)},
    ),
    *rows(
        LEASE,
        {
            "renew": lambda lp, s, v: lp.work.renew(v),
            "release": lambda lp, s, v: lp.work.release(v),
        },
    ),
    *rows(LEASE[1:], {"session lease": lambda lp, s, v: lp.session(K, lease=v)}),
    *rows(
        KEY,
        {
            "get key": lambda lp, s, v: lp.get(v),
            "find key": lambda lp, s, v: lp.find(v),
            "session key": lambda lp, s, v: lp.session(v),
            "delete key": lambda lp, s, v: lp.delete(v),
            "erase key": lambda lp, s, v: lp.erase(v),
            "export key": lambda lp, s, v: lp.export(v, "x"),
            "acquire_lock key": lambda lp, s, v: lp.work.lock(v, worker="w"),
        },
    ),
    *rows(
        KEY[1:],
        {
            "watch key": lambda lp, s, v: lp.watch(key=v),
            "verify key": lambda lp, s, v: lp.maintenance.verify(v),
        },
    ),
    *rows(
        LABELS,
        {
            "create labels": lambda lp, s, v: lp.create("a", "u", labels=v),
            "get_or_create labels": lambda lp, s, v: lp.get_or_create("a", "u", id="i", labels=v),
            "label": lambda lp, s, v: s.label(v, actor="x"),
            "record labels": lambda lp, s, v: s.record(limpet.facts.labeled(v), actor="x"),
            "list labels": lambda lp, s, v: lp.list(app="a", labels=v),
            "commit label": lambda lp, s, v: one(
                lp, s, lambda c: c.record(s, limpet.facts.labeled(v, actor="x"))
            ),
        },
    ),
    *rows(
        MAPPING,
        {
            "create state": lambda lp, s, v: lp.create("a", "u", state=v),
            "get_or_create state": lambda lp, s, v: lp.get_or_create("a", "u", id="i", state=v),
            "append data": lambda lp, s, v: s.append("a.b", v, actor="x"),
            "append set": lambda lp, s, v: s.append("a.b", actor="x", set=v),
            "append merge": lambda lp, s, v: s.append("a.b", actor="x", merge=v),
            "append add": lambda lp, s, v: s.append("a.b", actor="x", add=v),
            "append inc": lambda lp, s, v: s.append("a.b", actor="x", inc=v),
            "update to": lambda lp, s, v: s.update(lambda _: v, actor="x"),
            "apply": lambda lp, s, v: s.apply(v, actor="x"),
        },
    ),
    *rows(
        LISTED,
        {
            "follow types": lambda lp, s, v: s.follow(types=v),
            "read types": lambda lp, s, v: s.read(types=v),
            "read a type": lambda lp, s, v: s.read(types=[v] if v != "user.message" else [""]),
            "append delete": lambda lp, s, v: s.append("a.b", actor="x", delete=v),
            "append ops": lambda lp, s, v: s.append("a.b", actor="x", ops=v),
            "append an op": lambda lp, s, v: s.append("a.b", actor="x", ops=[v]),
            "append_many": lambda lp, s, v: s.append_many(v, actor="x"),
            "append_many of": lambda lp, s, v: s.append_many([v], actor="x"),
            "mark_processed": lambda lp, s, v: s.mark_processed(v, actor="x"),
        },
    ),
    *rows(
        TIME,
        {
            "get since": lambda lp, s, v: lp.get(K, since=v),
            "find since": lambda lp, s, v: lp.find(K, since=v),
            "list created_after": lambda lp, s, v: lp.list(app="a", created_after=v),
            "list updated_after": lambda lp, s, v: lp.list(
                app="a", order="updated", updated_after=v
            ),
            "set_timer at": lambda lp, s, v: s.lifecycle.set_timer("t", v, actor="x"),
        },
    ),
    *rows(
        CALL,
        {
            "update": lambda lp, s, v: s.update(v, actor="x"),
            "verify progress": lambda lp, s, v: lp.maintenance.verify(progress=v),
            "doctor progress": lambda lp, s, v: lp.maintenance.doctor(progress=v),
            "migrate progress": lambda lp, s, v: lp.maintenance.migrate(registered(), progress=v),
            "backup progress": lambda lp, s, v: lp.maintenance.backup("copy.db", progress=v),
        },
    ),
    *rows(
        CLASS,
        {
            "create isolation": lambda lp, s, v: lp.create("a", "u", isolation=v),
            "get_or_create isolation": lambda lp, s, v: lp.get_or_create(
                "a", "u", "i", isolation=v
            ),
            "app create isolation": lambda lp, s, v: lp.app("a").create("u", isolation=v),
            "commit create isolation": lambda lp, s, v: one(
                lp, s, lambda c: c.create("a", "u", isolation=v)
            ),
            "get state_type": lambda lp, s, v: lp.get(K, state_type=v),
            "session state_type": lambda lp, s, v: lp.session(K, state_type=v),
            "migrate registry": lambda lp, s, v: lp.maintenance.migrate(v),
            "migrate state_type": lambda lp, s, v: lp.maintenance.migrate(
                limpet.MigrationRegistry(), v
            ),
            "get migrations": lambda lp, s, v: lp.get(K, state_type=limpet.State, migrations=v),
        },
    ),
    *rows(
        [None, 5, "x", "support/ada/one", OBJECT, [None], [("a", "u")], [K] * 1_001],
        {"get_many keys": lambda lp, s, v: lp.get_many(v)},
    ),
    *rows(
        [None, 5, "x", OBJECT, [None], [5], [""], ["x" * 1_000], ["x"] * 1_001],
        {"read_ids ids": lambda lp, s, v: s.read_ids(v)},
    ),
    *rows([None, 5, OBJECT, b"x"], {"backup target": lambda lp, s, v: lp.maintenance.backup(v)}),
    *rows(
        [0, -1, 10**30, 1.5, True, None, "soon", OBJECT, datetime(2001, 1, 1, tzinfo=UTC)],
        {
            "state_at when": lambda lp, s, v: s.history.at(v),
            "diff before": lambda lp, s, v: s.history.diff(v),
            "rewind when": lambda lp, s, v: s.rewind(v, actor="x"),
        },
    ),
    *rows(
        [0, 10**30, 1.5, True, "soon", OBJECT],
        {
            "diff after": lambda lp, s, v: s.history.diff(1, v),
            "fork at": lambda lp, s, v: s.fork(v, actor="x"),
        },
    ),
    *rows(
        [5, "", "x" * 1_000, " x", OBJECT, b"x"],
        {
            "fork user": lambda lp, s, v: s.fork(user=v, actor="x"),
            "fork actor": lambda lp, s, v: s.fork(actor=v),
            "rewind actor": lambda lp, s, v: s.rewind(1, actor=v),
            "merge actor": lambda lp, s, v: s.merge(K, actor=v),
            "checkpoint actor": lambda lp, s, v: s.checkpoint(actor=v),
        },
    ),
    *rows(
        KEY,
        {"merge other": lambda lp, s, v: s.merge(v, actor="x")},
    ),
    *rows(
        [None, 5, "", (), (5,), ("a", None), b"x", OBJECT],
        {"blame path": lambda lp, s, v: s.history.blame(v)},
    ),
    *rows(
        CALL,
        {
            "bisect predicate": lambda lp, s, v: s.history.bisect(v),
            "on_metric hook": lambda lp, s, v: lp.maintenance.on_metric(v),
            "compact progress": lambda lp, s, v: lp.maintenance.compact(progress=v),
        },
    ),
    *rows(
        [None, "", 5, "x" * 257, OBJECT],
        {"checkpoint trigger": lambda lp, s, v: s.checkpoint(v, actor="x")},
    ),
    *rows(
        ["yes", 2, OBJECT],
        {"checkpoint full": lambda lp, s, v: s.checkpoint(full=v, actor="x")},
    ),
    *rows(
        [None, 5, "1", OBJECT, ("a", 1)],
        {
            "restore ref": lambda lp, s, v: s.history.restore(v, actor="x"),
            "unpin ref": lambda lp, s, v: s.history.unpin(v, actor="x"),
        },
    ),
    *rows(
        [0, -1, 1_001, 1.5, True, None, "1"],
        {"checkpoints limit": lambda lp, s, v: s.history.checkpoints(limit=v)},
    ),
    *rows(
        [None, 5, "$x", "", OBJECT],
        {
            "checkpointing app": lambda lp, s, v: lp.policies.checkpointing(v, None),
            "retention app": lambda lp, s, v: lp.policies.retention(v, events=5),
        },
    ),
    *rows(
        [5, "x", OBJECT, {"every": 5}],
        {"checkpointing policy": lambda lp, s, v: lp.policies.checkpointing("a", v)},
    ),
    *rows(
        [0, -1, 1.5, True, "5"],
        {"retention events": lambda lp, s, v: lp.policies.retention("a", events=v)},
    ),
    *rows(
        [5, "x", timedelta(-1)],
        {"retention age": lambda lp, s, v: lp.policies.retention("a", age=v)},
    ),
    *rows(
        KEY,
        {
            "wake key": lambda lp, s, v: lp.wake(v, _idle),
            "requeue": lambda lp, s, v: lp.work.requeue(v),
            "spawn": lambda lp, s, v: lp.spawn(v, task="x"),
            "wait_for_children": lambda lp, s, v: lp.wait_for_children(v, 0),
            "withdraw": lambda lp, s, v: lp.withdraw(v),
        },
    ),
    *rows(
        [5, "x", OBJECT, int],
        {"wake harness": lambda lp, s, v: lp.wake(K, v)},
    ),
    *rows(
        [5, "x", OBJECT, True],
        {"proposals": lambda lp, s, v: lp.proposals(v)},
    ),
    *rows(
        ["1", math.nan, math.inf, True, -1, HUGE, OBJECT],
        {
            "wait_for_children timeout": lambda lp, s, v: lp.wait_for_children(K, v),
            "spawn budget_fraction": lambda lp, s, v: lp.spawn(K, task="x", budget_fraction=v),
            "propose confidence": lambda lp, s, v: lp.propose(
                "x", provenance=K, confidence=v, to="org:a"
            ),
        },
    ),
    *rows(
        [0, -1, "x", OBJECT, True],
        {
            "dead_letters limit": lambda lp, s, v: lp.work.dead_letters(app="a", limit=v),
            "wakes limit": lambda lp, s, v: s.runs.wakes(limit=v),
            "wakes before": lambda lp, s, v: s.runs.wakes(before=v),
            "outcome_history limit": lambda lp, s, v: s.outcome.history(limit=v),
            "activations limit": lambda lp, s, v: s.runs.activations(limit=v),
        },
    ),
    *rows(
        [5, "", OBJECT, b"x"],
        {
            "interrupt actor": lambda lp, s, v: s.interrupt(actor=v),
            "interrupt note": lambda lp, s, v: s.interrupt(v),
            "grant actor": lambda lp, s, v: s.runs.grant(1.0, actor=v),
            "requeue actor": lambda lp, s, v: lp.work.requeue(K, actor=v),
        },
    ),
    *rows(
        [5, "", None, OBJECT, b"x"],
        {
            "define_outcome": lambda lp, s, v: s.outcome.define(v),
            "learnings": lambda lp, s, v: lp.learnings(v),
            "memory_of": lambda lp, s, v: lp.memory_of(v),
            "recall": lambda lp, s, v: lp.recall(v),
            "propose": lambda lp, s, v: lp.propose(v, provenance=K, confidence=1, to="org:a"),
            "propose to": lambda lp, s, v: lp.propose("x", provenance=K, confidence=1, to=v),
            "decide": lambda lp, s, v: lp.decide(v, accept=True, reason="x"),
            "decide reason": lambda lp, s, v: lp.decide("x", accept=True, reason=v),
            "spawn task": lambda lp, s, v: lp.spawn(K, task=v),
            "promote": lambda lp, s, v: lp.promote("support", v),
            "gates_of": lambda lp, s, v: lp.policies.gates_of(v),
            "checkpointing_of": lambda lp, s, v: lp.policies.checkpointing_of(v),
            "retention_of": lambda lp, s, v: lp.policies.retention_of(v),
            "set_gates agent": lambda lp, s, v: lp.policies.gates(v, limpet.Gates()),
            "check_permission": lambda lp, s, v: s.setup.check_permission(v),
            "append_soon": lambda lp, s, v: s.append_soon(v, actor="x"),
        },
    ),
    *rows(
        [5, "x", OBJECT],
        {
            "set_gates": lambda lp, s, v: lp.policies.gates("support", v),
            "unmet": lambda lp, s, v: s.outcome.unmet(v),
            "compare_setup": lambda lp, s, v: s.setup.compare(v),
            "attach resources": lambda lp, s, v: s.setup.attach(resources=v),
            "attach vaults": lambda lp, s, v: s.setup.attach(vaults=v),
            "append_soon data": lambda lp, s, v: s.append_soon("a.b", v, actor="x"),
        },
    ),
    *rows(
        [5, 1.5, b"x", OBJECT, ["x"], {"x": 1}],
        {
            "create agent": lambda lp, s, v: lp.create("a", "u", agent=v),
            "create environment": lambda lp, s, v: lp.create("a", "u", environment=v),
        },
    ),
    *rows(
        [5, None, "x", OBJECT, [5], [["x"]]],
        {
            "define_outcome criteria": lambda lp, s, v: s.outcome.define("t", criteria=v),
            "set_gates kinds": lambda lp, s, v: lp.policies.gates("support", limpet.Gates(kinds=v)),
        },
    ),
    *rows(
        ["x", 1.5, True, OBJECT, [1]],
        {"memory buffer": lambda lp, s, v: s.memory.working_buffer.read(v)},
    ),
    *rows(
        [5, None, "x", OBJECT],
        {"bind_tools registry": lambda lp, s, v: s.tools.bind(v, actor="x")},
    ),
    *rows(
        [5, None, OBJECT, ["x"], {"x": 1}],
        {"bind_tools": lambda lp, s, v: s.tools.bind(limpet.ToolRegistry(), v, actor="x")},
    ),
    *rows(
        [None, 5, "", OBJECT, ["x"]],
        {"dead_letters app": lambda lp, s, v: lp.work.dead_letters(app=v)},
    ),
    *rows(
        [5, "", OBJECT, b"x"],
        {
            "audit since": lambda lp, s, v: lp.audit(v),
            "audit principal": lambda lp, s, v: lp.audit(principal=v),
            "audit session": lambda lp, s, v: lp.audit(session=v),
            "audit denied": lambda lp, s, v: lp.audit(denied=v),
            "audit app": lambda lp, s, v: lp.audit(app=v),
            "audit limit": lambda lp, s, v: lp.audit(limit=-1 if v == 5 else v),
            "audit cursor": lambda lp, s, v: lp.audit(cursor=v),
            "export_audit path": lambda lp, s, v: lp.export_audit(v),
        },
    ),
    *rows([5, "", OBJECT], {"attach permissions": lambda lp, s, v: s.setup.attach(permissions=v)}),
    *rows([5, "x", OBJECT], {"evaluate": lambda lp, s, v: s.outcome.evaluate(v)}),
    *rows([-1, "x", OBJECT, True, None], {"grant": lambda lp, s, v: s.runs.grant(v, actor="x")}),
    *rows(
        [5, None, OBJECT, b"x", "", "x\x00"],
        {
            "confirm": lambda lp, s, v: s.confirm(v, allow=True),
            "answer": lambda lp, s, v: s.answer(v, 1),
            "resolve": lambda lp, s, v: s.resolve(v, run_again=True),
            "trace": lambda lp, s, v: s.runs.trace(v),
        },
    ),
    *rows(
        [5, None, "yes", OBJECT],
        {
            "confirm allow": lambda lp, s, v: s.confirm("r", allow=v),
            "resolve run_again": lambda lp, s, v: s.resolve("r", run_again=v),
            "resolve give_up": lambda lp, s, v: s.resolve("r", give_up=v),
        },
    ),
    *rows(
        [None, 5, "x", OBJECT, K],
        {"commit session": lambda lp, s, v: one(lp, s, lambda c: c.append(v, "a.b", actor="x"))},
    ),
]


def registered() -> limpet.MigrationRegistry:
    registry = limpet.MigrationRegistry()
    registry.register("1.0.0", "2.0.0", dict)
    return registry


async def _idle(turn: limpet.Turn) -> None:
    """A harness that does nothing."""


def held(s: Session) -> Lease:
    return Lease(s.key, "w", 1, 2)


# Verbs without arguments, and those whose bad arguments the tests of their own room try: the life
# of a session, its conversation, running, and its files.
ELSEWHERE = {
    "receipt",  # of stores with keys: tests of receipts
    "prove",
    *("close", "flush", "position", "lineage", "messages", "children", "names", "tree"),
    *("describe_environment", "describe_permissions", "list_resources", "list_vaults"),
    *("activate", "suspend", "resume", "complete", "terminate", "archive", "unarchive"),
    *("lifecycle", "sweep", "set_timeouts", "bind_tools", "lock_tool", "context"),
    *("wake", "interrupt", "confirm", "answer", "grant", "grade", "dead_letters", "requeue"),
    *("mirror", "now", "checksum"),
    *("relate", "relations", "unrelate", "graph"),  # tests of relations
    *("cite", "read_cited"),  # and of citations
    "home",  # tests of moves
    *("share", "unshare", "read_shared", "follow_shared", "write_shared"),  # and of shares
}


def test_every_verb_that_takes_arguments_is_tried() -> None:
    """A new verb is not forgotten here."""
    tried = {name.split()[0] for name, _, _ in VERBS}
    for of in (Limpet, Session):
        verbs = {name for name, _ in inspect.getmembers(of, inspect.isfunction)}
        asked = {name for name in verbs if not name.startswith("_")}
        assert asked - tried - ELSEWHERE == set()


@pytest.mark.arguments
@pytest.mark.parametrize(
    ("kind", "make"), [pytest.param(kind, make, id=name) for name, kind, make in VERBS]
)
async def test_a_wrong_argument_is_the_callers_mistake(
    lp: Limpet, s: Session, kind: list[Any], make: Make
) -> None:
    """Told at the call, as InvalidInput with advice; nothing has changed, and the store works."""
    object_before, store_before = shown(s), await stored(lp)
    wrong = []
    for value in kind:
        try:
            made = make(lp, s, value)
            answer = await made if inspect.isawaitable(made) else made
            wrong.append(f"{described(value)} was taken: {answer!r:.60}")
        except errors.InvalidInput as error:
            if not str(error).endswith("."):
                wrong.append(f"{described(value)}: {error}")
        except Exception as error:
            wrong.append(f"{described(value)} raised {type(error).__name__}: {error!s:.120}")
    assert not wrong, "\n".join(wrong)
    assert shown(s) == object_before
    assert await stored(lp) == store_before
    assert (await s.append("still.works", actor="x")).seq == s.version


WORDS: dict[str, tuple[str, Make]] = {
    "claim limit": ("1 to 1,000 sessions", lambda lp, s, _: lp.work.claim("w", limit=0)),
    "claim worker": ("the worker's name", lambda lp, s, _: lp.work.claim("")),
    "get tail": ("tail must be from 0 to 1,000", lambda lp, s, _: lp.get(K, tail=-1)),
    "renew": ("lp.work.claim or lp.work.lock", lambda lp, s, _: lp.work.renew("x")),  # type: ignore[arg-type]  # wrong on purpose
    "a lease of another session": (
        "the lease of this session",
        lambda lp, s, _: lp.session(("a", "b", "c"), lease=held(s)),
    ),
    "a position": ("entry.position", lambda lp, s, _: lp.watch(after="nonsense")),
    "a position of another store": (
        "entry.position",
        lambda lp, s, _: anext(lp.watch(after="1.2.3")),
    ),
    # Not for everybody's: what is beside a key must not be passed over.
    "copy a user": ("pass app, user and id", lambda lp, s, _: lp.copy(user="ada", to=lp)),
    "mirror a user": (
        "pass app, user and id",
        lambda lp, s, _: lp.maintenance.mirror(".", user="ada"),
    ),
    "mirror an id": (
        "pass app, user and id",
        lambda lp, s, _: lp.maintenance.mirror(".", app="a", id="one"),
    ),
    "compact a user": (
        "pass app, user and id",
        lambda lp, s, _: lp.maintenance.compact(user="ada"),
    ),
    "another app": ("does not belong to the app 'x'", lambda lp, s, _: lp.watch(app="x", key=K)),
    "since": ("since must be a datetime", lambda lp, s, _: lp.get(K, since=5)),  # type: ignore[call-overload]  # wrong on purpose
}


@pytest.mark.parametrize(("words", "make"), WORDS.values(), ids=WORDS)
async def test_a_mistake_is_told_in_words_of_its_own(
    lp: Limpet, s: Session, words: str, make: Make
) -> None:
    """Not in those of paging, nor of an event, when it is about something else."""
    with pytest.raises(errors.InvalidInput) as info:
        await make(lp, s, None)
    text = str(info.value)
    assert words in text
    assert [word for word in ("page holds", "page.cursor", "the event is") if word in text] == []


CALLS: dict[str, tuple[list[Any], Callable[[limpet.Turn, Any], Awaitable[Any]]]] = {
    "delegate app": ([None, *TEXT], lambda turn, v: turn.delegate(v, "look")),
    "delegate message": ([5, None, OBJECT, ["x"]], lambda turn, v: turn.delegate("research", v)),
    "effect compensate": (
        [5, OBJECT, ["x"], {"x": 1}],
        lambda turn, v: turn.effect("refund", lambda: None, compensate=v),
    ),
}


@pytest.mark.arguments
@pytest.mark.parametrize(("kind", "make"), CALLS.values(), ids=CALLS)
async def test_a_wrong_argument_within_a_turn_is_the_harness_mistake(
    lp: Limpet, s: Session, kind: list[Any], make: Callable[[limpet.Turn, Any], Awaitable[Any]]
) -> None:
    """Told at the call, as InvalidInput, and the turn may go on; nothing was begun."""
    wrong = []

    async def harness(turn: limpet.Turn) -> None:
        for value in kind:
            try:
                answer = await make(turn, value)
                wrong.append(f"{described(value)} was taken: {answer!r:.60}")
            except errors.InvalidInput:
                pass
            except Exception as error:
                wrong.append(f"{described(value)} raised {type(error).__name__}: {error!s:.120}")

    await s.append("user.message", {"text": "go"}, actor="x")
    woken = await lp.wake(K, harness)
    assert (woken.error, wrong) == (None, [])
    assert await s.runs.children() == ()
    assert await s.read(types=["effect.*"]) == ()


async def test_an_update_is_not_computed_by_an_async_function(lp: Limpet, s: Session) -> None:
    """It is refused before it is called; a coroutine that nobody awaits would be a warning."""

    async def change(state: Any) -> dict[str, Any]:
        return {"n": 1}

    with pytest.raises(errors.InvalidInput, match="not an async one"):
        await s.update(cast("Any", change), actor="x")


async def test_a_session_may_be_watched_with_its_app(lp: Limpet, s: Session) -> None:
    """The app says no more than the key does, and no less."""
    change = await anext(lp.watch(app="support", key=K))
    assert (change.key, change.event.seq) == (K, 1)


def test_dead_letters_are_asked_for_by_app() -> None:
    """Labels belong to an app: there is no default that the verb itself would refuse."""
    app = inspect.signature(StoreWork.dead_letters).parameters["app"]
    assert app.default is inspect.Parameter.empty

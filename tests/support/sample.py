"""A small database with one of everything, and all that it shows.

Sessions with labels, timers, pending and processed inputs; snapshots, one pinned; forks of a
living and of a deleted session; bodies plain and compressed; ids in both forms; app: and user:
names whole, by op and deleted; tombstones, an erased session, an erased user, free pages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import limpet
from limpet import Draft, Key, Limpet, LimpetError, ops
from limpet.model.commit import Commit
from limpet.store.blobs import Blob
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft
from limpet.testing.histories import fork

APP: Final = "rot"
ADA, BOB = (Key(APP, user, "main") for user in ("ada", "bob"))
LONG: Final = Key(APP, "ada", "long")
FORK: Final = Key(APP, "ada", "fork")
HEIR: Final = Key(APP, "bob", "heir")  # whose parent was deleted
MOVED: Final = Key(APP, "eve", "moved")
DELETED: Final = Key(APP, "eve", "deleted")
ERASED: Final = Key(APP, "eve", "erased")
NEVER: Final = Key(APP, "eve", "never")
LIVING: Final = (ADA, BOB, LONG, FORK, HEIR)
ALL: Final = (*LIVING, DELETED, ERASED, NEVER)
WHEN: Final = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


async def build(path: Path) -> None:
    """Write the sample and close it cleanly."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        await _ada(lp)
        bob = await lp.create(APP, "bob", id="main", labels={"plan": "free"})
        bob.actor = "agent:bob"
        await bob.append("user.said", {"text": "hello"}, set={"app:title": "A", "app:gone": 1})
        await bob.append("agent.said", set={"app:title": "B"}, delete=["app:gone"])
        await _long(lp)
        for key in (DELETED, ERASED):
            brief = await lp.create(
                key.app, key.user, id=key.id, labels={"plan": "gold"}, state={"x": 1}
            )
            for number in range(20):
                text = f"{key.id} {number} " * 90
                await brief.append("user.said", {"text": text, "n": number}, actor="user:eve")
        await _forks(lp)
        await lp.delete(DELETED)
        await lp.erase(ERASED)


async def _forks(lp: Limpet) -> None:
    """By the store's own hand: there are no verbs for these yet."""
    store: Any = lp._journal.store
    await fork(store, FORK, ADA, 5, draft("user.said", inc={"step": 1}))
    await store.commit([Commit(FORK, (draft(set={"pinned": True}),), pin=2)])
    await create(store, MOVED, {"x": 1})
    await add(store, MOVED, draft(inc={"x": 1}))
    await fork(store, HEIR, MOVED, 1, draft(inc={"x": 4}))
    await store.delete(MOVED, ending="moved")
    await create(store, Key(APP, "mallory", "1"), {"user:secret": 1})
    await store.erase_user(APP, "mallory")
    content = b"a photograph " * 200
    photo = Blob(sha256(content).hexdigest(), len(content), "image/png", 2)
    await store.blobs.put_chunk(ADA, "upload-1", 0, content[:2_000])
    await store.blobs.finish(ADA, "upload-1", photo, content[2_000:])


async def _ada(lp: Limpet) -> None:
    ada = await lp.create(
        APP,
        "ada",
        id="main",
        state={"step": 0, "user:lang": "en"},
        labels={"plan": "gold", "x": "y"},
    )
    ada.actor = "agent:ada"
    first = await ada.append("user.said", {"text": "hi"}, id="my-own-id", set={"step": 1})
    await ada.append(
        "agent.said",
        {"text": "ho"},
        add={"log": ["ho"]},
        trace=limpet.Trace(cause=first.id, correlation_id="c-1"),
    )
    await ada.append("user.said", {"text": "again"}, inc={"step": 1, "app:count": 1})
    await ada.mark_processed([first.seq])
    await ada.lifecycle.set_timer("nap", WHEN)
    await ada.lifecycle.set_timer("end", WHEN, kind="deadline")
    await ada.append_many(
        [
            Draft(type="tool.ran", merge={"plan": {"a": [1, 2], "b": None}}),
            Draft(type="tool.ran", ops=[ops.Cut(("plan", "a"), 0, 1)]),
            Draft(type="tool.ran", data={"poem": "roses are red " * 120}, wake_id="w-1"),
        ]
    )


async def _long(lp: Limpet) -> None:
    """Long enough for a snapshot at the close, and events after it by another process's hand."""
    long = await lp.create(APP, "ada", id="long", state={"list": []})
    for number in range(12):
        text = f"message {number} " * 60
        await long.append(
            "user.said",
            {"text": text},
            actor="user:ada",
            add={"list": [text], "user:notes": [text]},
        )


# --- everything that can be seen -----------------------------------------------------------------


async def everything(lp: Limpet) -> dict[str, Any]:
    """All answers of all reading verbs, comparable; a refusal is an answer too."""
    seen: dict[str, Any] = {}
    for key in ALL:
        seen[f"get {key}"] = await _answer(_session(lp, key))
        seen[f"read {key}"] = await _answer(_reads(lp, key))
    seen["list"] = await _answer(_lists(lp))
    seen["certificate"] = await _answer(lp.erase(ERASED))
    return seen


async def _answer(question: Any) -> Any:
    try:
        return await question
    except LimpetError as error:
        return error.code


async def _session(lp: Limpet, key: Key) -> tuple[Any, ...]:
    session = await lp.get(key, tail=1_000)
    return session.head, dict(session.state), session.events, session.history.damaged


async def _reads(lp: Limpet, key: Key) -> list[Any]:
    session = lp.session(key, actor="test:rot")
    return [
        await session.read(),
        await session.read(reverse=True, limit=5),
        await session.read(types=["user.*"]),
        await session.read(types=["agent.said", "tool.ran"], after=2),
    ]


async def _lists(lp: Limpet) -> list[Any]:
    return [
        (await lp.list(**query)).items
        for query in (
            {},
            {"app": APP, "reverse": False},
            {"app": APP, "user": "ada"},
            {"app": APP, "labels": {"plan": "gold"}},
            {"app": APP, "order": "updated"},
            {"app": APP, "user": "ada", "order": "updated"},
        )
    ]


async def opened(path: Path) -> Limpet:
    """The sample without real syncs: these tests flip many bytes and cut no power."""
    store = await SQLiteStore.open(path, sync="off", busy_seconds=0.2)
    return await Limpet("sqlite:///sample", store=store).__aenter__()

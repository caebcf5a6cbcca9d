"""A small database with one of everything, and all that it shows.

Sessions with labels, timers, pending and processed inputs; a snapshot; bodies plain and
compressed; ids in both forms; app: and user: names whole, by op and deleted; a tombstone, an
erased session, free pages.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import holdfast
from holdfast import Draft, Holdfast, HoldfastError, Key, ops
from holdfast.store.sqlite.store import SQLiteStore

APP: Final = "rot"
ADA, BOB = (Key(APP, user, "main") for user in ("ada", "bob"))
LONG: Final = Key(APP, "ada", "long")
DELETED: Final = Key(APP, "eve", "deleted")
ERASED: Final = Key(APP, "eve", "erased")
NEVER: Final = Key(APP, "eve", "never")
LIVING: Final = (ADA, BOB, LONG)
ALL: Final = (*LIVING, DELETED, ERASED, NEVER)
WHEN: Final = datetime(2031, 5, 6, 7, 8, 9, tzinfo=UTC)


async def build(path: Path) -> None:
    """Write the sample and close it cleanly."""
    async with holdfast.open(f"sqlite:///{path}") as hf:
        await _ada(hf)
        bob = await hf.create(APP, "bob", id="main", labels={"plan": "free"})
        bob.actor = "agent:bob"
        await bob.append("user.said", {"text": "hello"}, set={"app:title": "A", "app:gone": 1})
        await bob.append("agent.said", set={"app:title": "B"}, delete=["app:gone"])
        await _long(hf)
        for key in (DELETED, ERASED):
            brief = await hf.create(
                key.app, key.user, id=key.id, labels={"plan": "gold"}, state={"x": 1}
            )
            for number in range(20):
                text = f"{key.id} {number} " * 90
                await brief.append("user.said", {"text": text, "n": number}, actor="user:eve")
        await hf.delete(DELETED)
        await hf.erase(ERASED)


async def _ada(hf: Holdfast) -> None:
    ada = await hf.create(
        APP,
        "ada",
        id="main",
        state={"step": 0, "user:lang": "en"},
        labels={"plan": "gold", "x": "y"},
    )
    ada.actor = "agent:ada"
    first = await ada.append("user.said", {"text": "hi"}, id="my-own-id", set={"step": 1})
    await ada.append(
        "agent.said", {"text": "ho"}, cause=first.id, add={"log": ["ho"]}, correlation_id="c-1"
    )
    await ada.append("user.said", {"text": "again"}, inc={"step": 1, "app:count": 1})
    await ada.mark_processed([first.seq])
    await ada.set_timer("nap", WHEN)
    await ada.set_timer("end", WHEN, kind="deadline")
    await ada.append_many(
        [
            Draft(type="tool.ran", merge={"plan": {"a": [1, 2], "b": None}}),
            Draft(type="tool.ran", ops=[ops.Cut(("plan", "a"), 0, 1)]),
            Draft(type="tool.ran", data={"poem": "roses are red " * 120}, wake_id="w-1"),
        ]
    )


async def _long(hf: Holdfast) -> None:
    """Long enough for a snapshot at the close, and events after it by another process's hand."""
    long = await hf.create(APP, "ada", id="long", state={"list": []})
    for number in range(12):
        text = f"message {number} " * 60
        await long.append(
            "user.said",
            {"text": text},
            actor="user:ada",
            add={"list": [text], "user:notes": [text]},
        )


# --- everything that can be seen -----------------------------------------------------------------


async def everything(hf: Holdfast) -> dict[str, Any]:
    """All answers of all reading verbs, comparable; a refusal is an answer too."""
    seen: dict[str, Any] = {}
    for key in ALL:
        seen[f"get {key}"] = await _answer(_session(hf, key))
        seen[f"read {key}"] = await _answer(_reads(hf, key))
    seen["list"] = await _answer(_lists(hf))
    seen["certificate"] = await _answer(hf.erase(ERASED))
    return seen


async def _answer(question: Any) -> Any:
    try:
        return await question
    except HoldfastError as error:
        return error.code


async def _session(hf: Holdfast, key: Key) -> tuple[Any, ...]:
    session = await hf.get(key, tail=1_000)
    return session.head, dict(session.state), session.events, session.damaged


async def _reads(hf: Holdfast, key: Key) -> list[Any]:
    session = hf.session(key, actor="test:rot")
    return [
        await session.read(),
        await session.read(reverse=True, limit=5),
        await session.read(types=["user.*"]),
        await session.read(types=["agent.said", "tool.ran"], after=2),
    ]


async def _lists(hf: Holdfast) -> list[Any]:
    return [
        (await hf.list(**query)).items
        for query in (
            {},
            {"app": APP, "reverse": False},
            {"app": APP, "user": "ada"},
            {"app": APP, "label": {"plan": "gold"}},
            {"app": APP, "order": "updated"},
            {"app": APP, "user": "ada", "order": "updated"},
        )
    ]


async def opened(path: Path) -> Holdfast:
    """The sample without real syncs: these tests flip many bytes and cut no power."""
    store = await SQLiteStore.open(path, sync="off", busy_seconds=0.2)
    return await Holdfast("sqlite:///sample", store=store).__aenter__()

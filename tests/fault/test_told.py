"""What a failed call leaves open is told: a lost write is not a lost read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Lease, StoreFailed
from holdfast.store.postgres import lane
from holdfast.store.postgres import store as postgres_store
from holdfast.store.sqlite.store import SQLiteStore
from tests.support.postgres import Server
from tests.support.vfs import ALL, Faults, faulty

KEY = ("shop", "ada", "one")
READ, LEASE, CHANGE = "Nothing was written", "ends by itself", "call again"
Verb = Callable[[Holdfast, Lease], Awaitable[Any]]
VERBS: dict[str, tuple[str, Verb]] = {
    "get": (READ, lambda hf, lease: hf.get(KEY)),
    "read": (READ, lambda hf, lease: hf.session(KEY).read()),
    "list": (READ, lambda hf, lease: hf.list(app="shop")),
    "follow": (READ, lambda hf, lease: anext(hf.session(KEY).follow())),
    "watch": (READ, lambda hf, lease: anext(hf.watch())),
    "verify": (READ, lambda hf, lease: hf.verify(KEY)),
    "doctor": (READ, lambda hf, lease: hf.doctor()),
    "claim": (LEASE, lambda hf, lease: hf.claim("w")),
    "acquire_lock": (LEASE, lambda hf, lease: hf.acquire_lock(KEY, "w")),
    "renew": (CHANGE, lambda hf, lease: hf.renew(lease)),
    "release": (CHANGE, lambda hf, lease: hf.release(lease)),
    "delete": (CHANGE, lambda hf, lease: hf.delete(KEY)),
    "erase": (CHANGE, lambda hf, lease: hf.erase(KEY)),
    "create": ("get_or_create", lambda hf, lease: hf.create("shop", "ada", id="two")),
    "append": ("error.ids", lambda hf, lease: hf.session(KEY, actor="x").append("a.b")),
}


async def told(hf: Holdfast, lease: Lease) -> dict[str, StoreFailed]:
    """What each verb fails with."""
    found: dict[str, StoreFailed] = {}
    for name, (_, verb) in VERBS.items():
        with pytest.raises(StoreFailed) as info:
            await verb(hf, lease)
        found[name] = info.value
    return found


def check(found: dict[str, StoreFailed]) -> None:
    """Each has the words for what it may have left, and no others."""
    openings = {words for words, _ in VERBS.values()}
    for name, (words, _) in VERBS.items():
        text = str(found[name])
        assert [words] == [each for each in openings if each in text], text
        assert bool(found[name].ids) is (name == "append")


@pytest.fixture
async def away(
    postgres_server: Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[Holdfast, Lease]]:
    """A server that has gone, and a store that does not wait for it."""
    monkeypatch.setattr(postgres_store, "LOST_SECONDS_MAX", 0.0)
    monkeypatch.setattr(lane, "LOST_SECONDS_MAX", 0.0)
    async with holdfast.open(postgres_server.url) as hf:
        await hf.create(*KEY[:2], id=KEY[2])
        lease = await hf.acquire_lock(KEY, "w")
        postgres_server.stop()
        try:
            yield hf, lease
        finally:
            postgres_server.start()


async def test_a_server_that_is_away_is_told_by_what_was_asked(
    away: tuple[Holdfast, Lease],
) -> None:
    """And in words of ours, not in those of a socket."""
    for _ in range(2):  # connections that break, then no connections
        found = await told(*away)
        check(found)
    for error in found.values():
        assert error.reason.startswith("the server does not answer (")


async def test_a_disk_that_fails_is_told_by_what_was_asked(tmp_path: Path) -> None:
    """The same words on SQLite."""
    path, faults = tmp_path / "a.db", Faults(kinds=ALL - {"open"}, lasting=True)
    with faulty(faults) as vfs:
        store = await SQLiteStore.open(path, vfs=vfs, busy_seconds=0.1)
        async with Holdfast("sqlite:///faulty", store=store) as hf:
            await hf.create(*KEY[:2], id=KEY[2])
            lease = await hf.acquire_lock(KEY, "w")
            async with holdfast.open(f"sqlite:///{path}") as elsewhere:  # nothing is remembered
                await elsewhere.session(KEY, actor="x").append("a.b")
            faults.at = faults.calls + 1
            check(await told(hf, lease))
            faults.mend()

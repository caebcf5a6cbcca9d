"""What a failed call leaves open is told: a lost write is not a lost read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Lease, Limpet
from limpet.errors import StoreFailed
from limpet.store.postgres.server import settings
from limpet.store.sqlite.store import SQLiteStore
from tests.support.postgres import Server
from tests.support.vfs import ALL, Faults, faulty

KEY = ("shop", "ada", "one")
READ, LEASE, CHANGE = "Nothing was written", "expires on its own", "calling again"
Verb = Callable[[Limpet, Lease], Awaitable[Any]]
VERBS: dict[str, tuple[str, Verb]] = {
    "get": (READ, lambda lp, lease: lp.get(KEY)),
    "read": (READ, lambda lp, lease: lp.session(KEY).read()),
    "list": (READ, lambda lp, lease: lp.list(app="shop")),
    "follow": (READ, lambda lp, lease: anext(lp.session(KEY).follow())),
    "watch": (READ, lambda lp, lease: anext(lp.watch())),
    "verify": (READ, lambda lp, lease: lp.maintenance.verify(KEY)),
    "doctor": (READ, lambda lp, lease: lp.maintenance.doctor()),
    "claim": (LEASE, lambda lp, lease: lp.work.claim("w")),
    "acquire_lock": (LEASE, lambda lp, lease: lp.work.lock(KEY, worker="w")),
    "renew": (CHANGE, lambda lp, lease: lp.work.renew(lease)),
    "release": (CHANGE, lambda lp, lease: lp.work.release(lease)),
    # It looks first whether another session waits for this one.
    "delete": (READ, lambda lp, lease: lp.delete(KEY)),
    # It looks first for blobs and checkpoints of the session.
    "erase": (READ, lambda lp, lease: lp.erase(KEY)),
    "create": ("get_or_create", lambda lp, lease: lp.create("shop", "ada", id="two")),
    "append": ("error.ids", lambda lp, lease: lp.session(KEY, actor="x").append("a.b")),
}


async def told(lp: Limpet, lease: Lease) -> dict[str, StoreFailed]:
    """What each verb fails with."""
    found: dict[str, StoreFailed] = {}
    for name, (_, verb) in VERBS.items():
        with pytest.raises(StoreFailed) as info:
            await verb(lp, lease)
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
) -> AsyncIterator[tuple[Limpet, Lease]]:
    """A server that has gone, and a store that does not wait for it."""
    monkeypatch.setattr(settings, "LOST_SECONDS_MAX", 0.0)
    async with limpet.open(postgres_server.url) as lp:
        await lp.create(*KEY[:2], id=KEY[2])
        lease = await lp.work.lock(KEY, worker="w")
        postgres_server.stop()
        try:
            yield lp, lease
        finally:
            postgres_server.start()


async def test_a_server_that_is_away_is_told_by_what_was_asked(
    away: tuple[Limpet, Lease],
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
        async with Limpet("sqlite:///faulty", store=store) as lp:
            await lp.create(*KEY[:2], id=KEY[2])
            lease = await lp.work.lock(KEY, worker="w")
            async with limpet.open(f"sqlite:///{path}") as elsewhere:  # nothing is remembered
                await elsewhere.session(KEY, actor="x").append("a.b")
            faults.at = faults.calls + 1
            check(await told(lp, lease))
            faults.mend()

"""What no log tells of: places in the feed, and what deleted and erased sessions leave."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import apsw
import asyncpg
import pytest

from limpet.store.postgres.store import PostgresStore
from limpet.store.protocol import Finding, Store
from limpet.store.sqlite.store import SQLiteStore
from limpet.testing.commits import add, create, draft, key, log

A, B = key("a"), key("b")
Change: TypeAlias = Callable[[str], Awaitable[None]]
Open: TypeAlias = Callable[[], Awaitable[Any]]


async def fill(store: Store) -> None:
    """Two living sessions whose events alternate, two deleted and two erased ones."""
    for each in (A, B):
        await create(store, each)
    for _ in range(3):
        await add(store, A, draft("user.said"))
        await add(store, B)
    for id in ("dead1", "dead2", "dead3", "gone1", "gone2"):
        await create(store, key(id))
    for id in ("dead1", "dead2", "dead3"):
        await store.delete(key(id))
    for id in ("gone1", "gone2", "dead3"):
        await store.erase(key(id))
    await store.erase(key("gone1"))
    assert (await store.verify(None)).findings == ()


class Laws:
    """`change` runs a statement behind the store's back; `reopen` opens what is there."""

    async def found(self, reopen: Open) -> tuple[Finding, ...]:
        store = await reopen()
        try:
            report = await store.verify(None)
        finally:
            await store.close()
        found: tuple[Finding, ...] = report.findings
        return found

    async def test_swapped_positions_of_one_session_are_found(
        self, change: Change, reopen: Open
    ) -> None:
        """Its events stand in the feed in the order of their seq, or verify says which does not."""
        await change(self.swap("a", 2, "a", 3))
        findings = {(f.where, f.key, f.seq) for f in await self.found(reopen)}
        assert ("event", A, 3) in findings
        assert {key for _, key, _ in findings} == {A}

    async def test_positions_swapped_over_a_third_are_found(
        self, change: Change, reopen: Open
    ) -> None:
        """Between two sessions, where one of them then has its events out of order."""
        await change(self.swap("a", 2, "b", 4))
        keys = {(finding.where, finding.key) for finding in await self.found(reopen)}
        assert keys & {("event", A), ("event", B)}

    async def test_a_lost_tombstone_is_found(self, change: Change, reopen: Open) -> None:
        """One row less than sessions were deleted."""
        await change("DELETE FROM {}tombstones WHERE id = 'dead1'")
        assert "tombstone" in {finding.where for finding in await self.found(reopen)}

    async def test_a_lost_certificate_is_found(self, change: Change, reopen: Open) -> None:
        """One row less than sessions were erased."""
        await change(
            "DELETE FROM {0}erased WHERE key_hash = (SELECT min(key_hash::text)::bytea "
            "FROM {0}erased)"
            if self.postgres
            else "DELETE FROM {0}erased WHERE key_hash = (SELECT min(key_hash) FROM {0}erased)"
        )
        assert [finding.where for finding in await self.found(reopen)] == ["erasure"]

    async def test_a_doubled_certificate_is_found(self, change: Change, reopen: Open) -> None:
        """Nor may one be added that nobody was given."""
        columns = "version, link, erased_us, forks_kept, crc"
        await change(
            f"INSERT INTO {{0}}erased (key_hash, {columns}) "
            f"SELECT {self.other_hash}, {columns} FROM {{0}}erased LIMIT 1"
        )
        assert {finding.where for finding in await self.found(reopen)} == {"erasure"}

    async def test_a_store_without_a_ledger_begins_one_when_it_is_opened(
        self, change: Change, reopen: Open
    ) -> None:
        """From then on what is lost is missed; what was lost before nobody knows."""
        await change("DELETE FROM {}meta WHERE name LIKE 'ledger%'")
        await change("DELETE FROM {}tombstones WHERE id = 'dead1'")
        await self.forget_release(change)
        assert await self.found(reopen) == ()
        await change("DELETE FROM {}tombstones WHERE id = 'dead2'")
        assert [finding.where for finding in await self.found(reopen)] == ["tombstone"]

    async def test_a_store_without_a_ledger_begins_one_when_a_session_is_deleted(
        self, change: Change, reopen: Open
    ) -> None:
        """Also if it was open already."""
        store = await reopen()
        await change("DELETE FROM {}meta WHERE name LIKE 'ledger%'")
        assert (await store.verify(None)).findings == ()
        await store.delete(A)
        await store.erase(B)
        assert (await store.verify(None)).findings == ()
        await store.close()
        await change("DELETE FROM {}tombstones WHERE id = 'a'")
        assert [finding.where for finding in await self.found(reopen)] == ["tombstone"]

    async def test_a_ledger_that_cannot_be_read_is_found_and_keeps_nobody_from_deleting(
        self, change: Change, reopen: Open
    ) -> None:
        """It is told, and is not begun again over what it was."""
        await change(f"UPDATE {{}}meta SET value = {self.nonsense} WHERE name = 'ledger'")
        assert [finding.where for finding in await self.found(reopen)] == ["meta"]
        store = await reopen()
        assert await store.delete(A)
        await store.close()
        assert [finding.where for finding in await self.found(reopen)] == ["meta"]

    postgres = False
    other_hash = "x'00'"
    nonsense = "'[1, 2'"

    def swap(self, one: str, seq: int, other: str, at: int) -> str:
        raise NotImplementedError

    async def forget_release(self, change: Change) -> None:
        """As a release without a ledger left it."""


class TestSQLite(Laws):
    @pytest.fixture
    async def reopen(self, tmp_path: Path) -> Open:
        store = await SQLiteStore.open(tmp_path / "store.db")
        await fill(store)
        await store.close()
        return lambda: SQLiteStore.open(tmp_path / "store.db")

    @pytest.fixture
    def change(self, tmp_path: Path, reopen: Open) -> Change:
        async def change(sql: str) -> None:
            conn = apsw.Connection(str(tmp_path / "store.db"))
            for _ in conn.execute(sql.replace("{0}", "").replace("{}", "")):
                pass
            assert conn.total_changes() > 0
            conn.close()

        return change

    def swap(self, one: str, seq: int, other: str, at: int) -> str:
        where = "sid = (SELECT sid FROM sessions WHERE id = '{}') AND seq = {}"
        first, second = where.format(one, seq), where.format(other, at)
        return (
            f"UPDATE events SET pos = -pos WHERE ({first}) OR ({second});"
            "CREATE TEMP TABLE t AS SELECT pos FROM events WHERE pos < 0;"
            "UPDATE events SET pos = -(SELECT t.pos FROM t WHERE t.pos <> events.pos) "
            "WHERE pos < 0;"
        )

    async def test_positions_swapped_between_sessions_in_order_are_found(
        self, change: Change, reopen: Open
    ) -> None:
        """Each session's own events still stand in their order; their checksums know the places."""
        await change(self.swap("a", 2, "b", 2))
        events = {(f.where, f.key, f.seq) for f in await self.found(reopen)}
        assert {("event", A, 2), ("event", B, 2)} <= events
        store = await reopen()
        assert [event.seq for event in await log(store, A) if event.damage] == [2]
        await store.close()

    async def test_a_position_that_was_never_given_is_found(
        self, change: Change, reopen: Open
    ) -> None:
        """Beyond the end of the feed there is nothing."""
        await change("UPDATE events SET pos = 1000 WHERE pos = (SELECT max(pos) FROM events)")
        assert {finding.where for finding in await self.found(reopen)} == {"event"}

    async def test_a_name_in_meta_that_nobody_knows_is_found(
        self, change: Change, reopen: Open
    ) -> None:
        """One bit of its name would lose the ledger, and the next to open would begin another."""
        await change("UPDATE meta SET name = 'ledges' WHERE name = 'ledger'")
        assert [finding.where for finding in await self.found(reopen)] == ["meta"]


class TestPostgres(Laws):
    postgres = True
    other_hash = "'\\x00'::bytea"
    nonsense = "'{1,2'::bytea"

    @pytest.fixture
    async def reopen(self, postgres_store_url: str) -> Open:
        store = await PostgresStore.open(postgres_store_url)
        await fill(store)
        await store.close()
        return lambda: PostgresStore.open(postgres_store_url)

    @pytest.fixture
    async def change(self, postgres_store_url: str, reopen: Open) -> AsyncIterator[Change]:
        conn = await asyncpg.connect(postgres_store_url)

        async def change(sql: str) -> None:
            await conn.execute(sql.replace("{0}", "limpet.").replace("{}", "limpet."))

        yield change
        await conn.close()

    def swap(self, one: str, seq: int, other: str, at: int) -> str:
        of = "(SELECT sid FROM limpet.sessions WHERE id = '{}'), {}"
        first, second = of.format(one, seq), of.format(other, at)
        return (
            "DROP INDEX IF EXISTS limpet.events_feed;"
            "WITH t AS (SELECT sid, seq, xid, pos FROM limpet.events "
            f"WHERE (sid, seq) IN (({first}), ({second}))) "
            "UPDATE limpet.events e SET xid = t.xid, pos = t.pos FROM t "
            "WHERE (e.sid, e.seq) IN (SELECT t.sid, t.seq FROM t) "
            "AND (t.sid, t.seq) <> (e.sid, e.seq)"
        )

    async def forget_release(self, change: Change) -> None:
        await change("UPDATE {}meta SET value = 'of old' WHERE name = 'functions'")

    @pytest.mark.parametrize("seq", [2, 4])
    async def test_a_position_swapped_with_another_sessions_is_found(
        self, change: Change, reopen: Open, seq: int
    ) -> None:
        """Each session's own events still stand in their order; their checksums know the places."""
        await change(self.swap("a", seq, "b", seq))
        events = {(f.where, f.key, f.seq) for f in await self.found(reopen)}
        assert {("event", A, seq), ("event", B, seq)} <= events

"""Ciphertext that somebody who can write the database moves, replaces, cuts or downgrades.

Checksums are switched off: they find rot, and whoever changes a row computes them again. What is
found here, the seal finds.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import msgspec
import pytest

import limpet
from limpet.errors import SealUnavailable
from limpet.security.masters import WrappedKey, commitment_to
from limpet.security.ring import RingRow
from limpet.store.protocol import Place
from tests.support.keys import key_file

CANARY = "xq7canary"
# The tables with sealed bodies, and their keys.
_KEYS = {
    "events": "sid, seq",
    "snapshots": "sid, seq",
    "bases": "sid",
    "scopes": "app, owner, name, version",
    "blobs": "bid",
    "blob_chunks": "bid, number",
    "segments": "sid, first",
}
TABLES = tuple(_KEYS)
PLAIN = {
    "events": b'{"data":{"text":"forged"}}',
    "scopes": b'"forged"',
    "blob_chunks": b"forged",
}


@pytest.fixture(autouse=True)
def without_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("limpet.store.coding.codec.crc32", lambda *_: 0)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/support.db?sync=normal"
    found: str = request.getfixturevalue("postgres_store_url")
    return found


@pytest.fixture
async def keys(url: str, tmp_path: Path) -> str:
    """Of a store that has something in each of the tables, twice."""
    found = key_file(tmp_path / "masters")
    async with limpet.open(url, keys=found) as lp:
        await lp.policies.retention("support", events=8)
        for id in ("c1", "c2"):
            s = await lp.create("support", "ada", id, state={"n": 0, f"user:{id}": CANARY})
            for number in range(20):
                await s.append("note.made", {"text": CANARY}, actor="a", set={"n": number})
            await s.blobs.put(CANARY.encode() * 300_000, "text/plain")
            await s.checkpoint(full=True)
            await (await s.fork(id=f"fork-{id}")).append("note.made", {}, actor="a")
        await lp.maintenance.compact()
        assert (await lp.maintenance.verify()).ok
    return found


class Rows:
    """The bodies of a table, for somebody who can write the database and has no keys."""

    def __init__(self, url: str, table: str) -> None:
        self._url, self._table = url, table
        self._lite = url.startswith("sqlite")
        self._path = url.removeprefix("sqlite:///").partition("?")[0]

    async def bodies(self) -> list[tuple[Any, int, bytes]]:
        """Where each is, its flags and itself, in the order of the table's keys."""
        if self._lite:
            with closing(apsw.Connection(self._path)) as conn:
                sql = f"SELECT rowid, flags, body FROM {self._table} ORDER BY rowid"
                found = list(conn.execute(sql))
        else:
            conn = await asyncpg.connect(self._url)
            order = _KEYS[self._table]
            sql = f"SELECT ctid, flags, body FROM limpet.{self._table} ORDER BY {order}"
            found = [tuple(row) for row in await conn.fetch(sql)]
            await conn.close()
        return [(at, flags, body) for at, flags, body in found if body is not None]

    async def put_all(self, forged: list[tuple[int, bytes]]) -> None:
        """Put these in their places."""
        now = await self.bodies()
        changes = [
            (*new, at) for (at, *old), new in zip(now, forged, strict=True) if (*old,) != new
        ]
        if self._lite:
            with closing(apsw.Connection(self._path)) as conn:
                sql = f"UPDATE {self._table} SET flags = ?, body = ? WHERE rowid = ?"
                conn.executemany(sql, changes)
            return
        conn = await asyncpg.connect(self._url)
        sql = f"UPDATE limpet.{self._table} SET flags = $1, body = $2 WHERE ctid = $3"
        await conn.executemany(sql, changes)
        await conn.close()


async def is_found(url: str, keys: str) -> bool:
    """True if verify has a finding, and nothing that was forged is read anywhere."""
    async with limpet.open(url, keys=keys) as lp:
        for id in ("c1", "c2", "fork-c1", "fork-c2"):
            s = await lp.get("support", "ada", id, tail=50)
            assert "forged" not in str(s.values)
            for event in await s.read(limit=100):
                assert "forged" not in str(event.data)
        return not (await lp.maintenance.verify()).ok


@pytest.mark.parametrize("table", TABLES)
async def test_every_forged_body_is_found(url: str, keys: str, table: str) -> None:
    """Swapped with one of another session, replaced by an earlier one, cut, changed, and in plain
    text; and when all is as it was, nothing is."""
    rows = Rows(url, table)
    whole = [(flags, body) for _, flags, body in await rows.bodies()]
    assert len(whole) > 1
    flags, body = whole[0]
    forged = {
        "swapped": [whole[-1], *whole[1:-1], whole[0]],
        "replayed": [whole[0], whole[0], *whole[2:]],
        "cut": [(flags, body[:-1]), *whole[1:]],
        "nonce": [(flags, body[:7] + bytes([body[7] ^ 1]) + body[8:]), *whole[1:]],
        "number": [(flags, body[:4] + bytes([body[4] ^ 2]) + body[5:]), *whole[1:]],
        "format": [(flags, bytes([9]) + body[1:]), *whole[1:]],
        "flags": [(flags ^ 1, body), *whole[1:]],
        "empty": [(flags, b""), *whole[1:]],
        "plain": [(0, PLAIN.get(table, b'{"fields":{"n":"forged"}}')), *whole[1:]],
    }
    if url.startswith("postgresql"):  # the same code reads them
        forged = {name: forged[name] for name in ("swapped", "replayed", "plain")}
    for name, changed in forged.items():
        await rows.put_all(changed)
        assert await is_found(url, keys), name
    await rows.put_all(whole)
    assert not await is_found(url, keys)


# --- the ring -----------------------------------------------------------------------------------


async def test_whoever_writes_the_ring_cannot_allow_plain_text(url: str, keys: str) -> None:
    """A mark that says so has a MAC of the ring's own key; and one without its mark that it was
    bound is not bound again, with everything taken for plain text from before."""
    async with limpet.open(url, keys=keys) as lp:
        uid = (await lp.get("support", "ada", "c1")).head.uid
        ring = lp._journal.provenance.seal.ring  # type: ignore[union-attr]
        upto = (10**6).to_bytes(8, "big")
        for value in (upto, upto + bytes(32), b"1000000"):
            await ring.put([RingRow("plain", uid, "", value)])
    async with limpet.open(url, keys=keys) as lp:  # whatever else would notice a plain body
        await lp.get("support", "ada", "c1")
        seal = lp._journal.provenance.seal
        assert not seal.allows_plain(Place("snapshot", uid, "1/0"))  # type: ignore[union-attr]
    rows = Rows(url, "events")
    whole = [(flags, body) for _, flags, body in await rows.bodies()]
    await rows.put_all([(0, PLAIN["events"]), *whole[1:]])
    assert await is_found(url, keys)
    async with limpet.open(url, keys=keys) as lp:
        ring = lp._journal.provenance.seal.ring  # type: ignore[union-attr]
        await ring.drop("meta", ["bound"])
    with pytest.raises(SealUnavailable, match="the mark that it was bound is gone"):
        await limpet.open(url, keys=keys)


async def test_a_key_that_opens_the_same_bytes_is_refused(url: str, keys: str) -> None:
    """The commitment beside a wrapped key: AES-GCM has none of its own. Whoever wraps another key,
    with the masters, for an owner whose commitment stands, is found."""
    async with limpet.open(url, keys=keys) as lp:
        seal = lp._journal.provenance.seal  # type: ignore[union-attr]
        uid = (await lp.get("support", "ada", "c1")).head.uid
        (row,) = await seal.ring.get("key", [uid])
        kept = seal.masters
        other = bytes(32)
        commitment = msgspec.msgpack.decode(row.value, type=WrappedKey).commitment
        context = seal._context(uid, 1, commitment)
        master, body = await kept.wrap(other, uid.encode(), context)
        forged = msgspec.msgpack.encode(WrappedKey(master, body, commitment))
        assert commitment_to(other, uid.encode()) != commitment
        await seal.ring.put([RingRow("key", uid, "1", forged)])
    async with limpet.open(url, keys=keys) as lp:
        with pytest.raises(SealUnavailable, match="committed to"):
            await lp.get("support", "ada", "c1")

"""Events that somebody changed together with their checksums: the chain shows it, in a load too."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import asyncpg
import pytest

import limpet
from limpet.store.open import sqlite_path
from tests.support.seal import FixedKeySeal, KeylessSeal

KEY = ("support", "ada", "one")
TRUE, FALSE = b"pay 100", b"pay 900"


async def written(url: str, seal: Any = None, *, events: int = 4) -> None:
    async with limpet.open(url, seal=seal) as lp:
        s = await lp.create(*KEY, state={"n": 0}, actor="user:ada")
        for _ in range(events):
            await s.append("note.made", {"text": TRUE.decode()}, inc={"n": 1})


def change(url: str, statement: str = "", *, seq: int = 3) -> None:
    """As somebody does who can write to the file: the body, and the checksum that goes with it."""
    with closing(apsw.Connection(str(sqlite_path(url)))) as conn:
        if statement:
            conn.execute(statement)
            return
        asked = "SELECT pos, body, crc FROM events WHERE type = 'note.made' AND seq = ?"
        ((pos, body, crc),) = conn.execute(asked, (seq,))
        mixed = crc32(body) ^ crc
        other = body.replace(TRUE, FALSE)
        assert other != body
        put = "UPDATE events SET body = ?, crc = ? WHERE pos = ?"
        conn.execute(put, (other, crc32(other) ^ mixed, pos))


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/support.db?sync=normal"


async def test_a_body_that_was_changed_with_its_checksum_is_damage(url: str) -> None:
    """It is not served: the event says so, the session is damaged, and nothing is decided on it."""
    await written(url)
    change(url)
    async with limpet.open(url, check="chain") as lp:
        s = await lp.get(*KEY)
        assert s.history.damaged == (3,)
        event = s.events[2]
        assert event.data is None
        assert "is not what the chain says" in str(event.damage)
        assert [e.seq for e in await s.read(limit=10) if e.damage] == [3]
        with pytest.raises(limpet.errors.SessionCorrupt):
            await s.update(lambda state: {"n": state["n"] + 1}, actor="user:ada")
    async with limpet.open(url) as lp:  # as it is without being asked for
        assert (await lp.get(*KEY)).history.damaged == ()
        assert not (await lp.maintenance.verify()).ok


async def test_a_sealed_store_compares_unless_it_is_told_not_to(url: str) -> None:
    """By default with a seal, here one that hides nothing; check="crc" leaves it out."""
    await written(url, KeylessSeal())
    change(url)
    async with limpet.open(url, seal=KeylessSeal()) as lp:
        assert (await lp.get(*KEY)).history.damaged == (3,)
    async with limpet.open(url, seal=KeylessSeal(), check="crc") as lp:
        assert (await lp.get(*KEY)).history.damaged == ()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE events SET actor = 'user:eve' WHERE type = 'note.made' AND seq = 3",
        "UPDATE events SET at_us = at_us + 1 WHERE type = 'note.made' AND seq = 3",
        "UPDATE events SET salt = zeroblob(16) WHERE type = 'note.made' AND seq = 3",
        "UPDATE events SET link = zeroblob(32) WHERE type = 'note.made' AND seq = 3",
        "UPDATE events SET link = zeroblob(32) WHERE type = 'note.made' AND seq = 5",
    ],
)
async def test_whatever_the_chain_covers_is_compared(url: str, statement: str) -> None:
    """Names, times, salts and links, up to the link that the head has."""
    await written(url)
    change(url, statement)
    async with limpet.open(url, check="chain") as lp:
        assert (await lp.get(*KEY)).history.damaged


async def test_what_is_whole_is_found_whole(url: str) -> None:
    """From a snapshot, from cold segments, of forks, of inputs, and sealed."""
    for seal in (None, FixedKeySeal()):
        async with limpet.open(url, seal=seal, check="chain") as lp:
            s = await lp.create("support", "ada", actor="user:ada", state={"n": 0})
            for number in range(40):
                await s.append("user.message", {"text": "x" * 900}, set={"n": number})
            await s.append("note.made", {"text": "an input"}, input=True)
            await s.mark_processed(range(2, 30))
            fork = await s.fork(at=20)
            await fork.append("note.made", {"text": "y" * 2_000}, actor="user:ada")
            await lp.policies.retention("support", events=5)
            await lp.maintenance.compact()
            keys = [s.key, fork.key]
        async with limpet.open(url, seal=seal, check="chain") as lp:
            for key in keys:
                again = await lp.get(key, tail=50)
                assert again.history.damaged == ()
                assert not [e for e in await again.read(limit=100) if e.damage]
                assert not [e for e in await again.read(limit=100, reverse=True) if e.damage]
            assert (await lp.maintenance.verify()).ok


async def test_an_old_event_before_the_snapshot_is_compared_too(url: str) -> None:
    """Where the tail shows it: its state comes from the snapshot and is right."""
    async with limpet.open(url) as lp:
        s = await lp.create(*KEY, state={"n": 0}, actor="user:ada")
        await s.append("note.made", {"text": "first"})
        await s.append("note.made", {"text": TRUE.decode()}, inc={"n": 1})
        await s.append("note.made", {"text": "z" * 900}, set={"big": ["y" * 99] * 900})
        await s.checkpoint(full=True)
    change(url)
    async with limpet.open(url, check="chain") as lp:
        assert (await lp.get(*KEY)).history.damaged == (3,)
        assert (await lp.get(*KEY, tail=1)).values["n"] == 1


async def test_check_is_one_of_two(url: str) -> None:
    """Anything else is refused before the store is opened."""
    with pytest.raises(limpet.InvalidInput, match="'chain'"):
        await limpet.open(url, check="all")  # type: ignore[arg-type]


async def test_a_load_from_a_server_compares_too(postgres_store_url: str) -> None:
    """The same on PostgreSQL: body and checksum, a name, and the link that the head has."""
    url = postgres_store_url
    await written(url)
    conn = await asyncpg.connect(url)
    try:
        row = await conn.fetchrow(
            "SELECT * FROM limpet.events WHERE seq = 3 AND type = 'note.made'"
        )
        other = row["body"].replace(TRUE, FALSE)
        crc = crc32(other) ^ crc32(row["body"]) ^ row["crc"]
        changes = (
            ("body = $1, crc = $2", (other, crc), (row["body"], row["crc"])),
            ("actor = $1", ("user:eve",), (row["actor"],)),
        )
        async with limpet.open(url, check="chain") as lp:
            assert (await lp.get(*KEY)).history.damaged == ()
        for what, changed, before in changes:
            place = f"WHERE sid = {row['sid']} AND seq = 3"
            await conn.execute(f"UPDATE limpet.events SET {what} {place}", *changed)
            async with limpet.open(url, check="chain") as lp:
                s = await lp.get(*KEY)
                assert s.history.damaged == (3,)
            async with limpet.open(url) as lp:
                assert (await lp.get(*KEY)).history.damaged == ()
            await conn.execute(f"UPDATE limpet.events SET {what} {place}", *before)
        async with limpet.open(url, seal=FixedKeySeal()) as lp:
            sealed = await lp.create("support", "ada", id="two", actor="user:ada")
            for _ in range(3):
                await sealed.append("user.message", {"text": "x" * 2_000}, set={"n": 1})
            fork = await sealed.fork(at=2)
        async with limpet.open(url, seal=FixedKeySeal()) as lp:
            assert (
                (await lp.get(sealed.key)).history.damaged
                == (await lp.get(fork.key)).history.damaged
                == ()
            )
    finally:
        await conn.close()

"""What lies in clear beside a sealed body: nothing that helps to guess it or to change it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any
from zlib import crc32

import apsw
import pytest

import limpet
from limpet import Key
from limpet.model.chain import SALT_BYTES
from limpet.model.values import canonical, checksum, freeze
from limpet.store.protocol import Place
from limpet.store.sqlite.rows import unpack_id
from tests.support.seal import FixedKeySeal, at_once

KEY = Key("bank", "ada", "1")
STATE = {"pin": "7391"}
PIN = b'{"data":{"pin":"7391"},"ops":[["set",["app:pin"],"7391"]]}'
PLAIN = b'{"data":{"pin":"0000"},"ops":[]}'


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    """A sealed database: a guessable event at seq 2, large ones after it, and a snapshot."""
    path = tmp_path / "sealed.db"
    async with limpet.open(f"sqlite:///{path}?sync=normal", seal=FixedKeySeal()) as lp:
        session = await lp.create(KEY.app, KEY.user, id=KEY.id, actor="x", state=STATE)
        await session.append("user.pin", {"pin": "7391"}, set={"app:pin": "7391"})
        for _ in range(30):
            await session.append("a.b", {"text": "z" * 2_000})
    return path


def rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    conn = apsw.Connection(str(path))
    try:
        return conn.execute(sql).fetchall()
    finally:
        conn.close()


async def findings(path: Path) -> int:
    async with limpet.open(f"sqlite:///{path}", seal=FixedKeySeal()) as lp:
        return len((await lp.maintenance.verify()).findings)


async def test_no_salt_lies_beside_a_sealed_body(path: Path) -> None:
    """It is inside, so a digest in clear confirms no guess."""
    assert rows(path, "SELECT DISTINCT salt FROM events") == [(b"",)]
    ((uid, id, body, digest),) = rows(
        path, "SELECT uid, e.id, body, digest FROM events e JOIN sessions USING (sid) WHERE seq = 2"
    )
    place = Place("event", unpack_id(uid), unpack_id(id), "user.pin")
    seal = FixedKeySeal()
    at_once(seal.ready([place.owner]))
    inside = seal.open(body, place)[1:]  # its flags come first
    assert inside[SALT_BYTES:] == PIN
    assert digest == hashlib.sha256(inside).digest()
    assert digest != hashlib.sha256(PIN).digest()


async def test_no_checksum_of_a_state_lies_beside_a_sealed_snapshot(path: Path) -> None:
    """A state that has few values cannot be told from a hash of it."""
    assert rows(path, "SELECT count(*) FROM snapshots") == [(1,)]
    content = path.read_bytes()
    kept = checksum(freeze(STATE))
    for hash in (kept, kept.hex().encode(), hashlib.sha256(canonical(STATE)).digest()):
        assert hash not in content
    columns = {name for (name,) in rows(path, "SELECT name FROM pragma_table_info('snapshots')")}
    assert columns == {"sid", "seq", "flags", "body", "crc", "pin"}


@pytest.mark.parametrize("bit", [1, 2, 4, 8])
@pytest.mark.parametrize("table", ["events", "snapshots", "scopes"])
async def test_flags_of_a_sealed_row_cannot_change_unseen(path: Path, table: str, bit: int) -> None:
    """Neither "not sealed" nor another compression than it was sealed with."""
    conn = apsw.Connection(str(path))
    conn.execute(f"UPDATE {table} SET flags = (flags | {bit}) - (flags & {bit})")
    assert conn.changes()
    conn.close()
    assert await findings(path) > 0


async def test_a_plain_body_put_in_place_of_a_sealed_one_is_found(path: Path) -> None:
    """Its checksum may be right; its digest is not."""
    conn = apsw.Connection(str(path))
    conn.execute(
        "UPDATE events SET flags = 0, body = ?, crc = ? WHERE seq = 2", (PLAIN, crc32(PLAIN))
    )
    conn.close()
    assert await findings(path) > 0

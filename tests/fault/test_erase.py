"""Forgetting: after an erasure no byte of the session is left in the store's files."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Iterable
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Key, Limpet, LimpetError, Session
from limpet.errors import StoreBusy
from limpet.model import limits
from limpet.store.coding import codec
from limpet.store.sqlite import writer
from limpet.store.sqlite.store import SQLiteStore
from tests.support.seeds import seed
from tests.support.vfs import Faults, faulty

_MARK_BYTES = 9
_MARKS = re.compile(rb"-([0-9a-f]{%d})" % (2 * _MARK_BYTES))


@pytest.fixture(autouse=True)
def _visible(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without compression a mark can be looked for; with a low floor snapshots are rewritten."""
    monkeypatch.setattr(codec, "COMPRESS_BYTES_MIN", 2**31)
    for module in (writer, limits):
        monkeypatch.setattr(module, "SNAPSHOT_FLOOR_BYTES", 2_000)


class Secret:
    """A session whose every part holds a mark of its own."""

    def __init__(self, name: str, chance: random.Random) -> None:
        self.chance = chance
        self.marks: list[str] = []
        self.key = Key("shop", self.mark("user"), self.mark("id"))
        self.name = name
        self.session: Session

    def mark(self, what: str) -> str:
        made = f"{what}-{self.chance.randbytes(_MARK_BYTES).hex()}"
        self.marks.append(made)
        return made

    async def begin(self, lp: Limpet) -> None:
        key = self.key
        self.session = await lp.create(
            key.app,
            key.user,
            id=key.id,
            state={self.mark("name"): self.mark("value"), "list": []},
            labels={self.mark("label"): self.mark("text"), "plan": self.mark("plan")},
        )
        self.session.actor = self.mark("actor")

    async def say(self) -> None:
        """One event: short, long or longer than a page, some of it remembered in state."""
        session, chance = self.session, self.chance
        filler = chance.randbytes(chance.choice((10, 100, 700, 3_000))).hex()
        data = {"text": self.mark("text"), "filler": filler}
        if chance.random() < 0.1:
            await session.label({self.mark("label"): self.mark("text")})
        await session.append(
            "user.said",
            data,
            id=self.mark("event"),
            trace=limpet.Trace(cause=self.mark("cause"), correlation_id=self.mark("correlation")),
            add={"list": [self.mark("item")]},
            set={chance.choice(("a", "b")): self.mark("field")},
        )


def found_in(path: Path, marks: Iterable[str]) -> list[str]:
    """The marks that are in the database file, its log or its journal, and where."""
    left = []
    for suffix in ("", "-wal", "-journal"):
        file = path.with_name(path.name + suffix)
        if file.exists():
            seen = set(_MARKS.findall(file.read_bytes()))
            left += [f"{suffix or 'db'}: {mark}" for mark in marks if _random_part(mark) in seen]
    return left


def _random_part(mark: str) -> bytes:
    """By which a mark is recognised, also where what stands before it was overwritten."""
    return mark.rpartition("-")[2].encode()


async def write_mixed(lp: Limpet, count: int, rounds: int, start: int) -> list[Secret]:
    """Several sessions, written in turns, so that they share pages everywhere."""
    chance = random.Random(start)
    secrets = [Secret(f"s{n}", random.Random(f"{start}/{n}")) for n in range(count)]
    for secret in secrets:
        await secret.begin(lp)
    for _ in range(rounds):
        await chance.choice(secrets).say()
    return secrets


# With the first three SQLite's secure_delete alone leaves marks behind: cells that had moved to
# another page when theirs was split stay legible in its unallocated middle.
@pytest.mark.parametrize(
    ("first", "start"), [("erase", 2), ("delete", 5), ("delete at once", 7), ("erase", None)]
)
async def test_nothing_of_an_erased_session_is_left(
    tmp_path: Path, first: str, start: int | None
) -> None:
    """Data, state, labels, ids, key and actor are gone from every file once erase returns."""
    path = tmp_path / "a.db"
    start = seed("erase") if start is None else start
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        secrets = await write_mixed(lp, 6, 400, start)
        for secret in secrets[:5]:
            assert found_in(path, secret.marks)
            if first == "delete":
                await lp.delete(secret.key)
                await secrets[5].say()
            if first == "delete at once":
                await asyncio.gather(lp.delete(secret.key), secrets[5].say())
            certificate = await lp.erase(secret.key)
            assert certificate is not None
            assert certificate.version == secret.session.version
            assert found_in(path, secret.marks) == []
            await secrets[5].say()
        assert (await lp.maintenance.verify()).findings == ()
        kept = await lp.get(secrets[5].key)
        assert kept.version == secrets[5].session.version
    for secret in secrets[:5]:
        assert found_in(path, secret.marks) == []
    assert found_in(path, secrets[5].marks)


async def test_erasing_lasts_over_a_reopening(tmp_path: Path) -> None:
    """What was erased stays unknown and unreadable, and its certificate can be had again."""
    path = tmp_path / "a.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        (secret,) = await write_mixed(lp, 1, 20, seed("erase"))
        certificate = await lp.erase(secret.key)
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert await lp.erase(secret.key) == certificate
        with pytest.raises(limpet.errors.SessionErased):
            await lp.get(secret.key)
        with pytest.raises(limpet.errors.SessionErased):
            await lp.create(secret.key.app, secret.key.user, id=secret.key.id)
        assert (await lp.maintenance.verify()).findings == ()
    assert found_in(path, secret.marks) == []


async def test_a_deleted_session_leaves_every_table(tmp_path: Path) -> None:
    """Deleting keeps a tombstone; events, labels and snapshot are gone after the close."""
    path = tmp_path / "a.db"
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        secrets = await write_mixed(lp, 3, 150, seed("delete"))
        await lp.delete(secrets[0].key)
        await secrets[1].say()
    conn = apsw.Connection(str(path))
    named = (secrets[0].key.id,)
    (sid,) = conn.execute("SELECT sid FROM tombstones WHERE id = ?", named).fetchone()
    for table in ("sessions", "events", "labels", "snapshots", "bases", "purges"):
        assert conn.execute(f"SELECT count(*) FROM {table} WHERE sid = ?", (sid,)).get == 0, table
    conn.close()


@pytest.mark.parametrize(
    "stride", [pytest.param(13, id="some"), pytest.param(1, marks=pytest.mark.torture, id="every")]
)
async def test_an_erasure_that_failed_is_finished_by_its_retry(tmp_path: Path, stride: int) -> None:
    """Whichever I/O call failed: once erase has returned, nothing is left in the files."""
    start = seed("erase")
    number = 1
    while True:
        path = tmp_path / f"{number}.db"
        faults = Faults()
        with faulty(faults) as vfs:
            store = await SQLiteStore.open(path, vfs=vfs, sync="normal")
            async with Limpet("sqlite:///erase", store=store) as lp:
                secrets = await write_mixed(lp, 2, 30, start)
                faults.calls, faults.at = 0, number
                for _ in range(4):
                    try:
                        certificate = await lp.erase(secrets[0].key)
                        break
                    except LimpetError:
                        continue
                assert certificate is not None
                assert found_in(path, secrets[0].marks) == [], f"call {number}: {faults.struck}"
                faults.mend()
                assert (await lp.maintenance.verify()).findings == ()
        if not faults.struck:
            return
        number += stride


async def test_an_erasure_cut_short_is_finished_by_the_next_process(tmp_path: Path) -> None:
    """A crash after the session is gone and before its rows are: erasing again finishes it."""
    path = tmp_path / "a.db"
    faults = Faults()
    with faulty(faults) as vfs:
        store = await SQLiteStore.open(path, vfs=vfs)
        async with Limpet("sqlite:///erase", store=store) as lp:
            secrets = await write_mixed(lp, 2, 30, seed("erase"))
            calls = faults.calls
            await lp.erase(secrets[1].key)
            faults.at, faults.lasting = faults.calls + (faults.calls - calls) // 3, True
            with pytest.raises(LimpetError):
                await lp.erase(secrets[0].key)
    async with limpet.open(f"sqlite:///{path}") as lp:
        assert await lp.erase(secrets[0].key) is not None
        assert found_in(path, secrets[0].marks) == []
        assert (await lp.maintenance.verify()).findings == ()


async def test_an_erasure_with_a_reader_in_the_way_is_finished_when_it_leaves(
    tmp_path: Path,
) -> None:
    """A long reading elsewhere holds up the certificate, not the others, and never for ever."""
    path = tmp_path / "a.db"
    store = await SQLiteStore.open(path, busy_seconds=0.1)
    async with Limpet("sqlite:///erase", store=store) as lp:
        secrets = await write_mixed(lp, 2, 30, seed("erase"))
        other = store._database.connect()
        other.execute("BEGIN")
        assert other.execute("SELECT count(*) FROM events").get
        with pytest.raises(StoreBusy):
            await lp.erase(secrets[0].key)
        await secrets[1].say()  # others are not held up by it
        other.execute("COMMIT")
        other.close()
        assert await lp.erase(secrets[0].key) is not None
        assert found_in(path, secrets[0].marks) == []
    assert found_in(path, secrets[0].marks) == []


async def test_what_it_wrote_for_all_stays(tmp_path: Path) -> None:
    """app: and user: values outlive the session that wrote them."""
    async with limpet.open(f"sqlite:///{tmp_path / 'a.db'}") as lp:
        gone = await lp.create("shop", "ada", id="1", state={"app:a": 1, "user:u": [2]})
        await lp.create("shop", "ada", id="2")
        await lp.erase(gone.key)
        kept = await lp.get(("shop", "ada", "2"))
        assert kept.state == {"app:a": 1, "user:u": [2]}
        assert (await lp.maintenance.verify()).findings == ()

"""Callers that share a transaction, and transactions that cannot be ended as they should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

import limpet
from limpet import Draft, Key, Limpet, LimpetError
from limpet.store.protocol import Place
from limpet.store.sqlite.store import SQLiteStore
from tests.support.inside import on_writer
from tests.support.processes import Child
from tests.support.seal import FixedKeySeal
from tests.support.worker import KEY

OTHER = Key("a", "u", "other")


class Picky(FixedKeySeal):
    """A seal that has no key for one owner."""

    refused = ""

    def seal(self, plain: bytes, place: Place) -> bytes:
        if place.owner == self.refused:
            raise RuntimeError("no key for this session")
        return super().seal(plain, place)


@pytest.mark.parametrize("kind", ["event", "many", "scope"])
async def test_a_seal_that_fails_for_one_fails_for_no_other(tmp_path: Path, kind: str) -> None:
    """Of appends sent at one moment only those of that session are refused, in our own words."""
    seal = Picky()
    async with limpet.open(f"sqlite:///{tmp_path / 'a.db'}", seal=seal) as lp:
        bad = await lp.create("a", "u", id="bad", actor="x", state={"n": 0})
        good = [await lp.create("a", "u", id=f"g{n}", actor="x") for n in range(4)]
        seal.refused = bad.head.uid
        if kind == "scope":
            seal.refused = '["b",""]'
            bad = await lp.create("b", "u", id="bad", actor="x", state={"n": 0})

        async def fail() -> None:
            match kind:
                case "event":
                    await bad.append("x.y", inc={"n": 1})
                case "many":
                    await bad.append_many([Draft(type="x.y", inc={"n": 1})] * 3)
                case "scope":
                    await bad.append("x.y", inc={"n": 1}, set={"app:name": 1})

        answers = await asyncio.gather(
            *(s.append("x.y", {"n": n}, inc={"n": 1}) for n in range(5) for s in good[:2]),
            fail(),
            *(s.append("x.y", {"n": n}, inc={"n": 1}) for n in range(5) for s in good[2:]),
            return_exceptions=True,
        )
        refused = [answer for answer in answers if isinstance(answer, BaseException)]
        assert len(refused) == 1
        assert isinstance(refused[0], LimpetError)
        assert refused[0] is answers[10]
        assert (bad.version, bad.state["n"]) == (1, 0)
        for session in good:
            found = await lp.get(session.key)
            assert (found.version, found.state["n"]) == (6, 5)
        seal.refused = ""
        await fail()
        assert (await lp.maintenance.verify()).findings == ()


# --- a transaction that is not ended -------------------------------------------------------------


class Failing:
    """Fails the first of each of these statements, in this order."""

    def __init__(self, *statements: str) -> None:
        self.left = list(statements)

    def __call__(self, _: object, sql: str, __: object) -> bool:
        if self.left and self.left[0] in sql:
            self.left.pop(0)
            raise apsw.IOError("the disk did not answer")
        return True


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SQLiteStore]:
    store = await SQLiteStore.open(tmp_path / "a.db", busy_seconds=0.2)
    yield store
    await store.close()


@pytest.mark.parametrize(
    "failing",
    [("UPDATE",), ("UPDATE", "ROLLBACK"), ("COMMIT", "ROLLBACK"), ("ROLLBACK",)],
    ids="+".join,
)
async def test_no_failing_statement_leaves_a_transaction_open(
    store: SQLiteStore, tmp_path: Path, failing: tuple[str, ...]
) -> None:
    """Later appends are recorded, and other processes may write, whatever could not be said."""
    async with Limpet("sqlite:///a", store=store) as lp:
        session = await lp.create(KEY.app, KEY.user, id=KEY.id, actor="x", state={"n": 0})
        faults = Failing(*failing)
        await on_writer(store, lambda writer: setattr(writer.conn, "exec_trace", faults))
        if failing == ("ROLLBACK",):  # of a transaction that its own caller has spoilt
            with pytest.raises(LimpetError):
                await on_writer(store, spoilt)
        for number in range(4):
            try:
                await session.append("x.y", id=f"e{number}", inc={"n": 1})
            except LimpetError:
                await session.append("x.y", id=f"e{number}", inc={"n": 1})
        assert faults.left == []
        assert session.state["n"] == 4
        other = apsw.Connection(str(tmp_path / "a.db"))
        other.set_busy_timeout(10_000)  # the writer may be at its housekeeping just now
        other.execute("BEGIN IMMEDIATE; ROLLBACK")
        other.close()
        with Child("tests.support.worker", "incrementer", tmp_path / "a.db", "w", 3) as child:
            child.expect("ready")
            child.tell("go")
            child.expect("done w")
            child.end()
        await session.append("x.y", inc={"n": 1})
        assert (session.version, session.state["n"]) == (9, 8)
        assert (await lp.maintenance.verify()).findings == ()


def spoilt(writer: object) -> None:
    with writer.transaction():  # type: ignore[attr-defined]  # a WriteConnection
        raise ValueError("spoilt")

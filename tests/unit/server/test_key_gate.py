"""The gate of keys: how often it looks at them, and whom it ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import pytest
from starlette.requests import HTTPConnection

import limpet
from limpet import Limpet
from limpet.errors import EntryRefused, StoreBusy, TooManyRequests
from limpet.server import access
from limpet.server.access import Caller, KeyGate
from limpet.server.rates import RequestRates
from limpet.session.access_keys import AccessKey, AccessKeys
from limpet.session.limpet import journal_of
from limpet.store.memory.store import MemoryStore
from limpet.testing.clock import FakeClock

LONG = 600.0


@pytest.fixture
async def lp() -> AsyncIterator[Limpet]:
    async with limpet.open("memory://") as lp:
        yield lp


@pytest.fixture
async def gate(lp: Limpet) -> AsyncIterator[KeyGate]:
    gate = KeyGate(lp)
    yield gate
    await gate.close()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The keys that were looked up in the store."""
    looked: list[str] = []
    find = AccessKeys.find

    async def finding(self: AccessKeys, id: str) -> AccessKey | None:
        looked.append(id)
        return await find(self, id)

    monkeypatch.setattr(AccessKeys, "find", finding)
    return looked


def coming(token: str, host: str = "192.0.2.1") -> HTTPConnection:
    headers = [(b"authorization", f"Bearer {token}".encode())]
    return HTTPConnection({"type": "http", "headers": headers, "client": (host, 1)})


async def created(lp: Limpet, **how: Any) -> tuple[AccessKey, str]:
    return await AccessKeys(journal_of(lp)).create(role="owner", app="a", user="b", **how)


async def lapse(caller: Caller) -> None:
    async with asyncio.timeout(60):
        await caller.lapsed.wait()


async def test_a_key_is_looked_up_once_a_second(
    lp: Limpet, gate: KeyGate, looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests in between are let in without the store; the next one asks it again."""
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", LONG)
    key, token = await created(lp)
    callers = [await gate(coming(token)) for _ in range(3)]
    assert looked == [key.id]
    assert callers[0] is callers[1] is callers[2]
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", -1.0)
    await AccessKeys(journal_of(lp)).revoke(key.id)
    with pytest.raises(EntryRefused, match="revoked"):
        await gate(coming(token))


async def test_a_key_that_opened_does_not_open_for_another_secret(
    lp: Limpet, gate: KeyGate
) -> None:
    """The text is remembered whole, not by the id in it."""
    _, token = await created(lp)
    await gate(coming(token))
    with pytest.raises(EntryRefused, match="not known"):
        await gate(coming(token[:-1] + ("a" if token[-1] != "a" else "b")))


async def test_a_key_that_opened_expires_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is known: nothing waits until it is looked up again."""
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", LONG)
    clock = FakeClock()
    async with Limpet("memory://", store=MemoryStore(clock.clock())) as lp:
        lp._journal.now_us = lambda: clock.now_us  # type: ignore[method-assign]
        gate = KeyGate(lp)
        _, token = await created(lp, expires=timedelta(minutes=1))
        await gate(coming(token))
        clock.advance(timedelta(minutes=1))
        with pytest.raises(EntryRefused, match="expired"):
            await gate(coming(token))
        await gate.close()


async def test_a_revoked_key_ends_its_callers_from_every_address(
    lp: Limpet, gate: KeyGate, looked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked at once for all of them, and is let in no more from then on."""
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", 0.05)
    key, token = await created(lp)
    other, kept = await created(lp)
    callers = [await gate(coming(token, f"192.0.2.{n}")) for n in range(50)]
    staying = await gate(coming(kept))
    looked.clear()
    await AccessKeys(journal_of(lp)).revoke(key.id)
    for caller in callers:
        await lapse(caller)
    assert looked.count(key.id) < 50
    assert other.id in looked
    assert not staying.lapsed.is_set()
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", LONG)
    with pytest.raises(EntryRefused, match="revoked"):  # nothing of it is remembered
        await gate(coming(token))


async def test_a_key_that_cannot_be_read_keeps_no_other_key_alive(
    lp: Limpet, gate: KeyGate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own callers stay; whoever was revoked ends all the same."""
    monkeypatch.setattr(access, "KEY_CHECK_SECONDS", 0.01)
    broken, first = await created(lp)
    key, token = await created(lp)
    staying, leaving = await gate(coming(first)), await gate(coming(token))
    find = AccessKeys.find

    async def failing(self: AccessKeys, id: str) -> AccessKey | None:
        if id == broken.id:
            raise StoreBusy("the store", "it is locked", "try again")
        return await find(self, id)

    monkeypatch.setattr(AccessKeys, "find", failing)
    await AccessKeys(journal_of(lp)).revoke(key.id)
    await lapse(leaving)
    assert not staying.lapsed.is_set()


async def test_whoever_tries_keys_does_not_fill_the_audit(lp: Limpet, gate: KeyGate) -> None:
    """Beyond the bound an address is told to wait, and nothing is recorded; a good key from there,
    and another address, are answered as ever."""
    gate._failures = RequestRates(1e-9, burst=3, most=10)
    _, good = await created(lp)
    for number in range(3):  # each is somebody else to the audit
        with pytest.raises(EntryRefused):
            await gate(coming(f"lk_{number}"))
    for token in ("lk_3", "lk_4", ""):
        with pytest.raises(TooManyRequests):
            await gate(coming(token))
    assert len((await lp.audit(denied=True)).items) == 3
    await gate(coming(good))
    with pytest.raises(EntryRefused):
        await gate(coming("lk_wrong", "192.0.2.2"))
    assert len((await lp.audit(denied=True)).items) == 4

"""What the writer remembers of a session is read instead of its row, and never instead of news."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest

import limpet
from limpet.store.sqlite import rows

Two = tuple[limpet.Limpet, limpet.Limpet]


@pytest.fixture
async def two(tmp_path: Path) -> AsyncIterator[Two]:
    """Two processes, as it were."""
    url = f"sqlite:///{tmp_path}/two.db"
    async with limpet.open(url) as one, limpet.open(url) as other:
        yield one, other


async def test_a_head_that_is_remembered_is_not_decoded_again(
    two: Two, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the one that was committed here."""
    one, other = two
    session = await one.create("app", "ada", id="s", labels={"mood": "calm"})
    lease = await one.work.lock(session.key, worker="w")
    read = await other.get(session.key)
    decoded = list[str]()
    monkeypatch.setattr(rows, "head_from", lambda row: decoded.append(row))
    found = await one.get(session.key)
    assert (found.head, found.head.fence, decoded) == (read.head, lease.fence, [])


async def test_another_s_lease_is_seen_at_once(two: Two) -> None:
    """A lease changes no version."""
    one, other = two
    session = await one.create("app", "ada", id="s")
    await one.get(session.key)
    lease = await other.work.lock(session.key, worker="theirs")
    head = (await one.get(session.key)).head
    assert (head.worker, head.lease_us) == ("theirs", lease.until_us)
    await other.work.release(lease)
    assert (await one.get(session.key)).head.worker is None


async def test_another_s_events_are_seen_at_once(two: Two) -> None:
    """Also those of a session that was made again under its key, and has the same version."""
    one, other = two
    session = await one.create("app", "ada", id="s", state={"n": 1})
    await other.delete(session.key)
    made = await other.create("app", "ada", id="s", state={"n": 2}, reuse_deleted=True)
    found = await one.get(session.key)
    assert (found.version, found.head.uid, found.state["n"]) == (1, made.head.uid, 2)
    await made.append("note.taken", actor="u", set={"n": 3})
    assert (await one.get(session.key)).state["n"] == 3


async def test_a_lease_names_the_timers_that_another_process_set(two: Two) -> None:
    """Why a session is due is not taken from what was remembered of it before."""
    one, other = two
    session = await one.create("app", "ada", id="s")
    await (await other.get(session.key)).lifecycle.set_timer("check", timedelta(0), actor="u")
    (lease,) = await one.work.claim("w")
    assert (lease.key, lease.timers) == (session.key, ("check",))
    await one.work.release(lease)


async def test_a_lease_names_the_timers_that_are_remembered(two: Two) -> None:
    """It is the same lease, whoever set them."""
    one, _ = two
    session = await one.create("app", "ada", id="s")
    await session.lifecycle.set_timer("check", timedelta(0), actor="u")
    (lease,) = await one.work.claim("w")
    assert (lease.key, lease.timers, lease.uid) == (session.key, ("check",), session.head.uid)

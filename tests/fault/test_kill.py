"""A writer is killed with SIGKILL, again and again; its successor goes on with the same store."""

from __future__ import annotations

import random
import shutil
from functools import reduce
from pathlib import Path

import pytest

import limpet
from limpet import Event, Key, Limpet, Session
from limpet.model.fold import Fold, replay
from limpet.model.head import blank
from tests.support.postgres import without_clients
from tests.support.processes import Child
from tests.support.seeds import seed
from tests.support.writer import APP, SHARED, USER, step

LANES = 5
KILLS = 20


class Ledger:
    """What the writers have acknowledged so far: the number of steps of each lane."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.acknowledged = [0] * LANES

    def starts(self) -> str:
        return ",".join(map(str, self.acknowledged))

    def note(self, line: str) -> None:
        lane, number = map(int, line.split())
        assert number == self.acknowledged[lane]
        self.acknowledged[lane] += 1

    def due(self) -> set[tuple[str, str]]:
        """Every event that was acknowledged: session id, event id."""
        return {
            event
            for lane, count in enumerate(self.acknowledged)
            for number in range(count)
            for event in step(self.seed, lane, number).events
        }

    def undecided(self) -> list[set[tuple[str, str]]]:
        """For each lane, the events of the one step that may have been recorded unheard."""
        return [
            set(step(self.seed, lane, count).events) for lane, count in enumerate(self.acknowledged)
        ]


def write_and_kill(where: Path | str, ledger: Ledger, chance: random.Random) -> None:
    """Let a writer run for a number of acknowledgements and a moment more, then kill it."""
    wait_for = chance.choice((0, 1, chance.randrange(2, 60)))
    moment = chance.uniform(0, 3_000 if wait_for else 400_000)
    with Child("tests.support.writer", where, ledger.seed, ledger.starts()) as child:
        for line in child.killed_after(wait_for, moment):
            ledger.note(line)
        assert child.complaint() == ""


async def check(url: str, ledger: Ledger) -> None:
    """Hold the store against the ledger."""
    async with limpet.open(url) as lp:
        report = await lp.maintenance.verify()
        assert report.findings == ()
        recorded: set[tuple[str, str]] = set()
        written = 0
        for name in (SHARED, *(f"lane-{lane}" for lane in range(LANES))):
            session = await lp.find(Key(APP, USER, name), tail=0)
            if session is not None:  # else killed before it was created
                events = await whole_log(session)
                written += check_session(session, events)
                recorded |= {(name, event.id) for event in events}
        total = await app_total(lp)
    assert total == written  # no increment lost, none doubled
    assert ledger.due() <= recorded
    check_undecided(ledger, recorded)


def check_session(session: Session, events: list[Event]) -> int:
    """The session is what its log amounts to; returns how many events counted."""
    assert [event.seq for event in events] == list(range(1, session.version + 1))
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)
    counted = [event.id for event in events if event.ops and event.seq > 1]
    assert session.state["n"] == len(counted)
    assert session.state["log"] == counted
    head = session.head
    fold = reduce(replay, events, Fold(blank(head.key, head.uid, head.created_us)))
    assert fold.head == head
    assert fold.fields == {"n": len(counted), "log": counted}
    return len(counted)


def check_undecided(ledger: Ledger, recorded: set[tuple[str, str]]) -> None:
    """What was not acknowledged is there as a whole or not at all, and nothing lies beyond it."""
    ours = {event for event in recorded if "." in event[1]}
    beyond = ours - ledger.due()
    for events in ledger.undecided():
        assert events <= beyond or not events & beyond
        beyond -= events
    assert beyond == set()


async def whole_log(session: Session) -> list[Event]:
    events: list[Event] = []
    while page := await session.read(after=len(events), limit=1_000):
        events += page
    return events


async def app_total(lp: Limpet) -> int:
    shared = await lp.find(Key(APP, USER, SHARED), tail=0)
    return 0 if shared is None else shared.state.get("app:total", 0)


async def kill_loop(directory: Path, start: int, kills: int) -> None:
    chance, ledger = random.Random(start), Ledger(start)
    path = directory / "kill.db"
    for number in range(kills):
        write_and_kill(path, ledger, chance)
        if not path.exists():  # killed before it had opened the file
            continue
        # The check works on a copy, so that the successor finds what the killed one left.
        copy = directory / f"copy-{number}.db"
        for suffix in ("", "-wal"):
            left = path.with_name(path.name + suffix)
            if left.exists():
                shutil.copyfile(left, copy.with_name(copy.name + suffix))
        await check(f"sqlite:///{copy}", ledger)
        for suffix in ("", "-wal", "-shm"):
            copy.with_name(copy.name + suffix).unlink(missing_ok=True)
    await check(f"sqlite:///{path}", ledger)
    assert sum(ledger.acknowledged) > kills


async def test_every_acknowledged_event_survives_every_kill(tmp_path: Path) -> None:
    """After each of ten kills: acknowledged is present once, and folds agree with the log."""
    await kill_loop(tmp_path, seed("kill"), KILLS // 2)


@pytest.mark.torture
@pytest.mark.parametrize("round_", range(20))
async def test_hundreds_of_kills_lose_nothing(tmp_path: Path, round_: int) -> None:
    """Four hundred kills in twenty rounds, each on a file of its own."""
    await kill_loop(tmp_path, seed("kill") + round_, KILLS)


async def kill_clients(url: str, start: int, kills: int) -> None:
    chance, ledger = random.Random(start), Ledger(start)
    for _ in range(kills):
        write_and_kill(url, ledger, chance)
        # Else the successor begins while the server still works on what this one had sent.
        if chance.random() < 0.5:
            await without_clients(url)
            await check(url, ledger)
    await without_clients(url)
    await check(url, ledger)
    assert sum(ledger.acknowledged) > kills


async def test_every_acknowledged_event_survives_every_kill_of_a_client(
    postgres_store_url: str,
) -> None:
    """The same on a server, which may go on with what a client had sent before it was killed."""
    await kill_clients(postgres_store_url, seed("postgres kill"), KILLS // 4)


@pytest.mark.torture
@pytest.mark.parametrize("round_", range(20))
async def test_hundreds_of_killed_clients_lose_nothing(
    postgres_store_url: str, round_: int
) -> None:
    """Four hundred kills in twenty rounds, each with an empty store."""
    await kill_clients(postgres_store_url, seed("postgres kill") + round_, KILLS)

"""A scripted run that meets every kind of write, and the ledger of what it was told.

Every step can be repeated with the same ids, and the ledger can be held against whatever a disk
has been left with.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any, Final

import limpet
from limpet import Draft, Event, Key, Limpet, LimpetError, Session
from limpet.model.fold import Fold, replay
from limpet.model.head import blank
from limpet.session.writer import writer_of

APP: Final = "disk"
USER: Final = "ada"
ACTOR: Final = "test:disk"
A, B, C, D = (Key(APP, USER, id) for id in "abcd")
STARTED: Final = {"n": 0, "log": []}


def changes(id: str) -> dict[str, Any]:
    return {"inc": {"n": 1, "app:total": 1}, "add": {"log": [id]}, "id": id}


@dataclass
class Ledger:
    """What was asked for and what was acknowledged, by session and event id."""

    asked: list[tuple[Key, str]] = field(default_factory=list)
    acknowledged: set[tuple[Key, str]] = field(default_factory=set)
    created: set[Key] = field(default_factory=set)
    gone: set[Key] = field(default_factory=set)  # deleting or erasing was acknowledged
    going: set[Key] = field(default_factory=set)  # it was asked for


@dataclass(frozen=True)
class Step:
    """One call, what it records if it succeeds, and what it must leave alone if it fails."""

    name: str
    call: Callable[[Run], Awaitable[object]]
    events: tuple[tuple[Key, str], ...] = ()
    creates: Key | None = None
    ends: Key | None = None


class Run:
    """The workload on one open Limpet. A successor after a crash makes a new one."""

    def __init__(self, lp: Limpet, ledger: Ledger) -> None:
        self.lp, self.ledger = lp, ledger
        self.sessions: dict[Key, Session] = {
            key: lp.session(key, actor=ACTOR) for key in (A, B, C, D)
        }

    async def take(self, step: Step) -> LimpetError | None:
        """Do one step; the error if it was refused. Any other exception is the test's failure."""
        before = {key: shown(session) for key, session in self.sessions.items()}
        self.ledger.asked += [event for event in step.events if event not in self.ledger.asked]
        if step.ends is not None:
            self.ledger.going.add(step.ends)
        try:
            await step.call(self)
        except LimpetError as error:
            after = {key: shown(session) for key, session in self.sessions.items()}
            assert after == before, f"{step.name} failed and changed what is shown"
            return error
        self.ledger.acknowledged |= set(step.events)
        if step.creates is not None:
            self.ledger.created.add(step.creates)
        if step.ends is not None:
            self.ledger.gone.add(step.ends)
        return None


def shown(session: Session) -> tuple[Any, ...]:
    """All that a live object shows."""
    if writer_of(session).known.scopes is None:
        return (writer_of(session).known.maybe_head, session.events)
    return (session.head, dict(session.state), session.events, session.history.damaged)


# --- the script ----------------------------------------------------------------------------------


def script() -> Iterator[Step]:
    """Creation, every kind of append, facts, reading, deleting, erasing; small and large."""
    for key in (A, B, C, D):
        yield Step(f"create {key.id}", _create(key), creates=key)
    for number in range(3):
        yield _append(A, f"a{number}")
    yield Step("read", _read)
    yield Step("many", _many, tuple((A, f"m{n}") for n in range(3)))
    yield Step("both", _both, ((A, "x.a"), (B, "x.b")))
    yield _append(C, "c0", large=30_000)
    yield _append(D, "d0", large=3_000)
    yield Step("label", lambda run: run.sessions[B].label({"plan": "gold"}))
    yield Step("delete c", lambda run: run.lp.delete(C), ends=C)
    yield _append(B, "b0", large=70_000)  # past the floor of snapshots
    yield _append(B, "b1")
    yield Step("erase d", lambda run: run.lp.erase(D), ends=D)
    yield Step("list", lambda run: run.lp.list(app=APP, labels={"plan": "gold"}))
    for number in range(3, 5):
        yield _append(A, f"a{number}")


def _create(key: Key) -> Callable[[Run], Awaitable[object]]:
    async def call(run: Run) -> None:
        # A retry may find that the first try was recorded after all.
        run.sessions[key] = made = await run.lp.get_or_create(APP, USER, id=key.id, state=STARTED)
        made.actor = ACTOR

    return call


def _append(key: Key, id: str, *, large: int = 0) -> Step:
    data = {"raw": random.Random(id).randbytes(large // 2).hex()}
    return Step(
        f"append {id}",
        lambda run: run.sessions[key].append("user.said", data, **changes(id)),
        ((key, id),),
    )


async def _many(run: Run) -> None:
    drafts = [Draft(type="agent.did", **changes(f"m{n}")) for n in range(3)]
    await run.sessions[A].append_many(drafts)


async def _both(run: Run) -> None:
    async with run.lp.commit() as commit:
        commit.append(run.sessions[A], "agent.did", **changes("x.a"))
        commit.append(run.sessions[B], "agent.did", **changes("x.b"))


async def _read(run: Run) -> None:
    await run.lp.get(A, tail=3)
    await run.lp.session(B).read()


# --- the check -----------------------------------------------------------------------------------


async def check(path: Path, ledger: Ledger) -> None:
    """Hold what is in the file against the ledger."""
    async with limpet.open(f"sqlite:///{path}") as lp:
        await check_open(lp, ledger)


async def check_open(lp: Limpet, ledger: Ledger) -> None:
    report = await lp.maintenance.verify()
    assert report.findings == (), report
    counted = 0
    recorded: set[tuple[Key, str]] = set()
    for key in (A, B):
        session = await lp.find(key, tail=0)
        assert session is not None or key not in ledger.created, f"{key} is lost"
        if session is not None:
            events = await session.read(limit=1_000)
            counted += check_log(session, events)
            recorded |= {(key, event.id) for event in events}
    for key in (C, D):
        found = await lp.find(key)
        assert found is None or key not in ledger.gone, f"{key} came back"
        if found is None:
            assert key in ledger.going or key not in ledger.created, f"{key} is lost"
        else:
            events = await found.read(limit=1_000)
            check_log(found, events)
            recorded |= {(key, event.id) for event in events}
    check_ledger(ledger, recorded)
    await check_total(lp, ledger, counted)


def check_log(session: Session, events: tuple[Event, ...]) -> int:
    """Dense, each id once, and the state is what it amounts to; how many events counted."""
    assert [event.seq for event in events] == list(range(1, session.version + 1))
    ids = [event.id for event in events]
    assert len(set(ids)) == len(ids)
    counted = [event.id for event in events if event.seq > 1 and event.ops]
    head = session.head
    fold = reduce(replay, events, Fold(blank(head.key, head.uid, head.created_us)))
    assert fold.head == head
    assert fold.fields == {"n": len(counted), "log": counted}
    assert {name: v for name, v in session.state.items() if ":" not in name} == fold.fields
    return len(counted)


def check_ledger(ledger: Ledger, recorded: set[tuple[Key, str]]) -> None:
    """Acknowledged is present; what a call was to record together is there together or not."""
    maybe = ledger.going | ledger.gone
    missing = {event for event in ledger.acknowledged if event[0] not in maybe} - recorded
    assert not missing, f"acknowledged and lost: {missing}"
    for group in ({(A, f"m{n}") for n in range(3)}, {(A, "x.a"), (B, "x.b")}):
        assert group <= recorded or not group & recorded, f"torn: {group & recorded}"


async def check_total(lp: Limpet, ledger: Ledger, counted: int) -> None:
    """The app's counter has every recorded event once; C and D, when gone, counted before."""
    some = await lp.find(A) or await lp.find(B)
    total = 0 if some is None else some.state.get("app:total", 0)
    brief = [event for event in ledger.asked if event[0] in (C, D)]
    sure = [event for event in brief if event in ledger.acknowledged]
    assert counted + len(sure) <= total <= counted + len(brief)

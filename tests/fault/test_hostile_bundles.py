"""Bundles that were made to harm: with right links and hashes, and anything else in them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import Key, Limpet
from limpet.store.protocol import Query
from tests.support.examples import tries
from tests.support.hostile import Hostile, Lines, donors, put_together, taken_apart
from tests.support.seeds import seed

FEW = {"memory": 80, "sqlite": 30, "postgresql": 15}  # bundles of a run in the suite
MANY = {"memory": 3_000, "sqlite": 1_000, "postgresql": 500}
THEIRS = Key("support", "bob", "kept")
ALL = Query(reserved=True)


async def bystander(lp: Limpet) -> None:
    """A session of somebody else, which has to go on as if nothing were there."""
    s = await lp.create("support", "bob", "kept", state={"n": 0}, labels={"plan": "free"})
    await s.memory.semantic.put("refunds", "within 30 days")
    await s.append("user.message", {"text": "hi"}, actor="user:bob", set={"user:lang": "de"})


async def standing(lp: Limpet) -> dict[Key, tuple[int, bytes]]:
    """Every log of the store, and where it stands."""
    page = await lp._journal.store.heads(ALL, cursor=None, limit=1_000)
    assert page.cursor is None
    return {head.key: (head.version, head.link) for head in page.items}


async def check_works(lp: Limpet, folder: Path, *, first: bool = False) -> None:
    """Whatever a store does for everybody, it still does. What was claimed and let go unchanged is
    held back for a moment, so only the `first` time the bystander is claimed."""
    report = await lp.maintenance.verify()
    assert report.ok, report
    await lp.maintenance.doctor()
    for how in (
        {},
        {"app": "support"},
        {"app": "support", "user": "bob"},
        {"app": "support", "labels": {"plan": "free"}},
    ):
        await lp.list(**how, limit=1_000)
    await lp.work.sweep()
    leases = await lp.work.claim("worker", limit=100, lease_seconds=1)
    for lease in leases:
        await lp.work.release(lease)
    assert not first or THEIRS in [lease.key for lease in leases]
    await lp.maintenance.mirror(folder / "mirror")
    s = await lp.get(THEIRS)
    assert s.state["user:lang"] == "de"
    assert await s.memory.semantic.get("refunds") == "within 30 days"


async def check_session(lp: Limpet, key: Key, folder: Path) -> None:
    """What was accepted is a session like any other: read to the end, moved on, and ended."""
    s = await lp.get(key)
    after = 0
    while page := await s.read(after=after, limit=1_000):
        after = page[-1].seq
    await s.history.checkpoints(limit=100)
    for layer in (s.memory.session, s.memory.episodic):
        await layer.list()
    s.blocked_on, s.runs.usage, s.runs.budget, s.outcome, s.setup.current, s.status  # noqa: B018  # are folded
    await lp.export(key, folder / "again.limpet")
    async with limpet.open("memory://") as other:
        await other.import_(folder / "again.limpet")
        assert (await lp.copy(key, to=other)).events == 0
    (folder / "again.limpet").unlink()


async def tried(lp: Limpet, path: Path, folder: Path, what: str) -> bool:
    """Import a file; whether it was accepted. Either way the store has to work as before."""
    before = await standing(lp)
    try:
        key = await lp.import_(path)
    except (limpet.errors.BundleDamaged, limpet.SessionConflict, limpet.errors.ReservedApp):
        assert await standing(lp) == before, what
        return False
    await check_works(lp, folder, first=True)
    await check_session(lp, key, folder)
    await check_works(lp, folder)
    return True


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgresql"])
async def test_a_hostile_bundle_harms_nobody(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is refused and nothing is recorded, or it is a session like any other."""
    async with limpet.open("memory://") as home:
        files = await donors(home, tmp_path)
    chosen = seed(f"hostile bundles {kind}")
    hostile, left = Hostile(files, chosen), tries(FEW[kind], MANY[kind])
    waiting = [*files]  # honest ones first: they are accepted
    stores = 0
    while left > 0:
        stores += 1
        url = await _fresh(kind, tmp_path / f"{stores}.db", request)
        async with limpet.open(url) as lp:
            await bystander(lp)
            accepted = False
            while left > 0 and not accepted:  # a key that was taken is refused from then on
                left -= 1
                path = waiting.pop() if waiting else tmp_path / "hostile.limpet"
                honest = path in files
                what = f"seed {chosen}, {left} left: " + ("" if honest else hostile.bundle(path))
                try:
                    accepted = await tried(lp, path, tmp_path, what)
                except Exception as error:
                    error.add_note(what)
                    raise
                assert accepted or not honest
            await check_works(lp, tmp_path)
    assert not list(tmp_path.rglob("*.part"))


async def _fresh(kind: str, path: Path, request: pytest.FixtureRequest) -> str:
    """An empty store."""
    if kind == "memory":
        return "memory://"
    if kind == "sqlite":
        return f"sqlite:///{path}?sync=normal"
    server = request.getfixturevalue("any_postgres")
    await asyncio.to_thread(lambda: request.getfixturevalue("keeper").clear())
    return str(server.url)


LATE_US = 253_402_300_800_000_000  # the first microsecond that no datetime has


def _with(type: str, data: dict[str, Any]) -> Callable[[Lines], None]:
    """One more event with this data."""

    def change(lines: Lines) -> None:
        last = lines[-1]
        event = {**last, "seq": last["seq"] + 1, "id": "made-up", "type": type}
        lines.append({**event, "body": {"data": data}})

    return change


def _member(name: str, value: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[-1].update({name: value})


def _header(name: str, value: Any) -> Callable[[Lines], None]:
    return lambda lines: lines[0].update({name: value})


WRONG: dict[str, Callable[[Lines], None]] = {
    "a floor past all numbers": _header("floor", 10**30),
    "a key that is not text": _header("key", ["support", 7, "x"]),
    "a reserved app": _header("key", ["$x", "ada", "x"]),
    "a time past all times": _member("at_us", LATE_US),
    "a seq past all numbers": _member("seq", 10**30),
    "a type without a dot": _member("type", "note"),
    "an actor with a control character": _member("actor", "\x1b[2J"),
    "a timer without a time": _with("session.timer_set", {"name": "t", "kind": "wake"}),
    "a timer past all times": _with(
        "session.timer_set", {"name": "t", "kind": "wake", "at_us": LATE_US}
    ),
    "a label that is a number": _with("session.labeled", {"labels": {"plan": 7}}),
    "a label of ours": _with("session.labeled", {"labels": {"$dead": "yes"}}),
    "too many labels": _with("session.labeled", {"labels": {f"l{n}": "x" for n in range(80)}}),
    "a priority past all others": _with("session.prioritized", {"priority": 10**9}),
    "a phase that there is not": _with(
        "session.terminated", {"from": "active", "to": "gone", "event": "terminate"}
    ),
    "a transition that the table does not have": _with(
        "session.archived", {"from": "active", "to": "archived", "event": "archive"}
    ),
    "a write to a suspended session": _with("agent.message", {"text": "x"}),
    "a request with a deadline in words": _with(
        "agent.tool_use",
        {"awaits": "approval", "request_id": "r", "name": "pay", "input": 1, "deadline_us": "soon"},
    ),
    "a request to be answered past all times": _with(
        "agent.tool_use",
        {"awaits": "effect", "request_id": "r", "name": "pay", "input": 1, "deadline_us": LATE_US},
    ),
    "an outcome found to be something else": _with(
        "session.outcome_evaluated", {"verdict": "fine", "met": []}
    ),
    "a buffer without a value": _with("session.memory_written", {"name": "session_state"}),
    "a buffer that there is not": _with("session.memory_written", {"name": "x", "value": 1}),
    "a timeout of a thousand years": _with(
        "session.timeouts_set", {"timeouts": {"idle_us": 10**18}}
    ),
    "a retention of nothing": _with("session.retention_set", {"retention": {"events": 0}}),
    "a delegation to no key": _with(
        "session.delegated", {"app": "", "user": "ada", "id": "x", "turn": "t", "depth": 1}
    ),
    "more than the budget has": _with(
        "budget.reserved", {"reservation": "r", "cost": 10**12, "tokens": 0}
    ),
    "a wake without a turn": _with(
        "span.started", {"span_id": "s", "kind": "wake", "name": "wake", "attempt": 1}
    ),
    "a checkpoint in the session's own log": _with(
        "checkpoint.recorded", {"number": "one", "at_us": LATE_US}
    ),
    "an input processed that is not pending": _with("session.processed", {"seqs": [99]}),
    "a second beginning": _with("session.created", {"app": "support", "user": "ada", "id": "x"}),
    "an integer past 64 bits": _with("audit.note", {"n": 2**63}),
    "the id of another event": lambda lines: lines.append(
        {**lines[-1], "seq": lines[-1]["seq"] + 1, "type": "audit.note", "body": {"data": {}}}
    ),
    "a fork that begins like a session": lambda lines: lines[1].update(type="session.created"),
    "a fork of another session than its state": lambda lines: lines[1]["body"]["data"][
        "parent"
    ].update(uid="another"),
    "a stub": lambda lines: next(line for line in lines if line.get("seq") == 1)["body"][
        "data"
    ].update(archived={"place": "../../../victim", "created_us": 1}),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_what_no_store_records_is_never_imported(wrong: str, tmp_path: Path) -> None:
    """The file is refused, and the store has nothing of it."""
    async with limpet.open("memory://") as home:
        whole, fork, suspended = await donors(home, tmp_path)
    kinds = {"suspended": suspended, "fork": fork}
    lines = taken_apart(next((kinds[kind] for kind in kinds if kind in wrong), whole))
    WRONG[wrong](lines)
    put_together(lines, tmp_path / "wrong.limpet")
    async with limpet.open("memory://") as lp:
        await bystander(lp)
        assert not await tried(lp, tmp_path / "wrong.limpet", tmp_path, wrong)

"""What the golden databases hold, spelled out: each event as it is stored, and what it amounts to.

Never changed, only added to for a later schema. `write` is run by the code that has the schema, so
it says nothing that only newer code knows; how events lie in tables is that code's business.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

import limpet
from limpet import Key, ops
from limpet.model.commit import Commit
from limpet.model.events import Fact, prepare
from limpet.store.clock import Clock
from limpet.store.sqlite.store import SQLiteStore

BEGAN_US: Final = 1_767_225_600_000_001  # the first commit; each later one a second after it
WAKE_US: Final = 1_893_456_000_000_000
DEADLINE_US: Final = 1_924_992_000_123_456
ACTOR: Final = "agent:main"
LEASE_SECONDS: Final = 3_600

MAIN: Final = Key("shop", "ada", "main")
PEER: Final = Key("shop", "bob", "peer")
LONG: Final = Key("shop", "ada", "long")
DELETED: Final = Key("shop", "eve", "deleted")
ERASED: Final = Key("shop", "eve", "erased")
TYPED: Final = Key("chat", "ada", "typed")
ASLEEP: Final = Key("chat", "ada", "asleep")
POEM: Final = "roses are red " * 120  # long enough to be compressed


class Said(NamedTuple):
    """An event as it is stored. `ops` are in their stored form; `more` has the rarer fields."""

    type: str
    data: dict[str, Any]
    ops: list[list[Any]]
    id: str
    more: dict[str, str] = {}


def _created(key: Key, number: int, ops: list[list[Any]], **data: Any) -> Said:
    id = f"0193f000-0000-7000-8000-{number:012x}"  # kept as 16 bytes
    whose = {"app": key.app, "user": key.user, "id": key.id}
    return Said("session.created", whose | data, ops, id)


def text(number: int) -> str:
    """One of the messages that make a log long enough for a snapshot."""
    return f"message {number} " * 150


# --- every schema --------------------------------------------------------------------------------

_MAIN: Final = [
    _created(
        MAIN,
        1,
        [["set", ["step"], 0], ["set", ["user:lang"], "en"]],
        labels={"plan": "gold", "x": "y"},
    ),
    Said(
        "user.said",
        {"text": "hi"},
        [["set", ["step"], 1], ["add@", ["log"], ["text"]]],
        "my-own-id",
        {"correlation_id": "c-1"},
    ),
    Said(
        "agent.said",
        {"text": "ho", "plan": {"a": [1, 2, 3], "b": None}},
        [
            ["merge@", ["plan"], ["plan"]],
            ["set@", ["last"], ["text"]],
            ["inc", ["app:visits"], 1],
        ],
        "m3",
        {"cause": "my-own-id"},
    ),
    Said("user.said", {"text": "again"}, [], "m4"),
    Said("session.processed", {"seqs": [2]}, [], "m5"),
    Said("session.labeled", {"labels": {"x": None, "city": "Łódź"}}, [], "m6"),
    Said("session.timer_set", {"name": "nap", "at_us": WAKE_US, "kind": "wake"}, [], "m7"),
    Said("session.timer_set", {"name": "end", "at_us": DEADLINE_US, "kind": "deadline"}, [], "m8"),
    Said("session.timer_set", {"name": "off", "at_us": WAKE_US, "kind": "wake"}, [], "m9"),
    Said("session.timer_cleared", {"name": "off"}, [], "m10"),
    Said(
        "tool.ran",
        {"poem": POEM},
        [],
        "m11",
        {"wake_id": "w-1", "invocation_id": "0193f000-0000-7000-8000-0000000000ff"},
    ),
    Said(
        "state.updated",
        {},
        [
            ["ins", ["plan", "a"], 0, [0]],
            ["cut", ["plan", "a"], 1, 2],
            ["del", ["last"]],
            ["merge", ["usage"], {"tokens": 17, "cost": 0.25}],
            ["inc", ["usage", "tokens"], -3],
            ["add", ["log"], ["x", "😀"]],
        ],
        "m12",
    ),
]
_PEER: Final = [
    _created(PEER, 2, []),
    Said(
        "user.said",
        {"text": "hello"},
        [
            ["set", ["app:title"], "A"],
            ["set", ["app:gone"], 1],
            ["set", ["user:most"], 2**63 - 1],
        ],
        "p2",
    ),
    Said(
        "agent.said",
        {},
        [["set", ["app:title"], "B"], ["del", ["app:gone"]], ["inc", ["app:visits"], 2]],
        "p3",
    ),
]
_LONG: Final = [
    _created(LONG, 3, [["set", ["list"], []]]),
    *(
        Said(
            "tool.ran",
            {"text": text(number)},
            [["add@", ["list"], ["text"]], ["add", ["user:notes"], [number]]],
            f"l{number}",
        )
        for number in range(2, 8)
    ),
]
_AFTER: Final = Said("note.made", {"after": "the snapshot"}, [["set", ["late"], True]], "l8")
_DELETED: Final = [_created(DELETED, 4, [["set", ["x"], 1]], labels={"plan": "gold"})]
_ERASED: Final = [_created(ERASED, 5, [["set", ["x"], 1]], labels={"plan": "gold"})]

# --- schema 2: priorities and leases -------------------------------------------------------------

_URGENT: Final = Said("session.prioritized", {"priority": 7}, [], "m13")

# --- schema 3: typed state -----------------------------------------------------------------------

_TYPED: Final = [
    _created(
        TYPED,
        6,
        [["set", ["plan"], "p"], ["set", ["mood"], "calm"], ["set", ["messages"], []]],
        schema_version="1.0.0",
    ),
    Said("state.migrated", {"from": "1.0.0", "to": "1.1.0", "steps": []}, [], "t2"),
    Said(
        "state.updated",
        {},
        [
            ["set", ["mood"], "elated"],
            ["add", ["messages"], [{"role": "user", "text": "hi", "at": "2026-01-02T03:04:05Z"}]],
        ],
        "t3",
    ),
    Said(
        "state.migrated",
        {
            "from": "1.1.0",
            "to": "2.0.0",
            "steps": [["1.1.0", "2.0.0"]],
            "checksum_before": "36ae0fa3ecd64080a280fa9da987c6b1c2235aa5e3c9b1524ca250dd5e8e0a1a",
            "checksum_after": "93afe79a5dc07d03ff7b31f0f1e21227a1c823319a1740bbc4d0f2ff81629908",
        },
        [["del", ["plan"]], ["set", ["goal"], "p"]],
        "t4",
    ),
]
_ASLEEP: Final = [
    _created(
        ASLEEP,
        7,
        [["set", ["plan"], "sleep"], ["set", ["mood"], "calm"], ["set", ["messages"], []]],
        schema_version="1.0.0",
    )
]


def events(schema: int) -> dict[Key, list[Said]]:
    """The logs of the living sessions in the database of this schema."""
    found = {MAIN: list(_MAIN), PEER: _PEER, LONG: [*_LONG, _AFTER]}
    if schema >= 2:
        found[MAIN].append(_URGENT)
    if schema >= 3:
        found |= {TYPED: _TYPED, ASLEEP: _ASLEEP}
    return found


STATES: Final[dict[Key, dict[str, Any]]] = {
    MAIN: {
        "step": 1,
        "log": ["hi", "x", "😀"],
        "plan": {"a": [0, 2, 3], "b": None},
        "usage": {"tokens": 14, "cost": 0.25},
        "user:lang": "en",
        "user:notes": [2, 3, 4, 5, 6, 7],
        "app:title": "B",
        "app:visits": 3,
    },
    PEER: {"user:most": 2**63 - 1, "app:title": "B", "app:visits": 3},
    LONG: {
        "list": [text(number) for number in range(2, 8)],
        "late": True,
        "user:lang": "en",
        "user:notes": [2, 3, 4, 5, 6, 7],
        "app:title": "B",
        "app:visits": 3,
    },
    TYPED: {
        "goal": "p",
        "mood": "elated",
        "messages": [{"role": "user", "text": "hi", "at": "2026-01-02T03:04:05Z"}],
    },
    ASLEEP: {"plan": "sleep", "mood": "calm", "messages": []},
}


# --- writing -------------------------------------------------------------------------------------


class _Writer:
    """A store whose clock ticks once a commit."""

    def __init__(self, path: Path) -> None:
        self.path, self._now_us = path, BEGAN_US - 1_000_000

    def _ns(self) -> int:
        return self._now_us * 1_000

    async def open(self) -> SQLiteStore:
        return await SQLiteStore.open(self.path, clock=Clock(self._ns, self._ns))

    def tick(self) -> None:
        self._now_us += 1_000_000

    async def record(self, store: SQLiteStore, key: Key, log: list[Said]) -> None:
        """Each event in a commit of its own."""
        for said in log:
            self.tick()
            draft = Fact(
                type=said.type,
                data=said.data,
                ops=msgspec.convert(said.ops, tuple[ops.Op, ...]),
                id=said.id,
                **said.more,
            )
            ready = prepare(draft, id="", actor=ACTOR)
            await store.commit(
                [Commit(key, (ready,), 0 if said.type == "session.created" else None)]
            )


async def write(path: Path, schema: int) -> None:
    """A new database of the schema that the running code has."""
    writer = _Writer(path)
    store = await writer.open()
    for key, log in events(schema).items():
        await writer.record(store, key, [said for said in log if said is not _AFTER])
    for key, log in ((DELETED, _DELETED), (ERASED, _ERASED)):
        await writer.record(store, key, log)
    writer.tick()
    await store.delete(DELETED)
    writer.tick()
    await store.erase(ERASED)
    await store.close()  # leaves a snapshot of what is long
    store = await writer.open()
    await writer.record(store, LONG, [_AFTER])
    if schema >= 2:
        async with limpet.Limpet("sqlite:", store=store) as lp:
            await lp.claim("worker-1", lease_seconds=LEASE_SECONDS, app="shop")
    await store.close()
    _pack(path, schema)


def _pack(path: Path, schema: int) -> None:
    """One small file with nothing beside it."""
    conn = apsw.Connection(str(path))
    assert conn.pragma("user_version") == schema, "run this with the code of that schema"
    assert conn.execute("SELECT count(*) FROM snapshots").get == 1
    conn.pragma("journal_mode", "delete")
    conn.pragma("page_size", 512)
    conn.execute("VACUUM")
    conn.close()

"""What the golden databases hold, spelled out: each event as it is stored, and what it makes.

Never changed, only added to for a later schema. `write` is run by the code that has the schema, so
it says nothing that only newer code knows; how events lie in tables is that code's business.
"""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw
import msgspec

import limpet
from limpet import Key, ops
from limpet.model.commit import Base, Commit
from limpet.model.events import Fact, prepare
from limpet.model.values import checksum, freeze
from limpet.store.blobs import Blob
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
FORK: Final = Key("shop", "ada", "fork")
PARENT: Final = Key("shop", "eve", "parent")  # deleted; its fork lives
HEIR: Final = Key("shop", "ada", "heir")
DELETED: Final = Key("shop", "eve", "deleted")
MOVED: Final = Key("shop", "eve", "moved")
REUSED: Final = Key("shop", "eve", "reused")  # deleted, and created again
ERASED: Final = Key("shop", "eve", "erased")
FORGOTTEN: Final = Key("shop", "mallory", "1")  # of a user who was erased
TYPED: Final = Key("chat", "ada", "typed")
ASLEEP: Final = Key("chat", "ada", "asleep")
CONTENT: Final = bytes(range(256)) * 5
PHOTO: Final = Blob(sha256(CONTENT).hexdigest(), len(CONTENT), "image/png", 2)
POEM: Final = "roses are red " * 120  # long enough to be compressed


class Said(NamedTuple):
    """An event as it is stored. `ops` are in their stored form; `more` has the rarer fields."""

    type: str
    data: dict[str, Any]
    ops: list[list[Any]]
    id: str
    more: dict[str, str] = {}
    input: bool = False  # said by the draft; some types are inputs by themselves
    pin: int | None = None


def uid(number: int) -> str:
    """The id of a session's first event: kept as 16 bytes."""
    return f"0193f000-0000-7000-8000-{number:012x}"


def _created(key: Key, number: int, ops: list[list[Any]], **data: Any) -> Said:
    whose = {"app": key.app, "user": key.user, "id": key.id}
    return Said("session.created", whose | data, ops, uid(number))


class Begins(NamedTuple):
    """The state that a fork's log begins on: its parent's after event `floor`."""

    parent: Key
    number: int  # of the parent's uid
    floor: int
    state: dict[str, Any]


def _forked(key: Key, number: int, on: Begins, **data: Any) -> Said:
    whose: dict[str, Any] = {"app": key.app, "user": key.user, "id": key.id}
    parent = {"app": on.parent.app, "user": on.parent.user, "id": on.parent.id}
    whose["parent"] = {**parent, "uid": uid(on.number)}
    base = checksum(freeze(on.state)).hex()
    return Said("session.forked", whose | {"at": on.floor, "base": base} | data, [], uid(number))


def text(number: int) -> str:
    """One of the messages that make a log long enough for a snapshot."""
    return f"message {number} " * 150


# --- schema 1 ------------------------------------------------------------------------------------

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
        pin=3,
    ),
    Said("session.prioritized", {"priority": 7}, [], "m13"),
    Said("tool.asked", {"what": "leave?"}, [], "m14", input=True),
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


BASES: Final = {
    FORK: Begins(
        MAIN, 1, 5, {"step": 1, "log": ["hi"], "plan": {"a": [1, 2, 3], "b": None}, "last": "ho"}
    ),
    HEIR: Begins(PARENT, 9, 2, {"x": 2}),
}
_FORK: Final = [
    _forked(FORK, 8, BASES[FORK], labels={"plan": "tried"}),
    Said("user.said", {"text": "instead"}, [["add@", ["log"], ["text"]]], "f7"),
    Said("session.processed", {"seqs": [7]}, [], "f8"),
]
_PARENT: Final = [
    _created(PARENT, 9, [["set", ["x"], 1]]),
    Said("note.made", {}, [["inc", ["x"], 1]], "q2"),
    Said("note.made", {}, [["inc", ["x"], 40]], "q3"),
]
_HEIR: Final = [
    _forked(HEIR, 10, BASES[HEIR]),
    Said("note.made", {}, [["inc", ["x"], 5]], "h4"),
]
_MOVED: Final = [_created(MOVED, 11, [["set", ["x"], 1]])]
_REUSED: Final = [_created(REUSED, 12, [["set", ["x"], 1]], labels={"plan": "old"})]
_AGAIN: Final = [
    _created(REUSED, 13, [["set", ["x"], 2]], labels={"plan": "new"}),
    Said("note.made", {}, [], "my-own-id"),
]
_FORGOTTEN: Final = [
    _created(FORGOTTEN, 14, [["set", ["user:secret"], "s"], ["set", ["app:title"], "C"]])
]


def events(schema: int) -> dict[Key, list[Said]]:
    """The own events of the living sessions in the database of this schema."""
    found = {MAIN: _MAIN, PEER: _PEER, LONG: [*_LONG, _AFTER], TYPED: _TYPED, ASLEEP: _ASLEEP}
    return {**found, FORK: _FORK, HEIR: _HEIR, REUSED: _AGAIN}


_SHARED: Final = {"app:title": "C", "app:visits": 3}
_ADA: Final = {**_SHARED, "user:lang": "en", "user:notes": [2, 3, 4, 5, 6, 7]}
STATES: Final[dict[Key, dict[str, Any]]] = {
    MAIN: {
        "step": 1,
        "log": ["hi", "x", "😀"],
        "plan": {"a": [0, 2, 3], "b": None},
        "usage": {"tokens": 14, "cost": 0.25},
        **_ADA,
    },
    PEER: {"user:most": 2**63 - 1, **_SHARED},
    LONG: {"list": [text(number) for number in range(2, 8)], "late": True, **_ADA},
    FORK: {**BASES[FORK].state, "log": ["hi", "instead"], **_ADA},
    HEIR: {"x": 7, **_ADA},
    REUSED: {"x": 2, **_SHARED},
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
                input=said.input,
                **said.more,
            )
            ready = (prepare(draft, id="", actor=ACTOR),)
            if said.type == "session.forked":
                await store.commit([Commit(key, ready, 0, base=await _base(store, key))])
            elif said.type == "session.created":
                await store.commit([Commit(key, ready, 0, reuse=key == REUSED)])
            else:
                await store.commit([Commit(key, ready, pin=said.pin)])


async def _base(store: SQLiteStore, key: Key) -> Base:
    """The state that a fork begins on, as its parent had it."""
    on = BASES[key]
    fold = await store.fold_at(on.parent, on.floor)
    fields = freeze(on.state)
    assert fold.fields == fields
    at = (uid(on.number), on.floor, fold.head.link)
    return Base(on.parent, *at, fields, fold.versions, checksum(fields))


async def write(path: Path, schema: int) -> None:
    """A new database of the schema that the running code has."""
    writer = _Writer(path)
    store = await writer.open()
    for key in (MAIN, PEER, LONG, TYPED, ASLEEP, FORK):
        log = events(schema)[key]
        await writer.record(store, key, [said for said in log if said is not _AFTER])
    for key, log in ((PARENT, _PARENT), (HEIR, _HEIR), (DELETED, _DELETED), (MOVED, _MOVED)):
        await writer.record(store, key, log)
    for key, log in ((REUSED, _REUSED), (ERASED, _ERASED), (FORGOTTEN, _FORGOTTEN)):
        await writer.record(store, key, log)
    upload = f"{PHOTO.hash[:8]}-golden"
    await store.blobs.put_chunk(MAIN, upload, 0, CONTENT[:1_000])
    await store.blobs.finish(MAIN, upload, PHOTO, CONTENT[1_000:])
    await store.marks.put("nonce", "n-1", DEADLINE_US, 7)
    for key in (PARENT, DELETED, REUSED):
        writer.tick()
        await store.delete(key)
    writer.tick()
    await store.delete(MOVED, ending="moved")
    await writer.record(store, REUSED, _AGAIN)
    await store.close()  # leaves a snapshot of what is long
    store = await writer.open()
    writer.tick()
    await store.erase_user(FORGOTTEN.app, FORGOTTEN.user)
    writer.tick()
    await store.erase(ERASED)
    await writer.record(store, LONG, [_AFTER])
    async with limpet.Limpet("sqlite:", store=store) as lp:
        await lp.work.claim("worker-1", lease_seconds=LEASE_SECONDS, app="shop")
    await store.close()
    _pack(path, schema)


def _pack(path: Path, schema: int) -> None:
    """One small file with nothing beside it, nothing left to purge, and all that it is to hold."""
    conn = apsw.Connection(str(path))
    assert conn.pragma("user_version") == schema, "run this with the code of that schema"
    for table, count in _ROWS.items():
        found = conn.execute(f"SELECT count(*) FROM {table}").get
        assert found == count, f"{found} rows of {table}, not {count}"
    conn.pragma("journal_mode", "delete")
    conn.pragma("page_size", 512)
    conn.execute("VACUUM")
    conn.close()


_ROWS: Final = {"tombstones": 4, "erased": 3, "bases": 2, "snapshots": 2, "purges": 0, "marks": 1}

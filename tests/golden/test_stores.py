"""The golden databases: every later release reads what the code of every schema wrote."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import AsyncIterator
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar, Final

import msgspec
import pytest

import limpet
from limpet import MigrationRegistry, Record, State, UnknownVariant, errors
from limpet.model.values import checksum
from limpet.store import upgrade
from limpet.store.postgres.server import schema as postgres_schema
from limpet.store.sqlite.file.schema import SCHEMA
from tests.golden import stores
from tests.golden.stores import (
    ASLEEP,
    BASES,
    BEGAN_US,
    DELETED,
    ERASED,
    FORGOTTEN,
    FORK,
    HEIR,
    LONG,
    MAIN,
    MOVED,
    PARENT,
    PEER,
    REUSED,
    STATES,
    TYPED,
)
from tests.support.command import run

HERE: Final = Path(__file__).parent
# A golden file is never written again: this is the SHA-256 of each.
FILES: Final = {
    1: "0ba753a0716e221e6ba72aa5a73b7604334d1e8b70d1daaebf334bac5830e5de",
    2: "093565d7c0a4cce1fca1a00f67e91fc8b9d9684a9b40ec136235ef58096ac00c",
}
# Which commit began each session, counted from 0.
_IN_ORDER: Final = {
    MAIN: 0,
    PEER: 14,
    LONG: 17,
    TYPED: 24,
    ASLEEP: 28,
    FORK: 29,
    HEIR: 35,
    REUSED: 46,
}
BEGAN: Final = {1: _IN_ORDER, 2: _IN_ORDER}
# The event after the snapshot; before it, an erased user and an erasure.
LAST: Final = {1: 50, 2: 50}


@pytest.fixture(params=FILES, ids=[f"schema {number}" for number in FILES])
def schema(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
async def lp(schema: int, tmp_path: Path) -> AsyncIterator[limpet.Limpet]:
    shutil.copy(HERE / f"store-{schema}.db", tmp_path)
    async with limpet.open(f"sqlite:///{tmp_path}/store-{schema}.db") as opened:
        yield opened


def at_us(commit: int) -> int:
    """When a commit was made, counted from 0."""
    return BEGAN_US + commit * 1_000_000


# --- the files -----------------------------------------------------------------------------------


def test_every_schema_has_its_golden_file() -> None:
    """Whoever adds a schema adds a file: see README.md."""
    assert list(FILES) == list(range(1, SCHEMA + 1))
    assert {path.name for path in HERE.glob("store-*")} == {f"store-{n}.db" for n in FILES}


def test_a_golden_file_is_as_it_was(schema: int) -> None:
    """Byte for byte, and of its schema."""
    content = (HERE / f"store-{schema}.db").read_bytes()
    assert hashlib.sha256(content).hexdigest() == FILES[schema]
    assert int.from_bytes(content[60:64], "big") == schema  # SQLite's user_version


# --- what they hold ------------------------------------------------------------------------------


async def test_everything_in_it_verifies(lp: limpet.Limpet) -> None:
    """Each chain, each checksum, each snapshot and head, under the schema it was brought to."""
    assert (await lp.maintenance.verify()).findings == ()
    assert (await lp.maintenance.doctor()).report.ok


async def test_events_read_as_they_were_written(lp: limpet.Limpet, schema: int) -> None:
    """Each field of each event of each kind, forwards and backwards."""
    logs = stores.events(schema)
    assert list(logs) == list(BEGAN[schema])
    for key, log in logs.items():
        read = await lp.session(key).read()
        assert (await lp.session(key).read(reverse=True))[::-1] == read
        floor = BASES[key].floor if key in BASES else 0
        assert [event.seq for event in read] == list(range(1, floor + len(log) + 1))
        for said, event in zip(log, read[floor:], strict=True):
            assert (event.type, event.data, event.id) == (said.type, said.data, said.id)
            assert msgspec.json.decode(msgspec.json.encode(event.ops)) == said.ops
            assert (event.actor, event.damage, event.partial) == (stores.ACTOR, None, False)
            for name in ("cause", "invocation_id", "correlation_id", "wake_id"):
                assert getattr(event, name) == said.more.get(name)
            commit = BEGAN[schema][key] + event.seq - floor - 1
            if event.id == "l8":  # written by another process, after all the others
                commit = LAST[schema]
            assert event.at_us == at_us(commit)
    said = await lp.session(MAIN).read(types=["user.*", "tool.asked"])
    assert [(e.processed, e.processed_us) for e in said] == [(5, at_us(4)), (0, None), (0, None)]
    assert [e.seq for e in await lp.session(MAIN).pending()] == [4, 14]


async def test_a_fork_is_read_through_to_its_parent(lp: limpet.Limpet) -> None:
    """The parent's events up to the floor, whether it lives or was deleted; then its own."""
    fork, main = await lp.session(FORK).read(), await lp.session(MAIN).read()
    assert [event.id for event in fork[:5]] == [event.id for event in main[:5]]
    assert [event.data for event in fork[:5]] == [event.data for event in main[:5]]
    assert [event.processed for event in fork if event.processed is not None] == [5, 6, 8]
    heir = await lp.session(HEIR).read()
    assert [event.id for event in heir[:2]] == [stores.uid(9), "q2"]
    assert [event.removed for event in heir] == [False] * 4
    for key, on in BASES.items():
        base = await inside(lp).base(key)
        assert base is not None
        assert (base.parent, base.floor, base.fields) == (on.parent, on.floor, on.state)


async def test_any_version_is_folded(lp: limpet.Limpet) -> None:
    """From the snapshots on the way, the pinned one among them."""
    assert (await inside(lp).fold_at(MAIN, 12)).fields == own(STATES[MAIN])
    assert (await inside(lp).fold_at(MAIN, 5)).fields == BASES[FORK].state
    assert (await inside(lp).fold_at(FORK, 7)).fields == own(STATES[FORK])
    assert (await inside(lp).fold_at(LONG, 3)).fields == {"list": [stores.text(2), stores.text(3)]}


async def test_blobs_and_marks_are_there(lp: limpet.Limpet) -> None:
    """The blob chunk by chunk, for the session and its fork; the mark with its end."""
    blobs, hash = inside(lp).blobs, stores.PHOTO.hash
    found = await blobs.find(MAIN, hash)
    assert found == msgspec.structs.replace(stores.PHOTO, version=14)
    chunks = [await blobs.chunk(MAIN, hash, number) for number in range(2)]
    assert b"".join(chunks) == stores.CONTENT
    assert await blobs.find(FORK, hash) is None  # it was put after the event that the fork is of
    mark = await inside(lp).marks.get("nonce", "n-1")
    assert (mark.value, mark.until_us) == (7, stores.DEADLINE_US)


def inside(lp: limpet.Limpet) -> Any:
    """The store itself, for what no verb asks of it yet."""
    return lp._journal.store


def own(state: dict[str, Any]) -> dict[str, Any]:
    """The session's own fields."""
    return {name: value for name, value in state.items() if ":" not in name}


async def test_state_is_as_it_was(lp: limpet.Limpet, schema: int) -> None:
    """The session's own fields, app: and user: names, exactly; none that was deleted."""
    for key in stores.events(schema):
        session = await lp.get(key, tail=0)
        assert session.values == STATES[key]
        assert checksum(session.values) == checksum(STATES[key])  # kinds of numbers too


async def test_heads_are_as_they_were(lp: limpet.Limpet, schema: int) -> None:
    """Labels, timers, what is pending, priority, lease and the version of typed state."""
    main = (await lp.get(MAIN)).head
    assert main.labels == {"plan": "gold", "city": "Łódź"}
    assert main.timers == {
        "nap": limpet.Timer(1_893_456_000_000_000, "wake", 7),
        "end": limpet.Timer(1_924_992_000_123_456, "deadline", 8),
    }
    assert (main.pending, main.pending_us, main.created_us) == (2, at_us(4), at_us(0))
    assert main.uid == "0193f000-0000-7000-8000-000000000001"
    assert (main.priority, main.active_us) == (7, at_us(3))
    ends_us = at_us(LAST[schema]) + 3_600_000_000
    assert (main.fence, main.lease_us, main.worker) == (1, ends_us, "worker-1")
    assert main.leased_us == at_us(LAST[schema])
    fork = (await lp.get(FORK)).head
    assert (fork.floor, fork.version, fork.labels) == (5, 8, {"plan": "tried"})
    assert (fork.pending, fork.timers, fork.created_us) == (0, {}, at_us(29))
    assert fork.facts["parent"] == {
        "app": "shop",
        "user": "ada",
        "id": "main",
        "uid": main.uid,
        "at": 5,
    }
    found = [(await lp.get(key)).head.schema_version for key in (MAIN, TYPED, ASLEEP)]
    assert found == [None, "2.0.0", "1.0.0"]


async def test_sessions_are_found(lp: limpet.Limpet, schema: int) -> None:
    """By app, user and label, in the order of their creation; those that ended are not."""
    shop = [head.key for head in (await lp.list(app="shop", reverse=False)).items]
    assert shop == [MAIN, PEER, LONG, FORK, HEIR, REUSED]
    ada = [head.key for head in (await lp.list(app="shop", user="ada")).items]
    assert ada == [HEIR, FORK, LONG, MAIN]
    gold = [head.key for head in (await lp.list(app="shop", labels={"plan": "gold"})).items]
    assert gold == [MAIN]
    assert (await lp.list(app="shop", labels={"plan": "old"})).items == ()
    assert len((await lp.list()).items) == len(stores.events(schema))
    by_key = await lp.list(app="shop", user="ada", order="key", reverse=False, prefix="m")
    assert [head.key for head in by_key.items] == [MAIN]


async def test_ended_sessions_stay_ended(lp: limpet.Limpet, schema: int) -> None:
    """Deleted, moved and erased ones say so; certificates are still there."""
    for key in (DELETED, MOVED, PARENT):
        with pytest.raises(errors.SessionDeleted):
            await lp.get(key)
    for key in (ERASED, FORGOTTEN):
        with pytest.raises(errors.SessionErased):
            await lp.get(key)
    tombs = (await lp.list(deleted=True, reverse=False)).items
    assert [(head.key, head.ending) for head in tombs] == [
        (DELETED, "deleted"),
        (MOVED, "moved"),
        (PARENT, "deleted"),
        (REUSED, "deleted"),
    ]
    certificate = await lp.erase(ERASED)
    assert certificate is not None
    assert (certificate.version, certificate.erased_us) == (1, at_us(LAST[schema] - 1))
    user = await inside(lp).erase_user(FORGOTTEN.app, FORGOTTEN.user)
    assert (user.user.version, user.user.erased_us) == (1, at_us(LAST[schema] - 2))
    assert (user.sessions, user.names) == ((), 0)


async def test_they_go_on(lp: limpet.Limpet, schema: int) -> None:
    """New events follow the old ones, a repeated id is known, and all of it verifies."""
    for key, log in stores.events(schema).items():
        session = lp.session(key, actor="agent:late", untyped=True)
        last = len(log) + (BASES[key].floor if key in BASES else 0)
        assert (await session.append("agent.said", id=log[-1].id)).seq == last
        await session.append("agent.said", inc={"n": 1, "app:visits": 1})
        assert session.version == last + 1
    assert (await lp.get(MAIN)).values["app:visits"] == 3 + 6
    assert (await lp.maintenance.verify()).findings == ()


# --- typed state ---------------------------------------------------------------------------------


class Mood(Enum):
    CALM = "calm"


class Message(Record):
    role: str
    text: str


class Chat(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    mood: Mood
    messages: list[Message]


def goal(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "goal": fields.pop("plan")}


async def test_typed_state_is_read_and_migrated(lp: limpet.Limpet) -> None:
    """What is of the class's version as it is, and what slept through a MAJOR on its load."""
    migrations = MigrationRegistry()
    migrations.register("1.1.0", "2.0.0", goal)
    typed = await lp.get(TYPED, state_type=Chat, migrations=migrations)
    assert (typed.version, typed.state.goal) == (4, "p")
    assert typed.state.mood == UnknownVariant("elated", Mood)
    assert [m.model_dump() for m in typed.state.messages] == [{"role": "user", "text": "hi"}]
    data = typed.events[-1].data
    assert data is not None
    assert data["checksum_after"] == checksum(typed.values).hex()
    asleep = await lp.get(ASLEEP, state_type=Chat, migrations=migrations)
    assert asleep.state == Chat(goal="sleep", mood=Mood.CALM, messages=[])
    assert (asleep.version, asleep.head.schema_version) == (2, "2.0.0")
    assert (await lp.maintenance.verify()).findings == ()


# --- before an upgrade ---------------------------------------------------------------------------


def test_the_doctor_says_what_an_upgrade_will_do(tmp_path: Path) -> None:
    """From which schema to which, for how long, how to go back; and it changes nothing."""
    shutil.copy(HERE / "store-1.db", tmp_path / "old.db")
    content = (tmp_path / "old.db").read_bytes()
    said = run(tmp_path, "doctor", "old.db")
    assert f"schema 1 → {SCHEMA}" in said.stdout
    for words in ("upgrade time", "upgrade undone", "older processes", "limpet backup"):
        assert words in said.stdout
    assert said.returncode == 0
    assert run(tmp_path, "doctor", "old.db", "--strict").returncode == 1
    assert (tmp_path / "old.db").read_bytes() == content


def test_every_schema_says_what_it_changes() -> None:
    """On SQLite and on PostgreSQL, which have the same numbers."""
    assert list(upgrade.STEPS) == list(range(2, SCHEMA + 1))
    assert postgres_schema.SCHEMA == SCHEMA

"""The golden databases: what the code of every schema wrote is read for ever."""

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
from limpet.model.canonical import checksum
from limpet.store.sqlite.file.schema import SCHEMA
from tests.golden import stores
from tests.golden.stores import ASLEEP, BEGAN_US, DELETED, ERASED, LONG, MAIN, PEER, STATES, TYPED

HERE: Final = Path(__file__).parent
# A golden file is never written again: this is the SHA-256 of each.
FILES: Final = {
    1: "1d4ad5a35b1f23f1a74d7c72013ea540fa50edf52636e4f2b3161c2aeb777cdf",
    2: "eb4f0d1db32211991757ba1a0dfcfe30b346114e6b030a70a8657ea7e076ef65",
    3: "cf94afb0c1b89eeccda3a7a8d3b9db38c8effd6d00e24e1135a0e9960aad7a30",
}
# Which commit began each session, counted from 0.
BEGAN: Final = {
    1: {MAIN: 0, PEER: 12, LONG: 15},
    2: {MAIN: 0, PEER: 13, LONG: 16},
    3: {MAIN: 0, PEER: 13, LONG: 16, TYPED: 23, ASLEEP: 27},
}
LAST: Final = {1: 26, 2: 27, 3: 32}  # the event after the snapshot; just before it, an erasure


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
    assert (await lp.verify()).findings == ()
    assert (await lp.doctor()).report.ok


async def test_events_read_as_they_were_written(lp: limpet.Limpet, schema: int) -> None:
    """Each field of each event of each kind, forwards and backwards."""
    logs = stores.events(schema)
    assert list(logs) == list(BEGAN[schema])
    for key, log in logs.items():
        read = await lp.session(key).read()
        assert (await lp.session(key).read(reverse=True))[::-1] == read
        assert [event.seq for event in read] == list(range(1, len(log) + 1))
        for said, event in zip(log, read, strict=True):
            assert (event.type, event.data, event.id) == (said.type, said.data, said.id)
            assert msgspec.json.decode(msgspec.json.encode(event.ops)) == said.ops
            assert (event.actor, event.damage, event.partial) == (stores.ACTOR, None, False)
            for name in ("cause", "invocation_id", "correlation_id", "wake_id"):
                assert getattr(event, name) == said.more.get(name)
            commit = BEGAN[schema][key] + event.seq - 1
            if event.id == "l8":  # written by another process, after all the others
                commit = LAST[schema]
            assert event.at_us == at_us(commit)
    processed = [event.processed_us for event in await lp.session(MAIN).read(types=["user.*"])]
    assert processed == [at_us(4), None]


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
        "nap": limpet.Timer(1_893_456_000_000_000, "wake"),
        "end": limpet.Timer(1_924_992_000_123_456, "deadline"),
    }
    assert (main.pending, main.pending_us, main.created_us) == (1, at_us(4), at_us(0))
    assert main.uid == "0193f000-0000-7000-8000-000000000001"
    assert main.priority == (0 if schema == 1 else 7)
    lease = (main.fence, main.lease_us, main.worker)
    ends_us = at_us(LAST[schema]) + 3_600_000_000
    assert lease == ((0, None, None) if schema == 1 else (1, ends_us, "worker-1"))
    if schema >= 3:
        found = [(await lp.get(key)).head.schema_version for key in (MAIN, TYPED, ASLEEP)]
        assert found == [None, "2.0.0", "1.0.0"]


async def test_sessions_are_found(lp: limpet.Limpet, schema: int) -> None:
    """By app, user and label, in the order of their creation; those that ended are not."""
    shop = [head.key for head in (await lp.list(app="shop", reverse=False)).items]
    assert shop == [MAIN, PEER, LONG]
    ada = [head.key for head in (await lp.list(app="shop", user="ada")).items]
    assert ada == [LONG, MAIN]
    gold = [head.key for head in (await lp.list(app="shop", labels={"plan": "gold"})).items]
    assert gold == [MAIN]
    assert len((await lp.list()).items) == len(stores.events(schema))


async def test_ended_sessions_stay_ended(lp: limpet.Limpet, schema: int) -> None:
    """A deleted and an erased one say so, and the erased one still has its certificate."""
    with pytest.raises(errors.SessionDeleted):
        await lp.get(DELETED)
    with pytest.raises(errors.SessionErased):
        await lp.get(ERASED)
    certificate = await lp.erase(ERASED)
    assert certificate is not None
    assert certificate.version == 1
    assert certificate.erased_us == at_us(LAST[schema] - 1)


async def test_they_go_on(lp: limpet.Limpet, schema: int) -> None:
    """New events follow the old ones, a repeated id is known, and all of it verifies."""
    for key, log in stores.events(schema).items():
        session = lp.session(key, actor="agent:late", untyped=True)
        assert (await session.append("agent.said", id=log[-1].id)).seq == len(log)
        await session.append("agent.said", inc={"n": 1, "app:visits": 1})
        assert session.version == len(log) + 1
    assert (await lp.get(MAIN)).values["app:visits"] == 3 + 3
    assert (await lp.verify()).findings == ()


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


@pytest.mark.parametrize("schema", [number for number in FILES if number >= 3], indirect=True)
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
    assert (await lp.verify()).findings == ()

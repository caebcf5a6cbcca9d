"""Typed sessions, as their owners use them: on every store, over migrations and other writers."""

from __future__ import annotations

import asyncio
import operator
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal

import pytest
from pydantic import Field

import limpet
from limpet import MigrationRegistry, Record, Replace, State, errors, reducers
from limpet.model.values import checksum

KEY = ("shop", "ada", "a")


class Mood(Enum):
    CALM = "calm"
    TENSE = "tense"


class Message(Record):
    role: str
    text: str
    at: datetime | None = None


class Chat(State):
    schema_version: ClassVar[str] = "1.0.0"
    newer_minor: ClassVar[Literal["refuse", "keep"]] = "keep"
    plan: str = ""
    mood: Mood = Mood.CALM
    patience: timedelta = timedelta(minutes=5)
    secret: bytes = b""
    messages: Annotated[list[Message], reducers.append] = []
    recent: Annotated[list[str], reducers.bounded_append(3)] = []
    tags: Annotated[dict[str, int], reducers.merge] = {}
    steps: Annotated[list[dict[str, Any]], reducers.merge_by_key("id")] = []


async def chat(lp: limpet.Limpet, **fields: Any) -> limpet.Session[Chat]:
    return await lp.create(*KEY[:2], id=KEY[2], state=Chat(**fields), actor="agent:a")


# --- creating, reading, applying -----------------------------------------------------------------


async def test_state_comes_back_as_it_was_given(lp: limpet.Limpet) -> None:
    """Every field of its type, through the store and back; the head knows the version."""
    at = datetime(2026, 1, 2, 3, 4, 5, 6, tzinfo=UTC)
    given = Chat(
        plan="p",
        mood=Mood.TENSE,
        patience=timedelta(microseconds=-1),
        secret=b"\x00\xff",
        messages=[Message(role="user", text="hi", at=at)],
    )
    made = await lp.create(*KEY[:2], id=KEY[2], state=given)
    assert made.state == given
    found = await lp.get(KEY, state_type=Chat)
    assert found.state == given
    assert type(found.state) is Chat
    assert found.head.schema_version == "1.0.0"
    assert (await lp.list(app="shop")).items[0].schema_version == "1.0.0"
    assert (await lp.maintenance.verify()).ok


async def test_an_update_goes_through_the_reducers(lp: limpet.Limpet) -> None:
    """Appended, bounded, merged and replaced, in one event; what was said is stored once."""
    session = await chat(lp, messages=[Message(role="user", text="1")])
    event = await session.apply(
        {
            "plan": "new",
            "messages": [Message(role="agent", text="2")],
            "recent": ["a", "b", "c", "d"],
            "tags": {"x": 1},
            "steps": [{"id": 1, "done": False}],
        }
    )
    assert event is not None
    assert (event.type, event.actor) == ("state.updated", "agent:a")
    added = [op for op in event.ops if op.path == ("messages",)]
    assert added == [limpet.ops.Add(("messages",), [{"role": "agent", "text": "2", "at": None}])]
    await session.apply({"steps": [{"id": 1, "done": True}], "tags": {"y": 2}})
    for seen in (session.state, (await lp.get(KEY, state_type=Chat)).state):
        assert seen.plan == "new"
        assert [m.text for m in seen.messages] == ["1", "2"]
        assert seen.recent == ["b", "c", "d"]
        assert seen.tags == {"x": 1, "y": 2}
        assert seen.steps == [{"id": 1, "done": True}]


async def test_an_update_may_be_an_event_of_ones_own(lp: limpet.Limpet) -> None:
    """With its type, data and id; the id is recorded once."""
    session = await chat(lp)
    for _ in range(2):
        event = await session.apply(
            {"plan": "x"}, type="agent.planned", data={"why": "because"}, id="once"
        )
        assert event is not None
        assert (event.type, event.seq, event.data) == ("agent.planned", 2, {"why": "because"})
    assert session.version == 2


@pytest.mark.parametrize(
    ("update", "field"),
    [
        ({"plan": 5}, "plan"),
        ({"plam": "x"}, "plam"),
        ({"messages": [{"role": "user"}]}, "messages[0].text"),
        ({"messages": "hi"}, "messages"),
        ({"plan": "fine", "mood": "furious"}, "mood"),
        ({"patience": 5}, "patience"),
    ],
)
async def test_a_wrong_type_is_refused_before_anything_is_written(
    lp: limpet.Limpet, update: dict[str, Any], field: str
) -> None:
    """SchemaViolation names the field; the session is at the version it was at."""
    session = await chat(lp)
    with pytest.raises(errors.SchemaViolation) as info:
        await session.apply(update)
    assert info.value.field == field
    assert (await lp.get(KEY)).version == 1


async def test_nothing_to_change_is_no_event(lp: limpet.Limpet) -> None:
    """An empty update, or one that adds nothing."""
    session = await chat(lp)
    assert await session.apply({}) is None
    assert await session.apply({"messages": []}) is None
    assert session.version == 1


async def test_untyped_sessions_stay_as_they_are(lp: limpet.Limpet) -> None:
    """No schema version, a mapping as state, and apply says what it needs."""
    session = await lp.create(*KEY[:2], id=KEY[2], state={"n": 1}, actor="x")
    assert session.state == {"n": 1}
    assert session.head.schema_version is None
    with pytest.raises(errors.InvalidInput, match="state_type"):
        await session.apply({"n": 2})


async def test_an_untyped_session_is_taken_over_by_its_first_typed_update(
    lp: limpet.Limpet,
) -> None:
    """What it holds must fit; from then on the version is known. Other names are left alone."""
    plain = await lp.create(*KEY[:2], id=KEY[2], state={"plan": "p", "extra": 1}, actor="x")
    typed = await lp.get(KEY, state_type=Chat, actor="x")
    assert typed.state.plan == "p"
    await typed.apply({"plan": "q"})
    assert typed.head.schema_version == "1.0.0"
    await plain.refresh()
    assert plain.state == {"plan": "q", "extra": 1}
    assert [event.type for event in plain.events][1:] == ["state.migrated", "state.updated"]


async def test_racing_updates_that_look_at_the_field_all_count(lp: limpet.Limpet) -> None:
    """Bounded and keyed lists under ten writers: nothing is lost, nothing is there twice."""
    await chat(lp)
    many = [await lp.get(KEY, state_type=Chat, actor=f"w:{n}") for n in range(10)]
    await asyncio.gather(
        *(s.apply({"steps": [{"id": n, "by": n}], "recent": [str(n)]}) for n, s in enumerate(many))
    )
    state = (await lp.get(KEY, state_type=Chat)).state
    assert sorted(step["id"] for step in state.steps) == list(range(10))
    assert len(state.recent) == 3


async def test_a_computed_update_sees_typed_state_and_loses_nothing(lp: limpet.Limpet) -> None:
    """Ten writers each add one to what they read, checked as any update is."""
    await chat(lp)
    many = [await lp.get(KEY, state_type=Chat, actor=f"w:{n}") for n in range(10)]

    def longer(state: Chat) -> dict[str, Any]:
        return {"plan": state.plan + "x"}

    await asyncio.gather(*(session.update(longer) for session in many))
    assert (await lp.get(KEY, state_type=Chat)).state.plan == "x" * 10
    with pytest.raises(errors.SchemaViolation):
        await many[0].update(lambda state: {"plan": len(state.plan)})


async def test_typed_updates_of_two_sessions_are_one_commit(lp: limpet.Limpet) -> None:
    """All or none, each planned on top of the one before it."""
    one = await chat(lp)
    two = await lp.create("shop", "ada", id="b", state=Chat(), actor="agent:a")
    async with lp.commit() as c:
        c.apply(one, {"recent": ["a", "b", "c"]})
        c.apply(one, {"recent": ["d"]})
        c.apply(two, {"plan": "two"}, type="agent.planned")
    assert (one.state.recent, two.state.plan) == (["b", "c", "d"], "two")
    stale = await lp.get(KEY, state_type=Chat, actor="x")
    await one.apply({"recent": ["e"]})
    c = await lp.commit().__aenter__()
    c.apply(stale, {"recent": ["f"]})
    c.apply(two, {"plan": "three"})
    with pytest.raises(errors.SessionConflict):
        await c.__aexit__(None, None, None)
    assert (await lp.get(two.key, state_type=Chat)).state.plan == "two"


async def test_a_field_with_a_reducer_is_replaced_or_emptied(lp: limpet.Limpet) -> None:
    """By apply, by update and within a commit; and what is declared about it still holds."""
    s = await chat(lp)
    await s.apply({"recent": ["a", "b"], "messages": [Message(role="user", text="1")]})
    event = await s.apply({"recent": Replace(["c"]), "messages": Replace([])}, type="chat.reset")
    assert event is not None
    assert (event.type, s.state.recent, s.state.messages) == ("chat.reset", ["c"], [])
    await s.update(lambda state: {"recent": Replace([*state.recent, "d"][-1:])})
    assert s.state.recent == ["d"]
    async with lp.commit() as c:
        c.apply(s, {"recent": Replace([])})
        c.apply(s, {"recent": ["e"]})
    assert (await lp.get(KEY, state_type=Chat)).state.recent == ["e"]
    for wrong in ({"recent": Replace([1])}, {"nothing": Replace([])}):
        with pytest.raises(errors.SchemaViolation):
            await s.apply(wrong)
        with pytest.raises(errors.SchemaViolation):
            async with lp.commit() as c:
                c.apply(s, wrong)
    plain = await lp.get(KEY, actor="agent:a")
    with pytest.raises(errors.InvalidValue):
        await plain.update(lambda state: {"recent": Replace([])})
    assert (await lp.get(KEY, state_type=Chat)).state.recent == ["e"]


async def test_state_goes_out_in_an_envelope(lp: limpet.Limpet) -> None:
    """With the version of its class and of the session."""
    session = await chat(lp, plan="p")
    found = limpet.envelope.decode(session.envelope(format="msgpack"))
    assert (found.schema_version, found.state_version) == ("1.0.0", 1)
    assert found.fields["plan"] == "p"


# --- an envelope comes back ----------------------------------------------------------------------


class Older(State):
    """State of another MAJOR than Newer, with other names and defaults for all of them."""

    step: str = "new"


class Newer(State):
    schema_version: ClassVar[str] = "2.0.0"
    phase: str = "new"


RENAMED = limpet.MigrationRegistry()
RENAMED.register("1.0.0", "2.0.0", lambda fields: {"phase": fields["step"]})


async def test_an_envelope_brings_its_schema_version_along(lp: limpet.Limpet) -> None:
    """What was sent out is not read as empty by a class of another MAJOR: migrated, or refused."""
    sent = await lp.create("shop", "ada", state=Older(step="packed"))
    found = limpet.envelope.decode(sent.envelope())
    made = await lp.create("shop", "ada", id="back", state=found, labels={"from": "there"})
    assert (made.head.schema_version, made.state, made.labels) == (
        "1.0.0",
        {"step": "packed"},
        {"from": "there"},
    )
    with pytest.raises(errors.MigrationMissing):
        await lp.get(made.key, state_type=Newer)
    assert (await lp.get(made.key, state_type=Older)).state == Older(step="packed")
    loaded = await lp.get(made.key, state_type=Newer, migrations=RENAMED)
    assert (loaded.state, loaded.head.schema_version) == (Newer(phase="packed"), "2.0.0")


async def test_an_envelope_without_a_version_begins_an_untyped_session(
    lp: limpet.Limpet,
) -> None:
    """There is nothing to keep then, and nothing is invented."""
    sent = await lp.create("shop", "ada", state={"n": 1})
    found = limpet.envelope.decode(sent.envelope(format="protobuf"))
    made = await lp.get_or_create("shop", "ada", id="back", state=found)
    again = await lp.get_or_create("shop", "ada", id="back", state=found)
    assert (made.head.schema_version, again.state, again.version) == (None, {"n": 1}, 1)


def enveloped(fields: dict[str, Any], version: str | None) -> limpet.Envelope:
    return limpet.envelope.decode(
        limpet.envelope.encode(fields, schema_version=version, state_version=1, serialized_at_us=0)
    )


@pytest.mark.parametrize(
    ("fields", "version", "error"),
    [
        ({"app:limit": 1}, None, errors.InvalidInput),
        ({"user:name": "x"}, "1.0.0", errors.InvalidInput),
        ({"temp:name": "x"}, "1.0.0", errors.InvalidInput),
        ({"": 1}, "1.0.0", errors.InvalidOp),
        ({"n": 1}, "1.0.0-beta", errors.InvalidSchema),
    ],
)
async def test_an_envelope_that_is_no_state_of_a_session_creates_none(
    lp: limpet.Limpet, fields: dict[str, Any], version: str | None, error: type[Exception]
) -> None:
    """Names that others share, and versions that no load could read, are refused before."""
    with pytest.raises(error):
        await lp.create("shop", "ada", id="x", state=enveloped(fields, version))
    assert await lp.find(("shop", "ada", "x")) is None


async def test_migrations_are_for_typed_state_only(lp: limpet.Limpet) -> None:
    """Where no class is there to migrate to, a registry is a misunderstanding, and told so."""
    how: dict[str, Any] = {"id": "x", "migrations": RENAMED}
    for state in ({"step": "a"}, enveloped({"step": "a"}, "1.0.0")):
        with pytest.raises(errors.InvalidInput, match="state_type"):
            await lp.create("shop", "ada", state=state, **how)
        with pytest.raises(errors.InvalidInput, match="state_type"):
            await lp.get_or_create("shop", "ada", state=state, **how)


def test_an_envelope_is_read_as_a_class() -> None:
    """Without a store: migrated, refused or read, as a load would."""
    found = enveloped({"step": "packed"}, "1.0.0")
    assert found.state(Older) == Older(step="packed")
    assert found.state(Newer, migrations=RENAMED) == Newer(phase="packed")
    with pytest.raises(errors.MigrationMissing):
        found.state(Newer)
    with pytest.raises(errors.SchemaViolation):
        enveloped({"step": 1}, "1.0.3").state(Older)
    with pytest.raises(errors.SchemaIncompatible, match="newer_minor"):
        enveloped({"step": "x"}, "1.3.0").state(Older)
    with pytest.raises(errors.SchemaIncompatible):
        enveloped({"step": "x"}, "1.0.0-beta").state(Older)
    assert enveloped({"step": "x"}, None).state(Older) == Older(step="x")
    with pytest.raises(errors.InvalidInput, match="not a State"):
        found.state(dict)  # type: ignore[type-var]
    with pytest.raises(errors.InvalidInput, match="not a registry"):
        found.state(Newer, migrations={})  # type: ignore[arg-type]


def test_plain_fields_are_read_as_a_class() -> None:
    """The same for fields that came in no envelope, with the version they were stored under."""
    fields = {"step": "packed"}
    made = limpet.decode_fields(Newer, fields, schema_version="1.0.0", migrations=RENAMED)
    assert (made, fields) == (Newer(phase="packed"), {"step": "packed"})
    assert limpet.encode_fields(made) == {"phase": "packed"}


# --- the class changes ---------------------------------------------------------------------------


class Mood2(Enum):
    CALM = "calm"
    TENSE = "tense"
    ELATED = "elated"


class Wide(State):
    """The next minor of Chat: a field with a default, and one more mood."""

    schema_version: ClassVar[str] = "1.1.0"
    plan: str = ""
    mood: Mood2 = Mood2.CALM
    messages: Annotated[list[Message], reducers.append] = []
    owner: str = "nobody"


async def test_old_and_new_code_run_side_by_side_over_a_minor_change(
    lp: limpet.Limpet,
) -> None:
    """New fields and variants survive old writers; old state has the new defaults."""
    old = await chat(lp, plan="p")
    new = await lp.get(KEY, state_type=Wide, actor="agent:b")
    assert new.state.owner == "nobody"
    await new.apply({"owner": "ada", "mood": Mood2.ELATED})
    assert new.head.schema_version == "1.1.0"
    await old.refresh()
    assert isinstance(old.state.mood, limpet.UnknownVariant)
    assert old.state.mood.value == "elated"
    await old.apply({"messages": [Message(role="user", text="hi")], "plan": "q"})
    assert old.head.schema_version == "1.1.0"
    await new.refresh()
    assert (new.state.owner, new.state.mood, new.state.plan) == ("ada", Mood2.ELATED, "q")
    types = [event.type for event in new.events]
    assert types.count("state.migrated") == 1


class Renamed(State):
    """The next major: plan is called goal now, and messages are texts."""

    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    messages: Annotated[list[str], reducers.append] = []


MIGRATIONS = MigrationRegistry("chat")


@MIGRATIONS.migration("1.1.0", "2.0.0")
def rename(fields: dict[str, Any]) -> dict[str, Any]:
    fields["goal"] = fields.pop("plan")
    fields["messages"] = [message["text"] for message in fields["messages"]]
    return {name: fields[name] for name in ("goal", "messages")}


async def test_a_major_change_is_migrated_on_load_and_recorded(lp: limpet.Limpet) -> None:
    """Once, as an event with the way that was taken and both checksums; the log verifies."""
    await chat(lp, plan="p", messages=[Message(role="user", text="hi")])
    for _ in range(2):
        session = await lp.get(KEY, state_type=Renamed, migrations=MIGRATIONS)
        assert (session.state.goal, session.state.messages) == ("p", ["hi"])
    event = session.events[-1]
    assert event.type == "state.migrated"
    assert event.data is not None
    assert (event.data["from"], event.data["to"]) == ("1.0.0", "2.0.0")
    assert event.data["steps"] == [["1.1.0", "2.0.0"]]
    assert event.data["checksum_after"] == checksum(session.values).hex()
    assert session.version == 2
    assert set(session.values) == {"goal", "messages"}
    assert (await lp.maintenance.verify()).ok


async def test_old_code_that_wakes_up_after_a_major_change_writes_nothing(
    lp: limpet.Limpet,
) -> None:
    """Its update was made for another shape: it is told so, and state is as it was."""
    old = await chat(lp, plan="p")
    await lp.get(KEY, state_type=Renamed, migrations=MIGRATIONS)
    with pytest.raises(errors.SchemaIncompatible):
        await old.apply({"plan": "late"})
    assert (await lp.get(KEY)).values == {"goal": "p", "messages": []}


async def test_many_loads_at_once_migrate_once(lp: limpet.Limpet) -> None:
    """Whoever is first records it, the others find it done."""
    await chat(lp, plan="p")
    many = await asyncio.gather(
        *(lp.get(KEY, state_type=Renamed, migrations=MIGRATIONS) for _ in range(8))
    )
    assert {session.state.goal for session in many} == {"p"}
    assert (await lp.get(KEY)).version == 2


async def test_a_migration_of_thousands_of_places_is_still_one_event(
    lp: limpet.Limpet,
) -> None:
    """Where single operations would be too many, whole fields are written."""
    messages = [Message(role="user", text=str(n)) for n in range(3_000)]
    await chat(lp, plan="p", messages=messages)
    registry = MigrationRegistry()

    @registry.migration("1.0.0", "1.1.0")
    def shout(fields: dict[str, Any]) -> dict[str, Any]:
        for message in fields["messages"][::2]:
            message["role"] = "USER"
        return fields

    session = await lp.get(KEY, state_type=Wide, migrations=registry)
    assert [m.role for m in session.state.messages[:3]] == ["USER", "user", "USER"]
    assert len(session.events[-1].ops) == 1
    assert session.head.schema_version == "1.1.0"


@pytest.mark.parametrize("kind", ["missing", "failed", "invalid"])
async def test_a_migration_that_cannot_be_made_changes_nothing(
    lp: limpet.Limpet, kind: str
) -> None:
    """Missing, failing, or leading to state that does not fit the class."""
    await chat(lp)
    registry = MigrationRegistry()
    if kind == "failed":
        registry.register("1.0.0", "2.0.0", lambda fields: fields["nothing"])
    if kind == "invalid":
        registry.register("1.0.0", "2.0.0", lambda fields: {"goal": 5})
    error = {
        "missing": errors.MigrationMissing,
        "failed": errors.MigrationFailed,
        "invalid": errors.SchemaViolation,
    }[kind]
    with pytest.raises(error):
        await lp.get(KEY, state_type=Renamed, migrations=registry)
    assert (await lp.get(KEY)).version == 1


def test_without_await_too(tmp_path: Any) -> None:
    """The sync façade hands typed state through."""
    with limpet.open_sync(f"sqlite:///{tmp_path}/a.db") as lp:
        session = lp.create(*KEY[:2], id=KEY[2], state=Chat(plan="p"), actor="x")
        session.apply({"plan": "q"})
        assert lp.get(KEY, state_type=Chat).state.plan == "q"


# --- what others do meanwhile --------------------------------------------------------------------


async def test_tasks_that_share_an_object_migrate_once_and_lose_nothing(
    lp: limpet.Limpet,
) -> None:
    """Loads beside loads, and beside an update: one migration, every write kept."""
    for number in range(10):
        made = await lp.create("shop", "ada", id=f"s{number}", state=Chat(plan="p"), actor="x")
        shared = lp.session(made.key, state_type=Renamed, migrations=MIGRATIONS, actor="x")
        await asyncio.gather(
            shared.refresh(),
            shared.apply({"messages": ["new"]}),
            shared.refresh(),
            shared.refresh(),
        )
        found = await lp.get(made.key)
        assert found.values == {"goal": "p", "messages": ["new"]}
        types = [event.type for event in found.events]
        assert types == ["session.created", "state.migrated", "state.updated"]


async def test_a_session_is_not_migrated_under_anothers_lease(lp: limpet.Limpet) -> None:
    """Whoever runs it is of the old version: SessionLocked until it lets go."""
    await chat(lp, plan="p")
    lease = await lp.work.lock(KEY, worker="worker:old")
    with pytest.raises(errors.SessionLocked):
        await lp.get(KEY, state_type=Renamed, migrations=MIGRATIONS)
    await lp.session(KEY, state_type=Chat, lease=lease, actor="x").apply({"plan": "q"})
    await lp.work.release(lease)
    assert (await lp.get(KEY, state_type=Renamed, migrations=MIGRATIONS)).state.goal == "q"


async def test_a_lease_given_during_a_migration_stops_it(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the reading and the record: it is noticed by the fence, and nothing is recorded."""
    await chat(lp, plan="p")
    store = lp._journal.store
    verify = store.verify

    async def claimed_meanwhile(*args: Any) -> limpet.Report:
        await lp.work.lock(KEY, worker="worker:old")
        return await verify(*args)

    monkeypatch.setattr(store, "verify", claimed_meanwhile)
    with pytest.raises(errors.SessionLocked):
        await lp.get(KEY, state_type=Renamed, migrations=MIGRATIONS)
    assert (await lp.get(KEY)).version == 1


async def test_an_id_is_found_whatever_became_of_the_state(lp: limpet.Limpet) -> None:
    """A retry answers with the first record, also where the same update would not fit any more."""

    class Seats(State):
        taken: Annotated[list[int], reducers.append, Field(max_length=2)] = []
        seen: Annotated[list[int], reducers.dedupe_append(None)] = []

    session = await lp.create(*KEY[:2], id=KEY[2], state=Seats(), actor="x")
    full = await session.apply({"taken": [1, 2]}, id="full")
    once = await session.apply({"seen": [1]}, id="once")
    assert await session.apply({"taken": [1, 2]}, id="full") == full
    assert await session.apply({"seen": [1]}, id="once") == once
    with pytest.raises(errors.SchemaViolation):
        await session.apply({"taken": [3]}, id="other")
    assert session.version == 3


async def test_a_handle_that_only_appended_can_apply(lp: limpet.Limpet) -> None:
    """It loads what it needs to know."""
    await chat(lp)
    handle = lp.session(KEY, state_type=Chat, actor="x")
    await handle.append("user.said", {"text": "hi"})
    await handle.apply({"recent": ["a"]})
    assert handle.state.recent == ["a"]


async def test_plain_operations_on_typed_state_are_checked(lp: limpet.Limpet) -> None:
    """What the class declares stays what it declares; other names are free."""
    session = await chat(lp)
    with pytest.raises(errors.SchemaViolation):
        await session.append("a.b", set={"plan": 5})
    c = await lp.commit().__aenter__()
    with pytest.raises(errors.SchemaViolation):
        c.append(session, "a.b", add={"recent": [7]})
    await session.append("a.b", set={"plan": "fine", "extra": 5}, inc={"app:n": 1})
    assert session.state.plan == "fine"
    assert session.values["extra"] == 5


class Ballot(State):
    schema_version: ClassVar[str] = "1.0.0"
    votes: Annotated[int, Field(le=10)] = 0
    names: Annotated[list[str], Field(max_length=3)] = []
    log: list[str] = []
    chair: Annotated[str, limpet.access(write=["system"])] = ""


async def test_an_object_that_was_never_loaded_checks_all_the_same(lp: limpet.Limpet) -> None:
    """Types, rights and versions: it reads the state first; a commit asks for it to be loaded."""
    made = await lp.create(*KEY[:2], id=KEY[2], state=Ballot(), actor="agent:a")

    def handle() -> limpet.Session[Any]:
        return lp.session(KEY, state_type=Ballot, actor="agent:a")

    with pytest.raises(errors.SchemaViolation):
        await handle().append("a.b", set={"votes": "many"})
    with pytest.raises(errors.FieldAccessDenied):
        await handle().append_many([limpet.Draft(type="a.b", set={"chair": "me"})])
    with pytest.raises(errors.SessionNotLoaded):
        async with lp.commit() as c:
            c.append(handle(), "a.b", set={"votes": "many"})
    await handle().append("a.b", {"no": "change"})
    await made.refresh()
    assert (made.version, made.state) == (2, Ballot())

    class Ballot2(Ballot):
        schema_version: ClassVar[str] = "2.0.0"

    migrations = MigrationRegistry()
    migrations.migration("1.0.0", "2.0.0")(lambda fields: fields)
    await lp.get(KEY, state_type=Ballot2, migrations=migrations, actor="agent:b")
    with pytest.raises(errors.SchemaIncompatible):
        await handle().append("a.b", set={"votes": 1})


async def test_plain_operations_that_fit_only_what_was_seen_do_not_slip_past_others(
    lp: limpet.Limpet,
) -> None:
    """Each fits by itself, both do not: the second is refused, and the state stays readable."""
    one = await lp.create(*KEY[:2], id=KEY[2], state=Ballot(votes=9, names=["a", "b"]), actor="x")
    two = await lp.get(KEY, state_type=Ballot, actor="x")
    await one.append("a.b", inc={"votes": 1}, id="first")
    with pytest.raises(errors.SchemaViolation):
        await two.append("a.b", inc={"votes": 1})
    two = await lp.get(KEY, state_type=Ballot, actor="x")
    async with lp.commit() as c:
        c.append(one, "a.b", add={"names": ["c"]})
    with pytest.raises(errors.SessionConflict):
        async with lp.commit() as c:
            c.append(two, "a.b", add={"names": ["d"]})
    await two.refresh()
    assert (two.state.votes, two.state.names) == (10, ["a", "b", "c"])
    again = await two.append("a.b", inc={"votes": 1}, id="first")
    assert (again.seq, again.id) == (2, "first")


async def test_a_plain_operation_is_judged_by_the_newest_state(lp: limpet.Limpet) -> None:
    """Not by what the object happens to know; and a repeat by what was recorded."""
    one = await lp.create(*KEY[:2], id=KEY[2], state=Ballot(votes=10), actor="x")
    two = await lp.get(KEY, state_type=Ballot, actor="x")
    await one.append("a.b", set={"votes": 0})
    assert (await two.append("a.b", inc={"votes": 1})).seq == 3
    first = await two.append("a.b", delete=["votes"], id="d")
    assert await two.append("a.b", delete=["votes"], id="d") == first
    with pytest.raises(errors.OpPathUnknown):
        await two.append("a.b", delete=["votes"])


async def test_plain_operations_that_always_fit_meet_no_conflict(lp: limpet.Limpet) -> None:
    """More of a list, or a new value: two writers at once are both recorded, in a commit too."""
    one = await lp.create(*KEY[:2], id=KEY[2], state=Ballot(), actor="x")
    two = await lp.get(KEY, state_type=Ballot, actor="x")
    await one.append("a.b", add={"log": ["1"]}, set={"votes": 3})
    async with lp.commit() as c:
        c.append(two, "a.b", add={"log": ["2"]}, set={"votes": 4})
    await one.append("a.b", add={"log": ["3"]})
    await two.refresh()
    assert (two.state.log, two.state.votes, two.version) == (["1", "2", "3"], 4, 4)


async def test_what_a_view_shows_cannot_be_changed_in_place(lp: limpet.Limpet) -> None:
    """Lists and dicts of a state are read-only, and may be given back as they are."""
    session = await chat(lp, recent=["a"], tags={"x": 1})
    with pytest.raises(TypeError, match="read-only"):
        session.state.recent.append("b")
    with pytest.raises(TypeError, match="read-only"):
        session.state.tags["y"] = 2
    await session.apply({"recent": session.state.recent, "tags": session.state.tags})
    assert session.state.recent == ["a", "a"]


async def test_one_commit_plans_each_update_on_what_it_makes_of_the_state(
    lp: limpet.Limpet,
) -> None:
    """Whatever objects name the session, and whatever else the commit does to it."""
    one = await chat(lp)
    two = await lp.get(KEY, state_type=Chat, actor="x")
    async with lp.commit() as c:
        c.append(one, "a.b", add={"recent": ["1", "2", "3"]})
        c.apply(one, {"recent": ["4"], "steps": [{"id": 1, "n": 1}]})
        c.apply(two, {"recent": ["5"], "steps": [{"id": 1, "n": 2}]})
    assert (await lp.get(KEY, state_type=Chat)).state.recent == ["3", "4", "5"]
    assert (await lp.get(KEY, state_type=Chat)).state.steps == [{"id": 1, "n": 2}]
    c = await lp.commit().__aenter__()
    c.apply(one, {"recent": ["6"]})
    await one.apply({"recent": ["x"]})
    c.apply(one, {"recent": ["7"]})  # still on what the commit began with
    with pytest.raises(errors.SessionConflict):
        await c.__aexit__(None, None, None)


# --- mistakes that people make -------------------------------------------------------------------


@pytest.mark.parametrize("habit", [operator.add, lambda old, new: old + new, "append"])
def test_what_is_no_reducer_is_refused_with_those_that_are(habit: object) -> None:
    """Passed over in silence it would let every update overwrite the field."""
    with pytest.raises(errors.InvalidSchema, match=r"not a reducer.*merge_by_key"):
        type(
            "Habit",
            (State,),
            {
                "__annotations__": {"a": Annotated[list[int], habit]},
                "__module__": __name__,
                "a": [],
            },
        )


async def test_another_class_of_the_same_version_is_noticed_and_writes_nothing(
    lp: limpet.Limpet,
) -> None:
    """The store knows versions and not classes: what is stored must fit."""

    class Other(State):
        city: str
        plan: str = ""

    await chat(lp, plan="p")
    with pytest.raises(errors.SchemaViolation):
        await lp.get(KEY, state_type=Other)
    with pytest.raises(errors.SchemaViolation):
        await lp.session(KEY, state_type=Other, actor="x").apply({"plan": "other"})
    assert (await lp.get(KEY, state_type=Chat)).state.plan == "p"


async def test_a_commit_that_was_not_entered_says_so(lp: limpet.Limpet) -> None:
    """What is added to it would be forgotten."""
    session = await chat(lp)
    with pytest.raises(errors.InvalidInput, match="async with"):
        lp.commit().append(session, "a.b")
    with pytest.raises(errors.InvalidInput, match="async with"):
        lp.commit().apply(session, {"plan": "x"})


# --- who may write what ---------------------------------------------------------------------------


class Ticket(State):
    verdict: Annotated[str, limpet.access(read=["agent", "auditor"], write=["auditor"])] = ""
    notes: Annotated[list[str], reducers.append, limpet.access(write=["agent", "auditor"])] = []
    title: str = ""


async def test_a_field_is_written_by_those_its_class_names(lp: limpet.Limpet) -> None:
    """By apply, update, plain operations and commits alike; refused, nothing is written."""
    session = await lp.create(*KEY[:2], id=KEY[2], state=Ticket(), actor="agent:a")
    await session.apply({"notes": ["seen"], "title": "t"})
    with pytest.raises(errors.FieldAccessDenied) as info:
        await session.apply({"notes": ["more"], "verdict": "guilty"})
    assert (info.value.field, info.value.allowed) == ("verdict", ("auditor",))
    with pytest.raises(errors.FieldAccessDenied):
        await session.update(lambda state: {"verdict": state.title})
    with pytest.raises(errors.FieldAccessDenied):
        await session.append("a.b", set={"verdict": "guilty"})
    async with lp.commit() as c:
        with pytest.raises(errors.FieldAccessDenied):
            c.apply(session, {"verdict": "guilty"})
        with pytest.raises(errors.FieldAccessDenied):
            c.append(session, "a.b", set={"verdict": "guilty"})
    with pytest.raises(errors.FieldAccessDenied):
        await session.apply({"notes": ["x"]}, actor="user:ada")
    assert session.version == 2
    await session.apply({"verdict": "free", "notes": ["y"]}, actor="auditor:eve")
    assert (session.state.verdict, session.state.notes) == ("free", ["seen", "y"])


def test_the_schema_tells_who_may_read_and_write() -> None:
    """For the doors that know who reads; a field that says nothing is open."""
    policy = Ticket.access_of("verdict")
    assert (policy.allows("read", "agent:a"), policy.allows("write", "agent:a")) == (True, False)
    assert Ticket.access_of("title").allows("read", "anybody")
    with pytest.raises(errors.SchemaViolation):
        Ticket.access_of("verdct")
    with pytest.raises(errors.InvalidSchema, match="colon"):
        limpet.access(write=["agent:a"])
    with pytest.raises(errors.InvalidSchema, match="field of a State"):

        class Nested(Record):
            a: Annotated[str, limpet.access(write=["agent"])]

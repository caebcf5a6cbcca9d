"""State that changes shape: every kind of change, as a program with old sessions meets it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest

import limpet
from limpet import MigrationRegistry, Record, State, UnknownVariant, errors, reducers
from limpet.store.memory import MemoryStore

KEY = ("shop", "ada", "a")
Fields = dict[str, Any]


class Step(Record):
    name: str
    done: bool = False


class Trip(State):
    """The edition that all sessions here begin with."""

    schema_version: ClassVar[str] = "1.1.0"
    newer_minor: ClassVar[Literal["refuse", "keep"]] = "keep"
    goal: str
    budget: int = 0
    steps: Annotated[list[Step], reducers.merge_by_key("name")] = []


async def begin(lp: limpet.Limpet, state: State | None = None) -> limpet.Session[Any]:
    given = Trip(goal="oslo", budget=12, steps=[Step(name="pay")]) if state is None else state
    return await lp.create(*KEY[:2], id=KEY[2], state=given, actor="agent:a")


async def stored(lp: limpet.Limpet) -> tuple[int, str | None, dict[str, Any]]:
    """Version, schema version and fields, read without a class."""
    session = await lp.get(KEY)
    return session.version, session.head.schema_version, dict(session.values)


def registry(*steps: tuple[str, str, Callable[[Fields], Fields]]) -> MigrationRegistry:
    made = MigrationRegistry("trips")
    for step in steps:
        made.register(*step)
    return made


# --- which version reads which -------------------------------------------------------------------


def edition(version: str, newer: Literal["refuse", "keep"] = "refuse") -> type[State]:
    class Edition(State):
        schema_version: ClassVar[str] = version
        newer_minor: ClassVar[Literal["refuse", "keep"]] = newer
        goal: str = ""

    return Edition


@pytest.mark.parametrize(
    ("written", "code", "after"),
    [
        # the same line: PATCH never matters, in either direction
        ("1.1.0", "1.1.0", "1.1.0"),
        ("1.1.0", "1.1.9", "1.1.0"),
        ("1.1.9", "1.1.0", "1.1.9"),
        # an older minor: read, and the first update says who writes now
        ("1.0.0", "1.1.0", "1.1.0"),
        ("1.0.5", "1.7.3", "1.7.3"),
        ("0.1.0", "0.2.0", "0.2.0"),
        ("1.9.0", "1.10.0", "1.10.0"),
        # a newer minor: refused without a migration back
        ("1.1.0", "1.0.0", errors.SchemaIncompatible),
        ("1.10.0", "1.9.9", errors.SchemaIncompatible),
        ("1.9.0", "1.8.99", errors.SchemaIncompatible),
        # another MAJOR: refused without a migration
        ("1.0.0", "2.0.0", errors.MigrationMissing),
        ("1.9.9", "2.0.0", errors.MigrationMissing),
        ("0.9.0", "1.0.0", errors.MigrationMissing),
        ("9.0.0", "10.0.0", errors.MigrationMissing),
        ("2.0.0", "1.9.9", errors.SchemaIncompatible),
        ("1.0.0", "0.9.0", errors.SchemaIncompatible),
        ("10.0.0", "9.0.0", errors.SchemaIncompatible),
    ],
)
async def test_code_reads_state_of_its_own_major_and_no_newer_minor(
    lp: limpet.Limpet, written: str, code: str, after: str | type[Exception]
) -> None:
    """Numbers compared as numbers; loading writes nothing, and a refusal neither."""
    await begin(lp, edition(written)(goal="oslo"))  # type: ignore[call-arg]  # a field of it
    before = await stored(lp)
    if not isinstance(after, str):
        with pytest.raises(after):
            await lp.get(KEY, state_type=edition(code))
        assert await stored(lp) == before
        return
    session = await lp.get(KEY, state_type=edition(code), actor="agent:b")
    assert session.state.goal == "oslo"  # type: ignore[attr-defined]  # a field of it
    assert await stored(lp) == before
    await session.apply({"goal": "rome"})
    moved = after != written
    assert await stored(lp) == (3 if moved else 2, after, {"goal": "rome"})


@pytest.mark.parametrize(("written", "code"), [("1.1.0", "1.0.0"), ("1.10.0", "1.9.9")])
async def test_a_newer_minor_is_kept_by_a_class_that_says_so(
    lp: limpet.Limpet, written: str, code: str
) -> None:
    """It is read and written, and stays of the version of the newer code."""
    await begin(lp, edition(written)(goal="oslo"))  # type: ignore[call-arg]  # a field of it
    session = await lp.get(KEY, state_type=edition(code, "keep"), actor="agent:b")
    await session.apply({"goal": "rome"})
    assert await stored(lp) == (2, written, {"goal": "rome"})


async def test_a_newer_minor_is_brought_back_where_a_way_is_registered(lp: limpet.Limpet) -> None:
    """A refusal names the ways out, and this is one of them."""
    await begin(lp, edition("1.1.0")(goal="oslo"))  # type: ignore[call-arg]  # a field of it
    back = registry(("1.1.0", "1.0.0", lambda fields: {"goal": fields["goal"].upper()}))
    session = await lp.get(KEY, state_type=edition("1.0.0"), migrations=back)
    assert session.state.goal == "OSLO"  # type: ignore[attr-defined]  # a field of it
    assert await stored(lp) == (2, "1.0.0", {"goal": "OSLO"})


async def test_old_code_that_holds_a_session_writes_nothing_over_a_newer_minor(
    lp: limpet.Limpet,
) -> None:
    """Every verb: the version it was loaded under is compared within the commit."""
    await begin(lp, edition("1.0.0")(goal="oslo"))  # type: ignore[call-arg]  # a field of it
    old = await lp.get(KEY, state_type=edition("1.0.0"), actor="agent:a")
    new = await lp.get(KEY, state_type=edition("1.1.0"), actor="agent:b")
    await new.apply({"goal": "rome"})
    before = await stored(lp)
    for call in (
        lambda: old.apply({"goal": "bonn"}),
        lambda: old.append("agent.planned", set={"goal": "bonn"}),
        lambda: old.update(lambda state: {"goal": "bonn"}),
        lambda: old.refresh(),
    ):
        with pytest.raises(errors.SchemaIncompatible):
            await call()
    assert await stored(lp) == before


@pytest.mark.filterwarnings("ignore:Field name")
def test_what_a_class_says_of_newer_minors_is_checked_when_it_is_defined() -> None:
    """Two words, and no field."""
    with pytest.raises(errors.InvalidSchema, match="newer_minor"):
        edition("1.0.0", "ignore")  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidSchema, match="newer_minor"):
        type("Made", (State,), {"newer_minor": "keep", "__annotations__": {"newer_minor": str}})


# --- a minor change ------------------------------------------------------------------------------


class Kind(Enum):
    TRAIN = "train"


class WideStep(Record):
    name: str
    done: bool = False
    kind: Kind | None = None


class Wide(State):
    schema_version: ClassVar[str] = "1.2.0"
    goal: str
    budget: int = 0
    steps: Annotated[list[WideStep], reducers.merge_by_key("name")] = []
    tags: list[str] = ["new"]
    notes: Annotated[list[str], reducers.append] = ["begun"]


async def test_an_added_field_has_its_default_until_it_is_written(lp: limpet.Limpet) -> None:
    """At the top and inside a list; an appended item goes behind the default, not instead of it."""
    await begin(lp)
    new = await lp.get(KEY, state_type=Wide, actor="agent:b")
    assert (new.state.tags, new.state.steps) == (["new"], [WideStep(name="pay")])
    await new.apply({"notes": ["packed"]})
    assert (await stored(lp))[1:] == (
        "1.2.0",
        {
            "goal": "oslo",
            "budget": 12,
            "steps": [{"name": "pay", "done": False}],
            "notes": ["begun", "packed"],
        },
    )


async def test_old_code_leaves_what_it_does_not_know_in_nested_records(
    lp: limpet.Limpet,
) -> None:
    """An update of an item by its key keeps the names that only newer code has given it."""
    old = await begin(lp)
    new = await lp.get(KEY, state_type=Wide, actor="agent:b")
    await new.apply({"steps": [WideStep(name="pay", kind=Kind.TRAIN)], "tags": ["kept"]})
    await old.apply({"steps": [Step(name="pay", done=True), Step(name="go")]})
    await new.refresh()
    assert new.state.steps == [
        WideStep(name="pay", done=True, kind=Kind.TRAIN),
        WideStep(name="go"),
    ]
    assert new.state.tags == ["kept"]


class Stop(Record):
    city: str


class WideStop(Record):
    city: str
    country: str = ""


class Tour(State):
    schema_version: ClassVar[str] = "1.0.0"
    newer_minor: ClassVar[Literal["refuse", "keep"]] = "keep"
    to: Stop
    stops: list[Stop] = []


class WideTour(State):
    schema_version: ClassVar[str] = "1.1.0"
    to: WideStop
    stops: list[WideStop] = []


async def test_old_code_that_replaces_a_record_it_read_keeps_what_it_does_not_know(
    lp: limpet.Limpet,
) -> None:
    """Alone and in a list: it comes with the copy, and newer code finds it there."""
    old = await begin(lp, Tour(to=Stop(city="oslo")))
    new = await lp.get(KEY, state_type=WideTour, actor="agent:b")
    oslo = WideStop(city="oslo", country="no")
    await new.apply({"to": oslo, "stops": [oslo]})
    await old.refresh()
    bergen = old.state.to.model_copy(update={"city": "bergen"})
    await old.apply({"to": bergen, "stops": [*old.state.stops, Stop(city="rome")]})
    await new.refresh()
    assert new.state.to == WideStop(city="bergen", country="no")
    assert new.state.stops == [oslo, WideStop(city="rome")]


class Mood(Enum):
    CALM = "calm"


class Mood2(Enum):
    CALM = "calm"
    ELATED = "elated"


class Talk(State):
    schema_version: ClassVar[str] = "1.0.0"
    newer_minor: ClassVar[Literal["refuse", "keep"]] = "keep"
    mood: Mood = Mood.CALM
    history: list[Mood] = []
    counts: Annotated[dict[Mood, int], reducers.merge] = {}


class Talk2(State):
    schema_version: ClassVar[str] = "1.1.0"
    mood: Mood2 = Mood2.CALM
    history: list[Mood2] = []
    counts: Annotated[dict[Mood2, int], reducers.merge] = {}


async def test_old_code_keeps_an_unknown_variant_and_writes_it_back(lp: limpet.Limpet) -> None:
    """Alone, in a list that is replaced as a whole, and as a key; newer code finds it as it was."""
    old = await begin(lp, Talk())
    new = await lp.get(KEY, state_type=Talk2, actor="agent:b")
    await new.apply(
        {"mood": Mood2.ELATED, "history": [Mood2.ELATED, Mood2.CALM], "counts": {Mood2.ELATED: 1}}
    )
    await old.refresh()
    assert old.state.mood == UnknownVariant("elated", Mood)
    await old.apply({"history": [*old.state.history, Mood.CALM], "mood": old.state.mood})
    await old.apply({"counts": {Mood.CALM: 2}})
    await new.refresh()
    assert new.state.mood is Mood2.ELATED
    assert new.state.history == [Mood2.ELATED, Mood2.CALM, Mood2.CALM]
    assert new.state.counts == {Mood2.ELATED: 1, Mood2.CALM: 2}


# --- the major changes ---------------------------------------------------------------------------


class Required(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    budget: int = 0
    steps: list[Step] = []
    length: int


class Removed(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    steps: list[Step] = []


class Retyped(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: str
    budget: str
    steps: list[Step] = []


class Renamed(State):
    schema_version: ClassVar[str] = "2.0.0"
    aim: str
    budget: int = 0
    steps: list[Step] = []


class Place(Record):
    city: str
    seen_at: datetime


class Split(State):
    schema_version: ClassVar[str] = "2.0.0"
    goal: Place
    budget: int = 0
    steps: dict[str, bool] = {}


def add_length(fields: Fields) -> Fields:
    return {**fields, "length": len(fields["steps"])}


def remove_budget(fields: Fields) -> Fields:
    del fields["budget"]
    return fields


def retype_budget(fields: Fields) -> Fields:
    return {**fields, "budget": f"{fields['budget']} EUR"}


def rename_goal(fields: Fields) -> Fields:
    return {"aim": fields.pop("goal"), **fields}


def split(fields: Fields) -> Fields:
    fields["goal"] = {"city": fields["goal"], "seen_at": "2026-01-02T03:04:05Z"}
    fields["steps"] = {step["name"]: step["done"] for step in fields["steps"]}
    return fields


PAY = [Step(name="pay")]
MAJORS = {
    "a required field": (
        Required,
        add_length,
        Required(goal="oslo", budget=12, steps=PAY, length=1),
    ),
    "a removed field": (Removed, remove_budget, Removed(goal="oslo", steps=PAY)),
    "another type": (Retyped, retype_budget, Retyped(goal="oslo", budget="12 EUR", steps=PAY)),
    "another name": (Renamed, rename_goal, Renamed(aim="oslo", budget=12, steps=PAY)),
    "another shape": (
        Split,
        split,
        Split(
            goal=Place(city="oslo", seen_at=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
            budget=12,
            steps={"pay": False},
        ),
    ),
}


@pytest.mark.parametrize("change", MAJORS)
async def test_a_major_change_needs_its_migration(lp: limpet.Limpet, change: str) -> None:
    """Refused without one, and nothing is written; with it, state is what the class declares."""
    code, function, wanted = MAJORS[change]
    await begin(lp)
    before = await stored(lp)
    for useless in (None, registry(("3.0.0", "4.0.0", dict)), registry(("0.9.0", "1.0.0", dict))):
        with pytest.raises(errors.MigrationMissing) as info:
            await lp.get(KEY, state_type=code, migrations=useless)
        assert (info.value.from_version, info.value.to_version) == ("1.1.0", "2.0.0")
        assert await stored(lp) == before
    session = await lp.get(
        KEY, state_type=code, migrations=registry(("1.1.0", "2.0.0", function)), actor="agent:b"
    )
    assert session.state == wanted
    assert session.events[-1].actor == "agent:b"
    assert (await stored(lp))[:2] == (2, "2.0.0")
    assert (await lp.maintenance.verify()).ok


class LaterType(State):
    schema_version: ClassVar[str] = "1.2.0"
    goal: str
    budget: str = ""


class LaterField(State):
    schema_version: ClassVar[str] = "1.2.0"
    goal: str
    length: int


@pytest.mark.parametrize(("code", "field"), [(LaterType, "budget"), (LaterField, "length")])
async def test_a_major_change_under_a_minor_number_is_noticed(
    lp: limpet.Limpet, code: type[State], field: str
) -> None:
    """Reading names the field, and no update gives the state a version that it does not fit."""
    await begin(lp)
    before = await stored(lp)
    with pytest.raises(errors.SchemaViolation) as info:
        await lp.get(KEY, state_type=code, actor="agent:b")
    assert info.value.field == field
    session = await lp.session(KEY, state_type=code, actor="agent:b").refresh()
    with pytest.raises(errors.SchemaViolation):
        await session.apply({"goal": "rome"})
    commit = await lp.commit().__aenter__()
    with pytest.raises(errors.SchemaViolation):
        commit.apply(session, {"goal": "rome"})
    assert await stored(lp) == before


async def test_an_update_may_make_an_untyped_state_fit(lp: limpet.Limpet) -> None:
    """What counts is the state after it; one that still does not fit is not taken over."""
    await lp.create(*KEY[:2], id=KEY[2], state={"budget": 5})
    session = await lp.get(KEY, state_type=Trip, actor="agent:b")
    with pytest.raises(errors.SchemaViolation):
        await session.apply({"budget": 6})
    assert await stored(lp) == (1, None, {"budget": 5})
    await session.apply({"goal": "oslo"})
    assert await stored(lp) == (3, "1.1.0", {"budget": 5, "goal": "oslo"})


# --- several at once -----------------------------------------------------------------------------


class Third(State):
    schema_version: ClassVar[str] = "3.0.0"
    aim: str
    budget: str


class Fourth(State):
    schema_version: ClassVar[str] = "4.1.0"
    aim: str
    rich: bool
    notes: list[str] = []


def third(fields: Fields) -> Fields:
    return {"aim": fields["aim"], "budget": str(fields["budget"])}


def fourth(fields: Fields) -> Fields:
    return {"aim": fields["aim"], "rich": int(fields.pop("budget")) > 10}


ALL = (("1.1.0", "2.0.0", rename_goal), ("2.0.0", "3.0.0", third), ("3.0.0", "4.0.0", fourth))


async def test_sleeping_through_all_changes_ends_where_living_through_them_does(
    lp: limpet.Limpet,
) -> None:
    """One event over three steps, or three events over one each: the same state in the end."""
    given = Trip(goal="oslo", budget=12)
    asleep = await lp.create("shop", "ada", id="asleep", state=given)
    awake = await lp.create("shop", "ada", id="awake", state=given)
    every = registry(*ALL)
    for code in (Renamed, Third, Fourth):
        lived = await lp.get(awake.key, state_type=code, migrations=every)
    slept = await lp.get(asleep.key, state_type=Fourth, migrations=every)
    assert slept.values == lived.values == {"aim": "oslo", "rich": True}
    assert slept.state == Fourth(aim="oslo", rich=True)
    assert (slept.version, lived.version) == (2, 4)
    data = slept.events[-1].data
    assert data is not None
    assert data["steps"] == [["1.1.0", "2.0.0"], ["2.0.0", "3.0.0"], ["3.0.0", "4.0.0"]]
    assert (data["from"], data["to"]) == ("1.1.0", "4.1.0")
    chain = [event.data for event in lived.events[1:] if event.data is not None]
    assert [said["checksum_after"] for said in chain[:-1]] == [
        said["checksum_before"] for said in chain[1:]
    ]
    assert data["checksum_before"] == chain[0]["checksum_before"]
    assert data["checksum_after"] == chain[-1]["checksum_after"]


async def test_a_gap_or_a_tie_in_the_chain_migrates_nothing(lp: limpet.Limpet) -> None:
    """No step is taken on a way that does not lead to the end, or of which there are two."""
    await begin(lp)
    before = await stored(lp)
    with pytest.raises(errors.MigrationMissing):
        await lp.get(KEY, state_type=Fourth, migrations=registry(ALL[0], ALL[2]))
    tied = registry(*ALL, ("1.1.0", "2.1.0", rename_goal), ("2.1.0", "3.0.0", third))
    with pytest.raises(errors.MigrationAmbiguous) as info:
        await lp.get(KEY, state_type=Fourth, migrations=tied)
    assert len(info.value.paths) == 2
    assert await stored(lp) == before


def back(fields: Fields) -> Fields:
    return {"goal": fields.pop("aim"), **fields}


async def test_a_way_back_is_taken_by_old_code_only(lp: limpet.Limpet) -> None:
    """Registered for a rollback, it brings old code its state, and is no detour on the way up."""
    await begin(lp)
    both = registry(ALL[0], ("2.0.0", "1.1.0", back))
    new = await lp.get(KEY, state_type=Renamed, migrations=both)
    assert (new.version, new.state.aim) == (2, "oslo")
    old = await lp.get(KEY, state_type=Trip, migrations=both)
    assert old.state == Trip(goal="oslo", budget=12, steps=PAY)
    assert (await stored(lp))[:2] == (3, "1.1.0")
    assert (await lp.maintenance.verify()).ok


# --- old code after a major change ---------------------------------------------------------------


async def test_old_code_is_refused_by_every_verb_that_reads_or_writes_typed_state(
    lp: limpet.Limpet,
) -> None:
    """Whether it loads the session now or had it in hand, and nothing is written."""
    held = await begin(lp)
    other = await lp.create("shop", "ada", id="other", state=Trip(goal="rome"), actor="agent:a")
    await lp.get(KEY, state_type=Renamed, migrations=registry(ALL[0]))
    before = await stored(lp)
    given = Trip(goal="x")
    attempts: list[Callable[[], Any]] = [
        lambda: lp.get(KEY, state_type=Trip),
        lambda: lp.find(KEY, state_type=Trip),
        lambda: lp.get_or_create(*KEY[:2], id=KEY[2], state=given),
        lambda: lp.session(KEY, state_type=Trip).refresh(),
        lambda: lp.session(KEY, state_type=Trip, actor="agent:a").apply({"goal": "x"}),
        lambda: held.apply({"goal": "x"}),
        lambda: held.update(lambda _: {"goal": "x"}),
        lambda: held.refresh(),
    ]
    for attempt in attempts:
        with pytest.raises(errors.SchemaIncompatible):
            await attempt()
    assert await stored(lp) == before
    late = await begin_again(lp)
    await lp.get(late.key, state_type=Renamed, migrations=registry(ALL[0]))
    commit = await lp.commit().__aenter__()
    commit.apply(other, {"goal": "y"})
    commit.apply(late, {"goal": "x"})
    with pytest.raises(errors.SessionConflict):
        await commit.__aexit__(None, None, None)
    assert (await lp.get(other.key, state_type=Trip)).state.goal == "rome"


async def test_what_old_code_has_in_hand_stays_refused(lp: limpet.Limpet) -> None:
    """However often it tries and whatever it learns in between; the object is as it was."""
    held = await begin(lp)
    await lp.get(KEY, state_type=Renamed, migrations=registry(ALL[0]))
    before = await stored(lp)
    drafts = [limpet.Draft(type="agent.planned", set={"goal": "late"})]
    attempts: list[Callable[[], Any]] = [
        lambda: held.apply({"goal": "late"}),
        lambda: held.append("agent.planned", set={"goal": "late"}),
        lambda: held.append_many(drafts),
        lambda: held.refresh(),
    ]
    for attempt in attempts * 2:
        with pytest.raises(errors.SchemaIncompatible):
            await attempt()
        assert (held.version, held.state.goal) == (1, "oslo")
    assert await stored(lp) == before
    await held.append("agent.noted", {"text": "an event that changes no state"})
    assert held.version == 3
    commit = await lp.commit().__aenter__()
    attempts += [
        lambda: told(lambda: held.state),
        lambda: told(lambda: commit.apply(held, {"goal": "late"})),
        lambda: told(lambda: commit.append(held, "agent.planned", set={"goal": "late"})),
    ]
    for attempt in attempts * 2:
        with pytest.raises(errors.SchemaIncompatible):
            await attempt()
    await commit.__aexit__(None, None, None)
    assert await stored(lp) == (3, *before[1:])


async def told(question: Callable[[], Any]) -> Any:
    return question()


async def test_new_code_goes_on_when_old_code_has_gone_back(lp: limpet.Limpet) -> None:
    """What it has in hand is migrated again by its next update."""
    await begin(lp)
    both = registry(ALL[0], ("2.0.0", "1.1.0", back))
    new = await lp.get(KEY, state_type=Renamed, migrations=both, actor="agent:b")
    for number in (1, 2):
        await lp.get(KEY, state_type=Trip, migrations=both)
        await new.apply({"budget": number})
        await lp.get(KEY, state_type=Trip, migrations=both)
        await new.append("agent.planned", set={"aim": f"aim {number}"})
        assert new.state == Renamed(aim=f"aim {number}", budget=number, steps=PAY)
    assert (await stored(lp))[1] == "2.0.0"
    assert (await lp.maintenance.verify()).ok


async def test_a_minor_change_stops_no_append_of_old_code(lp: limpet.Limpet) -> None:
    """It rebases as it always does; one that expects a version is told that it has moved on."""
    old = await begin(lp)
    new = await lp.get(KEY, state_type=Wide, actor="agent:b")
    await new.apply({"tags": ["kept"]})
    with pytest.raises(errors.SessionConflict):
        await old.append("agent.planned", set={"goal": "strict"}, expect=1)
    await old.append("agent.planned", set={"goal": "rome"})
    assert (await stored(lp))[1:] == (
        "1.2.0",
        {
            "goal": "rome",
            "budget": 12,
            "steps": [{"name": "pay", "done": False}],
            "tags": ["kept"],
        },
    )


async def test_a_repeated_id_is_known_after_a_major_change(lp: limpet.Limpet) -> None:
    """Old code whose answer was lost is told what it recorded, and nothing is written."""
    held = await begin(lp)
    first = await held.append("agent.planned", set={"goal": "rome"}, id="once")
    asking = await lp.get(KEY, state_type=Trip, actor="agent:a")
    await lp.get(KEY, state_type=Renamed, migrations=registry(ALL[0]))
    assert await asking.append("agent.planned", set={"goal": "rome"}, id="once") == first
    assert (await stored(lp))[:2] == (3, "2.0.0")


async def begin_again(lp: limpet.Limpet) -> limpet.Session[Trip]:
    return await lp.create("shop", "ada", id="late", state=Trip(goal="oslo"), actor="agent:a")


# --- beside others -------------------------------------------------------------------------------


class Meanwhile:
    """A store in which, once, something happens between looking at a session and writing it."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.once: Callable[[], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def verify(self, *given: Any) -> limpet.Report:
        report = await self._store.verify(*given)
        if self.once is not None:
            once, self.once = self.once, None
            await once()
        return report


async def test_a_migration_that_another_writer_overtakes_is_made_again_on_what_it_wrote() -> None:
    """The conflict is not shown: the load ends with one migration, of the newest state."""
    store = Meanwhile(MemoryStore())
    runs: list[int] = []

    def counted(fields: Fields) -> Fields:
        runs.append(fields["budget"])
        return rename_goal(fields)

    async with limpet.Limpet("memory://", store=store) as lp:  # type: ignore[arg-type]
        old = await begin(lp)
        store.once = lambda: old.apply({"budget": 99})
        migrations = registry(("1.1.0", "2.0.0", counted))
        session = await lp.get(KEY, state_type=Renamed, migrations=migrations)
        assert session.state == Renamed(aim="oslo", budget=99, steps=PAY)
        assert runs == [12, 99]
        types = [event.type for event in await session.read()]
        assert types == ["session.created", "state.updated", "state.migrated"]
        assert (await lp.maintenance.verify()).ok


async def test_loads_and_plain_writers_at_once_lose_nothing(lp: limpet.Limpet) -> None:
    """Ten writers of events and ten loads that migrate: every event is there, one migration."""
    await begin(lp)
    writer = lp.session(KEY, actor="agent:plain")
    loads = [lp.get(KEY, state_type=Renamed, migrations=registry(ALL[0])) for _ in range(10)]
    writes = [writer.append("agent.noted", {"n": n}, id=f"n{n}") for n in range(10)]
    mixed = [each for pair in zip(loads, writes, strict=True) for each in pair]
    await asyncio.gather(*mixed)
    session = await lp.get(KEY, state_type=Renamed, migrations=registry(ALL[0]))
    types = [event.type for event in await session.read()]
    assert (types.count("agent.noted"), types.count("state.migrated"), len(types)) == (10, 1, 12)
    assert session.state == Renamed(aim="oslo", budget=12, steps=PAY)
    assert (await lp.maintenance.verify()).ok


# --- damage --------------------------------------------------------------------------------------


async def test_a_damaged_session_is_not_migrated(tmp_path: Path) -> None:
    """Integrity first: no function sees what is left of it, and no event is added."""
    path = tmp_path / "a.db"
    async with limpet.open(f"sqlite:///{path}") as lp:
        held = await begin(lp)
        await held.apply({"steps": [Step(name="zebra crossing")]})
    content = bytearray(path.read_bytes())
    at = content.index(b"zebra crossing")
    content[at] ^= 1
    path.write_bytes(content)
    seen: list[Fields] = []

    def watched(fields: Fields) -> Fields:
        seen.append(fields)
        raise AssertionError

    async with limpet.open(f"sqlite:///{path}") as lp:
        before = await lp.get(KEY)
        assert before.history.damaged == (2,)
        for _ in range(2):
            with pytest.raises(errors.SessionCorrupt):
                await lp.get(
                    KEY, state_type=Renamed, migrations=registry(("1.1.0", "2.0.0", watched))
                )
        assert seen == []
        after = await lp.get(KEY)
        assert (after.version, after.head) == (2, before.head)
        assert [event.type for event in await after.read()] == ["session.created", "state.updated"]

"""Laws of migration on load: what a session becomes is what its registry makes of its fields."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Annotated, Any, ClassVar, Final

from hypothesis import example, given, strategies as st
from pydantic import JsonValue

import limpet
from limpet import MigrationRegistry, Record, State, reducers
from limpet.model import ops
from limpet.model.state.state import decode_fields
from limpet.model.values import canonical, freeze
from tests.property.strategies import values
from tests.support.examples import examples

KEY: Final = limpet.Key("shop", "ada", "a")


class Role(Enum):
    USER = "user"
    AGENT = "agent"


class Message(Record):
    role: Role
    text: str
    extra: dict[str, JsonValue] = {}


class First(State):
    schema_version: ClassVar[str] = "1.0.0"
    goal: str
    budget: int = 0
    messages: Annotated[list[Message], reducers.append] = []
    memory: JsonValue = None


class Second(State):
    """A field renamed, another retyped."""

    schema_version: ClassVar[str] = "2.1.0"
    aim: str
    budget: str
    messages: Annotated[list[Message], reducers.append] = []
    memory: JsonValue = None
    later: list[int] = [1]


class Third(State):
    """Records split over two lists, a field removed, a required one computed."""

    schema_version: ClassVar[str] = "3.0.0"
    aim: str
    said: list[str]
    heard: list[str]
    memory: dict[str, JsonValue]
    turns: int


migrations: Final = MigrationRegistry("chats")


@migrations.migration("1.0.0", "2.0.0")
def rename(fields: dict[str, Any]) -> dict[str, Any]:
    fields["aim"] = fields.pop("goal")
    fields["budget"] = f"{fields.get('budget', 0)} EUR"
    return fields


@migrations.migration("2.1.0", "3.0.0")
def divide(fields: dict[str, Any]) -> dict[str, Any]:
    messages = fields.pop("messages", [])
    for name, role in (("said", "agent"), ("heard", "user")):
        fields[name] = [each["text"] for each in messages if each["role"] == role]
    fields["memory"] = {"was": fields.get("memory"), "budget": fields.pop("budget")}
    return {**fields, "turns": len(messages)}


messages = st.builds(
    Message,
    role=st.sampled_from(Role),
    text=st.text(max_size=8),
    extra=st.dictionaries(st.text(max_size=3), values, max_size=2),
)
firsts = st.builds(
    First,
    goal=st.text(max_size=8),
    budget=st.integers(-(2**63), 2**63 - 1),
    messages=st.lists(messages, max_size=5),
    memory=values,
)
# Names that no class declares, and two that no migration is given.
others = st.dictionaries(
    st.sampled_from(["x", "named.with.dots", "app:n", "user:list"]), values, max_size=3
)


async def lived(
    lp: limpet.Limpet, state: First, more: list[Message], other: dict[str, Any]
) -> dict[str, Any]:
    """A session with a past; its own fields as they are stored."""
    session = await lp.create(KEY.app, KEY.user, id=KEY.id, state=state, actor="agent:a")
    for message in more:
        await session.apply({"messages": [message]})
    if other:
        await session.append("agent.noted", set=other)
    return by_scope(session.values, own=True)


def by_scope(names: Any, *, own: bool) -> dict[str, Any]:
    """The session's own names, or else the others."""
    return {name: v for name, v in names.items() if (ops.scope_of(name) == "session") is own}


@examples(150)
@given(firsts, st.lists(messages, max_size=3), others, st.sampled_from([Second, Third]))
@example(First(goal=""), [], {}, Third)
@example(First(goal="-0.0", memory=-0.0), [], {"x": [0.0, 0, False, None]}, Third)
def test_loading_gives_what_the_registry_makes_of_the_fields(
    state: First, more: list[Message], other: dict[str, Any], code: type[State]
) -> None:
    """Exactly that, told by one event; names of others and of other scopes are as they were."""

    async def law() -> None:
        async with limpet.open("memory://") as lp:
            before = await lived(lp, state, more, other)
            wanted = migrations.migrate(before, "1.0.0", code.schema_version)
            session = await lp.get(KEY, state_type=code, migrations=migrations)
            assert canonical(by_scope(session.values, own=True)) == canonical(wanted.fields)
            assert by_scope(session.values, own=False) == by_scope(other, own=False)
            assert session.state == decode_fields(code, wanted.fields)
            event: Any = session.events[-1]
            assert event.data == {
                "from": "1.0.0",
                "to": code.schema_version,
                "steps": [list(step.step) for step in wanted.path],
                "checksum_before": wanted.checksum_before,
                "checksum_after": wanted.checksum_after,
            }
            assert canonical(ops.apply(freeze(before), event.ops)) == canonical(wanted.fields)
            again = await lp.get(KEY, state_type=code, migrations=migrations)
            assert (again.version, again.values) == (session.version, session.values)
            assert (await lp.maintenance.verify()).ok

    asyncio.run(law())


@examples(60)
@given(firsts, st.lists(messages, max_size=2), others)
def test_one_load_or_two_end_in_the_same_state(
    state: First, more: list[Message], other: dict[str, Any]
) -> None:
    """Through the edition between, which may add nothing but its own defaults, or past it."""

    async def ends(*codes: type[State]) -> bytes:
        async with limpet.open("memory://") as lp:
            await lived(lp, state, more, other)
            for code in codes:
                session = await lp.get(KEY, state_type=code, migrations=migrations)
            return canonical(dict(session.values))

    async def law() -> None:
        assert await ends(Second, Third) == await ends(Third)

    asyncio.run(law())

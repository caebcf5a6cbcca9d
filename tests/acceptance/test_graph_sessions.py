"""The situations of the sessions proposal, each as its reader would try it, on every store.

The numbers are those of its conformance list. A failing migration function is the thirteenth.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

import pytest

from limpet.errors import (
    MigrationAmbiguous,
    MigrationFailed,
    MigrationMissing,
    NodeException,
    SessionLoadFailed,
    SessionSaveFailed,
    SessionWriteConflict,
    StateValidationError,
)
from limpet.graph import (
    END,
    Branch,
    ExplicitMapping,
    GraphBuilder,
    InMemorySessionStore,
    SessionRecord,
    State,
    append,
    current_correlation_id,
    current_invocation_id,
    current_session_id,
    merge,
    save_session,
)
from limpet.graph.context import IdentityFilter
from tests.support import graph_stores
from tests.support.graph_stores import KINDS, Place


class Chat(State):
    """What a support agent remembers, and a little that it does not."""

    schema_version: ClassVar[str] = "v1"

    messages: Annotated[list[str], append] = []
    facts: Annotated[dict[str, str], merge] = {}
    draft: str = ""


class Memory(State):
    """The part of Chat that outlives an invocation."""

    schema_version: ClassVar[str] = "v1"

    messages: Annotated[list[str], append] = []
    facts: Annotated[dict[str, str], merge] = {}


async def reply(state: Chat) -> dict[str, Any]:
    heard = state.messages[-1] if state.messages else "nothing"
    return {"messages": [f"you said {heard}"], "facts": {"last": heard}, "draft": "scratch"}


def kept(cls: type[State], how: dict[str, Any]) -> dict[str, Any]:
    """How a graph keeps its sessions: the whole state, unless a test says otherwise."""
    return {"session_state": cls} | how


def chat(store: Any = None, node: Any = reply, cls: type[State] = Chat, **how: Any) -> GraphBuilder:
    """A graph of one node, bound to a store if one is given."""
    builder = GraphBuilder(cls).add_node("reply", node).add_edge("reply", END).set_entry("reply")
    return builder if store is None else builder.with_session_store(store, **kept(cls, how))


@pytest.fixture(params=KINDS)
def place(request: pytest.FixtureRequest) -> Place:
    return graph_stores.place(request)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Any]:
    """Every store, empty."""
    async with graph_stores.session_store(place) as opened:
        yield opened


async def stored(store: Any, session_id: str = "s") -> Any:
    found = await store.load(session_id)
    return None if found is None else found.state


# --- 001 to 003: when a session is touched -------------------------------------------------------


async def test_001_the_second_invocation_continues_where_the_first_ended(store: Any) -> None:
    """Lists grow and dicts merge across turns, because the loaded state is the base."""
    graph = chat(store).compile()
    first = await graph.invoke(Chat(messages=["hello"]), session_id="s")
    assert first.messages == ["hello", "you said hello"]
    second = await graph.invoke(Chat(messages=["again"]), session_id="s")
    assert second.messages == ["hello", "you said hello", "again", "you said again"]
    assert await stored(store) == second.model_dump(mode="json")


async def test_001_an_initial_state_that_sets_nothing_changes_nothing(store: Any) -> None:
    """Only fields that the caller set are folded in: defaults do not erase what was loaded."""

    async def nothing(state: Chat) -> dict[str, Any]:
        return {}

    graph = chat(store, nothing).compile()
    await graph.invoke(Chat(facts={"name": "Ada"}, draft="d"), session_id="s")
    found = await graph.invoke(Chat(facts={"plan": "gold"}), session_id="s")
    assert (found.facts, found.draft) == ({"name": "Ada", "plan": "gold"}, "d")


async def test_001_a_session_without_a_record_starts_from_what_was_supplied(store: Any) -> None:
    """No record: the initial state, unchanged."""
    graph = chat(store).compile()
    assert (await graph.invoke(Chat(draft="mine"), session_id="new")).messages == [
        "you said nothing"
    ]


async def test_002_a_session_id_without_a_store_is_only_an_id() -> None:
    """The run sees the id; nothing is loaded or saved, and the id is gone afterwards."""
    seen: list[str | None] = []

    async def look(state: Chat) -> dict[str, Any]:
        seen.append(current_session_id())
        return {}

    graph = chat(node=look).compile()
    result = await graph.invoke(Chat(messages=["hello"]), session_id="s")
    assert (result.messages, seen) == (["hello"], ["s"])
    assert current_session_id() is None


class Untouchable:
    """A store that nobody may ask."""

    async def load(self, session_id: str) -> None:
        raise AssertionError("load was called")

    save = delete = list = load


async def test_003_a_store_without_a_session_id_is_not_touched(store: Any) -> None:
    """Not even by save_session: the session is opted into by every invocation."""

    async def saving(state: Chat) -> dict[str, Any]:
        await save_session()
        return {"draft": "done"}

    assert (await chat(Untouchable(), saving).compile().invoke(Chat())).draft == "done"
    await chat(store).compile().invoke(Chat(messages=["hello"]))
    assert await store.list() == ()


# --- 004: projected sessions ---------------------------------------------------------------------


async def test_004_only_the_slice_of_a_projected_session_is_kept(store: Any) -> None:
    """Scratch fields return to their defaults; fields that accumulate do so."""
    drafts = []

    async def look(state: Chat) -> dict[str, Any]:
        drafts.append(state.draft)
        return await reply(state)

    graph = chat(store, look, session_state=Memory).compile()
    first = await graph.invoke(Chat(messages=["hello"]), session_id="s")
    assert first.draft == "scratch"
    second = await graph.invoke(Chat(messages=["again"]), session_id="s")
    assert drafts == ["", ""]
    assert second.messages == ["hello", "you said hello", "again", "you said again"]
    assert set(await stored(store)) == {"messages", "facts"}


async def test_004_a_mapping_renames_the_fields_of_the_slice(store: Any) -> None:
    """Both ways: the session calls it history, the graph messages."""

    class History(State):
        history: list[str] = []

    mapping = ExplicitMapping({"history": "messages"})
    graph = chat(store, session_state=History, projection=mapping).compile()
    await graph.invoke(Chat(messages=["hello"]), session_id="s")
    assert await stored(store) == {"history": ["hello", "you said hello"]}
    second = await graph.invoke(Chat(messages=["again"]), session_id="s")
    assert second.messages[:3] == ["hello", "you said hello", "again"]


# --- 005 and 006: when a session is saved --------------------------------------------------------


async def test_005_without_auto_save_nothing_is_saved_at_the_end(store: Any) -> None:
    """The run is complete and the session is as it was."""
    await chat(store).compile().invoke(Chat(messages=["kept"]), session_id="s")
    before = await store.load("s")
    graph = chat(store, auto_save=False).compile()
    result = await graph.invoke(Chat(messages=["lost"]), session_id="s")
    assert result.messages[-1] == "you said lost"
    assert await store.load("s") == before


def two_nodes(store: Any, first: Any, second: Any, **how: Any) -> Any:
    builder = GraphBuilder(Chat).add_node("first", first).add_node("second", second)
    builder.add_edge("first", "second").add_edge("second", END).set_entry("first")
    return builder.with_session_store(store, **kept(Chat, how)).compile()


async def test_006_a_save_in_the_middle_survives_a_crash_before_the_end(store: Any) -> None:
    """With the update that the node is about to return, if it is given."""

    async def first(state: Chat) -> dict[str, Any]:
        update = {"messages": ["step 1 of 2"]}
        await save_session(update)
        return update

    async def second(state: Chat) -> dict[str, Any]:
        raise ZeroDivisionError

    graph = two_nodes(store, first, second)
    with pytest.raises(NodeException):
        await graph.invoke(Chat(messages=["go"]), session_id="s")
    assert (await stored(store))["messages"] == ["go", "step 1 of 2"]


async def test_006_the_save_at_the_end_replaces_the_one_in_the_middle(store: Any) -> None:
    """Once more with everything, and without auto_save only what was saved explicitly."""

    async def first(state: Chat) -> dict[str, Any]:
        await save_session()
        return {"messages": ["one"]}

    async def second(state: Chat) -> dict[str, Any]:
        await save_session()
        return {"messages": ["two"]}

    await two_nodes(store, first, second).invoke(Chat(), session_id="all")
    assert (await stored(store, "all"))["messages"] == ["one", "two"]
    await two_nodes(store, first, second, auto_save=False).invoke(Chat(), session_id="part")
    assert (await stored(store, "part"))["messages"] == ["one"]


async def test_an_invocation_that_fails_saves_nothing(store: Any) -> None:
    """The session is as the last successful invocation left it."""

    async def broken(state: Chat) -> dict[str, Any]:
        raise ZeroDivisionError

    await chat(store).compile().invoke(Chat(messages=["hello"]), session_id="s")
    before = await store.load("s")
    with pytest.raises(NodeException):
        await chat(store, broken).compile().invoke(Chat(messages=["again"]), session_id="s")
    assert await store.load("s") == before


# --- 007 to 009 and 013: schema versions ---------------------------------------------------------


class Chat2(State):
    """The next version: messages have become turns."""

    schema_version: ClassVar[str] = "v2"

    turns: Annotated[list[dict[str, str]], append] = []
    facts: Annotated[dict[str, str], merge] = {}


async def reply2(state: Chat2) -> dict[str, Any]:
    return {"turns": [{"by": "agent"}]}


def to_turns(old: dict[str, Any]) -> dict[str, Any]:
    return {"turns": [{"text": text} for text in old["messages"]], "facts": old["facts"]}


async def old_session(store: Any) -> Any:
    await chat(store).compile().invoke(Chat(messages=["hello"]), session_id="s")
    return await store.load("s")


async def test_007_a_session_of_an_older_version_is_migrated(store: Any) -> None:
    """Between load and merge: the new invocation's input is added to the migrated state."""
    await old_session(store)
    builder = chat(store, reply2, Chat2).with_session_migration("v1", "v2", to_turns)
    result = await builder.compile().invoke(Chat2(turns=[{"text": "again"}]), session_id="s")
    texts = [turn.get("text", "agent") for turn in result.turns]
    assert texts == ["hello", "you said hello", "again", "agent"]
    found = await store.load("s")
    assert (found.schema_version, found.state) == ("v2", result.model_dump(mode="json"))


async def test_007_a_chain_of_migrations_leads_through_any_names(store: Any) -> None:
    """From no version at all to a month, over a step that looks like a step back."""

    class Dated(State):
        schema_version: ClassVar[str] = "2026-05"
        way: list[str] = []

    async def nothing(state: Dated) -> dict[str, Any]:
        return {}

    await store.save("s", SessionRecord(session_id="s", state={"way": [""]}))
    builder = chat(store, nothing, Dated)
    for source, target in (("", "v9"), ("v9", "v1"), ("v1", "2026-05"), ("2026-05", "v9")):
        builder.with_session_migration(
            source, target, lambda old, target=target: {"way": [*old["way"], target]}
        )
    result = await builder.compile().invoke(Dated(), session_id="s")
    assert result.way == ["", "v9", "v1", "2026-05"]


async def test_007_a_projected_session_is_migrated_before_it_is_projected(store: Any) -> None:
    """The migration sees the stored slice, in its old shape; the graph sees the new fields."""
    await (
        chat(store, session_state=Memory).compile().invoke(Chat(messages=["hello"]), session_id="s")
    )
    seen: list[dict[str, Any]] = []

    class Memory2(State):
        schema_version: ClassVar[str] = "2026-05"
        history: Annotated[list[str], append] = []

    def renamed(old: dict[str, Any]) -> dict[str, Any]:
        seen.append(dict(old))
        return {"history": old["messages"]}

    builder = chat(
        store,
        session_state=Memory2,
        projection=ExplicitMapping({"history": "messages"}),
    ).with_session_migration("v1", "2026-05", renamed)
    result = await builder.compile().invoke(Chat(messages=["again"]), session_id="s")
    assert seen == [{"messages": ["hello", "you said hello"], "facts": {"last": "hello"}}]
    assert result.messages == ["hello", "you said hello", "again", "you said again"]
    assert await stored(store) == {"history": result.messages}
    assert (await store.load("s")).schema_version == "2026-05"


async def test_008_a_version_without_a_way_is_refused(store: Any) -> None:
    """Nothing runs, nothing changes, and the error says what there is."""
    before = await old_session(store)
    ran = []

    async def node(state: Chat2) -> dict[str, Any]:
        ran.append(state)
        return {}

    builder = chat(store, node, Chat2).with_session_migration("v0", "v2", to_turns)
    with pytest.raises(MigrationMissing) as raised:
        await builder.compile().invoke(Chat2(), session_id="s")
    error = raised.value
    assert error.category == "session_state_migration_missing"
    assert (error.from_version, error.to_version) == ("v1", "v2")
    assert error.registered_migrations_count == 1
    assert "v0 → v2" in error.registry_description
    assert (ran, await store.load("s")) == ([], before)


def test_009_the_same_step_twice_is_ambiguous_at_registration() -> None:
    """Before anything is compiled."""
    builder = chat(InMemorySessionStore(), reply2, Chat2)
    builder.with_session_migration("v1", "v2", to_turns)
    with pytest.raises(MigrationAmbiguous) as raised:
        builder.with_session_migration("v1", "v2", dict)
    assert raised.value.category == "session_state_migration_chain_ambiguous"


def test_009_two_shortest_ways_are_ambiguous_when_the_graph_is_compiled() -> None:
    """Before any session is loaded."""
    builder = chat(InMemorySessionStore(), reply2, Chat2)
    for source, target in (("v1", "a"), ("v1", "b"), ("a", "v2"), ("b", "v2")):
        builder.with_session_migration(source, target, dict)
    with pytest.raises(MigrationAmbiguous):
        builder.compile()


async def test_013_a_migration_that_raises_stops_everything(store: Any) -> None:
    """The cause is kept; later steps and the graph do not run; the record is as it was."""
    before = await old_session(store)
    later: list[Any] = []

    def broken(old: dict[str, Any]) -> dict[str, Any]:
        raise LookupError(old["messages"][0])

    async def node(state: Chat2) -> dict[str, Any]:
        later.append(state)
        return {}

    builder = chat(store, node, Chat2).with_session_migration("v1", "mid", broken)
    builder.with_session_migration("mid", "v2", lambda old: later.append(old) or old)
    with pytest.raises(MigrationFailed) as raised:
        await builder.compile().invoke(Chat2(), session_id="s")
    error = raised.value
    assert error.category == "session_state_migration_failed"
    assert isinstance(error.__cause__, LookupError)
    assert (error.from_version, error.to_version, error.step) == ("v1", "v2", ("v1", "mid"))
    assert "hello" not in str(error)  # the state is in the cause, not in the message
    assert (later, await store.load("s")) == ([], before)


async def test_a_migrated_state_that_does_not_fit_is_refused_at_the_entry(store: Any) -> None:
    """Nothing runs, and the stored record stays."""
    before = await old_session(store)
    builder = chat(store, reply2, Chat2).with_session_migration(
        "v1", "v2", lambda old: {"turns": 5}
    )
    with pytest.raises(StateValidationError, match="turns"):
        await builder.compile().invoke(Chat2(), session_id="s")
    assert await store.load("s") == before


# --- 010 and 011: inner graphs -------------------------------------------------------------------


class Inner(State):
    messages: list[str] = []
    item: str = ""
    seen: list[str] = []


async def inner_node(state: Inner) -> dict[str, Any]:
    return {"seen": [*state.messages, state.item], "messages": ["from inside"]}


def inner_graph(node: Any = inner_node) -> Any:
    return GraphBuilder(Inner).add_node("in", node).add_edge("in", END).set_entry("in").compile()


class Forked(State):
    messages: Annotated[list[str], append] = []
    left: str = ""
    right: str = ""
    seen: Annotated[list[str], append] = []


class Outer(State):
    messages: Annotated[list[str], append] = []
    items: list[str] = []
    seen: Annotated[list[Any], append] = []


async def test_010_a_subgraph_sees_only_what_is_projected_into_it(store: Any) -> None:
    """The session has a message; the subgraph starts empty, and what it gives out is merged."""
    record = SessionRecord(session_id="s", state={"messages": ["kept"]})
    await store.save("s", record)
    builder = GraphBuilder(Outer).add_subgraph_node("sub", inner_graph()).add_edge("sub", END)
    graph = builder.set_entry("sub").with_session_store(store, session_state=Outer).compile()
    result = await graph.invoke(Outer(), session_id="s")
    assert (result.seen, result.messages) == ([""], ["kept", "from inside"])
    assert (await stored(store))["messages"] == ["kept", "from inside"]


async def test_010_a_subgraph_does_not_save_sessions(store: Any) -> None:
    """save_session inside of one is a mistake, and says so."""

    async def saving(state: Inner) -> dict[str, Any]:
        await save_session()
        return {}

    builder = GraphBuilder(Outer).add_subgraph_node("sub", inner_graph(saving))
    graph = (
        builder.add_edge("sub", END)
        .set_entry("sub")
        .with_session_store(store, session_state=Outer)
        .compile()
    )
    with pytest.raises(NodeException, match=r"save_session|outermost"):
        await graph.invoke(Outer(), session_id="s")
    assert await store.list() == ()


async def test_011_instances_of_a_fan_out_see_only_their_items(store: Any) -> None:
    """The session's messages do not reach them; their results are merged in order."""
    await store.save("s", SessionRecord(session_id="s", state={"messages": ["kept"]}))
    builder = GraphBuilder(Outer).add_fan_out_node(
        "each",
        subgraph=inner_graph(),
        items_field="items",
        item_field="item",
        collect_field="seen",
        target_field="seen",
    )
    graph = (
        builder.add_edge("each", END)
        .set_entry("each")
        .with_session_store(store, session_state=Outer)
        .compile()
    )
    result = await graph.invoke(Outer(items=["a", "b"]), session_id="s")
    assert (result.seen, result.messages) == ([["a"], ["b"]], ["kept"])


async def test_011_branches_see_only_what_is_projected_into_them(store: Any) -> None:
    """As subgraphs and instances: the session's messages do not reach them."""
    await store.save("s", SessionRecord(session_id="s", state={"messages": ["kept"]}))
    sides = {
        name: Branch(subgraph=inner_graph(), inputs={"item": name}, outputs={"seen": "seen"})
        for name in ("left", "right")
    }
    builder = GraphBuilder(Forked).add_parallel_branches_node("both", branches=sides)
    graph = (
        builder.add_edge("both", END)
        .set_entry("both")
        .with_session_store(store, session_state=Forked)
        .compile()
    )
    result = await graph.invoke(Forked(left="a", right="b"), session_id="s")
    assert (result.seen, result.messages) == (["a", "b"], ["kept"])


async def test_two_graphs_have_each_its_own_store(store: Any) -> None:
    """A store belongs to the graph that was compiled with it, not to the process."""
    other = InMemorySessionStore()
    first, second = chat(store).compile(), chat(other).compile()
    await first.invoke(Chat(messages=["one"]), session_id="s")
    await second.invoke(Chat(messages=["two"]), session_id="s")
    assert (await stored(store))["messages"] == ["one", "you said one"]
    assert (await stored(other))["messages"] == ["two", "you said two"]


# --- 012: observability --------------------------------------------------------------------------


async def test_012_nodes_observers_and_log_records_know_the_session(
    store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """All three ids, in nodes, in observers and on every log record of the invocation."""
    log = logging.getLogger("support")
    seen: list[tuple[str | None, ...]] = []
    caplog.handler.addFilter(IdentityFilter())

    def ids() -> tuple[str | None, ...]:
        return (current_session_id(), current_invocation_id(), current_correlation_id())

    async def node(state: Chat) -> dict[str, Any]:
        seen.append(ids())
        log.warning("inside")
        return {}

    graph = chat(store, node).compile()
    graph.attach_observer(lambda event: seen.append(ids()))
    bound = {"session_id": "s", "correlation_id": "c", "invocation_id": "i"}
    await graph.invoke(Chat(), **bound)
    await graph.drain()
    assert seen == [("s", "i", "c")] * 3
    await chat(None, node).compile().invoke(Chat(), correlation_id="c")
    log.warning("outside")
    first, second, third = [record for record in caplog.records if record.name == "support"]
    assert {name: getattr(first, name) for name in bound} == bound
    assert (second.correlation_id, hasattr(second, "session_id")) == ("c", False)  # type: ignore[attr-defined]
    assert not any(hasattr(third, name) for name in bound)


# --- what goes wrong -----------------------------------------------------------------------------


class Broken(InMemorySessionStore):
    """A store that fails when it is asked to."""

    def __init__(self, *failing: str) -> None:
        super().__init__()
        self.failing = failing

    async def load(self, session_id: str, /) -> Any:
        if "load" in self.failing:
            raise OSError("the disk is gone")
        return await super().load(session_id)

    async def save(self, session_id: str, record: Any, /, **how: Any) -> Any:
        if "save" in self.failing:
            raise OSError("the disk is full")
        return await super().save(session_id, record, **how)


async def test_a_store_that_cannot_load_lets_nothing_run() -> None:
    """session_load_failed, with its cause."""
    ran = []

    async def node(state: Chat) -> dict[str, Any]:
        ran.append(state)
        return {}

    with pytest.raises(SessionLoadFailed) as raised:
        await chat(Broken("load"), node).compile().invoke(Chat(), session_id="s")
    assert raised.value.category == "session_load_failed"
    assert isinstance(raised.value.__cause__, OSError)
    assert ran == []


async def test_a_store_that_cannot_save_does_not_undo_the_result() -> None:
    """session_save_failed has the result; the next invocation sees the session as it was."""
    broken = Broken()
    await chat(broken).compile().invoke(Chat(messages=["kept"]), session_id="s")
    broken.failing = ("save",)
    with pytest.raises(SessionSaveFailed) as raised:
        await chat(broken).compile().invoke(Chat(messages=["lost"]), session_id="s")
    assert raised.value.category == "session_save_failed"
    assert raised.value.result.messages[-1] == "you said lost"
    assert isinstance(raised.value.__cause__, OSError)
    assert (await stored(broken))["messages"] == ["kept", "you said kept"]


async def test_a_save_that_fails_in_a_node_fails_there() -> None:
    """The node may catch it and go on."""
    caught = []

    async def node(state: Chat) -> dict[str, Any]:
        try:
            await save_session()
        except SessionSaveFailed as error:
            caught.append(error.category)
        return {"draft": "went on"}

    graph = chat(Broken("save"), node, auto_save=False).compile()
    result = await graph.invoke(Chat(), session_id="s")
    assert (result.draft, caught) == ("went on", ["session_save_failed"])


async def test_concurrent_invocations_run_on_their_own_and_the_last_save_wins(store: Any) -> None:
    """Neither waits for nor fails because of the other."""
    both = asyncio.Barrier(2)

    async def node(state: Chat) -> dict[str, Any]:
        await both.wait()
        return await reply(state)

    graph = chat(store, node).compile()
    results = await asyncio.gather(
        *[graph.invoke(Chat(messages=[name]), session_id="s") for name in ("a", "b")]
    )
    saved = (await stored(store))["messages"]
    assert saved in [result.messages for result in results]
    assert [result.messages for result in results] == [[n, f"you said {n}"] for n in ("a", "b")]


async def test_conflicts_are_raised_where_they_were_chosen(store: Any) -> None:
    """The slower of two gets session_write_conflict with its result; nothing is retried."""
    both, saves = asyncio.Barrier(2), []

    async def node(state: Chat) -> dict[str, Any]:
        await both.wait()
        saves.append(state)
        return await reply(state)

    graph = chat(store, node, conflicts="raise").compile()
    runs = [graph.invoke(Chat(messages=[name]), session_id="s") for name in ("a", "b")]
    answers = await asyncio.gather(*runs, return_exceptions=True)
    (lost,) = [answer for answer in answers if isinstance(answer, SessionWriteConflict)]
    (won,) = [answer for answer in answers if not isinstance(answer, Exception)]
    assert lost.category == "session_write_conflict"
    assert lost.result.messages != won.messages
    assert (await stored(store))["messages"] == won.messages
    assert len(saves) == 2


async def test_a_lock_around_invocations_keeps_every_turn(store: Any) -> None:
    """Ten concurrent turns of one session, one after the other: none is lost."""

    async def turn(number: int) -> None:
        await store.acquire_lock("s")
        try:
            await chat(store).compile().invoke(Chat(messages=[str(number)]), session_id="s")
        finally:
            await store.release_lock("s")

    await asyncio.gather(*[turn(number) for number in range(4)])
    messages = (await stored(store))["messages"]
    assert sorted(message for message in messages if message.isdigit()) == ["0", "1", "2", "3"]


async def test_a_deleted_session_begins_again(store: Any) -> None:
    """A new session under the same id, without what it had."""
    graph = chat(store).compile()
    await graph.invoke(Chat(messages=["hello"]), session_id="s")
    await store.delete("s")
    result = await graph.invoke(Chat(messages=["again"]), session_id="s")
    assert result.messages == ["again", "you said again"]
    assert [item.session_id for item in await store.list()] == ["s"]


async def test_a_stored_state_that_does_not_fit_is_refused_at_the_entry(store: Any) -> None:
    """Of the same version, but not what the class declares: nothing runs."""
    record = SessionRecord(session_id="s", state={"messages": "no list"}, schema_version="v1")
    await store.save("s", record)
    with pytest.raises(StateValidationError, match="messages"):
        await chat(store).compile().invoke(Chat(), session_id="s")


@pytest.mark.parametrize("session_id", ["", 7, b"s"])
async def test_a_session_id_that_is_none_is_refused(session_id: Any) -> None:
    """Before anything runs."""
    ran = []

    async def node(state: Chat) -> dict[str, Any]:
        ran.append(state)
        return {}

    with pytest.raises(ValueError, match="session"):
        await chat(InMemorySessionStore(), node).compile().invoke(Chat(), session_id=session_id)
    assert ran == []


async def test_the_time_of_a_save_changes_nothing_in_a_run(store: Any) -> None:
    """Two sessions with equal state give equal results, whenever they were saved."""
    for id in ("one", "two"):
        await store.save(
            id, SessionRecord(session_id=id, state={"messages": ["x"]}, schema_version="v1")
        )
    results = [await chat(store).compile().invoke(Chat(), session_id=id) for id in ("one", "two")]
    assert results[0] == results[1]
    assert (await store.load("two")).updated_at <= datetime.now(UTC).replace(year=9000)

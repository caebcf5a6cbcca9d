"""An invocation and its session: what is loaded, what is folded in, what is saved, what fails."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar

import pytest

import limpet
from limpet.graph import (
    ChatHarness,
    DeclaredSameName,
    ExplicitMapping,
    FieldNameMatching,
    GraphBuilder,
    InMemorySessionStore,
    SessionFilter,
    SessionRecord,
    State,
    append,
    current_session_id,
    save_session,
    suspend,
)
from tests.support.graphs import gives, line


class Chat(State):
    messages: Annotated[list[str], append] = []
    mood: str = "calm"
    scratch: int = 0


class Kept(State):
    messages: list[str] = []
    mood: str = "neutral"


async def answer(s: Chat) -> dict[str, Any]:
    return {"messages": [f"re: {s.messages[-1]}"], "scratch": s.scratch + 1}


def chat(store: Any, **how: Any) -> GraphBuilder[Chat]:
    return line(Chat, answer=answer).with_session_store(store, **{"session_state": Chat, **how})


def test_what_a_session_keeps_is_chosen_and_never_guessed() -> None:
    """A scratch field that was stored by accident would come back in every later invocation."""
    builder = line(Chat, answer=answer)
    with pytest.raises(
        limpet.errors.GraphInvalid, match=r"Pass session_state=Chat to keep all of Chat"
    ):
        builder.with_session_store(InMemorySessionStore())
    with pytest.raises(limpet.errors.GraphInvalid, match="projection"):
        builder.with_session_store(
            InMemorySessionStore(), session_state=Chat, projection=ExplicitMapping({"a": "b"})
        )


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("on_load", ["merge", "replace"])
async def test_a_loaded_session_is_the_base_or_replaces_what_was_given(
    on_load: Any, whole: bool
) -> None:
    """By default what the caller set is folded in; with replace the stored fields count."""

    class Kept(State):
        messages: Annotated[list[str], append] = []
        mood: str = ""

    seen: list[Chat] = []

    async def look(s: Chat) -> dict[str, Any]:
        seen.append(s)
        return {}

    store = InMemorySessionStore()
    stored = {"messages": ["old"], "mood": "calm"} | ({"scratch": 7} if whole else {})
    await store.save("s", SessionRecord(session_id="s", state=stored))
    kept: Any = Chat if whole else Kept
    builder = line(Chat, look=look)
    builder.with_session_store(store, session_state=kept, on_load=on_load)
    given = Chat(messages=["new"], mood="glad", scratch=3)
    await builder.compile().invoke(given, session_id="s")
    if on_load == "merge":
        assert seen == [Chat(messages=["old", "new"], mood="glad", scratch=3)]
    else:  # of a projected session, fields that it does not keep come from the caller
        assert seen == [Chat(messages=["old"], mood="calm", scratch=7 if whole else 3)]
    await builder.compile().invoke(given, session_id="new")
    assert seen[-1] == given


def test_a_chat_needs_sessions_that_take_the_message() -> None:
    """With replace, the message that was sent would be lost."""
    builder = line(Chat, answer=answer)
    builder.with_session_store(InMemorySessionStore(), session_state=Chat, on_load="replace")
    with pytest.raises(limpet.errors.GraphMisused, match='on_load="merge"'):
        ChatHarness(builder.compile())


class Tiny:
    """A session store as somebody else would write it, against the protocol alone."""

    def __init__(self) -> None:
        self.rows: dict[str, tuple[dict[str, Any], str]] = {}
        self.calls: list[str] = []

    async def load(self, session_id: str) -> SessionRecord | None:
        self.calls.append("load")
        row = self.rows.get(session_id)
        if row is None:
            return None
        return SessionRecord(session_id=session_id, state=row[0], schema_version=row[1])

    async def save(self, session_id: str, record: SessionRecord) -> None:
        self.calls.append("save")
        self.rows[session_id] = (record.state, record.schema_version)

    async def delete(self, session_id: str) -> None:
        self.rows.pop(session_id, None)

    async def list(self, filter: Any = None) -> Any:
        raise AssertionError("the engine never lists")


# --- what goes in and out -------------------------------------------------------------------------


@pytest.mark.parametrize("store", [InMemorySessionStore, Tiny])
async def test_history_and_the_new_message_come_together(store: Any) -> None:
    """The loaded state is the base; what the caller set goes through the reducers."""
    graph = chat(store()).compile()
    await graph.invoke(Chat(messages=["one"], mood="glad"), session_id="s")
    final = await graph.invoke(Chat(messages=["two"]), session_id="s")
    assert final.messages == ["one", "re: one", "two", "re: two"]
    assert final.mood == "glad"
    assert (await graph.invoke(Chat(messages=["x"]), session_id="t")).mood == "calm"


async def test_a_foreign_store_is_asked_for_nothing_but_load_and_save() -> None:
    """One load at the entry and one save at the end, without keywords; none without a session."""
    store = Tiny()
    graph = chat(store).compile()
    await graph.invoke(Chat(messages=["one"]))
    assert store.calls == []
    await graph.invoke(Chat(messages=["one"]), session_id="s")
    assert store.calls == ["load", "save"]


async def test_a_projected_session_keeps_its_fields_only() -> None:
    """Scratch fields start again with what the caller gives."""
    store = InMemorySessionStore()
    graph = chat(store, session_state=Kept).compile()
    await graph.invoke(Chat(messages=["one"], scratch=7, mood="glad"), session_id="s")
    saved = await store.load("s")
    assert saved is not None
    assert saved.state == {"messages": ["one", "re: one"], "mood": "glad"}
    final = await graph.invoke(Chat(messages=["two"]), session_id="s")
    assert final.messages == ["one", "re: one", "two", "re: two"]
    assert (final.scratch, final.mood) == (1, "glad")


@pytest.mark.parametrize(
    "projection",
    [
        ExplicitMapping(inputs={"messages": "history"}, outputs={"history": "messages"}),
        ExplicitMapping(inputs={"messages": "history"}),
        ExplicitMapping(outputs={"history": "messages"}),
        ExplicitMapping({"history": "messages"}),
    ],
)
async def test_a_session_field_may_have_another_name(projection: Any) -> None:
    """One direction is enough: the other one is its reverse."""

    class History(State):
        history: list[str] = []

    store = InMemorySessionStore()
    graph = chat(store, session_state=History, projection=projection).compile()
    await graph.invoke(Chat(messages=["one"]), session_id="s")
    final = await graph.invoke(Chat(messages=["two"]), session_id="s")
    assert final.messages == ["one", "re: one", "two", "re: two"]
    saved = await store.load("s")
    assert saved is not None
    assert list(saved.state) == ["history"]


async def test_each_direction_of_a_session_can_be_declared() -> None:
    """A field that is only read keeps what the session had; one only written is not read."""
    store = InMemorySessionStore()
    await store.save(
        "s", SessionRecord(session_id="s", state={"messages": ["old"], "mood": "glad"})
    )
    graph = chat(
        store,
        session_state=Kept,
        projection=DeclaredSameName(in_fields=["mood"], out_fields=["messages"]),
    ).compile()
    final = await graph.invoke(Chat(messages=["one"]), session_id="s")
    assert final.mood == "glad"
    saved = await store.load("s")
    assert saved is not None
    assert saved.state == {"messages": ["one", "re: one"], "mood": "glad"}


def test_matching_by_name_is_the_default_projection() -> None:
    """Declaring it changes nothing."""
    chat(InMemorySessionStore(), session_state=Kept, projection=FieldNameMatching()).compile()


# --- saving ---------------------------------------------------------------------------------------


async def test_a_failed_run_saves_nothing() -> None:
    """The next invocation sees the session as it was."""
    store = InMemorySessionStore()
    await chat(store).compile().invoke(Chat(messages=["one"]), session_id="s")
    before = await store.load("s")

    async def fails(s: Chat) -> dict[str, Any]:
        raise RuntimeError("down")

    graph = (
        line(Chat, answer=answer, fails=fails)
        .with_session_store(store, session_state=Chat)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Chat(messages=["two"]), session_id="s")
    assert await store.load("s") == before


async def test_a_cancelled_run_saves_nothing() -> None:
    """Neither does one that is cancelled in a node."""
    store, inside = InMemorySessionStore(), asyncio.Event()

    async def wait(s: Chat) -> dict[str, Any]:
        inside.set()
        await asyncio.Event().wait()
        return {}

    graph = line(Chat, wait=wait).with_session_store(store, session_state=Chat).compile()
    task = asyncio.ensure_future(graph.invoke(session_id="s"))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await store.load("s") is None


async def test_a_node_saves_progress_with_its_pending_update() -> None:
    """A later failure does not take it back; the state in the node is as it was."""
    store = InMemorySessionStore()

    async def saves(s: Chat) -> dict[str, Any]:
        await save_session()
        await save_session({"messages": ["half"]})
        assert s.messages == ["one"]
        return {"messages": ["half"]}

    async def fails(s: Chat) -> dict[str, Any]:
        raise RuntimeError("down")

    graph = (
        line(Chat, saves=saves, fails=fails).with_session_store(store, session_state=Chat).compile()
    )
    with pytest.raises(limpet.errors.NodeException):
        await graph.invoke(Chat(messages=["one"]), session_id="s")
    saved = await store.load("s")
    assert saved is not None
    assert saved.state["messages"] == ["one", "half"]
    assert saved.version == 2


async def test_a_wrong_pending_update_saves_nothing() -> None:
    """It is refused at the call, like the node's own result would be."""
    store = InMemorySessionStore()

    async def saves(s: Chat) -> dict[str, Any]:
        with pytest.raises(limpet.errors.StateValidationError):
            await save_session({"what": 1})
        return {}

    graph = (
        line(Chat, saves=saves)
        .with_session_store(store, session_state=Chat, auto_save=False)
        .compile()
    )
    await graph.invoke(session_id="s")
    assert await store.load("s") is None


async def test_a_task_that_outlives_its_run_cannot_save_over_the_end() -> None:
    """Nor suspend what has ended: the state it knows is an older one."""
    store, ended = InMemorySessionStore(), asyncio.Event()
    left: list[asyncio.Task[None]] = []

    async def late(call: Any) -> None:
        await ended.wait()
        await call

    async def node(s: Chat) -> dict[str, Any]:
        left.append(asyncio.create_task(late(save_session({"messages": ["late"]}))))
        left.append(asyncio.create_task(late(suspend("late"))))
        return {"messages": ["end"]}

    await (
        line(Chat, node=node)
        .with_session_store(store, session_state=Chat)
        .compile()
        .invoke(session_id="s")
    )
    ended.set()
    saved, suspended = await asyncio.gather(*left, return_exceptions=True)
    assert isinstance(saved, limpet.errors.GraphMisused)
    assert isinstance(suspended, limpet.errors.SuspensionInUnsupportedContext)
    found = await store.load("s")
    assert found is not None
    assert found.state["messages"] == ["end"]


@pytest.mark.parametrize("conflicts", ["overwrite", "raise"])
async def test_a_save_under_way_at_the_end_of_its_run_takes_effect_before_it(
    conflicts: Any,
) -> None:
    """The end waits for it, and neither replaces it nor conflicts with it."""
    left: list[asyncio.Task[None]] = []
    begun, go_on = asyncio.Event(), asyncio.Event()

    class Slow(InMemorySessionStore):
        async def save(self, id: str, record: SessionRecord, /, **how: Any) -> int:
            if not begun.is_set():
                begun.set()
                await go_on.wait()
            return await super().save(id, record, **how)

    async def node(s: Chat) -> dict[str, Any]:
        left.append(asyncio.create_task(save_session({"messages": ["late"]})))
        await begun.wait()
        asyncio.get_running_loop().call_soon(go_on.set)
        return {"messages": ["end"]}

    store = Slow()
    graph = (
        line(Chat, node=node)
        .with_session_store(store, session_state=Chat, conflicts=conflicts)
        .compile()
    )
    await graph.invoke(session_id="s")
    await asyncio.gather(*left)
    found = await store.load("s")
    assert found is not None
    assert found.state["messages"] == ["end"]


async def test_saving_without_a_session_does_nothing() -> None:
    """A node need not know whether its invocation has a session."""
    store = Tiny()

    async def saves(s: Chat) -> dict[str, Any]:
        await save_session()
        return {}

    await save_session()
    await line(Chat, saves=saves).compile().invoke(session_id="s")
    await line(Chat, saves=saves).with_session_store(store, session_state=Chat).compile().invoke()
    assert store.calls == []


# --- conflicts ------------------------------------------------------------------------------------


async def _race(store: Any, **how: Any) -> Any:
    """Two invocations that load before either saves."""
    both = asyncio.Barrier(2)

    async def meet(s: Chat) -> dict[str, Any]:
        await both.wait()
        return {}

    graph = (
        line(Chat, meet=meet).with_session_store(store, **{"session_state": Chat, **how}).compile()
    )
    await chat(store).compile().invoke(Chat(messages=["base"]), session_id="s")
    return await asyncio.gather(
        *[graph.invoke(Chat(messages=[word]), session_id="s") for word in ("left", "right")],
        return_exceptions=True,
    )


async def test_the_last_write_wins_by_default() -> None:
    """Both end well, and the session is what the second one saved."""
    store = InMemorySessionStore()
    results = await _race(store)
    assert all(isinstance(result, Chat) for result in results)
    saved = await store.load("s")
    assert saved is not None
    assert saved.state["messages"][-1] in ("left", "right")
    assert len(saved.state["messages"]) == 3


async def test_a_conflict_is_raised_when_asked_for_and_never_retried() -> None:
    """The loser has its result on the error; the session is the winner's."""
    store = InMemorySessionStore()
    results = await _race(store, conflicts="raise")
    (error,) = [result for result in results if isinstance(result, Exception)]
    (winner,) = [result for result in results if isinstance(result, Chat)]
    assert isinstance(error, limpet.errors.SessionWriteConflict)
    assert error.category == "session_write_conflict"
    assert (error.expected_version, error.actual_version) == (1, 2)
    assert error.result.messages[-1] in ("left", "right")
    saved = await store.load("s")
    assert saved is not None
    assert saved.state["messages"] == winner.messages


async def test_saves_of_one_invocation_do_not_conflict_with_each_other() -> None:
    """Each save expects the version that the one before returned."""
    store = InMemorySessionStore()

    async def saves(s: Chat) -> dict[str, Any]:
        await save_session()
        await save_session()
        return {}

    graph = (
        line(Chat, saves=saves)
        .with_session_store(store, session_state=Chat, conflicts="raise")
        .compile()
    )
    for _ in range(2):
        await graph.invoke(session_id="s")
    saved = await store.load("s")
    assert saved is not None
    assert saved.version == 6


class Unversioned(Tiny):
    """Takes the keyword, keeps no versions and returns none."""

    async def save(
        self, session_id: str, record: SessionRecord, expected_version: int | None = None
    ) -> None:
        await super().save(session_id, record)


async def test_conflicts_are_not_overlooked_where_a_store_has_no_versions() -> None:
    """The run is refused, or its save is: what was asked for cannot be kept."""
    store = Unversioned()

    async def saves(s: Chat) -> dict[str, Any]:
        await save_session()
        return {"messages": ["a"]}

    graph = (
        line(Chat, saves=saves)
        .with_session_store(store, session_state=Chat, conflicts="raise")
        .compile()
    )
    with pytest.raises(limpet.errors.SessionSaveFailed, match="no version") as info:
        await graph.invoke(session_id="s")
    assert info.value.result.messages == ["a"]
    with pytest.raises(limpet.errors.SessionLoadFailed, match="no version"):
        await graph.invoke(session_id="s")
    assert (
        await line(Chat, a=gives())
        .with_session_store(store, session_state=Chat)
        .compile()
        .invoke(session_id="s")
    )


# --- stores that fail -----------------------------------------------------------------------------


class Faulty(Tiny):
    def __init__(self, *, load: Any = None, save: Any = None) -> None:
        super().__init__()
        self.bad_load, self.bad_save = load, save

    async def load(self, session_id: str) -> Any:
        if isinstance(self.bad_load, Exception):
            raise self.bad_load
        return self.bad_load

    async def save(self, session_id: str, record: SessionRecord) -> None:
        if self.bad_save is not None:
            raise self.bad_save
        await super().save(session_id, record)


@pytest.mark.parametrize(
    "load",
    [
        OSError("disk"),
        {"state": {}},
        SessionRecord(session_id="s", state=[1]),  # type: ignore[arg-type]
    ],
)
async def test_a_store_that_fails_on_load_runs_nothing(load: Any) -> None:
    """Also one that returns something which is not a record."""
    ran: list[int] = []

    async def node(s: Chat) -> dict[str, Any]:
        ran.append(1)
        return {}

    graph = (
        line(Chat, node=node).with_session_store(Faulty(load=load), session_state=Chat).compile()
    )
    with pytest.raises(limpet.errors.SessionLoadFailed) as info:
        await graph.invoke(session_id="s")
    assert info.value.category == "session_load_failed"
    assert info.value.__cause__ is not None
    assert ran == []


async def test_a_store_that_fails_on_save_keeps_the_result() -> None:
    """The error has the final state; nothing is tried again."""
    graph = chat(Faulty(save=OSError("full"))).compile()
    with pytest.raises(limpet.errors.SessionSaveFailed, match="full") as info:
        await graph.invoke(Chat(messages=["one"]), session_id="s")
    assert info.value.category == "session_save_failed"
    assert info.value.result.messages == ["one", "re: one"]
    assert isinstance(info.value.__cause__, OSError)
    assert current_session_id() is None


async def test_a_failed_save_in_a_node_is_raised_there() -> None:
    """The node may handle it; if it does not, the node has failed."""
    seen: list[Exception] = []

    async def careful(s: Chat) -> dict[str, Any]:
        try:
            await save_session()
        except limpet.errors.SessionSaveFailed as error:
            seen.append(error)
        return {}

    async def careless(s: Chat) -> dict[str, Any]:
        await save_session()
        return {}

    store = Faulty(save=OSError("full"))
    graph = (
        line(Chat, a=careful)
        .with_session_store(store, session_state=Chat, auto_save=False)
        .compile()
    )
    await graph.invoke(session_id="s")
    assert len(seen) == 1
    graph = (
        line(Chat, a=careless)
        .with_session_store(store, session_state=Chat, auto_save=False)
        .compile()
    )
    with pytest.raises(limpet.errors.NodeException) as info:
        await graph.invoke(session_id="s")
    assert isinstance(info.value.__cause__, limpet.errors.SessionSaveFailed)


@pytest.mark.parametrize("state", [{"messages": "x"}, {"other": 1}])
async def test_a_session_that_does_not_fit_runs_nothing(state: dict[str, Any]) -> None:
    """It is a validation error at the entry, and the record stays."""
    store = InMemorySessionStore()
    await store.save("s", SessionRecord(session_id="s", state=state))
    for how in ({}, {"session_state": Kept}):
        with pytest.raises(limpet.errors.StateValidationError, match="session 's'"):
            await chat(store, **how).compile().invoke(Chat(messages=["one"]), session_id="s")
    saved = await store.load("s")
    assert saved is not None
    assert saved.state == state


class Strict(State):
    mood: str = "calm"

    model_config: ClassVar[Any] = {"str_max_length": 4}


async def test_a_state_that_does_not_fit_the_session_is_not_saved() -> None:
    """The result is on the error."""
    graph = (
        line(Chat, node=gives(mood="overwhelmed"))
        .with_session_store(InMemorySessionStore(), session_state=Strict)
        .compile()
    )
    with pytest.raises(limpet.errors.SessionSaveFailed) as info:
        await graph.invoke(session_id="s")
    assert isinstance(info.value.__cause__, limpet.errors.StateValidationError)
    assert info.value.result.mood == "overwhelmed"


# --- the memory store -----------------------------------------------------------------------------


async def test_the_memory_store_lists_filters_and_pages() -> None:
    """Summaries have no state; a cursor leads to the next page."""
    store = InMemorySessionStore()
    for name in ("a", "b", "c"):
        version = "v2" if name == "c" else "v1"
        record = SessionRecord(session_id=name, state={"n": 1}, schema_version=version)
        await store.save(name, record)
    everything = await store.list()
    assert [summary.session_id for summary in everything] == ["a", "b", "c"]
    assert not hasattr(everything[0], "state")
    page = await store.list(SessionFilter(limit=2))
    rest = await store.list(SessionFilter(limit=2, cursor=page.cursor))
    assert [s.session_id for s in (*page, *rest)] == ["a", "b", "c"]
    assert rest.cursor is None
    of_v1 = await store.list(SessionFilter(schema_version="v1"))
    assert [s.session_id for s in of_v1] == ["a", "b"]
    newest = everything[-1].updated_at
    assert newest is not None
    assert len(await store.list(SessionFilter(updated_after=newest))) == 0
    assert len(await store.list(SessionFilter(created_after=newest))) == 0


async def test_the_memory_store_shares_nothing_with_its_callers() -> None:
    """What was saved or loaded can be changed without changing the store."""
    store, state = InMemorySessionStore(), {"list": [1]}
    await store.save("s", SessionRecord(session_id="s", state=state))
    state["list"].append(2)
    loaded = await store.load("s")
    assert loaded is not None
    assert loaded.state == {"list": [1]}
    loaded.state["list"].append(3)
    again = await store.load("s")
    assert again is not None
    assert again.state == {"list": [1]}


async def test_the_memory_store_forgets_what_is_deleted() -> None:
    """A save afterwards is a new session, whose versions are not those of the old one."""
    store, record = InMemorySessionStore(), SessionRecord(session_id="s", state={})
    old = [await store.save("s", record) for _ in range(2)]
    await store.delete("s")
    await store.delete("s")
    assert await store.load("s") is None
    assert await store.save("s", record, expected_version=0) not in old
    for version in old:
        with pytest.raises(limpet.errors.SessionWriteConflict):
            await store.save("s", record, expected_version=version)


async def test_a_lock_of_the_memory_store_is_held_by_one() -> None:
    """The next holder gets it when it is released; releasing twice is harmless."""
    store = InMemorySessionStore()
    await store.acquire_lock("s")
    waiting = asyncio.ensure_future(store.acquire_lock("s"))
    await asyncio.sleep(0)
    assert not waiting.done()
    await store.release_lock("s")
    await waiting
    await store.release_lock("s")
    await store.release_lock("s")
    await store.release_lock("never")

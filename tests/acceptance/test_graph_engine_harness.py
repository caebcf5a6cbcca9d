"""Harness and chat harness: requests become invocations, and every end is an outcome."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, ClassVar

import pytest

import limpet
from limpet.graph import (
    ChatHarness,
    GraphBuilder,
    Harness,
    InMemoryCheckpointer,
    InMemorySessionStore,
    Message,
    SessionRecord,
    State,
    append,
    current_session_id,
    suspend,
)
from tests.support.graphs import gives, line


class Talk(State):
    messages: Annotated[list[Message], append] = []
    approved: bool | None = None
    count: int = 0


async def reply(s: Talk) -> dict[str, Any]:
    text = s.messages[-1].content
    if text == "crash":
        raise ConnectionError("model is down")
    if text == "ask" and s.approved is None:
        await suspend("approval", mark_node_completed=False)
    words = f"{text}? {len(s.messages)} {s.approved}"
    return {"messages": [Message(role="assistant", content=words)], "approved": None}


def talk(store: Any = None, **nodes: Any) -> GraphBuilder[Talk]:
    return (
        line(Talk, **(nodes or {"reply": reply}))
        .with_session_store(store or InMemorySessionStore(), session_state=Talk)
        .with_checkpointer(InMemoryCheckpointer())
    )


def said(*texts: str) -> dict[str, Any]:
    return {"messages": [Message(role="user", content=text) for text in texts]}


# --- harness --------------------------------------------------------------------------------------


async def test_a_request_takes_one_of_four_paths() -> None:
    """Stateless, a new session, an existing one, or a signal."""
    graph = talk().compile()
    stateless = await Harness(graph, mode="stateless").handle(said("hi"))
    harness = Harness(graph)
    new = await harness.handle(said("hi"), session_id="s")
    existing = await harness.handle(said("ask"), session_id="s")
    signal = await harness.handle(
        session_id="s",
        resume_invocation=existing.invocation_id,
        signal_payload={"approved": True},
    )
    assert [o.path for o in (stateless, new, existing, signal)] == [
        "stateless",
        "new_session",
        "existing_session",
        "signal_resume",
    ]
    assert [o.kind for o in (stateless, new, existing, signal)] == [
        "completed",
        "completed",
        "suspended",
        "completed",
    ]
    assert existing.descriptor is not None
    assert existing.descriptor.signal_id == "approval"
    assert signal.state.messages[-1].content == "ask? 3 True"


class Newer(Talk):
    schema_version: ClassVar[str] = "v2"


@pytest.mark.parametrize(
    ("initial", "bucket", "category"),
    [
        (said("crash"), "retryable_transient", "node_exception"),
        ({"count": "many"}, "user_correctable", "state_validation_error"),
    ],
)
async def test_an_error_is_an_outcome_with_its_bucket(
    initial: Any, bucket: str, category: str
) -> None:
    """Nothing is raised: the application decides by the bucket."""
    outcome = await Harness(talk().compile()).handle(initial, session_id="s")
    assert (outcome.kind, outcome.bucket, outcome.category) == ("errored", bucket, category)
    assert isinstance(outcome.error, limpet.errors.GraphError)


async def test_a_session_that_cannot_be_migrated_is_over() -> None:
    """Trying again would give the same."""
    store = InMemorySessionStore()
    await store.save("s", SessionRecord(session_id="s", state={}, schema_version="v0"))
    outcome = await Harness(talk(store).compile()).handle(said("hi"), session_id="s")
    assert outcome.bucket == "session_terminating"
    assert outcome.category == "session_state_migration_missing"


async def test_a_failed_save_is_an_outcome_with_the_result() -> None:
    """The work of the run is not lost."""

    class Full(InMemorySessionStore):
        async def save(self, *args: Any, **how: Any) -> int:
            raise OSError("full")

    outcome = await Harness(talk(Full()).compile()).handle(said("hi"), session_id="s")
    assert (outcome.kind, outcome.category) == ("errored", "session_save_failed")
    assert outcome.state.messages[-1].content == "hi? 1 None"


async def test_categories_of_ones_own_have_buckets() -> None:
    """An application may say what an error means to it."""
    harness = Harness(talk().compile(), buckets={"node_exception": "session_terminating"})
    outcome = await harness.handle(said("crash"), session_id="s")
    assert outcome.bucket == "session_terminating"


async def test_the_mode_is_fixed_and_misuse_is_raised() -> None:
    """A session id belongs to a sessioned harness, and a signal to an invocation."""
    graph = talk().compile()
    with pytest.raises(limpet.errors.GraphMisused, match="stateless"):
        await Harness(graph, mode="stateless").handle(session_id="s")
    for wrong in (None, "", 3):
        with pytest.raises(limpet.errors.GraphMisused, match="session id"):
            await Harness(graph).handle(session_id=wrong)  # type: ignore[arg-type]
    with pytest.raises(limpet.errors.GraphMisused, match="resume_invocation"):
        await Harness(graph).handle(session_id="s", signal_payload={})
    with pytest.raises(limpet.errors.GraphMisused, match="with_session_store"):
        Harness(line(Talk, reply=reply).compile())
    with pytest.raises(limpet.errors.GraphMisused, match="mode"):
        Harness(graph, mode="both")  # type: ignore[arg-type]


async def test_cancelling_a_request_cancels_it() -> None:
    """Cancellation is not an outcome."""
    inside = asyncio.Event()

    async def wait(s: Talk) -> dict[str, Any]:
        inside.set()
        await asyncio.Event().wait()
        return {}

    harness = Harness(talk(wait=wait).compile())
    task = asyncio.ensure_future(harness.handle(session_id="s"))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


# --- chat -----------------------------------------------------------------------------------------


async def test_replies_are_what_the_run_added() -> None:
    """The history stays in the session and is not repeated."""
    chat = ChatHarness(talk().compile())
    first = await chat.send("s", "hi")
    second = await chat.send("s", "again")
    assert [message.content for message in first.replies] == ["hi? 1 None"]
    assert [message.content for message in second.replies] == ["again? 3 None"]
    assert (second.kind, second.pending, second.descriptor) == ("completed", None, None)


async def test_a_chat_that_waits_says_so_until_it_is_resumed() -> None:
    """A send meanwhile runs nothing; the signal brings the reply."""
    chat = ChatHarness(talk().compile())
    asked = await chat.send("s", "ask")
    assert asked.kind == "suspended"
    assert asked.descriptor is not None
    assert asked.pending is not None
    meanwhile = await chat.send("s", "hello?")
    assert (meanwhile.kind, meanwhile.pending) == ("suspended", asked.pending)
    assert (await chat.send("other", "hi")).kind == "completed"
    answered = await chat.resume("s", asked.pending, {"approved": True})
    assert [message.content for message in answered.replies] == ["ask? 1 True"]
    after = await chat.send("s", "thanks")
    assert [message.content for message in after.replies] == ["thanks? 3 None"]


async def test_an_error_has_a_reply_to_show() -> None:
    """By its bucket; the session is as it was."""
    chat = ChatHarness(talk().compile(), error_replies={"retryable_transient": "One moment."})
    failed = await chat.send("s", "crash")
    assert (failed.kind, failed.bucket, failed.category) == (
        "errored",
        "retryable_transient",
        "node_exception",
    )
    assert failed.reply == "One moment."
    assert [m.content for m in (await chat.send("s", "hi")).replies] == ["hi? 1 None"]


async def test_sends_of_one_session_wait_for_each_other() -> None:
    """Sessions do not wait for other sessions; no message is lost to a race."""
    running: dict[str, int] = {}
    most: dict[str, int] = {}
    both = asyncio.Event()

    async def slow(s: Talk) -> dict[str, Any]:
        name = current_session_id() or ""
        running[name] = running.get(name, 0) + 1
        most[name] = max(most.get(name, 0), running[name])
        if len(running) == 2:
            both.set()
        await both.wait()
        running[name] -= 1
        return await reply(s)

    chat = ChatHarness(talk(slow=slow).compile())
    sent = await asyncio.gather(
        *[chat.send(name, f"m{number}") for number in range(3) for name in ("a", "b")]
    )
    assert most == {"a": 1, "b": 1}
    assert [r.replies[0].content for r in sent[::2]] == ["m0? 1 None", "m1? 3 None", "m2? 5 None"]


async def test_a_cancelled_send_frees_its_session() -> None:
    """Whether it was waiting for its turn or running."""
    inside, go = asyncio.Event(), asyncio.Event()

    async def wait(s: Talk) -> dict[str, Any]:
        inside.set()
        await go.wait()
        return await reply(s)

    chat = ChatHarness(talk(wait=wait).compile())
    first = asyncio.ensure_future(chat.send("s", "one"))
    await inside.wait()
    second = asyncio.ensure_future(chat.send("s", "two"))
    await asyncio.sleep(0)
    second.cancel()
    first.cancel()
    results = await asyncio.gather(first, second, return_exceptions=True)
    assert all(isinstance(result, asyncio.CancelledError) for result in results)
    go.set()
    assert (await chat.send("s", "three")).kind == "completed"


async def test_sends_of_several_harnesses_wait_for_each_other_if_asked() -> None:
    """By the locks of the store, as two processes would: no turn is lost."""
    store = InMemorySessionStore()
    inside, go = asyncio.Event(), asyncio.Event()

    async def slow(s: Talk) -> dict[str, Any]:
        inside.set()
        await go.wait()
        return await reply(s)

    builder = talk(store, slow=slow)
    first, second = (ChatHarness(builder.compile(), across_processes=True) for _ in range(2))
    sent = [asyncio.ensure_future(first.send("s", "one"))]
    await inside.wait()
    sent.append(asyncio.ensure_future(second.send("s", "two")))
    for _ in range(10):
        await asyncio.sleep(0)
    go.set()
    replies = [(await one).replies[0].content for one in sent]
    assert replies == ["one? 1 None", "two? 3 None"]


async def test_a_lock_that_is_not_released_does_not_cost_the_reply() -> None:
    """It ends by itself; the turn is done, and must not be sent again."""

    class Stuck(InMemorySessionStore):
        async def release_lock(self, session_id: str, /) -> None:
            raise OSError("network")

    chat = ChatHarness(talk(Stuck()).compile(), across_processes=True)
    assert (await chat.send("s", "hi")).kind == "completed"


async def test_what_fails_before_the_run_is_an_outcome_too() -> None:
    """A store that does not answer, or gives no lock: the session is as it was."""

    class Down(InMemoryCheckpointer):
        async def list(self, filter: Any = None, /) -> Any:
            raise OSError("disk")

    class Locked(InMemorySessionStore):
        async def acquire_lock(self, session_id: str, /) -> None:
            raise TimeoutError

    down = ChatHarness(talk().with_checkpointer(Down()).compile())
    locked = ChatHarness(talk(Locked()).compile(), across_processes=True)
    for chat, category in ((down, "OSError"), (locked, "TimeoutError")):
        failed = await chat.send("s", "hi")
        assert (failed.kind, failed.bucket) == ("errored", "retryable_transient")
        assert (failed.category, failed.reply is not None) == (category, True)


class Bare:
    """A session store without locks."""

    def __init__(self) -> None:
        kept = InMemorySessionStore()
        self.load, self.save, self.delete, self.list = kept.load, kept.save, kept.delete, kept.list


def test_waiting_across_processes_needs_a_store_with_locks() -> None:
    """It is refused when the harness is made."""
    with pytest.raises(limpet.errors.GraphMisused, match="acquire_lock"):
        ChatHarness(talk(Bare()).compile(), across_processes=True)


def test_a_chat_needs_a_list_of_messages() -> None:
    """The field is named when it is not called messages."""

    class Bare(State):
        lines: list[Message] = []
        n: int = 0

    graph = (
        line(Bare, a=gives())
        .with_session_store(InMemorySessionStore(), session_state=Bare)
        .compile()
    )
    for name in ("messages", "n"):
        with pytest.raises(limpet.errors.GraphMisused, match="messages_field"):
            ChatHarness(graph, messages_field=name)
    ChatHarness(graph, messages_field="lines")

"""Multi-turn state, twice: first with checkpoints and a table of your own, then with sessions.

The first half is the pattern "session as checkpoint resume": the application keeps a table from
session id to the last invocation, and every turn resumes that invocation. It works as written,
because resuming a completed invocation begins a new turn from its state.

The second half does the same with a session store. The table is gone, scratch fields are not kept,
and every session has a log.

    python examples/session_as_checkpoint.py
"""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from limpet.graph import (
    END,
    GraphBuilder,
    Message,
    SQLiteCheckpointer,
    SQLiteSessionStore,
    State,
    append,
    merge,
)


class SessionState(State):
    messages: Annotated[list[Message], append] = Field(default_factory=list)
    facts: Annotated[dict[str, str], merge] = Field(default_factory=dict)
    last_user_input: str = ""


async def plan(s: SessionState) -> dict[str, Any]:
    """Note what the user said about themselves."""
    found = (
        {"name": s.last_user_input.removeprefix("I am ")} if "I am " in s.last_user_input else {}
    )
    return {"messages": [Message(role="user", content=s.last_user_input)], "facts": found}


async def respond(s: SessionState) -> dict[str, Any]:
    """A model would answer here; this one counts."""
    name = s.facts.get("name", "stranger")
    said = sum(message.role == "user" for message in s.messages)
    reply = f"Hello {name}, that was message {said}."
    return {"messages": [Message(role="assistant", content=reply)]}


def builder() -> GraphBuilder[SessionState]:
    return (
        GraphBuilder(SessionState)
        .add_node("plan", plan)
        .add_node("respond", respond)
        .add_edge("plan", "respond")
        .add_edge("respond", END)
        .set_entry("plan")
    )


# --- with checkpoints, and a table of your own ----------------------------------------------------


class SessionsTable:
    """The application's own table: session id to the latest invocation id."""

    def __init__(self) -> None:
        self._latest: dict[str, str] = {}

    def get_invocation_id(self, session_id: str) -> str | None:
        return self._latest.get(session_id)

    def set_invocation_id(self, session_id: str, invocation_id: str) -> None:
        self._latest[session_id] = invocation_id


async def with_checkpoints(folder: Path) -> None:
    checkpointer = SQLiteCheckpointer(path=folder / "checkpoints.db")
    graph = builder().with_checkpointer(checkpointer).compile()
    sessions_db = SessionsTable()

    async def latest_for(session_id: str) -> str:
        record = await checkpointer.latest(session_id)
        assert record is not None
        return record.invocation_id

    async def handle_turn(session_id: str, user_input: str) -> str:
        initial = SessionState(last_user_input=user_input)
        prior_invocation_id = sessions_db.get_invocation_id(session_id)
        if prior_invocation_id is None:
            final = await graph.invoke(initial, correlation_id=session_id)
        else:
            final = await graph.invoke(initial, resume_invocation=prior_invocation_id)
        sessions_db.set_invocation_id(session_id, await latest_for(session_id))
        return final.messages[-1].content

    for text in ("I am Ada", "Where is my order?", "Thanks"):
        print("  ", await handle_turn("ada", text))
    print("  ", await handle_turn("bob", "Hi"))
    await checkpointer.close()


# --- with sessions --------------------------------------------------------------------------------


class Remembered(State):
    """What outlives a turn. `last_user_input` is scratch and does not."""

    messages: Annotated[list[Message], append] = Field(default_factory=list)
    facts: Annotated[dict[str, str], merge] = Field(default_factory=dict)


async def with_sessions(folder: Path) -> None:
    store = SQLiteSessionStore(folder / "sessions.db")
    graph = builder().with_session_store(store, session_state=Remembered).compile()

    async def handle_turn(session_id: str, user_input: str) -> str:
        final = await graph.invoke(SessionState(last_user_input=user_input), session_id=session_id)
        return final.messages[-1].content

    for text in ("I am Ada", "Where is my order?", "Thanks"):
        print("  ", await handle_turn("ada", text))
    print("  ", await handle_turn("bob", "Hi"))
    session = await store.session("ada")
    assert session is not None
    print("   the log of ada:", [event.type for event in await session.read()])
    await store.close()


async def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        print("With checkpoints, and a table of your own:")
        await with_checkpoints(Path(folder))
        print("With sessions:")
        await with_sessions(Path(folder))


if __name__ == "__main__":
    asyncio.run(main())

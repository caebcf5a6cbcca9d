"""Invoking a graph: what is said about arguments that have no effect."""

from __future__ import annotations

import pytest

from limpet.graph import END, GraphBuilder, InMemorySessionStore, State, current_session_id


class Chat(State):
    said: str = ""


async def node(state: Chat) -> dict[str, str]:
    return {"said": f"{current_session_id()}"}


def builder() -> GraphBuilder[Chat]:
    return GraphBuilder(Chat, name="chat").add_node("n", node).add_edge("n", END).set_entry("n")


async def test_a_session_id_without_a_store_is_warned_about_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The run goes on and its nodes see the id, but nothing is saved: a store may be forgotten."""
    graph = builder().compile()
    await graph.invoke(Chat())
    assert caplog.messages == []
    for _ in range(2):
        assert (await graph.invoke(Chat(), session_id="ada")).said == "ada"
    assert caplog.messages == ["session without a store: graph=chat"]


async def test_a_session_with_a_store_is_not_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    """It is saved."""
    graph = builder().with_session_store(InMemorySessionStore(), session_state=Chat).compile()
    await graph.invoke(Chat(), session_id="ada")
    assert caplog.messages == []

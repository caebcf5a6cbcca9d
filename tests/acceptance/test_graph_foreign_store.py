"""A store of thirty lines, as the page shows it, keeps the laws that a store has to help with."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from limpet.graph import GraphBuilder, SessionStore, Suspended, suspend
from limpet.graph.checkpoint import InMemoryCheckpointer
from tests.acceptance import test_graph_sessions as laws

ROOT = Path(__file__).parents[2]
LAWS = [
    laws.test_001_the_second_invocation_continues_where_the_first_ended,
    laws.test_001_an_initial_state_that_sets_nothing_changes_nothing,
    laws.test_003_a_store_without_a_session_id_is_not_touched,
    laws.test_004_only_the_slice_of_a_projected_session_is_kept,
    laws.test_004_a_mapping_renames_the_fields_of_the_slice,
    laws.test_005_without_auto_save_nothing_is_saved_at_the_end,
    laws.test_006_a_save_in_the_middle_survives_a_crash_before_the_end,
    laws.test_006_the_save_at_the_end_replaces_the_one_in_the_middle,
    laws.test_007_a_session_of_an_older_version_is_migrated,
    laws.test_008_a_version_without_a_way_is_refused,
    laws.test_010_a_subgraph_sees_only_what_is_projected_into_it,
    laws.test_011_instances_of_a_fan_out_see_only_their_items,
    laws.test_013_a_migration_that_raises_stops_everything,
    laws.test_concurrent_invocations_run_on_their_own_and_the_last_save_wins,
    laws.test_a_deleted_session_begins_again,
]


@pytest.fixture
def folder_store(tmp_path: Path) -> Any:
    """The class of the page, on an empty folder."""
    page = (ROOT / "docs/graph-sessions.md").read_text()
    (program,) = re.findall(r"```python\n(import json\n.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec("from limpet.graph import SessionRecord\n" + program, names)
    assert len(program.split("class FolderSessionStore")[1].splitlines()) <= 35
    return names["FolderSessionStore"](tmp_path)


def test_it_is_a_session_store(folder_store: Any) -> None:
    """By its verbs alone, without a base class."""
    assert isinstance(folder_store, SessionStore)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__.removeprefix("test_"))
async def test_it_keeps_the_law(folder_store: Any, law: Callable[[Any], Any]) -> None:
    """The same test as on our own stores."""
    folder_store.list = _listing(folder_store.list)
    await law(folder_store)


def _listing(found: Callable[[], Any]) -> Callable[[], Any]:
    """Its listing as a tuple, which the laws compare with; the protocol leaves the kind open."""

    async def listing() -> tuple[Any, ...]:
        return tuple(await found())

    return listing


async def test_a_suspended_run_saves_its_session_there_too(folder_store: Any) -> None:
    """Not in one commit, since the two live apart: the record first, then the session."""

    async def ask(state: laws.Chat) -> dict[str, Any]:
        await suspend("approval")
        return {}

    builder = GraphBuilder(laws.Chat).add_node("ask", ask).add_node("reply", laws.reply)
    builder.add_edge("ask", "reply").add_edge("reply", laws.END).set_entry("ask")
    builder.with_session_store(folder_store, session_state=laws.Chat).with_checkpointer(
        InMemoryCheckpointer()
    )
    graph = builder.compile()
    outcome = await graph.invoke(laws.Chat(messages=["hello"]), session_id="s")
    assert isinstance(outcome, Suspended)
    assert (await folder_store.load("s")).state["messages"] == ["hello"]
    payload = {"draft": "approved"}
    final = await graph.invoke(
        resume_invocation=outcome.invocation_id, signal_payload=payload, session_id="s"
    )
    assert final.messages == ["hello", "you said hello"]
    assert (await folder_store.load("s")).state["messages"] == final.messages

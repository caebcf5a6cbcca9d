"""LangGraph for a principal: threads and items of others never reach it, nor a state in part."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.checkpoint.base import empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

import limpet
from limpet import AccessDenied, FieldAccess, Isolation, Principal
from limpet.adapters.langgraph import LimpetSaver, LimpetStore

CANARY = "canary-5e1f0c7a"


def at(thread: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": ""}}


async def put(saver: LimpetSaver, thread: str, **values: Any) -> None:
    versions = dict.fromkeys(values, 1)
    made: Any = {**empty_checkpoint(), "id": str(uuid6()), "channel_values": values}
    made["channel_versions"] = versions
    await saver.aput(at(thread), made, {"source": "loop"}, versions)


async def test_threads_of_another_user_are_refused(lp: limpet.Limpet, app: str) -> None:
    """One that is there and one that is not; in the list none of them is."""
    await put(LimpetSaver(lp, app=app, user="ada"), "t", text=CANARY)
    bob = lp.acting_as(Principal("user:bob", role="owner", app=app, user="bob"))
    foreign = LimpetSaver(bob, app=app, user="ada")
    for thread in ("t", "missing"):
        with pytest.raises(AccessDenied):
            await foreign.aget_tuple(at(thread))
        with pytest.raises(AccessDenied):
            await put(foreign, thread, text="x")
        with pytest.raises(AccessDenied):
            await foreign.adelete_thread(thread)
    with pytest.raises(AccessDenied):
        await anext(foreign.alist(None))
    own = LimpetSaver(bob, app=app, user="bob")
    await put(own, "t", text="mine")
    found = [each async for each in own.alist(None)]
    assert len(found) == 1
    assert CANARY not in repr(found)


async def test_a_hidden_field_is_in_no_checkpoint(lp: limpet.Limpet, app: str) -> None:
    """Of a thread's session a part is hidden: it is in nothing that LangGraph is given; and who the
    session does not name is refused the thread as a whole."""
    kept = Isolation("per_agent", agents={"agent:critic": FieldAccess(owns=("draft",))})
    await lp.create(app, "ada", "t", state={"salary": CANARY}, isolation=kept)
    await put(LimpetSaver(lp, app=app, user="ada"), "t", text="said")
    critic = lp.acting_as(Principal("agent:critic", role="agent", app=app, user="ada"))
    saver = LimpetSaver(critic, app=app, user="ada")
    found = await saver.aget_tuple(at("t"))
    assert found is not None
    assert found.checkpoint["channel_values"] == {"text": "said"}
    assert CANARY not in repr([found, [each async for each in saver.alist(None)]])
    other = lp.acting_as(Principal("agent:other", role="agent", app=app, user="ada"))
    with pytest.raises(AccessDenied):
        await LimpetSaver(other, app=app, user="ada").aget_tuple(at("t"))


async def test_items_of_the_whole_store_are_read_and_not_written(
    lp: limpet.Limpet, app: str
) -> None:
    """LangGraph's store belongs to no user: one who acts for a user changes nothing there."""
    await LimpetStore(lp, collection=app).aput(("a",), "k", {"n": 1})
    bob = LimpetStore(
        lp.acting_as(Principal("user:bob", role="owner", app=app, user="bob")), collection=app
    )
    item = await bob.aget(("a",), "k")
    assert item is not None
    with pytest.raises(AccessDenied):
        await bob.aput(("a",), "k", {"n": 2})

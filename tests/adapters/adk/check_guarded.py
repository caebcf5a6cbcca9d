"""ADK on a Limpet that acts as somebody: no hidden field and no foreign session reaches it."""

from __future__ import annotations

import pytest

import limpet
from limpet import AccessDenied, FieldAccess, Isolation, Principal
from limpet.adapters.adk import LimpetSessionService
from tests.adapters.adk.saying import said

CANARY = "canary-5e1f0c7a"
ADA = {"app_name": "support", "user_id": "ada"}
CRITIC = Principal("agent:critic", role="agent", app="support", user="ada")
BOB = Principal("user:bob", role="owner", app="support", user="bob")
KEPT = Isolation("per_agent", agents={"agent:critic": FieldAccess(owns=("draft", "%updated"))})


async def test_a_hidden_field_is_in_nothing_that_adk_is_given(lp: limpet.Limpet) -> None:
    """Neither in the state, nor in the events that set it, as ADK itself wrote them."""
    await lp.create("support", "ada", "c1", state={"salary": CANARY, "draft": "d"}, isolation=KEPT)
    service = LimpetSessionService(lp)
    session = await service.get_session(**ADA, session_id="c1")
    assert session is not None
    assert session.state["salary"] == CANARY
    await service.append_event(session, said("one", delta={"salary": f"{CANARY}-2", "draft": "e"}))
    await service.append_event(session, said("two", delta={"salary": {"of": [f"{CANARY}-3"]}}))
    large = said("x" * 2_000_000, delta={"salary": f"{CANARY}-4"})  # kept in a blob
    await service.append_event(session, large)
    hidden = LimpetSessionService(lp.acting_as(CRITIC))
    seen = await hidden.get_session(**ADA, session_id="c1")
    assert seen is not None
    assert seen.state == {"draft": "e"}
    assert [event.content.parts[0].text for event in seen.events][:2] == ["one", "two"]
    assert [event.actions.state_delta for event in seen.events][:2] == [{"draft": "e"}, {}]
    assert CANARY not in seen.model_dump_json()
    for event in await lp.acting_as(CRITIC).session("support", "ada", "c1").read():
        assert CANARY not in f"{event.data} {event.ops}"
    listed = await hidden.list_sessions(**ADA)
    assert [each.id for each in listed.sessions] == ["c1"]
    assert CANARY not in listed.model_dump_json()
    await hidden.append_event(seen, said("three", author="critic", delta={"draft": "f"}))
    with pytest.raises(AccessDenied):
        await hidden.append_event(seen, said("four", author="critic", delta={"salary": 0}))


async def test_a_foreign_session_is_refused_to_adk(lp: limpet.Limpet) -> None:
    """One that is there and one that is not, alike; lists and shared state show one's own."""
    whole = LimpetSessionService(lp)
    await whole.create_session(**ADA, session_id="c1", state={"text": CANARY, "user:u": CANARY})
    service = LimpetSessionService(lp.acting_as(BOB))
    for id in ("c1", "missing"):
        with pytest.raises(AccessDenied):
            await service.get_session(**ADA, session_id=id)
        with pytest.raises(AccessDenied):
            await service.delete_session(**ADA, session_id=id)
    with pytest.raises(AccessDenied):
        await service.create_session(**ADA)
    with pytest.raises(AccessDenied):
        await service.get_user_state(**ADA)
    with pytest.raises(AccessDenied):
        await service.list_sessions(**ADA)
    everybody = await service.list_sessions(app_name="support")
    assert everybody.sessions == []
    assert await whole.get_session(**ADA, session_id="c1") is not None

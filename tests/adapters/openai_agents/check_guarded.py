"""A Session of openai-agents for a principal: no hidden field and no foreign session reaches it."""

from __future__ import annotations

import json

import pytest

import limpet
from limpet import AccessDenied, FieldAccess, Isolation, Principal
from limpet.adapters.openai_agents import LimpetSession
from tests.adapters.openai_agents.items import assistant, user

CANARY = "canary-5e1f0c7a"
CRITIC = Principal("agent:critic", role="agent", app="support", user="ada")
BOB = Principal("user:bob", role="owner", app="support", user="bob")
KEPT = Isolation("per_agent", agents={"agent:critic": FieldAccess(owns=("draft",))})


def session(lp: limpet.Limpet) -> LimpetSession:
    return LimpetSession("c1", lp, app="support", user="ada")


async def test_a_hidden_field_is_in_no_item(lp: limpet.Limpet) -> None:
    """An event of the conversation that also set a field, which the agent does not see."""
    s = await lp.create("support", "ada", "c1", state={"salary": CANARY}, isolation=KEPT)
    await session(lp).add_items([user("one"), assistant("two")])
    await s.append(
        "user.message",
        {"text": "three", "note": f"{CANARY}-2"},
        actor="user:ada",
        set={"salary": f"{CANARY}-2"},
    )
    items = await session(lp.acting_as(CRITIC)).get_items()
    assert items[0]["content"] == "one"
    assert len(items) == 3
    assert CANARY not in json.dumps(items)


async def test_a_foreign_session_is_refused_whole(lp: limpet.Limpet) -> None:
    """Reading, adding, taking and clearing; whether it is there or not."""
    await session(lp).add_items([user(CANARY)])
    for id in ("c1", "missing"):
        foreign = LimpetSession(id, lp.acting_as(BOB), app="support", user="ada")
        for call in (
            lambda foreign=foreign: foreign.get_items(),
            lambda foreign=foreign: foreign.add_items([user("x")]),
            lambda foreign=foreign: foreign.pop_item(),
            lambda foreign=foreign: foreign.clear_session(),
        ):
            with pytest.raises(AccessDenied):
                await call()
    assert await session(lp).get_items() == [user(CANARY)]

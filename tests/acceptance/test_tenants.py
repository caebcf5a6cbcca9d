"""Memory and learnings of tenants whose names look alike: each is kept apart."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.session.documents import Internal

ADA = "user:ada"
LONG = "a" * 65


async def learns(turn: limpet.Turn) -> None:
    await turn.learn("lesson", f"of {turn.session.app}")


async def has_learned(lp: limpet.Limpet, app: str, **how: Any) -> None:
    s = await lp.create(app, "ada", **how)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    assert (await lp.wake(s.key, learns)).error is None


@pytest.mark.parametrize("layer", ["semantic", "procedural"])
async def test_an_app_never_sees_the_memory_of_another(lp: limpet.Limpet, layer: Any) -> None:
    """Also if the name of the one begins with that of the other, and the rest is in the entry."""
    shop = (await lp.create("shop", "ada")).memory.layer(layer)
    europe = (await lp.create("shop/eu", "ada")).memory.layer(layer)
    await europe.put("plan", "secret")
    assert await shop.list() == ()
    assert await shop.get("eu/plan") is None
    await shop.put("eu/plan", "other")
    assert await europe.get("plan") == "secret"


async def test_a_task_never_sees_the_memory_of_another(lp: limpet.Limpet) -> None:
    """Whether the slash is in the name of the app, of the task or of the entry."""
    refund = await lp.create("shop", "ada", labels={"task": "refund"})
    partial = await lp.create("shop", "ada", labels={"task": "refund/partial"})
    below = await lp.create("shop/refund", "ada", labels={"task": "partial"})
    await partial.memory.procedural.put("how", "slowly")
    assert await refund.memory.procedural.list() == ()
    assert await below.memory.procedural.list() == ()


async def test_a_session_never_sees_the_memory_of_another(lp: limpet.Limpet) -> None:
    """Of one user: what the session "a" remembers is not what the session "a/b" does."""
    first = await lp.create("shop", "ada", "a")
    second = await lp.create("shop", "ada", "a/b")
    for s, of in ((first, "b/c"), (second, "c")):
        await s.memory.session.put(of, s.id)
        await s.memory.episodic.put(of, s.id)
    assert [each.value for each in await first.memory.session.list()] == ["a"]
    assert [each.value for each in await first.memory.episodic.list()] == ["a"]
    await first.complete()
    await second.complete()
    later = await lp.create("shop", "ada")
    seen = await later.memory.episodic.list()
    assert sorted(each.value for each in seen) == ["a", "a/b"]
    assert {each.name for each in seen} == {"promoted/a/b/c"}


async def test_a_long_name_is_never_taken_for_a_short_one(lp: limpet.Limpet) -> None:
    """A long one is kept by its hash: an app that is named like the hash sees nothing of it."""
    long = await lp.create(LONG, "ada")
    await long.memory.semantic.put("plan", "secret")
    assert await long.memory.semantic.get("plan") == "secret"
    (kept,) = (await Internal(lp._journal, "memory").list("semantic/")).items
    for name in kept.name.split("/")[1:-1]:
        other = await lp.create(name, "ada")
        assert await other.memory.semantic.list() == ()


async def test_the_longest_names_have_room_in_every_layer(lp: limpet.Limpet) -> None:
    """App, user, task, id and entry: each as long as it may be."""
    wide = "€" * 64
    s = await lp.create(wide, wide, wide, labels={"task": "€" * 256})
    for layer in (s.memory.session, s.memory.episodic, s.memory.semantic, s.memory.procedural):
        await layer.put("€" * 96, "kept")
        assert [each.name for each in await layer.list()] == ["€" * 96]
    await s.complete()
    (seen,) = await (await lp.create(wide, wide)).memory.episodic.list()
    assert seen.value == "kept"


async def test_learnings_are_those_of_one_agent(lp: limpet.Limpet) -> None:
    """Neither those of an agent whose name begins so, nor those of an app with an @ in its name."""
    for app in ("shop", "shop/eu", "shop@eu"):
        await has_learned(lp, app)
    for app in ("shop", "shop/eu", "shop@eu"):
        assert [each.text for each in await lp.learnings(app)] == [f"of {app}"]


async def test_the_versions_of_an_agent_share_what_was_learned(lp: limpet.Limpet) -> None:
    """Sessions of every app that runs it learn for the agent, by its name alone."""
    await lp.agents.put("helper", {"prompt": "help"}, actor=ADA)
    await has_learned(lp, "one", agent="helper")
    await lp.agents.put("helper", {"prompt": "help more"}, actor=ADA)
    await has_learned(lp, "two", agent="helper")
    texts = sorted(each.text for each in await lp.learnings("helper"))
    assert texts == ["of one", "of two"]

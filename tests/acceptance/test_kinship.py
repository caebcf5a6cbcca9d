"""Parents and children are such by the word of both logs, whoever has their keys by now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.model import Draft
from limpet.model.facts.running import budgets, children
from limpet.session.runs.delegation import notify_parent

ADA = "user:ada"


async def delegates(turn: limpet.Turn) -> None:
    if turn.inputs[0].type == "user.message":
        await turn.delegate("research", "look", budget=0.4, cascade=False)


async def spends(turn: limpet.Turn) -> None:
    await turn.say("found", cost=0.3)


async def idles(turn: limpet.Turn) -> None:
    """A parent that is woken for nothing."""


async def begun(lp: limpet.Limpet) -> tuple[limpet.Session[Any], limpet.Key]:
    """A parent with a budget, and its child."""
    s = await lp.create("support", "ada", "p", budget=1.0)
    await s.append("user.message", {"text": "hi"}, actor=ADA)
    await lp.wake(s.key, delegates)
    (child,) = await s.runs.children()
    return s, child


async def carried(lp: limpet.Limpet, path: Path, key: limpet.Key, *facts: Draft) -> None:
    """A session that a stranger made elsewhere, with these facts, and brings here."""
    async with limpet.open("memory://") as elsewhere:
        made = await elsewhere.create(key.app, key.user, key.id, actor="user:eve")
        for fact in facts:
            await made.record(fact, actor="user:eve")
        await made.append("user.message", {"text": "work"}, actor="user:eve")
        await elsewhere.export(key, path=path)
    await lp.import_(path)


async def test_a_child_never_tells_a_session_that_took_the_key_of_its_parent(
    lp: limpet.Limpet,
) -> None:
    """The new one has a budget of its own, which the child must not use up."""
    s, child = await begun(lp)
    await lp.delete(s.key)
    other = await lp.create("support", "ada", "p", budget=0.5, reuse_deleted=True)
    assert (await lp.wake(child, spends)).reason == "end_turn"
    await other.refresh()
    assert (other.head.pending, other.version) == (0, 1)
    assert other.runs.budget is not None
    assert other.runs.budget.remaining.cost == 0.5


async def test_a_child_that_is_removed_never_tells_a_session_that_took_its_parents_key(
    lp: limpet.Limpet,
) -> None:
    """Deleted or erased, as at its end."""
    s, child = await begun(lp)
    await lp.delete(s.key)
    other = await lp.create("support", "ada", "p", budget=0.5, reuse_deleted=True)
    await lp.delete(child)
    await other.refresh()
    assert other.version == 1


async def test_a_session_that_took_a_key_has_no_children_by_its_own_word(
    lp: limpet.Limpet,
) -> None:
    """It names the child of the session before it, which neither tells it anything nor reads its
    memory."""
    s, child = await begun(lp)
    await lp.delete(s.key)
    other = await lp.create("support", "ada", "p", budget=0.5, reuse_deleted=True)
    uid = (await lp.get(child)).head.uid
    await other.record(children.child_created(child, uid, 1, "", None), actor=ADA)
    await other.memory.semantic.put("tone", "kind")
    await other.memory.episodic.put("refund", {"eur": 7})
    works = await lp.get(child)
    assert await works.memory.semantic.get("tone") is None
    assert await works.memory.episodic.get("parent/refund") is None
    assert (await lp.wake(child, spends)).reason == "end_turn"
    await other.refresh()
    assert (other.version, other.head.pending) == (2, 0)


@pytest.mark.parametrize("cost", [0.3, 0.0])
@pytest.mark.parametrize("knows", ["the key", "the uid", "its child"])
@pytest.mark.parametrize("way", ["ends", "is deleted", "is interrupted"])
async def test_an_imported_session_has_no_parent_by_its_own_word(
    lp: limpet.Limpet, tmp_path: Path, knows: str, way: str, cost: float
) -> None:
    """The log of the one that it names does not know it, however well it is described: nothing is
    written there, and no budget is lost to it."""

    async def works(turn: limpet.Turn) -> None:
        await turn.say("found", cost=cost)

    s, child = await begun(lp)
    await s.refresh()
    version, uid = s.version, "guessed" if knows == "the key" else s.head.uid
    id = child.id if knows == "its child" else "stranger"
    key = limpet.Key("research", "eve", id)
    facts: list[Draft] = [children.delegated(s.key, uid, "t", 1)]
    if cost:
        facts.append(budgets.granted(limpet.Budget(cost=9.0)))
    await carried(lp, tmp_path / "eve.limpet", key, *facts)
    if way == "is interrupted":
        await lp.session(key, actor="user:eve").append("user.interrupt", {"by": "parent"})
        await lp.wake(key, works)
    elif way == "ends":
        assert (await lp.wake(key, works)).reason == "end_turn"
    else:
        await notify_parent(lp._journal, key)
    stranger = await lp.get(key)
    assert children.delegation(stranger.head.facts).get("ended")  # type: ignore[union-attr]  # it has one
    await s.refresh()
    assert (s.version, s.head.pending) == (version, 0)
    assert s.runs.budget is not None
    assert s.runs.budget.remaining.cost == 0.6
    assert await s.runs.children() == (child,)
    await lp.wake(child, works)
    await s.refresh()
    assert s.runs.budget.remaining.cost == pytest.approx(1.0 - cost)


async def test_an_imported_session_has_no_children_by_its_own_word(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """It is interrupted and terminated alone, and its tree and its tools do not show the session it
    names."""
    victim = await lp.create("support", "ada", "victim")
    await victim.append("user.message", {"text": "secret"}, actor=ADA)
    key = limpet.Key("support", "eve", "p")
    named = children.child_created(victim.key, victim.head.uid, 1, "", "mine")
    await carried(lp, tmp_path / "eve.limpet", key, named)
    s = await lp.get(key)
    assert await s.runs.children() == (victim.key,), "so it says"
    assert [kin.gone for kin in (await s.runs.tree()).children] == [True]
    seen: list[Any] = []

    async def looks(turn: limpet.Turn) -> None:
        tools = limpet.ManagedTools(turn, lp, harnesses={"support": idles})
        for tool in ("session_get_snapshot", "session_get_events", "session_run_child"):
            seen.append((await tools.call(tool, {"id": victim.id}))["error"]["code"])
        seen.append((await tools.call("session_list_children"))["children"])

    assert (await lp.wake(key, looks)).error is None
    assert seen == [*["session.not_found"] * 3, []]
    await s.append("user.message", {"text": "go on"}, actor="user:eve")
    await s.interrupt(actor="user:eve")
    await lp.wake(key, idles)
    await carried(lp, tmp_path / "again.limpet", limpet.Key("support", "eve", "q"), named)
    other = await lp.get("support", "eve", "q")
    await other.terminate(actor="user:eve")
    await lp.wake(other.key, idles)
    await victim.refresh()
    assert (victim.version, victim.head.phase, victim.head.pending) == (2, "active", 1)


async def test_an_imported_session_reads_no_memory_by_its_own_word(
    lp: limpet.Limpet, tmp_path: Path
) -> None:
    """Neither what the app of the session that it names knows, nor that one's episodes."""
    s, child = await begun(lp)
    await s.memory.semantic.put("tone", "kind")
    await s.memory.episodic.put("refund", {"eur": 7})
    real = await lp.get(child)
    assert await real.memory.semantic.get("tone") == "kind"
    assert await real.memory.episodic.get("parent/refund") == {"eur": 7}
    key = limpet.Key("research", "eve", child.id)
    named = children.delegated(s.key, s.head.uid, "t", 1)
    await carried(lp, tmp_path / "eve.limpet", key, named)
    stranger = await lp.get(key)
    assert await stranger.memory.semantic.get("tone") is None
    assert await stranger.memory.semantic.list() == ()
    assert await stranger.memory.episodic.get("parent/refund") is None
    assert await stranger.memory.episodic.list() == ()


async def test_a_family_that_moves_together_stays_one(lp: limpet.Limpet, tmp_path: Path) -> None:
    """Both logs say so, wherever they are: the child's end and its budget reach the parent."""
    s, child = await begun(lp)
    await lp.export(s.key, path=tmp_path / "s.limpet")
    await lp.export(child, path=tmp_path / "child.limpet")
    async with limpet.open("memory://") as to:
        await to.import_(tmp_path / "s.limpet")
        await to.import_(tmp_path / "child.limpet")
        await to.wake(child, spends)
        there = await to.get(s.key)
        assert (there.head.pending, await there.runs.children()) == (1, ())
        assert there.runs.budget is not None
        assert there.runs.budget.remaining.cost == pytest.approx(0.7)

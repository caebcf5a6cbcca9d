"""What a session keeps for itself between its runs: session_state, working_buffer, shell_state."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import limpet
from limpet.model.facts.running import children

ADA = "user:ada"


async def test_a_buffer_is_written_in_versions(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Each write replaces the value and counts; every version can be read again."""
    state = s.memory.session_state
    assert await state.read() is None
    one = await state.write({"step": 1}, actor=ADA)
    two = await state.write({"step": 2}, actor="agent:main")
    assert (one.version, two.version, two.actor) == (1, 2, "agent:main")
    other = lp.session(s.key)
    assert await other.memory.session_state.read() == two
    assert await state.read(1) == one
    assert await state.read(3) is None
    assert await state.history() == (two, one)
    assert await state.history(limit=1) == (two,)
    assert await s.memory.working_buffer.read() is None


async def test_a_write_expects_the_version_that_was_read(s: limpet.Session[Any]) -> None:
    """At another version it is a conflict that names both, and nothing is written."""
    buffer = s.memory.working_buffer
    await buffer.write("draft", expect=0)
    with pytest.raises(limpet.errors.MemoryConflict, match="version 1") as info:
        await buffer.write("other", expect=0)
    assert (info.value.name, info.value.expected, info.value.actual) == ("working_buffer", 0, 1)
    await s.append("note.made", actor=ADA)  # the session moves on, the buffer does not
    assert (await buffer.write("second", expect=1)).version == 2
    found = await buffer.read()
    assert found is not None
    assert found.value == "second"


async def test_one_of_racing_writes_with_one_version_wins(s: limpet.Session[Any]) -> None:
    """The others are conflicts, and what the winner wrote is there."""
    buffer = s.memory.session_state
    tries = [buffer.write(n, expect=0) for n in range(4)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    won = [each for each in done if not isinstance(each, BaseException)]
    assert len(won) == 1
    assert {type(each) for each in done if each not in won} == {limpet.errors.MemoryConflict}
    assert await buffer.read() == won[0]


async def test_racing_appends_lose_nothing(s: limpet.Session[Any]) -> None:
    """Each is added once, to a text or to a list; other values are refused."""
    buffer = s.memory.working_buffer
    await asyncio.gather(*(buffer.append([n]) for n in range(4)))
    found = await buffer.read()
    assert found is not None
    assert (sorted(found.value), found.version) == ([0, 1, 2, 3], 4)
    await buffer.write("a")
    assert (await buffer.append("b")).value == "ab"
    for wrong in (["c"], 5):
        with pytest.raises(limpet.InvalidInput):
            await buffer.append(wrong)  # type: ignore[arg-type]  # what is refused


async def test_a_repeated_write_is_written_once(s: limpet.Session[Any]) -> None:
    """Under the same id the first version comes back, however many were written since."""
    buffer = s.memory.session_state
    one = await buffer.write("a", id="w1")
    await buffer.write("b")
    assert await buffer.write("a", id="w1") == one
    assert await buffer.append("x", id="a1") == await buffer.append("x", id="a1")
    found = await buffer.read()
    assert found is not None
    assert (found.value, found.version) == ("bx", 3)


async def test_a_writer_whose_lease_is_lost_writes_nothing(
    lp: limpet.Limpet, s: limpet.Session[Any]
) -> None:
    """A buffer is fenced like everything else in the log."""
    old = await lp.work.lock(s.key, worker="w1")
    stale = lp.session(s.key, lease=old)
    await lp.work.release(old)
    await lp.work.lock(s.key, worker="w2")
    with pytest.raises(limpet.errors.SessionFenced):
        await stale.memory.session_state.write("late", actor=ADA)
    assert await s.memory.session_state.read() is None


async def test_buffers_are_of_one_session(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Not of another session of the user, not of a fork; and gone with the session."""
    await s.memory.session_state.write("mine", actor=ADA)
    other = await lp.create("support", "ada", "two")
    fork = await s.fork()
    assert await other.memory.session_state.read() is None
    assert await fork.memory.session_state.read() is None
    await lp.delete(s.key)
    with pytest.raises(limpet.errors.SessionDeleted):
        await s.memory.session_state.read()


async def test_buffers_say_what_there_is_to_read(s: limpet.Session[Any]) -> None:
    """The checkpoint and the shell's state are read only for agents, the other two are not."""
    await s.memory.shell_state.write({"cwd": "/srv"}, actor=ADA)
    await s.memory.working_buffer.write("x", actor=ADA)
    await s.checkpoint(actor=ADA)
    found = [(each.name, each.access, each.version) for each in await s.memory.buffers()]
    assert found == [
        ("checkpoint", "ro", 1),
        ("shell_state", "ro", 1),
        ("session_state", "rw", 0),
        ("working_buffer", "rw", 1),
    ]


async def test_a_store_with_buffers_verifies(lp: limpet.Limpet, s: limpet.Session[Any]) -> None:
    """Head, log and snapshots agree, and a copy has every version."""
    for n in range(3):
        await s.memory.session_state.write({"n": n}, actor=ADA)
    assert (await lp.maintenance.verify()).ok
    async with limpet.open("memory://") as to:
        await lp.copy(to=to)
        there = to.session(s.key)
        assert await there.memory.session_state.history() == await s.memory.session_state.history()


# --- delegated sessions -------------------------------------------------------------------------


async def family(lp: limpet.Limpet) -> tuple[limpet.Session[Any], limpet.Session[Any], Any]:
    """A session, its child of another app, and a child of that."""
    parent = await lp.create("support", "ada", "p")
    child = await lp.create("research", "ada", "c")
    await delegated(parent, child, 1)
    grandchild = await lp.create("reading", "ada", "g")
    await delegated(child, grandchild, 2)
    return parent, child, grandchild


async def delegated(parent: limpet.Session[Any], child: limpet.Session[Any], depth: int) -> None:
    """Both say so, as after turn.delegate."""
    made = children.child_created(child.key, child.head.uid, 1, "", None)
    await parent.record(made, actor=ADA)
    await child.record(children.delegated(parent.key, parent.head.uid, "t", depth), actor=ADA)


async def test_a_child_reads_semantic_memory_through_and_writes_apart(lp: limpet.Limpet) -> None:
    """It sees what its parent sees, down the tree; what it writes is its own."""
    parent, child, grandchild = await family(lp)
    await parent.memory.semantic.put("tone", "kind")
    await parent.memory.semantic.put("hours", "9-5")
    assert await child.memory.semantic.get("tone") == "kind"
    await child.memory.semantic.put("tone", "short")
    assert await parent.memory.semantic.get("tone") == "kind"
    assert await child.memory.semantic.get("tone") == "short"
    assert await grandchild.memory.semantic.get("tone") == "short"
    assert await grandchild.memory.semantic.get("hours") == "9-5"
    await grandchild.memory.semantic.put("extra", 1)
    assert await child.memory.semantic.get("extra") is None
    listed = [(each.name, each.value) for each in await child.memory.semantic.list()]
    assert listed == [("hours", "9-5"), ("tone", "short")]
    other = await lp.create("research", "ada", "elsewhere")
    assert await other.memory.semantic.list() == ()


async def test_a_child_reads_its_parents_episodes_and_writes_none(lp: limpet.Limpet) -> None:
    """They are under parent/, and a write there is refused."""
    parent, child, _ = await family(lp)
    await parent.memory.episodic.put("refund", {"eur": 7})
    await child.memory.episodic.put("found", {"invoice": 1})
    assert await child.memory.episodic.get("parent/refund") == {"eur": 7}
    names = [each.name for each in await child.memory.episodic.list()]
    assert names == ["found", "parent/refund"]
    with pytest.raises(limpet.InvalidInput, match="read only"):
        await child.memory.episodic.put("parent/refund", {"eur": 0})
    assert await parent.memory.episodic.get("refund") == {"eur": 7}
    assert [each.name for each in await parent.memory.episodic.list()] == ["refund"]


async def test_memory_has_its_place_before_anything_was_read(lp: limpet.Limpet) -> None:
    """An object that has read nothing writes neither to a parent's memory nor to another task's."""
    parent, child, _ = await family(lp)
    unread = lp.session(child.key, actor="agent:main")
    await unread.memory.semantic.put("tone", "short")
    assert await parent.memory.semantic.get("tone") is None
    assert await child.memory.semantic.get("tone") == "short"
    await parent.memory.episodic.put("refund", {"eur": 7})
    assert await unread.memory.episodic.get("parent/refund") == {"eur": 7}
    task = await lp.create("support", "ada", "t", labels={"task": "refund"}, actor="user:ada")
    fresh = lp.session(task.key, actor="user:ada")
    await fresh.memory.procedural.put("how", "by hand")
    assert [each.name for each in await task.memory.procedural.search("hand")] == ["how"]
    await task.complete()
    with pytest.raises(limpet.SessionEnded):
        await fresh.memory.session.put("note", "late")

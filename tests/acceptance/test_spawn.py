"""Spawning: a program begins children of a session, and waits for them."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

import limpet
from limpet import errors

ADA = "user:ada"


async def parent_of(lp: limpet.Limpet, **more: Any) -> limpet.Session[Any]:
    state = {"plan": {"steps": ["look", "act"]}, "secret": 1}
    return await lp.create("support", "ada", "lead", state=state, actor=ADA, **more)


async def test_a_child_has_what_it_was_given(lp: limpet.Limpet) -> None:
    limits = limpet.Timeouts(idle=timedelta(hours=1), absolute=timedelta(days=2))
    budget = limpet.Budget(cost=8.0, tokens=1000)
    lead = await parent_of(lp, timeouts=limits, budget=budget)
    await lead.history.retention(events=50, actor=ADA)
    child = await lp.spawn(lead, task="look it up", fields=("plan",), budget_fraction=0.5)
    assert (child.app, child.user) == ("support", "ada")
    assert child.values == {"plan": {"steps": ["look", "act"]}}
    assert child.events[-1].type == "user.message"
    assert child.events[-1].data["text"] == "look it up"
    assert child.runs.parent == lead.key
    assert child.runs.budget is not None
    assert child.runs.budget.limit == limpet.Budget(cost=4.0, tokens=500)
    assert child.head.isolation.model == "per_task"
    assert child.head.isolation.task == child.id
    assert child.head.timeouts == limits
    assert child.head.facts["retention"] == {"events": 50}
    await lead.refresh()
    assert lead.runs.budget is not None
    assert lead.runs.budget.remaining == limpet.Budget(cost=4.0, tokens=500), "moved"
    assert await lead.runs.children() == (child.key,)
    await child.append("note.made", actor=ADA, set={"plan.steps": []})
    assert (await lead.refresh()).values["plan"]["steps"] == ["look", "act"], "a copy"


async def test_tools_are_a_subset_of_the_parents(lp: limpet.Limpet) -> None:
    tools = limpet.ToolRegistry()
    for name in ("search", "refund"):
        tools.add(limpet.Tool(name))
    lp.policies.lifecycle("support", tools=tools)
    lead = await parent_of(lp, phase="init")
    with pytest.raises(errors.InvalidInput, match="activate"):
        await lp.spawn(lead, task="look it up")
    await lead.activate(actor=ADA)
    child = await lp.spawn(lead, task="look it up", tools=("search",))
    assert set(child.head.facts["tools"]) == {"search"}
    nothing = await lp.spawn(lead, task="think")
    assert not nothing.head.facts["tools"]
    with pytest.raises(errors.ToolAuthorizationFailed):
        await lp.spawn(lead, task="look it up", tools=("delete",))
    with pytest.raises(errors.ToolAuthorizationFailed):
        await lp.spawn(child, task="pay", tools=("refund",))


async def test_the_same_id_and_task_are_the_same_child(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp, budget=limpet.Budget(tokens=1000))
    made = await asyncio.gather(*[lp.spawn(lead, task="look it up", id="one") for _ in range(5)])
    assert {child.head.uid for child in made} == {made[0].head.uid}
    with pytest.raises(errors.SessionExists):
        await lp.spawn(lead, task="another", id="one")
    await lead.refresh()
    assert lead.runs.budget is not None
    assert lead.runs.budget.remaining.tokens == 750, "given once"
    taken = await lp.create("support", "ada", "taken", actor=ADA)
    with pytest.raises(errors.SessionExists):
        await lp.spawn(lead, task="look it up", id=taken.id)
    assert (await lp.wait_for_children(lead, timeout=0)).pending == (made[0].key,)


async def test_only_an_active_session_spawns(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp)
    await lead.suspend(actor=ADA)
    with pytest.raises(errors.SessionSuspended):
        await lp.spawn(lead, task="look it up")
    other = await lp.create("support", "ada", "over", actor=ADA)
    await other.complete(actor=ADA)
    with pytest.raises(errors.SessionEnded):
        await lp.spawn(other.key, task="look it up")
    with pytest.raises(errors.SessionNotFound):
        await lp.spawn(limpet.Key("support", "ada", "nobody"), task="look it up")


async def test_a_turn_is_told_to_delegate(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp)
    await lead.append("user.message", {"text": "go"}, actor=ADA)
    refused: list[str] = []

    async def harness(turn: limpet.Turn) -> None:
        with pytest.raises(errors.InvalidInput) as error:
            await lp.spawn(turn.session, task="look it up")
        refused.append(str(error.value))
        await turn.say("done")

    assert (await lp.wake(lead.key, harness)).ran
    assert "turn.delegate" in refused[0]
    assert (await lp.wait_for_children(lead)).pending == ()
    await lp.spawn(lead, task="afterwards it may")


async def test_completing_tells_the_parent_in_the_same_commit(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp, budget=limpet.Budget(tokens=1000))
    one = await lp.spawn(lead, task="one", id="one")
    two = await lp.spawn(lead, task="two", id="two")
    three = await lp.spawn(lead, task="three", id="three")
    with pytest.raises(errors.GuardFailed, match="3 children have"):
        await lead.complete(actor=ADA)
    waiting = asyncio.create_task(lp.wait_for_children(lead))
    await one.append(
        "agent.message", {"text": "…", "usage": {"input": 30, "output": 20}}, actor="agent:support"
    )
    before = (await lead.refresh()).version
    await one.complete({"answer": 42}, actor=ADA)
    assert (await lead.refresh()).version == before + 1
    assert lead.head.pending == 0, "no input: nobody has to run a turn for it"
    await two.append("agent.message", {"text": "found"}, actor="agent:support")
    await two.complete(actor=ADA)
    assert not waiting.done()
    assert (await lp.wait_for_children(lead, timeout=0)).pending == (three.key,)
    await three.terminate("not needed", actor=ADA)
    children = await waiting
    assert children == limpet.Children(
        {one.key: {"answer": 42}, two.key: "found", three.key: None}, ()
    )
    await lead.refresh()
    assert lead.runs.budget is not None
    assert lead.runs.budget.remaining.tokens == 950, "what is left comes back"
    tree = await lead.runs.tree()
    assert [kin.stop_reason for kin in tree.children] == ["end_turn", "end_turn", "terminated"]
    await lead.complete(actor=ADA)


async def test_a_worker_that_finishes_the_task_ends_the_child(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp)
    child = await lp.spawn(lead, task="greet", id="greeter")

    async def harness(turn: limpet.Turn) -> None:
        await turn.say("hello")

    assert (await lp.wake(child.key, harness)).ran
    assert (await lp.wait_for_children(lead)).done == {child.key: "hello"}
    await child.complete(actor=ADA)
    assert (await lp.wait_for_children(lead)).done == {child.key: "hello"}, "once"


async def test_a_deleted_child_is_done_and_a_parent_may_go_first(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp)
    child = await lp.spawn(lead, task="greet")
    orphan = await lp.spawn(lead, task="stay")
    await lp.delete(child.key)
    assert (await lp.wait_for_children(lead, timeout=0)).done == {child.key: None}
    await lp.delete(lead.key)
    await orphan.complete("late", actor=ADA)
    assert orphan.phase == "completed"
    with pytest.raises(errors.SessionDeleted):
        await lp.wait_for_children(lead.key)


async def test_a_terminated_parent_ends_its_children(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp)
    child = await lp.spawn(lead, task="greet")
    await lead.terminate("enough", actor=ADA)

    async def harness(turn: limpet.Turn) -> None:
        raise AssertionError

    await lp.wake(lead.key, harness)
    assert (await child.refresh()).phase == "terminated"
    assert (await lp.wait_for_children(lead)).done == {child.key: None}


async def test_a_wake_reads_what_is_new_however_many_children_there_are(
    lp: limpet.Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One reading of the parent's log for each wake, and none of all children before the end."""
    from limpet.session.limpet import journal_of

    many = 100
    lead = await parent_of(lp)
    kids = [await lp.spawn(lead, task=f"task {n}", id=f"kid{n}") for n in range(many)]
    assert "children" not in (await lead.refresh()).head.facts
    assert lead.head.facts["spawned"] == many, "a number: the head does not grow with them"
    store = journal_of(lp).store
    loads, wakes, lists = 0, 0, 0
    load, read = store.load, store.read

    async def counted_load(key: limpet.Key, **how: Any) -> Any:
        nonlocal loads
        loads += key == lead.key
        return await load(key, **how)

    async def counted_read(key: limpet.Key, **how: Any) -> Any:
        nonlocal wakes, lists
        wakes += key == lead.key and how["types"] is None
        lists += key == lead.key and how["types"] is not None
        return await read(key, **how)

    monkeypatch.setattr(store, "load", counted_load)
    monkeypatch.setattr(store, "read", counted_read)
    waiting = asyncio.create_task(lp.wait_for_children(lead))
    for kid in kids:
        await kid.complete("ok", actor=ADA)
    assert len((await waiting).done) == many
    assert loads <= 3, "before it waits, when the last one has ended, and for the list"
    assert wakes <= 1.1 * many + 2, "one for each end, and a few that found nothing"
    assert lists <= 2, "the children are listed once, at the end"


async def test_a_fork_has_none_of_the_children(lp: limpet.Limpet) -> None:
    """They work for the session that they were spawned by; the fork only reads how it began."""
    lead = await parent_of(lp)
    child = await lp.spawn(lead, task="greet")
    fork = await (await lead.refresh()).fork(id="fork")
    assert await lp.wait_for_children(fork, timeout=60) == limpet.Children({}, ())
    assert await fork.runs.children() == ()
    assert (await lp.wait_for_children(lead, timeout=0)).pending == (child.key,)


async def test_nested_children_and_their_graph(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp, budget=limpet.Budget(tokens=1600))
    child = await lp.spawn(lead, task="one", id="one")
    grandchild = await lp.spawn(child, task="two", id="two")
    assert grandchild.runs.budget is not None
    assert grandchild.runs.budget.limit.tokens == 100
    graph = await lp.graph(lead.key)
    kinds = {(edge.source.id, edge.target.id, edge.kind) for edge in graph.edges}
    assert kinds == {("lead", "one", "child"), ("one", "two", "child")}
    with pytest.raises(errors.GuardFailed):
        await child.complete(actor=ADA)
    await grandchild.complete(actor=ADA)
    await child.complete(actor=ADA)
    await lead.refresh()
    assert lead.runs.budget is not None
    assert lead.runs.budget.remaining.tokens == 1600


async def test_bad_arguments(lp: limpet.Limpet) -> None:
    lead = await parent_of(lp)
    wrong: list[dict[str, Any]] = [
        {"task": ""},
        {"task": 7},
        {"task": "x", "fields": "plan"},
        {"task": "x", "fields": ("nothing",)},
        {"task": "x", "fields": ("app:a",)},
        {"task": "x", "tools": "search"},
        {"task": "x", "budget_fraction": 0},
        {"task": "x", "budget_fraction": 2},
        {"task": "x", "id": ""},
        {"task": "x", "id": "x" * 255},
    ]
    for arguments in wrong:
        with pytest.raises(errors.InvalidInput):
            await lp.spawn(lead, **arguments)
    for timeout in (-1, "soon", float("nan")):
        with pytest.raises(errors.InvalidInput):
            await lp.wait_for_children(lead, timeout)  # type: ignore[arg-type]
    assert (await lead.refresh()).version == 1

"""Sessions of one user: while an agent works in one, it enters others of the same agent only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any

import pytest

import limpet
from limpet import AccessDenied, Isolation, Limpet, ManagedTools, Principal
from limpet.errors import InvalidInput
from limpet.session.limpet import at_work

WORKER = Principal("agent:main", role="agent", app="desk")
Use = Callable[[ManagedTools], Awaitable[Any]]
# Sessions of ada: the agent of each, and its isolation.
SESSIONS: dict[str, tuple[str | None, Isolation | None]] = {
    "home": ("billing", None),
    "same": ("billing", None),
    "other": ("support", None),
    "default": (None, None),
    "open": ("support", Isolation(siblings=True)),
    "named": ("support", Isolation("per_agent", agents={"agent:main": limpet.FieldAccess()})),
}
ENTERED = {"home", "same", "open", "named"}


@pytest.fixture
async def desk(lp: Limpet) -> Limpet:
    """The sessions; "same" has a newer version of the agent."""
    for name in ("billing", "support"):
        await lp.agents.put(name, {"model": "small"}, actor="user:ada")
    for id, (agent, isolation) in SESSIONS.items():
        if id == "same":
            await lp.agents.put("billing", {"model": "large"}, actor="user:ada")
        s = await lp.create("desk", "ada", id, agent=agent, isolation=isolation, state={"n": id})
        await s.append("user.message", {"text": f"words in {id}"}, actor="user:ada")
    return lp


async def used(lp: Limpet, id: str, use: Use) -> Any:
    """What a harness gets that uses the managed tools in a turn of this session."""
    got: list[Any] = []

    async def harness(turn: limpet.Turn) -> None:
        got.append(await use(ManagedTools(turn, lp)))

    woken = await lp.wake(("desk", "ada", id), harness, agent=WORKER.id)
    assert woken.error is None, woken.error
    return got[-1]


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_model_reads_other_sessions_of_its_own_agent_only(
    desk: Limpet, guarded: bool
) -> None:
    """By every managed tool that takes a session or lists them, also where a worker is not
    guarded: a refusal is a result that the model reads."""
    lp = desk.acting_as(WORKER) if guarded else desk

    async def use(tools: ManagedTools) -> dict[str, list[Any]]:
        got: dict[str, list[Any]] = {}
        for id in SESSIONS:
            got[id] = [
                await tools.call("session_get_snapshot", {"id": id}),
                await tools.call("session_get_events", {"id": id}),
                await tools.call("agent_compare_setup", {"id": id}),
                await tools.call("session_get_trace", {"id": id, "wake_id": "none"}),
            ]
        got["list"] = (await tools.call("session_list", {}))["sessions"]
        return got

    got = await used(lp, "home", use)
    assert {each["id"] for each in got.pop("list")} == ENTERED
    for id, results in got.items():
        codes = [each.get("error", {}).get("code") for each in results[:3]]
        assert codes == [None if id in ENTERED else "access.denied"] * 3, id
        assert (results[3]["error"]["code"] == "access.denied") == (id not in ENTERED), id
        assert (f"words in {id}" in str(results)) == (id in ENTERED), id


@pytest.mark.parametrize("guarded", [False, True])
async def test_a_session_kept_for_agents_is_read_by_those_it_names(
    desk: Limpet, guarded: bool
) -> None:
    """Also where a worker is not guarded: one that names other agents is closed to the model."""
    critics = Isolation("per_agent", agents={"agent:critic": limpet.FieldAccess()})
    s = await desk.create("desk", "ada", "critics", agent="support", isolation=critics)
    await s.append("user.message", {"text": "hi"}, actor="user:ada")

    async def use(tools: ManagedTools) -> Any:
        listed = (await tools.call("session_list", {}))["sessions"]
        assert {each["id"] for each in listed} == ENTERED
        return await tools.call("session_get_events", {"id": "critics"})

    read = await used(desk.acting_as(WORKER) if guarded else desk, "home", use)
    assert read["error"]["code"] == "access.denied"


async def test_a_wake_is_kept_from_sessions_of_other_agents(desk: Limpet) -> None:
    """By every way to ask: reads, writes, lists, feeds and conditions; and the audit has
    it."""
    lp = await at_work(desk.acting_as(WORKER), limpet.Key("desk", "ada", "home"))
    for id in SESSIONS:
        s = lp.session("desk", "ada", id)
        calls: list[tuple[str, Callable[..., Awaitable[Any]]]] = [
            ("agent_read_denied", s.refresh),
            ("agent_read_denied", s.read),
            ("agent_read_denied", partial(s.read_ids, ["x"])),
            ("agent_read_denied", partial(lp.get_many, [s.key])),
            ("agent_write_denied", partial(s.append, "agent.note", {"n": 1})),
            ("agent_write_denied", s.interrupt),
        ]
        for code, call in calls:
            if id in ENTERED:
                await call()
                continue
            with pytest.raises(AccessDenied) as denied:
                await call()
            assert denied.value.denial == code, id
    assert {head.key.id for head in (await lp.list(app="desk")).items} == ENTERED
    seen = set()
    async with aclosing(lp.watch(app="desk")) as feed:
        async for entry in feed:
            seen.add(entry.key.id)
            if "words in named" in str(entry.event.data):
                break
    assert seen == ENTERED
    refused = (await desk.audit(denied=True)).items
    assert {each.policy for each in refused} == {"isolation.siblings"}


async def test_sessions_without_an_agent_have_that_of_their_app(desk: Limpet) -> None:
    """They enter one another, and none with an agent of its own."""
    await desk.create("desk", "ada", "default too")
    lp = await at_work(desk.acting_as(WORKER), limpet.Key("desk", "ada", "default"))
    assert (await lp.get("desk", "ada", "default too")).version == 1
    with pytest.raises(AccessDenied):
        await lp.get("desk", "ada", "home")


async def test_an_agent_named_like_the_app_is_another_one(desk: Limpet) -> None:
    """A session without an agent is not one of the agent that happens to have this name."""
    await desk.agents.put("desk", {"model": "small"}, actor="user:ada")
    await desk.create("desk", "ada", "like the app", agent="desk")
    acting = desk.acting_as(WORKER)
    for home, other in (("default", "like the app"), ("like the app", "default")):
        lp = await at_work(acting, limpet.Key("desk", "ada", home))
        with pytest.raises(AccessDenied):
            await lp.get("desk", "ada", other)


async def test_a_session_looks_after_what_it_delegated(desk: Limpet) -> None:
    """A child of another agent is entered by its parent; and the child does not enter it."""
    keys: list[limpet.Key] = []

    async def delegates(turn: limpet.Turn) -> None:
        child = await turn.delegate("desk", "look into it")
        keys.append(child.key)
        read = await ManagedTools(turn).call("session_get_snapshot", {"id": child.key.id})
        assert read["id"] == child.key.id

    acting = desk.acting_as(WORKER)
    woken = await acting.wake(("desk", "ada", "home"), delegates)
    assert woken.error is None
    parent = await at_work(acting, limpet.Key("desk", "ada", "home"))
    assert (await parent.get(keys[0])).version > 1
    child = await at_work(acting, keys[0])
    with pytest.raises(AccessDenied):
        await child.get("desk", "ada", "home")


async def test_people_and_programs_outside_a_wake_are_not_kept_apart(desk: Limpet) -> None:
    """The rule is for what runs in a session: an owner, and an agent that works in none, read all
    that they did."""
    owner = desk.acting_as(Principal("user:ada", role="owner", app="desk", user="ada"))
    for lp in (owner, desk.acting_as(WORKER), desk):
        assert len((await lp.list(app="desk")).items) == len(SESSIONS)


async def test_siblings_is_part_of_the_isolation(desk: Limpet) -> None:
    """Read from the session, inherited by forks; and neither yes nor no is refused."""
    s = await desk.get("desk", "ada", "open")
    assert s.isolation.siblings
    assert (await s.fork()).isolation.siblings
    assert not (await desk.get("desk", "ada", "same")).isolation.siblings
    with pytest.raises(InvalidInput, match="siblings"):
        Isolation(siblings=1)  # type: ignore[arg-type]  # what is refused

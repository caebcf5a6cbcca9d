"""The tools of a session that are one agent's own, in every way to use one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

import limpet
from limpet import AccessDenied, FieldAccess, Isolation, Limpet, ManagedTools, Principal, ToolCall
from limpet.errors import InvalidInput, ToolDenied
from limpet.model import Facts
from limpet.model.facts.creation import created
from limpet.model.facts.isolation import child_isolation, isolation_data, isolation_in
from limpet.security.access import Resource
from limpet.session.writer import writer_of

KEY = ("desk", "ada", "a7")
APART = Isolation(
    "per_agent",
    agents={
        "agent:writer": FieldAccess(owns=("draft",), tools=("publish", "session_get_snapshot")),
        "agent:critic": FieldAccess(owns=("review",), tools=("search",)),
        "agent:editor": FieldAccess(owns=("both",)),
        "agent:guest": FieldAccess(tools=()),
    },
)
NAMES = ("publish", "search")
ALLOWED = {"writer": {"publish"}, "critic": {"search"}, "editor": set(NAMES), "guest": set()}
Use = Callable[[limpet.Turn], Awaitable[Any]]


def registry(ran: list[str]) -> limpet.ToolRegistry:
    """Tools that note that they ran."""

    def tool_of(name: str) -> limpet.Tool:
        async def run() -> str:
            ran.append(name)
            return f"{name} ran"

        return limpet.Tool(name, function=run)

    return limpet.ToolRegistry([tool_of(name) for name in NAMES])


@pytest.fixture
async def lp() -> AsyncIterator[Limpet]:
    async with limpet.open("memory://") as opened:
        yield opened


class Desk:
    """A session whose agents have tools of their own, and turns of one of them."""

    def __init__(self, lp: Limpet, *, guarded: bool) -> None:
        self.lp, self.guarded, self.ran = lp, guarded, list[str]()
        self.registry = registry(self.ran)

    async def begin(self, *, bound: bool = True) -> None:
        s = await self.lp.create(*KEY, isolation=APART, actor="user:ada")
        if bound:
            await s.tools.bind(self.registry, actor="user:ada")

    async def turn(self, agent: str, use: Use, key: Any = KEY) -> Any:
        """What comes of a turn that this agent runs."""
        got: list[Any] = []

        async def harness(turn: limpet.Turn) -> None:
            got.append(await use(turn))

        await self.lp.session(key).append("user.message", {"text": "go"}, actor="user:ada")
        lp = self.lp
        if self.guarded:
            lp = lp.acting_as(Principal(f"agent:{agent}", role="agent", app="desk"))
        woken = await lp.wake(key, harness, agent=f"agent:{agent}")
        assert woken.error is None, woken.error
        return got[-1]


@pytest.fixture(params=["guarded", "unguarded"])
def desk(lp: Limpet, request: pytest.FixtureRequest) -> Desk:
    return Desk(lp, guarded=request.param == "guarded")


async def denied(call: Awaitable[Any]) -> bool:
    try:
        await call
    except ToolDenied:
        return True
    return False


@pytest.mark.parametrize("agent", ALLOWED)
async def test_an_agent_uses_its_own_tools_and_no_others(desk: Desk, agent: str) -> None:
    """By calls of a model and by effects; none of the others is performed; and it sees those that
    are its own."""
    await desk.begin()

    async def use(turn: limpet.Turn) -> dict[str, Any]:
        called, effects = {}, {}
        for name in NAMES:
            result = await turn.tool(ToolCall(f"c-{name}", name, {}), desk.registry.resolve(name))
            called[name] = result.is_error

            async def run(name: str = name) -> str:
                desk.ran.append(f"effect {name}")
                return name

            effects[name] = await denied(turn.effect(name, run))
        return {
            "called": {name for name, failed in called.items() if not failed},
            "effects": {name for name, failed in effects.items() if not failed},
            "bound": set(turn.session.tools.bound),
            "permitted": {name for name in NAMES if turn.permission(name) != "deny"},
            "described": {n for n in NAMES if turn.permissions.get(n, "deny") != "deny"},
            "checked": {n for n in NAMES if await turn.session.setup.check_permission(n) != "deny"},
        }

    got = await desk.turn(agent, use)
    assert got == dict.fromkeys(got, ALLOWED[agent])
    assert set(desk.ran) == {f"{way}{name}" for name in ALLOWED[agent] for way in ("", "effect ")}


async def test_managed_tools_are_among_them(desk: Desk) -> None:
    """Where tools are named, managed ones are too."""
    await desk.begin()

    async def use(turn: limpet.Turn) -> bool:
        return await denied(ManagedTools(turn).call("session_get_snapshot", {}))

    assert [await desk.turn(agent, use) for agent in ALLOWED] == [False, True, False, True]


@pytest.mark.parametrize("agent", ALLOWED)
async def test_a_session_without_bindings_keeps_them_apart_too(desk: Desk, agent: str) -> None:
    """What a harness offers to a model is refused as well."""
    await desk.begin(bound=False)

    async def use(turn: limpet.Turn) -> set[str]:
        calls = [
            (name, await turn.tool(ToolCall(f"c-{name}", name, {}), desk.registry.resolve(name)))
            for name in NAMES
        ]
        return {name for name, result in calls if not result.is_error}

    assert await desk.turn(agent, use) == ALLOWED[agent]


async def test_forks_and_children_keep_them(desk: Desk) -> None:
    """A fork has the same, and a child; and nobody delegates a tool that is not its own."""
    await desk.begin()
    fork = await (await desk.lp.get(*KEY)).fork(id="fork")
    assert fork.isolation.agents == APART.agents
    keys: list[limpet.Key] = []

    async def delegates(turn: limpet.Turn) -> None:
        with pytest.raises(limpet.errors.ToolAuthorizationFailed):
            await turn.delegate("desk", "search it", tools=["search"])
        child = await turn.delegate("desk", "publish it", tools=["publish"])
        keys.append(child.key)

    await desk.turn("writer", delegates)
    child = await desk.lp.get(keys[0])
    assert child.isolation.agents == APART.agents

    async def use(turn: limpet.Turn) -> set[str]:
        return {name for name in NAMES if turn.permission(name) != "deny"}

    if not desk.guarded:  # else the child works in a task of its own
        assert await desk.turn("writer", use, keys[0]) == {"publish"}
        assert await desk.turn("critic", use, keys[0]) == set()
    assert await desk.turn("critic", use, fork.key) == {"search"}


async def test_a_lock_is_for_those_who_use_the_tool(lp: Limpet) -> None:
    """And the guard says so by its own code."""
    s = await lp.create(*KEY, isolation=APART, actor="user:ada")
    tool = limpet.Tool("search", exclusive=True)
    await s.tools.bind(limpet.ToolRegistry([tool]), actor="user:ada")
    acting = {
        name: await lp.acting_as(
            Principal(f"agent:{name}", role="agent", app="desk", user="ada")
        ).get(*KEY)
        for name in ("writer", "critic")
    }
    assert set(acting["writer"].tools.bound) == set()
    with pytest.raises(InvalidInput):
        await acting["writer"].tools.lock("search")
    assert (await acting["critic"].tools.lock("search")).lease_seconds == 30


async def test_what_a_later_release_adds_is_kept(lp: Limpet) -> None:
    """Unknown members of the stored isolation go to forks and to children."""
    kept = {**APART_STORED, "later": 1}
    kept["agents"] = {name: {**of, "later": 2} for name, of in kept["agents"].items()}
    first = created(limpet.Key(*KEY), isolation=APART)
    s = await lp.create(*KEY, isolation=APART, actor="user:ada")
    assert dict(first.data["isolation"]) == APART_STORED
    facts = Facts({"isolation": kept})
    child = isolation_data(child_isolation(facts, limpet.Key(*KEY)), limpet.Key(*KEY))
    assert child == {**kept, "task": KEY[2]}
    assert isolation_in(facts).agents == s.isolation.agents == APART.agents


APART_STORED: dict[str, Any] = {
    "model": "per_agent",
    "agents": {
        "agent:writer": {
            "owns": ["draft"],
            "reads": [],
            "tools": ["publish", "session_get_snapshot"],
        },
        "agent:critic": {"owns": ["review"], "reads": [], "tools": ["search"]},
        "agent:editor": {"owns": ["both"], "reads": []},
        "agent:guest": {"owns": [], "reads": [], "tools": []},
    },
}


@pytest.mark.parametrize("wrong", ["search", {"search": 1}, ("",), ("x" * 600,), 7])
def test_tools_are_a_tuple_of_names(wrong: Any) -> None:
    """What is not is refused when it is said."""
    with pytest.raises(InvalidInput):
        FieldAccess(tools=wrong)


async def test_the_denial_of_a_tool_is_in_the_audit(lp: Limpet) -> None:
    """As that of a field is."""
    desk = Desk(lp, guarded=True)
    await desk.begin()
    guard = Principal("agent:writer", role="agent", app="desk", user="ada")
    s = await lp.acting_as(guard).get(*KEY)
    checks = writer_of(s).services.guard
    assert checks is not None
    await checks.check("tool", Resource("tool", *KEY, "publish", s.head))
    with pytest.raises(AccessDenied) as refused:
        await checks.check("tool", Resource("tool", *KEY, "search", s.head))
    assert refused.value.denial == "agent_write_denied"
    record = (await lp.audit(denied=True)).items[0]
    assert (record.action, record.resource) == ("tool", "desk/ada/a7#search")

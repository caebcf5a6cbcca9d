"""Sessions that let in other users: those users find them, and nobody else learns of them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest

import limpet
from limpet import Isolation, Limpet, Principal
from limpet.server.serve import serving
from limpet.session.access_keys import AccessKeys
from limpet.session.limpet import journal_of
from limpet.store.postgres.reading import heads
from limpet.store.protocol import Query
from limpet.store.sqlite.store import SQLiteStore
from tests.support.http_door import HttpDoor

NAMED, BOARD, CLOSED = ("desk", "ada", "named"), ("desk", "ada", "board"), ("desk", "ada", "closed")
TASK, FOREIGN = ("desk", "ada", "task"), ("shop", "ada", "shop")
LENT = {"named", "board"}


async def asks(turn: limpet.Turn) -> None:
    await turn.approve("pay", {"amount": 5})


async def fill(lp: Limpet) -> None:
    """Sessions of ada: two for bob, and three that are not; each waits for an answer."""
    for key, isolation in (
        (CLOSED, Isolation(users=("eve",))),
        (NAMED, Isolation(users=("bob",))),
        (BOARD, Isolation("global")),
        (TASK, Isolation("per_task", users=("bob",), task="t1")),
        (FOREIGN, Isolation("global")),
    ):
        s = await lp.create(*key, isolation=isolation, labels={"plan": "gold"})
        await s.append("user.message", {"text": f"hi {key[2]}"}, actor="user:ada")
        await lp.wake(s.key, asks)


class People:
    """One store; each of its users in the same process, or as a client with a key."""

    def __init__(self, lp: Limpet, url: str | None, stack: AsyncExitStack) -> None:
        self.lp, self.url, self._stack = lp, url, stack

    async def user(self, user: str, role: Any = "owner") -> Limpet:
        if self.url is None:
            principal = Principal(f"user:{user}", role=role, app="desk", user=user)
            return self.lp.acting_as(principal)
        token = await self.key(user, role)
        return await self._stack.enter_async_context(limpet.open(self.url, token=token))

    async def key(self, user: str, role: Any = "owner") -> str:
        _, token = await AccessKeys(journal_of(self.lp)).create(role=role, app="desk", user=user)
        return token


@pytest.fixture(params=["memory", "sqlite", "files", "postgresql", "served"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a store; "served" is one in memory that users reach with keys of their own."""
    kind: str = request.param
    if kind == "postgresql":
        kind = request.getfixturevalue("postgres_store_url")
    files = {"sqlite": f"sqlite:///{tmp_path}/one.db", "files": f"files:///{tmp_path}/one"}
    return files.get(kind, "memory://" if kind == "memory" else kind)


@pytest.fixture
async def people(place: str) -> AsyncIterator[People]:
    async with AsyncExitStack() as stack:
        url = "memory://" if place == "served" else place
        lp = await stack.enter_async_context(limpet.open(url))
        served = await stack.enter_async_context(serving(lp)) if place == "served" else None
        yield People(lp, served, stack)


def ids(listed: Any) -> set[str]:
    return {head.key.id for head in listed}


async def met(lp: Limpet, last: str, **of: Any) -> set[str]:
    """The sessions in the feed up to the last input of one."""
    seen = set()
    async with asyncio.timeout(60), aclosing(lp.watch(**of)) as feed:
        async for entry in feed:
            seen.add(entry.key.id)
            if (entry.event.data or {}).get("text") == last:
                return seen
    raise AssertionError("the feed has ended")


async def test_a_user_finds_the_sessions_that_let_it_in(people: People) -> None:
    """By lists in each order, page by page, by the feed, the inbox and counts; and opens them."""
    await fill(people.lp)
    await people.lp.create("desk", "bob", "own")
    bob = await people.user("bob")
    for order in ("created", "updated", "key"):
        assert ids((await bob.list(app="desk", order=order)).items) == {*LENT, "own"}
    assert ids((await bob.list()).items) == {*LENT, "own"}
    assert {head.key.id async for head in bob.each(app="desk")} == {*LENT, "own"}
    assert ids((await bob.list(app="desk", labels={"plan": "gold"})).items) == LENT
    assert ids((await bob.list(app="desk", ready="blocked")).items) == LENT
    assert ids((await bob.list(app="desk", user="bob")).items) == {"own"}
    states = (await bob.list(app="desk", state=True)).states
    assert {key.id for key in states} == {*LENT, "own"}
    paged: list[str] = []
    page = await bob.list(app="desk", limit=1)
    paged += [head.key.id for head in page.items]
    while page.cursor is not None:
        page = await bob.list(app="desk", limit=1, cursor=page.cursor)
        paged += [head.key.id for head in page.items]
    assert paged == ["own", "board", "named"]
    assert {w.key.id for w in (await bob.inbox("desk")).items} == LENT
    assert {w.key.id for w in (await bob.inbox()).items} == LENT
    assert (await bob.status("desk")).sessions == 3
    assert [s and s.key.id for s in await bob.get_many([NAMED, BOARD])] == ["named", "board"]
    s = await bob.get(*NAMED)
    await s.append("user.message", {"text": "from bob"})
    assert await met(bob, "from bob", app="desk") == {*LENT, "own"}
    assert await met(bob, "from bob") == {*LENT, "own"}


async def test_nobody_else_learns_of_a_session_that_is_lent(people: People) -> None:
    """Another user meets what lets in everybody; a viewer whom it names only what it may read; an
    app that is not theirs shows nothing."""
    await fill(people.lp)
    mia, viewer = await people.user("mia"), await people.user("bob", "viewer")
    for lp, lent in ((mia, {"board"}), (viewer, LENT)):
        assert ids((await lp.list(app="desk")).items) == lent
        assert {w.key.id for w in (await lp.inbox("desk")).items} == lent
        assert (await lp.status("desk")).sessions == len(lent)
    board = await people.lp.get(*BOARD)
    await board.append("user.message", {"text": "last"}, actor="user:ada")
    assert await met(mia, "last") == {"board"}
    with pytest.raises(limpet.AccessDenied):
        await mia.get_many([NAMED])
    with pytest.raises(limpet.AccessDenied):
        await mia.list(app="shop")


async def test_a_new_event_of_a_lent_session_wakes_those_who_watch(people: People) -> None:
    """Also of a session that is created meanwhile, and among many that are not theirs."""
    bob = await people.user("bob")
    await bob.position()
    seen: list[str] = []

    async def watches() -> None:
        async with aclosing(bob.watch(app="desk")) as feed:
            async for entry in feed:
                seen.append(entry.key.id)
                if entry.event.type == "user.message":
                    return

    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        group.create_task(watches())
        for n in range(40):
            await people.lp.create("desk", "ada", f"closed{n}")
        s = await people.lp.create(*NAMED, isolation=Isolation(users=("bob",)))
        await s.append("user.message", {"text": "hi"}, actor="user:ada")
    assert set(seen) == {"named"}


async def test_http_lists_what_is_lent(tmp_path: Path) -> None:
    """GET /limpet/v1/sessions, the inbox and the counts with the key of a user."""
    async with AsyncExitStack() as stack:
        lp = await stack.enter_async_context(limpet.open("memory://"))
        url = await stack.enter_async_context(serving(lp))
        await fill(lp)
        token = await People(lp, url, stack).key("bob")
        door = HttpDoor(url, authorization=f"Bearer {token}")
        listed = (await door.get("/limpet/v1/sessions")).body["data"]
        assert {each["session"]["id"] for each in listed} == LENT
        waiting = (await door.get("/limpet/v1/inbox")).body["data"]
        assert {each["key"]["id"] for each in waiting} == LENT


async def test_forks_and_children_are_lent_like_their_session(people: People) -> None:
    """They inherit the isolation, and so the lists of those it lets in."""
    await fill(people.lp)
    fork = await (await people.lp.get(*NAMED)).fork(id="fork")
    bob = await people.user("bob")
    assert fork.isolation.users == ("bob",)
    assert ids((await bob.list(app="desk")).items) == {*LENT, "fork"}
    assert (await bob.list(app="desk", deleted=True)).items == ()


async def test_a_page_of_what_is_lent_costs_the_same_among_many_sessions(tmp_path: Path) -> None:
    """Twenty times the sessions of others, and no list takes more steps of the database."""
    store = await SQLiteStore.open(tmp_path / "fleet.db", sync="off")
    steps: list[int] = []
    before: dict[str, int] = {}  # of each statement, which is counted over all its uses

    def note(event: Any) -> None:
        sql, now = event["sql"], event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]
        last, before[sql] = before.get(sql, 0), now
        steps.append(now - last if now > last else now)

    async def cost(lp: Limpet) -> dict[str, int]:
        costs = {}
        for order in ("created", "updated", "key"):
            steps.clear()
            assert ids((await lp.list(app="desk", order=order)).items) == LENT
            costs[order] = sum(steps)
        steps.clear()
        assert {w.key.id for w in (await lp.inbox("desk")).items} == LENT
        return {**costs, "inbox": sum(steps)}

    async with Limpet("sqlite:///", store=store) as lp:
        await fill(lp)
        bob = lp.acting_as(Principal("user:bob", role="owner", app="desk", user="bob"))
        conn = store._reader.conn
        conn.trace_v2(apsw.SQLITE_TRACE_PROFILE, note)
        await cost(bob)
        few = await cost(bob)
        for start in range(0, 2_000, 200):
            await asyncio.gather(
                *(lp.create("desk", "ada", f"s{n}") for n in range(start, start + 200))
            )
        many = await cost(bob)
        conn.trace_v2(0, None)
    assert {name for name in few if many[name] > few[name] * 1.2} == set(), (few, many)


async def test_postgres_reads_a_page_of_what_is_lent_from_its_indexes(postgres_url: str) -> None:
    """No step of the plan looks at more rows than are lent, however many others there are."""
    async with limpet.open(postgres_url) as lp:
        await fill(lp)
        for start in range(0, 1_000, 200):
            await asyncio.gather(
                *(lp.create("desk", "ada", f"s{n}") for n in range(start, start + 200))
            )
    admin = await asyncpg.connect(postgres_url)
    try:
        await admin.execute("ANALYZE limpet.sessions; ANALYZE limpet.labels")
        for order in ("created", "updated", "key"):
            query = Query(app="desk", user="bob", lent=True, order=order)
            sql, args = heads.statement(query, None, 10)
            explain = await admin.prepare(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
            plan = json.loads(await explain.fetchval(*args))[0]["Plan"]
            assert most_rows(plan) <= 50, (order, plan)
    finally:
        await admin.close()


def most_rows(plan: dict[str, Any]) -> float:
    """The most rows that any step of a plan has looked at, over all its rounds."""
    below = [most_rows(each) for each in plan.get("Plans", ())]
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return max([rows * plan["Actual Loops"], *below])

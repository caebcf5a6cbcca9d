"""A program as a user with a strict type checker writes it; it is checked, and run on memory.

It uses the public API widely and has no ignore: what a checker complains about here is a fault of
the package's types.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, ClassVar

import limpet
from limpet import Key, ModelRequest, Reply, Session, ToolCall, Turn, reducers
from limpet.graph import END, GraphBuilder, State as GraphState


class Note(limpet.Record):
    text: str
    stars: int = 0


class Desk(limpet.State):
    schema_version: ClassVar[str] = "1.1.0"
    title: str = ""
    notes: Annotated[list[Note], reducers.append] = []


migrations = limpet.MigrationRegistry("desk")


@migrations.migration("1.0.0", "1.1.0")
def with_notes(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "notes": []}


# --- sessions -----------------------------------------------------------------------------------


async def sessions(lp: limpet.Limpet) -> Session[Desk]:
    s = await lp.create("desk", "ada", state=Desk(title="first"), actor="user:ada")
    event = await s.append("user.message", {"text": "hi"}, inc={"user:visits": 1})
    seq: int = event.seq
    applied: limpet.Event | None = await s.apply({"notes": [Note(text="one")]})
    updated = await s.update(lambda state: {"title": state.title.upper()})
    stars: list[int] = [note.stars for note in s.state.notes]
    async with lp.commit() as c:
        c.append(s, "agent.noted", {"seq": seq, "stars": stars})
        c.record(s, limpet.facts.labeled({"plan": "gold"}))
    key: Key = s.key
    same = await lp.get(key, state_type=Desk, migrations=migrations)
    title: str = same.state.title
    untyped: Mapping[str, Any] = (await lp.get(key, untyped=True)).state
    page = await lp.list(app="desk", labels={"plan": "gold"})
    keys: list[Key] = [head.key for head in page.items]
    async for head in lp.each(app="desk"):
        keys.append(head.key)
    fork = await s.fork(at=seq)
    before: Desk = fork.state
    earlier = await s.history.at(seq)
    await s.lifecycle.set_timer("nap", timedelta(minutes=5))
    try:
        await s.append("user.message", {"text": "late"}, expect=1)
    except limpet.SessionConflict as error:
        code: str = error.code
        print(code, title, untyped, keys, before, earlier, applied, updated)
    report = await lp.maintenance.verify()
    assert report.ok
    return s


async def plain(lp: limpet.Limpet, s: Session, desk: limpet.App) -> limpet.Ref:
    """Without parameters, these are of any state and of anything."""
    page: limpet.Page = await lp.list(app="desk")
    title: str = s.state.title
    found = await desk.get(s.user, s.id)
    fork: Session = await s.fork()
    print(page.items, title, found.state, fork.history, await fork.messages())
    return await s.blobs.put(b"", "text/plain")


# --- an agent -----------------------------------------------------------------------------------


@limpet.tool(permission="always_ask")
def refund(order: int, eur: float, idempotency_key: str) -> str:
    """Pay money back."""
    return f"receipt {order}: {eur} ({idempotency_key[:4]})"


@limpet.tool
async def look_up(order: int) -> dict[str, int]:
    """Find an order."""
    return {"order": order, "eur": 40}


def model(request: ModelRequest) -> Reply:
    last = request.messages[-1]
    if last["role"] == "user":
        return Reply(tool_calls=(ToolCall("c1", "refund", {"order": 7, "eur": 40}),))
    return Reply(f"Done: {last['content']}")


async def shout(text: str, marks: int = 1) -> str:
    return text.upper() + "!" * marks


class Harness:
    """A harness by hand."""

    async def run(self, turn: Turn) -> None:
        for message in turn.inputs:
            length: int = await turn.step("measure", len, str(message.data))
            shouted: str = await turn.step("shout", shout, "hi", marks=2)
            again: str = await turn.effect("shout", shout, text="hi")
            counted: int = await turn.effect("count", lambda: 1)
            found: list[str] = await turn.retrieve("find", str.split, again)
            print(shouted, again, counted, found)
            approval = await turn.approve("refund", {"length": length})
            if approval:
                receipt = await turn.effect("pay", self.pay, amount=length)
                await turn.say(f"paid: {receipt}")
            else:
                await turn.say(f"no: {approval.note}")

    async def pay(self, amount: int, idempotency_key: str) -> str:
        return f"{amount} {idempotency_key[:4]}"


async def manager(turn: Turn) -> None:
    child = await turn.delegate("desk", "find the invoice")
    ended: limpet.ChildResult = await child.result()
    said: str | None = ended.summary
    if ended.stop_reason == "end_turn":
        await turn.say(f"{said} {ended.output} {ended['output']}")


def workers(lp: limpet.Limpet) -> list[limpet.Worker]:
    by_hand = limpet.Worker(lp, Harness(), app="by-hand", state_type=Desk, migrations=migrations)
    return [by_hand, limpet.Worker(lp, manager, app=None, permissions={"pay": "always_ask"})]


async def agents(lp: limpet.Limpet) -> str:
    assert workers(lp)
    agent = limpet.Agent(model, [refund, look_up], system="You are the support of a shop.")
    s = await lp.create("support", "ada", actor="user:ada")
    await s.append("user.message", {"text": "I was charged twice!"})
    worker = limpet.Worker(lp, agent, app="support", idle_exit=True)
    await worker.run()
    await s.refresh()
    for request in s.blocked_on:
        await s.confirm(request.id, allow=True, note="that was us")
    await worker.run()
    messages: list[limpet.Message] = await s.messages()
    by_hand = await lp.create("by-hand", "ada", actor="user:ada")
    await by_hand.append("user.message", {"text": "Pay, please"})
    woken = await lp.wake(by_hand.key, Harness())
    ran: bool = woken.ran
    return f"{messages[-1].text} {ran}"


# --- a graph ------------------------------------------------------------------------------------


class Counted(GraphState):
    n: int = 0
    log: Annotated[list[str], reducers.append] = []


async def one(state: Counted) -> dict[str, Any]:
    return {"n": state.n + 1, "log": ["one"]}


async def two(state: Counted) -> Mapping[str, Any]:
    return {"n": state.n * 2, "log": ["two"]}


async def graphs() -> int:
    graph = (
        GraphBuilder(Counted)
        .add_node("one", one)
        .add_node("two", two)
        .set_entry("one")
        .add_edge("one", "two")
        .add_edge("two", END)
        .compile()
    )
    ended = await graph.invoke(Counted(n=1))
    n: int = ended.n
    return n


# --- other doors --------------------------------------------------------------------------------


def without_await() -> str:
    with limpet.open_sync("memory://") as lp:
        s = lp.create("desk", "ada", state=Desk(title="sync"), actor="user:ada")
        s.append("user.message", {"text": "hi"})
        s.update(lambda state: {"title": state.title + "!"})
        found: list[str] = [event.type for event in s.read()]
        assert found
        return s.state.title


async def served(url: str, token: str) -> int:
    async with limpet.open(url, token=token) as lp:
        s = await lp.get("desk", "ada", "one", state_type=Desk)
        async for event in s.follow(after=s.version):
            seq: int = event.seq
            return seq
    return 0


async def measured(lp: limpet.Limpet) -> str:
    analytics = limpet.Analytics(lp, "memory://")
    await analytics.run(once=True)
    return f"{await analytics.by('task_type', app='support')}"


async def main() -> None:
    async with limpet.open("memory://") as lp:
        await plain(lp, await sessions(lp), lp.app("desk"))
        print(await agents(lp), await measured(lp))
    print(await graphs())


if __name__ == "__main__":
    asyncio.run(main())
    print(without_await())

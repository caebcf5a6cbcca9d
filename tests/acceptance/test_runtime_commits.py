"""What a turn costs a store, counted on every one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import limpet
from limpet import Limpet
from limpet.runtime import wake

WRITES = ("commit", "claim", "release", "renew", "acquire")


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """However slow the machine is, no turn takes so long that it listens for interrupts."""
    monkeypatch.setattr(wake, "LISTEN_AFTER_SECONDS", 3_600.0)


async def counted(lp: Limpet, harness: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The writes of one worker for one turn; claims that found nothing are reads."""
    session = await lp.create("support", "ada", actor="user:ada")
    await session.append("user.message", {"text": "hi"}, actor="user:ada")
    store, found = lp._journal.store, []

    def count(name: str) -> None:
        before: Any = getattr(store, name)

        async def writes(*args: Any, **how: Any) -> Any:
            answer = await before(*args, **how)
            if name != "claim" or answer:
                found.append(name)
            return answer

        monkeypatch.setattr(store, name, writes)

    for name in WRITES:
        count(name)
    async with asyncio.timeout(60):
        rates = await limpet.Worker(lp, harness, app="support", idle_exit=True).run()
    assert rates.turns == 1
    return found


async def test_an_empty_turn_takes_two_commits(lp: Limpet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The claim, and the end with everything in it, the lease given back too."""

    async def empty(turn: limpet.Turn) -> None:
        pass

    assert await counted(lp, empty, monkeypatch) == ["claim", "commit"]


async def test_a_turn_that_answers_takes_three_commits(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The claim, the answer with the beginning of the turn, and the end."""

    async def answers(turn: limpet.Turn) -> None:
        for message in turn.inputs:
            await turn.say(message.data["text"])

    assert await counted(lp, answers, monkeypatch) == ["claim", "commit", "commit"]


@pytest.mark.parametrize(("pure", "commits"), [(False, 5), (True, 4)])
async def test_a_model_call_and_a_tool_take_five_commits_or_four(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch, pure: bool, commits: int
) -> None:
    """The opening, the reply with its call, the intent, the outcome with the result, and the end;
    a tool that only looks has no intent."""

    @limpet.tool(pure=pure)
    def look(order: int) -> str:
        return "found"

    def model(request: limpet.ModelRequest) -> limpet.Reply:
        return limpet.Reply("I look.", (limpet.ToolCall("1", "look", {"order": 7}),))

    async def harness(turn: limpet.Turn) -> None:
        reply = await turn.model("think", model, tools=[look])
        await turn.tool(reply.tool_calls[0])

    assert await counted(lp, harness, monkeypatch) == ["claim", *["commit"] * commits]


async def test_what_is_claimed_together_is_read_together(
    lp: Limpet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One claim and one reading for all of them; no turn reads its session again."""
    for number in range(6):
        session = await lp.create("support", "ada", actor="user:ada", state={"n": number})
        await session.append("user.message", {"text": "hi"}, actor="user:ada")
    store, reads, seen = lp._journal.store, [], []

    def count(name: str) -> None:
        before: Any = getattr(store, name)

        async def counted(*args: Any, **how: Any) -> Any:
            reads.append(name)
            return await before(*args, **how)

        monkeypatch.setattr(store, name, counted)

    many = store.load_many
    for name in ("load", "read", "pending_inputs"):
        count(name)

    async def together(keys: Any, *, tail: int) -> Any:
        found = await many(keys, tail=tail)
        reads[:] = [f"{len(keys)} at once"]  # a store may read each by itself inside
        return found

    monkeypatch.setattr(store, "load_many", together)

    async def looks(turn: limpet.Turn) -> None:
        seen.append((turn.state["n"], [event.data["text"] for event in turn.inputs]))

    async with asyncio.timeout(60):
        await limpet.Worker(lp, looks, app="support", idle_exit=True).run()
    assert reads == ["6 at once"]
    assert sorted(seen) == [(number, ["hi"]) for number in range(6)]

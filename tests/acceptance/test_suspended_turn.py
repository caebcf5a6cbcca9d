"""A session that is suspended while its turn runs: it is given back, and goes on after resume."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest

import limpet

ADA = "user:ada"


async def begun(lp: limpet.Limpet) -> limpet.Session[Any]:
    s = await lp.create("support", "ada", actor=ADA)
    await s.append("user.message", {"text": "hi"})
    return s


async def said(s: limpet.Session[Any]) -> list[str]:
    return [event.data["text"] for event in await s.read(types=["agent.message"])]


async def errors(s: limpet.Session[Any]) -> list[tuple[str, bool]]:
    found = await s.read(types=["session.error"])
    return [(event.data["code"], event.data["counts"]) for event in found]


@pytest.mark.parametrize("swallows", [False, True])
async def test_an_effect_that_ran_meanwhile_has_its_outcome_and_is_not_repeated(
    lp: limpet.Limpet, swallows: bool
) -> None:
    """Nothing counts as failed, even without retries, and whatever the harness makes of it."""
    s, done = await begun(lp), list[int]()

    async def pay() -> str:
        done.append(1)
        await lp.session(s.key, actor="user:eve").suspend("looking into it")
        return "receipt"

    async def harness(turn: limpet.Turn) -> None:
        receipt = await turn.effect("pay", pay)
        if swallows:
            with suppress(Exception):
                await turn.say("never")
        await turn.say(f"paid: {receipt}")

    woken = await lp.wake(s.key, harness, retries=0)
    assert (woken.ran, woken.reason, woken.error) == (True, "suspended", None)
    assert (await s.refresh()).phase == "suspended"
    assert [e.type for e in await s.read(types=["effect.*"])][-1] == "effect.succeeded"
    assert (await errors(s), await said(s)) == ([("session.suspended", False)], [])
    assert not (await lp.wake(s.key, harness)).ran
    assert not await lp.work.claim("w", app="support")
    await s.resume()
    (lease,) = await lp.work.claim("w", app="support")
    await lp.work.release(lease)
    assert (await lp.wake(s.key, harness, retries=0)).reason == "end_turn"
    wanted = (["never"] if swallows else []) + ["paid: receipt"]
    assert (await said(s), done) == (wanted, [1])
    spans = [e.type for e in await s.read(types=["span.*"])]
    assert spans.count("span.started") == spans.count("span.completed")
    assert (await lp.maintenance.verify()).ok


async def test_the_result_of_a_tool_is_recorded_after_resume(lp: limpet.Limpet) -> None:
    """The effect has its outcome at once; what the model reads follows from it."""
    s, done = await begun(lp), list[int]()

    async def refund() -> str:
        done.append(1)
        await lp.session(s.key, actor="user:eve").suspend()
        return "receipt"

    def model(request: limpet.ModelRequest) -> Any:
        if request.messages[-1]["role"] == "tool":
            return str(request.messages[-1]["content"])
        return limpet.Reply("", (limpet.ToolCall("x", "refund", {}),))

    agent = limpet.Agent(model, tools=[refund])
    assert (await lp.wake(s.key, agent, retries=0)).reason == "suspended"
    assert not await s.read(types=["agent.tool_result"])
    await s.resume()
    assert (await lp.wake(s.key, agent, retries=0)).reason == "end_turn"
    assert (done, (await said(s))[-1], len(await s.read(types=["agent.tool_result"]))) == (
        [1],
        "receipt",
        1,
    )


async def test_a_turn_that_recorded_nothing_yet_begins_again(lp: limpet.Limpet) -> None:
    """Its beginning is not recorded either, and so is its end."""
    s, runs = await begun(lp), list[int]()

    async def harness(turn: limpet.Turn) -> None:
        runs.append(turn.attempt)
        if len(runs) == 1:
            await lp.session(s.key, actor="user:eve").suspend()

    assert (await lp.wake(s.key, harness, retries=0)).reason == "suspended"
    await s.refresh()
    await s.resume()
    assert (await lp.wake(s.key, harness, retries=0)).reason == "end_turn"
    assert (runs, await errors(s), (await s.refresh()).head.pending) == ([1, 1], [], 0)


async def test_an_approval_is_not_used_while_the_session_is_suspended(lp: limpet.Limpet) -> None:
    """The phase is checked when it is used: the intent is refused, and the effect not performed."""
    s, done, suspended = await begun(lp), list[int](), list[int]()

    async def harness(turn: limpet.Turn) -> None:
        if await turn.approve("pay", {}):
            if not suspended:
                suspended.append(1)
                await lp.session(s.key, actor="user:eve").suspend()
            await turn.effect("pay", lambda: done.append(1))

    assert (await lp.wake(s.key, harness)).reason == "requires_action"
    await s.refresh()
    await s.confirm(s.blocked_on[0].id, allow=True)
    assert ((await lp.wake(s.key, harness)).reason, done) == ("suspended", [])
    await s.refresh()
    await s.resume()
    assert ((await lp.wake(s.key, harness)).reason, done) == ("end_turn", [1])


async def test_an_approval_is_checked_against_the_permission_of_its_use(lp: limpet.Limpet) -> None:
    """Denied meanwhile, what was approved is not done: an error of the turn, without a retry."""
    s, done = await begun(lp), list[int]()

    async def harness(turn: limpet.Turn) -> None:
        await turn.effect("pay", lambda: done.append(1))

    woken = await lp.wake(s.key, harness, permissions={"pay": "always_ask"})
    assert woken.reason == "requires_action"
    await s.refresh()
    await s.confirm(s.blocked_on[0].id, allow=True)
    woken = await lp.wake(s.key, harness, permissions={"pay": "deny"})
    assert (woken.reason, done) == ("end_turn", [])
    assert isinstance(woken.error, limpet.ToolDenied)
    assert (await errors(s), (await s.refresh()).head.pending) == ([("tool.denied", False)], 0)


async def test_an_approval_is_checked_against_the_budget_of_its_use(lp: limpet.Limpet) -> None:
    """What it would cost is reserved when it is done, and not when it was approved."""
    s = await lp.create("support", "ada", actor=ADA, budget=limpet.Budget(cost=1.0))
    await s.append("user.message", {"text": "hi"})
    done: list[int] = []

    async def harness(turn: limpet.Turn) -> None:
        await turn.approve("pay", {})
        if turn.attempt == 2:
            await turn.say("dear", cost=0.8)
        await turn.effect("pay", lambda: done.append(1), max_cost=0.5)

    await lp.wake(s.key, harness)
    await s.refresh()
    await s.confirm(s.blocked_on[0].id, allow=True)
    assert ((await lp.wake(s.key, harness)).reason, done) == ("budget_reached", [])

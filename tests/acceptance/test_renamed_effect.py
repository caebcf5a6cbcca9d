"""An effect that was renamed while its turn is paused does not run, on every store."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import limpet
from limpet.runtime.wake import Wake, harness_options


def paying(name: str, done: list[str]) -> Callable[[limpet.Turn], Awaitable[None]]:
    """A harness with one effect of this name, after calls of every other kind."""

    async def harness(turn: limpet.Turn) -> None:
        await turn.step("look", lambda: 1)
        await turn.stream("tell", ["one ", "moment"])
        await turn.model("decide", lambda request: "pay")
        await turn.effect(name, lambda: done.append(name))
        await turn.approve("go on", {})

    return harness


async def test_a_renamed_effect_is_found_at_once(lp: limpet.Limpet) -> None:
    """Whatever tasks the store has at work: they are not the harness's."""
    done: list[str] = []
    s = await lp.create("support", "ada", actor="user:ada")
    follower = asyncio.ensure_future(anext(aiter(s.follow(types=["agent.done"]))))
    await s.append("user.message", {"text": "hi"})
    assert (await lp.wake(s.key, paying("refund", done), version="1")).reason == "requires_action"
    (request,) = (await s.refresh()).blocked_on
    await s.confirm(request.id, allow=True)
    (lease,) = await lp.work.claim("w", app="support")
    options = harness_options(paying("pay_back", done), quiet_seconds=math.inf)
    woken = await Wake(lp, lease, options).run()
    assert isinstance(woken.error, limpet.errors.TurnMismatch)
    (request,) = (await s.refresh()).blocked_on
    assert (request.kind, done) == ("mismatch", ["refund"])
    await s.resolve(request.id, run_again=True)
    seen: list[str | None] = []

    async def again(turn: limpet.Turn) -> None:
        seen.append(turn.version)
        await paying("refund", done)(turn)

    assert (await lp.wake(s.key, again, version="2")).reason == "end_turn"
    assert (done, seen) == (["refund"], ["1"])
    assert (await lp.maintenance.verify()).ok
    follower.cancel()

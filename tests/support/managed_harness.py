"""A harness for servers under test: what it does is in the message that it answers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing

import limpet


async def converse(turn: limpet.Turn) -> None:
    """Echo the message; "refund" asks for approval, "ask" for a value, "pieces" streams,
    "delegate" has a child (with "refund", one that asks for approval), "forever" calls a tool in
    each of two steps, "crowded" has no room for the message, and "wait" waits for another one."""
    text = " ".join([str(event.data.get("text", "")) for event in turn.inputs])
    if "delegate" in text:
        task = "refund" if "refund" in text else "hello child"
        child = await turn.delegate(turn.session.app, task, title="helper")
        await turn.say(f"child said {await child.result()}")
    elif "refund" in text:
        approval = await turn.approve("refund", {"amount": 3})
        await turn.say("refunded" if approval else f"not refunded: {approval.note}")
    elif "ask" in text:
        await turn.say(f"you said {await turn.ask('lookup', {'city': 'Kyiv'})}")
    elif "pieces" in text:
        await turn.stream("pieces", _pieces())
    elif "forever" in text:
        await limpet.Agent(_call_again, [again], max_steps=2).run(turn)
    elif "crowded" in text:
        await turn.session.context(tokens=1)
    elif "wait" in text:
        async with aclosing(turn.session.follow(after=turn.inputs[-1].seq)) as events:
            while (await anext(events)).type != "user.message":
                pass
        await turn.say("waited")
    elif "fail" in text:
        raise ValueError("this harness fails")
    else:
        await turn.say(f"echo {text}")


async def _pieces() -> AsyncIterator[str]:
    for piece in ("one ", "two ", "three"):
        yield piece


@limpet.tool
def again() -> str:
    """Do it again."""
    return "again"


def _call_again(request: limpet.ModelRequest) -> limpet.Reply:
    return limpet.Reply("", (limpet.ToolCall("call", "again", {}),))

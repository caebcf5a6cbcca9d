"""A store such as a shop's support would have, made by the real runtime: for the studio's suite
and its screenshots.

    python -m tests.support.studio_sample FILE

Conversations with tools and a budget, a request for approval, a question, an effect whose worker
died, a dead letter, children, forks that went different ways, relations, checkpoints, a graph, and
a session whose texts are hostile.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any, Final

from pydantic import Field

import limpet
from limpet.graph import END, GraphBuilder, State, append, as_harness

APP: Final = "support"
ORDERS: Final = {
    "7": {"item": "kettle", "eur": 40.0, "state": "delivered"},
    "8": {"item": "lamp", "eur": 65.0, "state": "lost"},
}
HOSTILE: Final = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script>',
    "\u202eevil.exe\u202c \u2066hidden\u2069 \x1b[31mred\x1b[0m \x1b]0;title\x07 \x00 \x08",
    "javascript:window.hacked=1 \"'><svg onload=window.hacked=1>",
    "w" * 1_000_000,
)


@limpet.tool(pure=True)
def find_order(number: str) -> dict[str, Any]:
    """Look up an order.

    Args:
        number: The number on the receipt.
    """
    return ORDERS.get(number, {"error": "there is no such order"})


@limpet.tool(permission="always_ask")
async def refund(number: str, eur: float, idempotency_key: str) -> str:
    """Pay money back to the customer.

    Args:
        number: The order.
        eur: How much.
    """
    return f"{eur:.2f} euros are on their way (key {idempotency_key[:6]})"


async def model(request: limpet.ModelRequest) -> AsyncIterator[limpet.Piece]:
    """Stand in for a model: it looks the order up, pays, and says so."""
    last = request.messages[-1]
    usage = {"input": 180 + 60 * len(request.messages), "output": 48, "cost": 0.0021}
    if last["role"] == "user" and "order" in last["content"].lower():
        yield limpet.Piece(text="Let me look that up for you. ")
        number = "8" if "8" in last["content"] else "7"
        call = {"name": "find_order", "arguments": f'{{"number": "{number}"}}'}
        yield limpet.Piece(tool={"index": 0, "id": "call_1", **call})
    elif "kettle" in last["content"]:
        yield limpet.Piece(text="The kettle was delivered. I will refund 40 euros. ")
        call = {"name": "refund", "arguments": '{"number": "7", "eur": 40}'}
        yield limpet.Piece(tool={"index": 0, "id": "call_2", **call})
    elif last["role"] == "user":
        for word in ["Happy", "to", "help.", "Which", "order", "is", "it", "about?"]:
            yield limpet.Piece(text=f"{word} ")
    else:
        for word in f"All done: {last['content']}".split(" "):
            yield limpet.Piece(text=f"{word} ")
    yield limpet.Piece(usage=usage)


agent = limpet.Agent(model, [find_order, refund], system="You are the support of a small shop.")


async def _failing(turn: limpet.Turn) -> None:
    raise ValueError("the shop's API answered 502 Bad Gateway")


async def charging(turn: limpet.Turn) -> None:
    async def pay(idempotency_key: str) -> str:
        raise limpet.EffectUnknown("charge card", 1, "the bank did not answer")

    await turn.effect("charge card", pay)


async def _asking(turn: limpet.Turn) -> None:
    city = await turn.ask("delivery address", {"question": "Which city is it to be sent to?"})
    await turn.say(f"It goes to {city}.")


async def _delegating(turn: limpet.Turn) -> None:
    child = await turn.delegate("couriers", "Where is parcel 8?", title="Find the parcel")
    await turn.say(f"The courier says: {(await child.result())['output']}")


async def _courier(turn: limpet.Turn) -> None:
    await turn.say("It waits at the depot in Lyon.", cost=0.0007)


class Order(State):
    text: str = ""
    total: int = 0
    done: Annotated[list[str], append] = Field(default_factory=list)


def order_graph() -> Any:
    """Price, check, then pack or refuse, as the harness of a worker."""

    async def price(state: Order) -> dict[str, Any]:
        return {"total": len(state.text) * 3, "done": ["priced"]}

    async def check(state: Order) -> dict[str, Any]:
        return {"done": ["checked"]}

    async def pack(state: Order) -> dict[str, Any]:
        return {"done": ["packed"]}

    async def refuse(state: Order) -> dict[str, Any]:
        return {"done": ["refused"]}

    graph = (
        GraphBuilder(Order)
        .add_node("price", price)
        .add_node("check", check)
        .add_node("pack", pack)
        .add_node("refuse", refuse)
        .add_edge("price", "check")
        .add_conditional_edge(
            "check", lambda s: "pack" if s.total > 9 else "refuse", targets=["pack", "refuse"]
        )
        .add_edge("pack", END)
        .add_edge("refuse", END)
        .set_entry("price")
        .compile()
    )
    return as_harness(
        graph,
        initial=lambda turn: Order(text=turn.inputs[0].data["text"]),
        say=lambda state: f"{state.total} euros: {', '.join(state.done)}.",
    )


async def fill(lp: limpet.Limpet) -> None:
    """Make everything."""
    ada = "user:ada"
    chat = await lp.create(
        APP, "ada", "kettle", actor=ada, labels={"plan": "gold", "channel": "web"},
        state={"customer": {"name": "Ada", "city": "London"}, "steps": 0, "mood": "calm"},
        budget=limpet.Budget(cost=1.0, tokens=50_000),
    )  # fmt: skip
    await chat.append("user.message", {"text": "Hello!"})
    await lp.wake(chat.key, agent)
    await chat.update(lambda s: {"steps": 1})
    await chat.append("user.message", {"text": "My order 7 arrived broken."})
    await lp.wake(chat.key, agent)
    await chat.refresh()
    (request,) = chat.blocked_on
    await chat.update(lambda s: {"steps": 2, "mood": "annoyed"})
    await chat.confirm(request.id, allow=True, note="He sent a photo.", actor="user:boss")
    await lp.wake(chat.key, agent)
    await chat.checkpoint()
    await chat.update(lambda s: {"steps": 3, "mood": "happy", "refund": {"eur": 40, "paid": True}})
    kinder = await chat.fork(9, id="kettle-kinder", labels={"plan": "gold"}, actor="user:boss")
    await kinder.update(lambda s: {"mood": "delighted", "gift": "a tea towel"})
    await kinder.runs.grant(limpet.Budget(cost=0.5, tokens=9_000))
    await kinder.append("user.message", {"text": "Could I have a new one instead?"})
    await lp.wake(kinder.key, agent)
    stricter = await chat.fork(9, id="kettle-stricter", labels={"plan": "gold"}, actor="user:boss")
    await stricter.update(lambda s: {"mood": "cross"})

    waits = await lp.create(APP, "bob", "broken-lamp", actor="user:bob", labels={"channel": "mail"})
    await waits.append("user.message", {"text": "Where is the refund for my order 7?"})
    await lp.wake(waits.key, agent)
    asks = await lp.create(APP, "cleo", "address", actor="user:cleo", labels={"channel": "phone"})
    await asks.append("user.message", {"text": "Please send it to me."})
    await lp.wake(asks.key, _asking)
    unsure = await lp.create(APP, "dan", "payment", actor="user:dan", labels={"plan": "gold"})
    await unsure.append("user.message", {"text": "Charge my card, please."})
    await lp.wake(unsure.key, charging)
    await asks.relate(chat, "reference", actor="user:boss")

    parent = await lp.create(APP, "eve", "parcel", actor="user:eve")
    await parent.append("user.message", {"text": "Where is my parcel?"})
    await lp.wake(parent.key, _delegating)
    for key in await parent.runs.children():
        await lp.wake(key, _courier)
    await lp.wake(parent.key, _delegating)

    dead = await lp.create(APP, "finn", "outage", actor="user:finn")
    await dead.append("user.message", {"text": "Is anybody there?"})
    worker = limpet.Worker(lp, _failing, app=APP, retries=0, idle_exit=True, signals=False)
    await worker.run()

    order = await lp.create("orders", "gwen", "books", actor="user:gwen")
    await order.append("user.message", {"text": "five books"})
    await lp.wake(order.key, order_graph())

    paused = await lp.create(APP, "hugo", "holiday", actor="user:hugo", labels={"plan": "basic"})
    await paused.append("user.message", {"text": "Hold my order 8 until I am back."})
    await paused.suspend("until the 1st of May")
    done = await lp.create(APP, "ines", "thanks", actor="user:ines")
    await done.append("user.message", {"text": "That is all, thank you."})
    await done.complete("solved")

    hostile = await lp.create(
        "lab", "mallory", HOSTILE[0][:60], actor="user:mallory", labels={"note": HOSTILE[2][:40]}
    )
    for text in HOSTILE:
        await hostile.append("user.message", {"text": text})
    await hostile.append("user.message", {"text": "the end", "<b>key</b>": HOSTILE[2]})
    await hostile.update(lambda s: {"<i>name</i>": HOSTILE[0], "bidi": HOSTILE[1]})


async def grow(lp: limpet.Limpet, events: int) -> limpet.Key:
    """A session with this many events, as a long conversation has them."""
    long = await lp.create("lab", "max", "long", actor="user:max", state={"steps": 0})
    words = "The parcel left the depot and the courier will ring the bell twice. " * 3
    while long.version < events:
        more = min(500, events - long.version)
        await long.append_many(
            [
                limpet.Draft(
                    type="user.message" if n % 2 else "agent.message",
                    data={"text": f"{long.version + n}: {words[: 20 + (n * 37) % 160]}"},
                    actor="user:max" if n % 2 else "agent:support",
                    ops=(limpet.ops.Set(("steps",), long.version + n),) if n % 50 == 0 else (),
                )
                for n in range(more)
            ]
        )
    return long.key


async def main(path: str) -> None:
    async with limpet.open(f"sqlite:///{path}") as lp:
        await fill(lp)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))

"""A support agent in a terminal: one tool looks, one acts and asks first. Try killing it."""

import asyncio
import sys

import limpet

ORDERS = {"7": {"item": "kettle", "eur": 40.0}}


@limpet.tool(pure=True)
def find_order(number: str) -> dict:
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
    # A payment service takes the key and pays once for each key, however often it is asked.
    return f"{eur:.2f} euros are on their way (key {idempotency_key[:6]})"


async def model(request: limpet.ModelRequest):
    """Stand in for a real model: limpet.providers.openai(AsyncOpenAI(), "…") goes here."""
    last = request.messages[-1]
    if last["role"] == "user":
        yield limpet.Piece(text="Let me look. ")
        call = {"name": "find_order", "arguments": '{"number": "7"}'}
    elif "kettle" in last["content"]:
        call = {"name": "refund", "arguments": '{"number": "7", "eur": 40}'}
    else:
        for word in f"Done: {last['content']}".split(" "):
            yield limpet.Piece(text=f"{word} ")
        return
    yield limpet.Piece(tool={"index": 0, "id": "call_1", **call})


agent = limpet.Agent(model, [find_order, refund], system="You are the support of a shop.")


async def decide(session: limpet.Session, request: limpet.Request) -> None:
    """Ask the person at the terminal what the agent waits for."""
    if request.kind == "approval":
        said = await asyncio.to_thread(input, f"\n{request.name} {request.input}? [y/n] ")
        await session.confirm(request.id, allow=said == "y", actor="user:boss")
    else:  # an unknown effect: the process died in the middle of it
        tried = f"{request.name} with the key {request.input['idempotency_key']}"
        said = await asyncio.to_thread(input, f"\nDid it happen: {tried}? [y/n] ")
        done = {"happened": "paid"} if said == "y" else {"run_again": True}
        await session.resolve(request.id, **done, actor="user:boss")


async def main(url: str) -> None:
    async with limpet.open(url) as lp:
        session = await lp.get_or_create("support", "ada", id="chat", actor="user:ada")
        if not await session.pending():  # else the turn of an earlier run goes on
            await session.append("user.message", {"text": "Order 7 arrived broken."})
        worker = limpet.Worker(lp, agent, app="support")
        working = asyncio.create_task(worker.run())
        try:
            async for event in session.follow(after=session.version - 1):
                if event.partial and "text" in event.data:
                    print(event.data["text"], end="", flush=True)
                if event.type == "session.error":
                    print(f"\n{event.data['message']}")
                if event.type == "session.status_idle":
                    await session.refresh()
                    for request in session.blocked_on:
                        await decide(session, request)
                    if event.data["stop_reason"] == "end_turn":
                        break
            print()
        finally:
            worker.stop()
            await working


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "sqlite:///support.db"))

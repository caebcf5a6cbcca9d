"""The harness that check_acp.py runs in `limpet acp`."""

from __future__ import annotations

import asyncio
from typing import Any

import limpet


@limpet.tool(permission="always_ask")
def refund(order: int) -> str:
    """Pay money back."""
    print("what a harness prints does not disturb the protocol")
    return f"receipt {order}"


async def model(request: limpet.ModelRequest) -> Any:
    last = request.messages[-1]
    if last["role"] == "tool":
        yield limpet.Piece(text=f"Done: {last['content']}")
    elif "refund" in str(last["content"]):
        call = {"index": 0, "id": "p1", "name": "refund", "arguments": '{"order": 7}'}
        yield limpet.Piece(tool=call)
    elif last["content"] == "wait":
        yield limpet.Piece(text="One moment. ")
        await asyncio.Event().wait()  # until it is stopped
    else:
        yield limpet.Piece(reasoning="A greeting.")
        for piece in ("Hel", "lo."):
            yield limpet.Piece(text=piece)
    yield limpet.Piece(usage={"input": 3, "output": 2})


agent = limpet.Agent(model, [refund])

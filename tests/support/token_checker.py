"""A process that checks requests with tokens, a line of JSON each, and answers in a line.

A request is {"verb": "check", "token": …, "operation": …, "nonce": …}, or rotate, or revoke.
"""

from __future__ import annotations

import asyncio
import json
import sys

import limpet
from limpet.errors import LimpetError


async def answer(tokens: limpet.Tokens, asked: dict[str, str]) -> str:
    verb, token = asked.pop("verb"), asked.pop("token")
    try:
        if verb == "rotate":
            return await tokens.rotate(token)
        if verb == "revoke":
            await tokens.revoke(token)
            return "revoked"
        await tokens.check(token, operation=asked["operation"], nonce=asked.get("nonce"))
    except LimpetError as error:
        return type(error).__name__
    return "passed"


async def main(url: str, pem: str, rate: str) -> None:
    async with limpet.open(url) as lp:
        policy = limpet.TokenPolicy(rate=int(rate))
        tokens = limpet.Tokens(lp, signing=f"file://{pem}", policy=policy)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            print(await answer(tokens, json.loads(line)), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

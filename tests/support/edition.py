"""A process of some release, this one or an earlier one: the one that PYTHONPATH names.

    python edition.py URL NAME

It obeys the lines on its input and answers each with a line of JSON: {"ok": …} or {"code": …}. It
uses only what every release since schema 1 has.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import limpet

APP = "desk"


class Answers:
    """A harness that answers each message once, with the name of its release."""

    def __init__(self, name: str) -> None:
        self.name = name

    async def run(self, turn: limpet.Turn) -> None:
        for message in turn.inputs:
            done = await turn.effect("answer", self.answer, text=message.data["text"])
            await turn.say(done)

    async def answer(self, text: str) -> str:
        return f"{self.name}: {text}"


class Edition:
    """One store, open in this release."""

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name
        self.lp: limpet.Limpet | None = None

    async def open(self) -> str:
        self.lp = await limpet.open(self.url).__aenter__()
        return limpet.__file__

    async def close(self) -> None:
        assert self.lp is not None
        await self.lp.__aexit__(None, None, None)

    async def write(self, first: str, count: str) -> int:
        """Add events to a session that both write to, and to one of our own."""
        assert self.lp is not None
        ours = await self.lp.get_or_create(APP, "both", id="shared", state={"n": 0}, actor="user:x")
        own = await self.lp.get_or_create(APP, "both", id=self.name, state={"n": 0}, actor="user:x")
        for number in range(int(first), int(first) + int(count)):
            for s in (ours, own):
                await s.append(
                    "note.made",
                    {"n": number},
                    id=f"{self.name}-{number}",
                    actor="agent:x",
                    inc={"n": 1},
                )
        return own.version

    async def ask(self, count: str) -> None:
        """Create sessions, each with a message to be answered."""
        assert self.lp is not None
        for number in range(int(count)):
            s = await self.lp.create(APP, "customer", id=f"{self.name}-{number}", actor="user:x")
            await s.append("user.message", {"text": f"{self.name}-{number}"}, actor="user:x")

    async def work(self) -> None:
        """Answer until nothing is due."""
        assert self.lp is not None
        worker = limpet.Worker(self.lp, Answers(self.name), app=APP, idle_exit=True, concurrency=2)
        await worker.run()

    async def read(self) -> dict[str, Any]:
        """Return the events of every session, with their links: what both must agree on."""
        assert self.lp is not None
        every: dict[str, Any] = {}
        for head in (await self.lp.list(app=APP, limit=200)).items:
            log = await self.lp.session(head.key).read(limit=1000)
            every["/".join((head.key.user, head.key.id))] = [
                [e.id, e.type, e.link.hex(), (e.data or {}).get("text")] for e in log
            ]
        return every

    async def verify(self) -> list[str]:
        assert self.lp is not None
        return [str(finding) for finding in (await self.lp.maintenance.verify()).findings]


async def main(url: str, name: str) -> None:
    edition = Edition(url, name)
    while line := await asyncio.to_thread(sys.stdin.readline):
        verb, *args = line.split()
        try:
            answer = {"ok": await getattr(edition, verb)(*args)}
        except limpet.LimpetError as error:
            answer = {"code": error.code}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))

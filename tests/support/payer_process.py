"""A process that runs one turn of an agent whose bank kills it, then answers 503, then pays.

    python -m tests.support.payer_process URL ID BANK POLICY

BANK is a SQLite file. It honours idempotency keys: each is paid once. Its first call pays and ends
this process, its second raises. The model calls the tool again wherever it reads an error, unless
it reads that it must not.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import limpet
from limpet import ModelRequest, Reply, ToolCall

APP = "payer"
LEASE_SECONDS = 1
OUTAGE = 1  # calls that meet it


def ledger(bank: Path) -> list[str]:
    """The keys under which it has paid."""
    with closing(sqlite3.connect(bank)) as db:
        return [key for (key,) in db.execute("SELECT key FROM paid")]


def begin(bank: Path) -> None:
    with closing(sqlite3.connect(bank)) as db, db:
        db.execute("CREATE TABLE paid (key TEXT PRIMARY KEY)")
        db.execute("CREATE TABLE calls (key TEXT)")


def agent_for(bank: Path, policy: Any) -> limpet.Agent:
    @limpet.tool(on_unknown=policy)
    async def pay(eur: int, idempotency_key: str) -> str:
        """Pay so much."""
        with closing(sqlite3.connect(bank)) as db, db:
            db.execute("INSERT INTO calls VALUES (?)", [idempotency_key])
            (calls,) = db.execute("SELECT count(*) FROM calls").fetchone()
            if calls == 1 or calls > 1 + OUTAGE:
                db.execute("INSERT OR IGNORE INTO paid VALUES (?)", [idempotency_key])
        if calls == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if calls <= 1 + OUTAGE:
            raise ConnectionError("503 Service Unavailable")
        return f"paid {eur}"

    async def model(request: ModelRequest) -> Reply | str:
        last = request.messages[-1]
        text = str(last.get("content"))
        if last["role"] == "tool" and ("paid" in text or "do not repeat" in text):
            return "Done."
        return Reply("", (ToolCall("", "pay", {"eur": 40}),))

    return limpet.Agent(model, [pay])


async def main(url: str, id: str, bank: Path, policy: str) -> None:
    async with limpet.open(url) as lp:
        key, agent = (APP, "ada", id), agent_for(bank, policy)
        async with asyncio.timeout(60):  # the lease of the dead ends by the clock
            while True:
                woken = await lp.wake(key, agent, lease_seconds=LEASE_SECONDS)
                if woken.reason != "locked":
                    return
                await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4]))

"""A process that adds to one session: python -m … NAME URL. See tests/support/race."""

from __future__ import annotations

import asyncio
import sys

from agent_framework import Message
from agent_framework_ag_ui import AGUIThreadSnapshot

from limpet.adapters.agent_framework import LimpetHistoryProvider, LimpetThreadSnapshotStore
from tests.support.race import at_once

COUNT = 20


async def main(name: str, url: str) -> None:
    provider, threads = LimpetHistoryProvider(url), LimpetThreadSnapshotStore(url)
    for number in range(COUNT):
        text = f"{name} {number}"
        pair = [Message("user", [text]), Message("assistant", [text])]
        await provider.save_messages("s1", pair)
        snapshot = AGUIThreadSnapshot(messages=[], state={"last": text})
        await threads.save(scope="ada", thread_id="t1", snapshot=snapshot)
    await provider.close()
    await threads.close()


if __name__ == "__main__":
    at_once()
    asyncio.run(main(*sys.argv[1:]))

"""A worker that stands still for longer than its lease, while another takes its session over."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import limpet
from tests.support.processes import Child
from tests.support.stopper import APP, harness_for


@pytest.mark.parametrize(
    ("url", "point", "way"),
    [
        ("sqlite", "between", "stopped"),
        ("sqlite", "intended", "stopped"),
        ("sqlite", "intended", "busy"),
        ("sqlite", "before", "busy"),
        ("postgresql", "between", "stopped"),
        ("postgresql", "intended", "busy"),
    ],
    indirect=["url"],
)
async def test_who_stood_still_past_its_lease_neither_acts_nor_writes(
    url: str, tmp_path: Path, point: str, way: str
) -> None:
    """Stopped by SIGSTOP, or by a harness that never yields: it comes back to a lost lease."""
    ledger = tmp_path / "ledger"
    ledger.touch()
    async with limpet.open(url) as lp:
        session = await lp.create(APP, "ada", id="s", actor="user:ada")
        await session.append("user.message", {"text": "pay"}, actor="user:ada")
        with Child("tests.support.stopper", url, ledger, point) as child:
            await asyncio.to_thread(child.expect, "still")
            if way == "stopped":  # before the line that lets it go on: it will not run past this
                os.kill(child.pid, signal.SIGSTOP)
            taking = limpet.Worker(
                lp, harness_for(ledger, "other"), app=APP, max_turns=1, poll_seconds=0.05
            )
            assert (await taking.run()).turns == 1  # when the lease has ended, and not before
            before = await session.read(limit=100)
            child.tell("go on")
            if way == "stopped":
                os.kill(child.pid, signal.SIGCONT)
            await asyncio.to_thread(child.expect, "lease_lost")
            await asyncio.to_thread(child.end)
        paid = Counter(ledger.read_text().split())
        assert paid == {"other": 1} | ({"stopped": 1} if point == "between" else {})
        assert await session.read(limit=100) == before
        (said,) = await session.read(types=["agent.message"])
        assert said.data["text"] == "other paid"
        assert (await lp.maintenance.verify()).ok

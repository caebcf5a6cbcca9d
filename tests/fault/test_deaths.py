"""One session that kills its process, beside sessions that do not."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.deadly_process import APP, LEASE_SECONDS
from tests.support.processes import ROOT

INNOCENTS, RETRIES = 30, 2


async def process(url: str) -> int:
    """Run a worker until nothing is due, or it is killed; the exit code."""
    made = await asyncio.create_subprocess_exec(
        *[sys.executable, "-W", "error", "-m", "tests.support.deadly_process", url, str(RETRIES)],
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "src")},
    )
    try:
        return await made.wait()
    finally:
        if made.returncode is None:
            made.kill()
            await made.wait()


async def fill(lp: limpet.Limpet) -> limpet.Session[Any]:
    """Innocents, and in their middle the session that kills, which is returned."""
    sessions = []
    for number in range(INNOCENTS + 1):
        text = "die" if number == INNOCENTS // 2 else "hi"
        session = await lp.create(APP, "ada", id=f"s{number:02}")
        await session.append("user.message", {"text": text}, actor="user:ada")
        sessions.append(session)
    return sessions[INNOCENTS // 2]


@pytest.fixture(params=["sqlite", "files", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgresql":
        place: str = request.getfixturevalue("postgres_url")
        return place
    return f"sqlite:///{tmp_path}/a.db" if request.param == "sqlite" else f"files:///{tmp_path}/a"


async def test_only_the_session_that_kills_becomes_a_dead_letter(url: str) -> None:
    """Those in flight beside it are answered; it dies once with them, `retries` times alone."""
    deaths = 0
    async with limpet.open(url) as lp:
        killer = (await fill(lp)).key
    async with asyncio.timeout(120):
        while True:
            code = await process(url)
            assert code in (0, -signal.SIGKILL)
            deaths += code != 0
            async with limpet.open(url) as lp:
                heads = (await lp.list(app=APP)).items
                others = all(head.pending == 0 for head in heads if head.key != killer)
                if others and (await lp.work.dead_letters(app=APP)).items:
                    break
            await asyncio.sleep(LEASE_SECONDS / 10)  # the lease of a dead process has to end
    assert deaths == 1 + RETRIES
    async with limpet.open(url) as lp:
        (dead,) = (await lp.work.dead_letters(app=APP)).items
        assert dead.key == killer
        for head in (await lp.list(app=APP)).items:
            session = await lp.get(head.key, tail=1_000)
            ended = "retries_exhausted" if head.key == killer else "end_turn"
            assert session.stop_reason == ended
            said = [e for e in session.events if e.type == "agent.message"]
            assert len(said) == (head.key != killer)
        assert await lp.work.requeue(app=APP, reason="raised") == 0
        assert await lp.work.requeue(app=APP, reason="died") == 1
        assert (await lp.maintenance.verify()).ok

"""kill -9 at every point of an agent's turn: the transcript is that of a run without a kill."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

import limpet
from tests.support.examples import tries
from tests.support.loop_process import APP, LEASE_SECONDS, agent_for
from tests.support.processes import exit_code

COMMITS = range(1, 9)
# A first run ends at the approval; a second one, after it, comes to the end. Each is killed.
POINTS = [
    *[f"{where}:{n}" for where in ("before", "after") for n in COMMITS],
    "model:1",
    "look:1",
    "refund:1",
]


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that several processes share."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/loop.db"
    server: str = request.getfixturevalue("postgres_store_url")
    return server


async def test_a_killed_agent_says_and_does_what_an_unharmed_one_does(
    url: str, tmp_path: Path
) -> None:
    """Messages, calls and results are the same; each refund is paid once, or asked about.

    On SQLite at every point; on the server, in the suite, at every third.
    """
    points = POINTS if url.startswith("sqlite") else tries(POINTS[::3], POINTS)
    async with limpet.open(url) as lp:
        sessions = [await begun(lp, f"s{number}") for number in range(len(points) + 1)]
        for session in sessions:
            bank(tmp_path, session).touch()
        killed = 0
        for phase in (1, 2):  # up to the approval, and from it on
            for session, point in zip(sessions, [*points, "-"], strict=True):
                killed += await killed_at(url, session.id, bank(tmp_path, session), point)
            await asyncio.sleep(LEASE_SECONDS + 0.2)  # the leases of the dead end by the clock
            for session in sessions:
                await settled(lp, session, bank(tmp_path, session), to_the_end=phase == 2)
        assert killed > len(points)  # else the points are not reached
        whole = await transcript(sessions[-1])
        calls = ["assistant"] * 3  # a text and two calls
        assert [role for role, _ in whole] == ["user", *calls, "tool", "tool", "assistant"]
        for session, point in zip(sessions, [*points, "-"], strict=True):
            assert await transcript(session) == whole, point
            keys = bank(tmp_path, session).read_text().split()
            assert len(keys) == len(set(keys)) == 1, point
        assert (await lp.maintenance.verify()).ok


def bank(folder: Path, session: limpet.Session[Any]) -> Path:
    return folder / f"{session.id}.txt"


async def begun(lp: limpet.Limpet, id: str) -> limpet.Session[Any]:
    session = await lp.create(APP, "ada", id, actor="user:ada")
    await session.append("user.message", {"text": "Order 7 is broken."})
    return session


async def killed_at(url: str, id: str, bank: Path, point: str) -> bool:
    """Run a turn in a process; True if it died at that point."""
    code = await exit_code("tests.support.loop_process", url, id, bank, point)
    assert code in (0, -signal.SIGKILL), point
    return code != 0


async def settled(
    lp: limpet.Limpet, session: limpet.Session[Any], bank: Path, *, to_the_end: bool
) -> None:
    """Run it up to its approval, which is given; or to the end, answering what is asked."""
    agent = agent_for(bank, lambda _: None)
    for _ in range(10):
        await lp.wake(session.key, agent)
        await session.refresh()
        for request in session.blocked_on:
            if request.kind == "approval":
                await session.confirm(request.id, allow=True)
            else:
                assert request.kind == "unknown_effect"
                paid = request.input["idempotency_key"] in bank.read_text().split()
                if paid:
                    await session.resolve(request.id, happened="paid")
                else:
                    await session.resolve(request.id, run_again=True)
            if not to_the_end and request.kind == "approval":
                return
        if session.status == "idle" and session.stop_reason == "end_turn":
            return
    raise AssertionError("it never came to its end")


async def transcript(session: limpet.Session[Any]) -> list[tuple[str, Any]]:
    """What was said and done, without ids."""
    hidden = ("request_id",)
    return [
        (message.role, [{n: v for n, v in p.items() if n not in hidden} for p in message.parts])
        for message in await session.messages()
    ]

"""A process is killed with SIGKILL anywhere in the lives of its sessions; nothing is lost."""

from __future__ import annotations

import random
from pathlib import Path

import limpet
from tests.support.examples import tries
from tests.support.processes import Child
from tests.support.seeds import seed

# What a session may be, if this was the last that was acknowledged of it.
NEXT = {
    "active": {"active", "suspended", "resumed", "completed", "terminated"},
    "suspended": {"suspended", "resumed", "active"},
    "completed": {"completed", "archived"},
    "terminated": {"terminated", "archived"},
    "archived": {"archived", "completed", "terminated"},
    "back": {"completed", "terminated"},
}


def live_and_kill(path: Path, cold: Path, chance: random.Random) -> dict[str, str]:
    """Let it live for a while, then kill it; the last word on each session."""
    said: dict[str, str] = {}
    with Child("tests.support.liver", path, cold) as child:
        lines = child.killed_after(chance.randrange(1, 13), chance.uniform(0, 20_000))
    for line in lines:
        phase, id = line.split()
        said[id] = phase
    return said


async def check(lp: limpet.Limpet, said: dict[str, str]) -> None:
    """Each session is in one phase that may follow what was said, and its log is whole."""
    for id, phase in said.items():
        key = limpet.Key("kill", "ada", id)
        try:
            s = await lp.get(key)
        except limpet.errors.SessionArchived:
            assert "archived" in NEXT[phase]
            s = await lp.get(key, archived=True)
        assert s.phase in NEXT[phase]
        assert s.values["n"] >= 0
        log = await s.read(limit=100)
        assert [event.seq for event in log] == list(range(1, s.version + 1))
        assert [event.type for event in log[:2]] == ["session.created", "user.message"]


async def test_a_killed_process_leaves_each_session_in_one_phase(tmp_path: Path) -> None:
    """Between any two steps of suspend, resume, sweep, archive and unarchive."""
    chance = random.Random(seed("life"))
    for round in tries(range(2), range(60)):
        path, cold = tmp_path / f"{round}.db", tmp_path / f"{round}"
        said = live_and_kill(path, cold, chance)
        async with limpet.open(f"sqlite:///{path}", archive=f"file://{cold}") as lp:
            assert (await lp.maintenance.verify()).ok
            swept = await lp.work.sweep()  # finishes what was between the store and the archive
            assert not swept.failed
            await check(lp, said)
            assert (await lp.maintenance.verify()).ok

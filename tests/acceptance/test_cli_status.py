"""`limpet status`: what waits, who is at it, on every store that keeps anything."""

from __future__ import annotations

import asyncio
import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from tests.support.command import answer, run, run_terminal

HOUR = 3_600.0


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Sessions that are idle, asleep, woken, waiting and leased."""
    found = f"sqlite:///{tmp_path}/a.db"
    if request.param == "postgresql":
        found = request.getfixturevalue("postgres_store_url")
    asyncio.run(fill(found))
    return found


async def fill(url: str) -> None:
    now = datetime.now(UTC)
    async with limpet.open(url) as lp:
        await lp.create("support", "ada", id="idle")
        asleep = await lp.create("support", "ada", id="asleep", actor="x")
        await asleep.lifecycle.set_timer("nap", now + timedelta(days=1))
        woken = await lp.create("support", "ada", id="woken", actor="x")
        await woken.lifecycle.set_timer("nap", now - timedelta(days=1))
        for id in ("waiting", "leased"):
            s = await lp.create("support", "ada", id=id, actor="user:ada")
            await s.append("user.message", {"text": "hi"})
        await lp.work.lock(("support", "ada", "leased"), worker="worker-1", lease_seconds=HOUR)
        await lp.create("billing", "ada", id="other")


def states(told: Any) -> dict[str, str]:
    return {one["session"]["id"]: one["state"] for one in told["shown"]}


def test_what_waits_is_counted_and_shown(tmp_path: Path, url: str) -> None:
    """Leased ones first, with worker, fence and end; then due ones, longest due first."""
    code, told = answer(tmp_path, "status", url)
    assert code == 0
    counts = {name: told[name] for name in ("sessions", "pending", "due", "leased", "left_off")}
    assert counts == {"sessions": 6, "pending": 2, "due": 2, "leased": 1, "left_off": 0}
    assert list(states(told).items()) == [
        ("leased", "leased"),
        ("woken", "due"),
        ("waiting", "due"),
    ]
    leased, woken, _ = told["shown"]
    assert (leased["phase"], leased["version"], leased["labels"]) == ("active", 2, {})
    assert (leased["worker"], leased["fence"], leased["pending"]) == ("worker-1", 1, 1)
    end = datetime.fromisoformat(leased["lease_until"])
    assert timedelta(minutes=50) < end - datetime.fromisoformat(told["at"]) < timedelta(minutes=70)
    assert (woken["worker"], woken["lease_until"], woken["pending"]) == (None, None, 0)
    done = run(tmp_path, "status", url)
    first, header, second, *_ = done.stdout.splitlines()
    assert first == "6 sessions: 2 with pending input, 2 due, 1 leased."
    assert header.split() == ["state", "session", "pending", "when", "why"]
    assert second.startswith("leased  support/ada/leased         1  until ")


def test_what_is_shown_is_bounded_and_what_is_left_off_is_told(tmp_path: Path, url: str) -> None:
    """The most urgent are kept; all are counted."""
    told = answer(tmp_path, "status", url, "--limit", "2")[1]
    assert (states(told), told["left_off"]) == ({"leased": "leased", "woken": "due"}, 1)
    assert (told["due"], told["leased"]) == (2, 1)
    assert "and 3 more" in run(tmp_path, "status", url, "--limit", "0").stdout


def test_one_app_may_be_looked_at_alone(tmp_path: Path, url: str) -> None:
    """The sessions of others are neither counted nor shown."""
    told = answer(tmp_path, "status", url, "--app", "billing")[1]
    assert (told["sessions"], told["shown"]) == (1, [])


def test_a_lease_that_has_ended_is_due_and_names_its_worker(tmp_path: Path) -> None:
    """Its worker died: the session is there to be claimed, and whose it was is told."""
    asyncio.run(fill(f"sqlite:///{tmp_path}/a.db"))
    conn = apsw.Connection(os.fspath(tmp_path / "a.db"))
    conn.execute("UPDATE sessions SET lease_us = 5, leased_us = 4 WHERE id = 'leased'")
    conn.close()
    told = answer(tmp_path, "status", "sqlite:///a.db")[1]
    assert (told["due"], told["leased"], states(told)["leased"]) == (3, 0, "due")
    shown = run(tmp_path, "status", "sqlite:///a.db").stdout
    assert re.search(
        r"since 1970-01-01T00:00:00Z \(.* d ago\) +the lease of worker-1 \(fence 1\)", shown
    )


def test_on_a_terminal_there_are_colours(tmp_path: Path) -> None:
    """And the same words."""
    asyncio.run(fill(f"sqlite:///{tmp_path}/a.db"))
    code, shown = run_terminal(tmp_path, "status", "sqlite:///a.db")
    assert code == 0
    assert "\x1b[32m6 sessions" in shown
    assert "worker-1" in shown


def test_a_session_held_back_is_shown_with_when_it_is_retried(tmp_path: Path) -> None:
    """It is neither leased nor due; once its time has come it is due, and nobody's."""
    url = f"sqlite:///{tmp_path}/a.db"

    async def give_up() -> None:
        await fill(url)
        async with limpet.open(url) as lp:
            lease = await lp.work.lock(("support", "ada", "waiting"), worker="worker-2")
            await lp.work.release(lease, retry_seconds=HOUR)

    asyncio.run(give_up())
    _, told = answer(tmp_path, "status", url)
    assert (told["held"], told["due"], states(told)["waiting"]) == (1, 1, "held")
    text = run(tmp_path, "status", url).stdout
    assert ", 1 held back." in text
    assert "held    support/ada/waiting        1  retried at " in text
    conn = apsw.Connection(str(tmp_path / "a.db"))
    conn.execute("UPDATE sessions SET lease_us = 5, leased_us = 4 WHERE id = 'waiting'")
    conn.close()
    assert "None" not in run(tmp_path, "status", url).stdout

"""Several processes sweep one store: each session is moved on once, its hooks run once."""

from __future__ import annotations

from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import limpet
from tests.support.deadlines import passed
from tests.support.processes import Child

NOW = timedelta(microseconds=1)  # over when `passed` returns
SESSIONS, SWEEPERS = 30, 3


async def check_once(where: str, url: str) -> None:
    """Every session is terminated by one sweeper, and no event is doubled."""
    async with limpet.open(url) as lp:
        for n in range(SESSIONS):
            await lp.create("support", "ada", f"{n}", timeouts=limpet.Timeouts(absolute=NOW))
        await passed(lp, SESSIONS)
    with ExitStack() as stack:
        sweepers = [
            stack.enter_context(Child("tests.support.sweeper", where)) for _ in range(SWEEPERS)
        ]
        for each in sweepers:
            each.expect("ready")
        for each in sweepers:
            each.tell("go")
        cleaned = [list(each.lines()) for each in sweepers]
        for each in sweepers:
            each.end()
    everything = sorted([id for lines in cleaned for id in lines], key=int)
    assert everything == [f"{n}" for n in range(SESSIONS)]
    async with limpet.open(url) as lp:
        for head in (await lp.list(app="support", limit=SESSIONS)).items:
            types = [event.type for event in await lp.session(head.key).read()]
            ended = ["session.status_changed", "session.terminated"]
            assert types == ["session.created", "session.suspended", *ended]
        assert (await lp.maintenance.verify()).ok


async def test_sweepers_of_one_file_share_the_work(tmp_path: Path) -> None:
    """Whoever has the lease moves the session on; the others leave it."""
    path = tmp_path / "swept.db"
    await check_once(str(path), f"sqlite:///{path}")


async def test_sweepers_of_one_server_share_the_work(postgres_store_url: str) -> None:
    """The same on PostgreSQL."""
    await check_once(postgres_store_url, postgres_store_url)


async def test_a_watching_sweep_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    """`limpet sweep --watch` says what each round did, and ends by Ctrl-C."""
    path = tmp_path / "watched.db"
    over = limpet.Timeouts(absolute=NOW)
    async with limpet.open(f"sqlite:///{path}") as lp:
        await lp.create("support", "ada", timeouts=over)
        await passed(lp)
        with Child("limpet.cli", "sweep", path, "--watch", "--every", "0.01") as child:
            assert (child.line() or "").startswith("ok: 0 suspended, 1 terminated")
            await lp.create("support", "ada", timeouts=over)
            rounds = iter(child.lines())
            assert any("1 terminated" in line for line in rounds)
            child.interrupt()
            child.end(130)

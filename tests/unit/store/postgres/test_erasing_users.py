"""Erasing a user on a server: by a few statements, however many sessions there are."""

from __future__ import annotations

from typing import Any

import pytest

import limpet
from limpet.store.postgres import erasure

READS = ("execute", "fetch", "fetchrow", "fetchval")


class Counted:
    """A connection that counts what it is asked."""

    def __init__(self, conn: Any, calls: list[str]) -> None:
        self._conn, self._calls = conn, calls

    def __getattr__(self, name: str) -> Any:
        if name in READS:
            self._calls.append(name)
        return getattr(self._conn, name)


async def filled(lp: limpet.Limpet, user: str, sessions: int) -> None:
    """Sessions with checkpoints, some of them deleted, and one that another user forked."""
    made = [await lp.create("shop", user, f"{n}", actor="agent:main") for n in range(sessions)]
    for number, s in enumerate(made):
        await s.append("agent.said", {"text": "x"}, set={"n": 1, "user:lang": "en"})
        if number % 2:
            await s.checkpoint("here", full=True)
    await made[0].fork(user="bob")
    for s in made[1 : sessions // 2]:
        await lp.delete(s.key)


async def test_a_user_is_erased_by_as_many_statements_for_many_sessions_as_for_few(
    postgres_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And in several rounds where there are more than one round takes; nothing is left of any."""
    calls: list[str] = []
    plain = erasure.erase_user

    async def counted(conn: Any, *how: Any) -> Any:
        return await plain(Counted(conn, calls), *how)  # type: ignore[arg-type]  # stands for one

    monkeypatch.setattr(erasure, "erase_user", counted)
    needed = []
    async with limpet.open(postgres_store_url) as lp:
        for user, sessions in (("few", 4), ("many", 40)):
            await filled(lp, user, sessions)
            calls.clear()
            done = await lp.erase_user("shop", user)
            needed.append(len(calls))
            assert (len(done.sessions), len(done.logs)) == (sessions, sessions // 2)
            assert [key.user for key in done.forks] == ["bob"]
            assert done.user.version == len(done.sessions)
        assert needed[0] == needed[1]
        await filled(lp, "rounds", 10)
        monkeypatch.setattr(erasure, "KEYS_AT_ONCE", 3)
        done = await lp.erase_user("shop", "rounds")
        erased = {each.key_hash for each in (*done.sessions, *done.logs)}
        assert (len(done.sessions), len(done.logs), len(erased)) == (10, 5, 15)
        assert [head.key.user for head in (await lp.list(app="shop")).items] == ["bob"] * 3
        assert (await lp.maintenance.verify()).findings == ()

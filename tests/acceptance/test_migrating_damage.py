"""Migrations build on nothing that is damaged, even where a load does not meet the damage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import apsw
import pytest

import limpet
from limpet import MigrationRegistry, errors
from tests.support import chats

KEY = ("support", "ada", "1")


@pytest.fixture
async def url(tmp_path: Path) -> str:
    """A session whose log was changed behind the snapshot that its state is read from."""
    path = tmp_path / "store.db"
    url = f"sqlite:///{path}?sync=normal"
    async with limpet.open(url) as lp:
        s = await lp.create(*KEY[:2], id=KEY[2], state=chats.Old(plan="p"), actor="x")
        for _ in range(60):
            await s.append("a.b", {"text": "x" * 300})
    conn = apsw.Connection(str(path))
    conn.execute("UPDATE events SET actor = 'somebody else' WHERE seq = 2")
    assert conn.changes() == 1
    conn.close()
    return url


async def test_a_session_that_does_not_verify_is_not_migrated(url: str) -> None:
    """Its state can be read and fits; its chain does not hold, so no migration even runs."""
    ran: list[dict[str, Any]] = []
    registry = MigrationRegistry("chats")

    @registry.migration("1.0.0", "2.0.0")
    def renamed(fields: dict[str, Any]) -> dict[str, Any]:
        ran.append(dict(fields))
        fields["goal"] = fields.pop("plan")
        return fields

    async with limpet.open(url) as lp:
        found = await lp.get(KEY)
        assert (found.history.damaged, found.version, found.state["plan"]) == ((), 61, "p")
        for _ in range(2):
            with pytest.raises(errors.SessionCorrupt):
                await lp.get(KEY, state_type=chats.New, migrations=registry)
        handle = lp.session(KEY, state_type=chats.New, migrations=registry, actor="x")
        with pytest.raises(errors.SessionCorrupt):
            await handle.apply({"goal": "q"})
        assert ran == []
        again = await lp.get(KEY)
        assert (again.version, again.head.schema_version) == (61, "1.0.0")


async def test_a_dry_run_does_not_plan_on_a_state_with_a_hole(tmp_path: Path) -> None:
    """It verifies no whole log, so it looks at what the load has met: no migration is tried."""
    path = tmp_path / "store.db"
    ran: list[str] = []
    registry = MigrationRegistry("chats")

    @registry.migration("1.0.0", "2.0.0")
    def renamed(fields: dict[str, Any]) -> dict[str, Any]:
        ran.append(fields["plan"])
        return {**fields, "goal": fields.pop("plan")}

    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        s = await lp.create(*KEY[:2], id=KEY[2], state=chats.Old(plan="p"), actor="x")
        await s.append("a.b", {"text": "x"})
    conn = apsw.Connection(str(path))
    conn.execute("UPDATE events SET body = zeroblob(length(body)) WHERE seq = 2")
    conn.execute("DELETE FROM snapshots")
    conn.close()
    async with limpet.open(f"sqlite:///{path}?sync=normal") as lp:
        assert (await lp.get(KEY)).history.damaged == (2,)
        (outcome,) = (await lp.maintenance.migrate(registry, chats.New)).outcomes
    assert (outcome.fate, outcome.sessions, ran) == ("damaged", 1, [])
    assert "event 2 cannot be read" in outcome.reason

"""limpet import-adk: databases of ADK's own services, brought over whole."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session
from google.adk.sessions.sqlite_session_service import SqliteSessionService
from google.genai import types

import limpet
from limpet.adapters.adk import LimpetSessionService
from limpet.adapters.adk_import import import_adk
from tests.adapters.adk.saying import answered, called, said
from tests.support import postgres

APP = "support"
KEYS = [("ada", "s1"), ("ada", "s2"), ("bob", "s1")]


class Interrupted(Exception):
    """As Ctrl-C would."""


async def filled(service: Any, *, long: int = 3) -> None:
    """Three sessions of two users, with every kind of state."""
    for user, id in KEYS:
        begin = {"given": {"at": "creation"}, "n": 0, "owner:key": None, "user:first": id}
        session = await service.create_session(
            app_name=APP, user_id=user, session_id=id, state=begin
        )
        image = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\x00\xff"))
        await service.append_event(session, said("hi", image, author="user"))
        await service.append_event(session, said(called("f"), called("g", "c2")))
        await service.append_event(session, said(answered("f"), delta={"n": 1, "temp:x": 1}))
        for number in range(long if id == "s2" else 3):
            delta = {"n": number, f"app:{user}{id}": {"x": None}, "user:last": id}
            await service.append_event(session, said(f"{number}", delta=delta))


async def read(service: Any) -> list[dict[str, Any]]:
    found = [
        await service.get_session(app_name=APP, user_id=user, session_id=id) for user, id in KEYS
    ]
    return [each.model_dump(mode="json", exclude={"last_update_time"}) for each in found]


async def listed(service: Any) -> list[tuple[str, str]]:
    return [(s.user_id, s.id) for s in (await service.list_sessions(app_name=APP)).sessions]


def limpet_says(*args: str) -> tuple[int, dict[str, Any]]:
    command = [sys.executable, "-m", "limpet.cli", *args, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, json.loads(done.stdout or done.stderr)


@pytest.mark.parametrize("kind", ["database", "sqlite", "postgresql"])
async def test_every_session_is_brought_over_whole(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Events, own state, app: and user: state and the order of sessions are as ADK has them."""
    url = f"sqlite+aiosqlite:///{tmp_path}/adk.db"
    if kind == "postgresql":
        server = request.getfixturevalue("any_postgres")
        await postgres.empty(server.url)
        url = server.url.replace("postgresql://", "postgresql+asyncpg://")
    made = SqliteSessionService(f"{tmp_path}/adk.db") if kind == "sqlite" else None
    service: Any = made or DatabaseSessionService(url)
    await filled(service)
    wanted, order = await read(service), await listed(service)
    if made is None:
        await service.close()
    code, told = limpet_says("import-adk", url, f"{tmp_path}/support.db")
    assert (code, told["sessions"], told["events"], told["refused"]) == (0, 3, 18, [])
    async with LimpetSessionService(f"sqlite:///{tmp_path}/support.db") as ours:
        assert await read(ours) == wanted
        assert await listed(ours) == order
        session = await ours.get_session(app_name=APP, user_id="ada", session_id="s1")
        assert isinstance(session, Session)
        await ours.append_event(session, said("and on", delta={"user:last": "new"}))
    again = limpet_says("import-adk", url, f"{tmp_path}/support.db")[1]
    assert (again["sessions"], again["events"], again["names"]) == (0, 0, 0)
    async with limpet.open(f"sqlite:///{tmp_path}/support.db") as lp:
        assert (await lp.maintenance.verify()).ok
        assert (await lp.names(APP, "ada"))["user:last"] == "new"
        assert [head.pending for head in (await lp.list(app=APP)).items] == [0, 0, 0]


async def test_an_interrupted_import_goes_on(tmp_path: Path) -> None:
    """Cut off after any session or batch, the next run brings the rest and nothing twice; what
    ADK has added since comes too."""
    url = f"sqlite+aiosqlite:///{tmp_path}/adk.db"
    async with DatabaseSessionService(url) as service:
        await filled(service, long=250)
        wanted = await read(service)
    steps: list[tuple[int, int]] = []

    def cut(done: int, total: int) -> None:
        steps.append((done, total))
        raise Interrupted

    async with limpet.open(f"sqlite:///{tmp_path}/support.db") as lp:
        for _ in range(3):
            with pytest.raises(Interrupted):
                await import_adk(url, lp, progress=cut)
        assert [total for _, total in steps] == [12 + 253] * 3
        await import_adk(url, lp)
        async with DatabaseSessionService(url) as service:
            assert await read(LimpetSessionService(lp)) == wanted
            session = await service.get_session(app_name=APP, user_id="ada", session_id="s1")
            assert session is not None
            await service.append_event(session, said("later", delta={"n": "later"}))
            assert (await import_adk(url, lp)).events == 1
            assert await read(LimpetSessionService(lp)) == await read(service)


async def test_a_half_imported_session_goes_on(tmp_path: Path) -> None:
    """A session of which only the first events were recorded is completed."""
    url = f"sqlite+aiosqlite:///{tmp_path}/adk.db"
    async with DatabaseSessionService(url) as service, limpet.open("memory://") as lp:
        await filled(service)
        ours = LimpetSessionService(lp)
        begin = {"given": {"at": "creation"}, "owner:key": None}
        half = await ours.create_session(app_name=APP, user_id="ada", session_id="s1", state=begin)
        source = await service.get_session(app_name=APP, user_id="ada", session_id="s1")
        assert source is not None
        for event in source.events[:2]:
            await ours.append_event(half, event)
        done = await import_adk(url, lp)
        assert (done.ok, done.sessions, done.events) == (True, 2, 16)
        assert await read(ours) == await read(service)


async def test_a_session_written_on_both_sides_is_left_alone(tmp_path: Path) -> None:
    """It is reported and unchanged, the others are imported, and the command exits with 1."""
    url = f"sqlite+aiosqlite:///{tmp_path}/adk.db"
    async with DatabaseSessionService(url) as service:
        await filled(service)
    async with LimpetSessionService(f"sqlite:///{tmp_path}/support.db") as ours:
        other = await ours.create_session(app_name=APP, user_id="ada", session_id="s2")
        await ours.append_event(other, said("another conversation"))
    code, told = limpet_says("import-adk", url, f"{tmp_path}/support.db")
    assert (code, told["sessions"], told["refusals"]) == (1, 2, 1)
    assert told["refused"][0]["what"] == "support/ada/s2"
    async with LimpetSessionService(f"sqlite:///{tmp_path}/support.db") as ours:
        kept = await ours.get_session(app_name=APP, user_id="ada", session_id="s2")
        assert kept is not None
        assert len(kept.events) == 1


async def test_state_that_adk_lost_is_what_adk_shows(tmp_path: Path) -> None:
    """Where ADK's stored state is not what its events made, the stored state counts."""
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path}/adk.db") as service:
        await filled(service)
    with sqlite3.connect(tmp_path / "adk.db") as db:
        db.execute("UPDATE sessions SET state = '{\"n\": 7, \"more\": [1]}' WHERE user_id = 'bob'")
    async with limpet.open("memory://") as lp:
        await import_adk(f"sqlite:///{tmp_path}/adk.db", lp)
        found = await LimpetSessionService(lp).get_session(
            app_name=APP, user_id="bob", session_id="s1"
        )
        assert found is not None
        own = {n: v for n, v in found.state.items() if not n.startswith(("app:", "user:"))}
        assert own == {"n": 7, "more": [1]}


async def test_what_is_no_database_of_adk_is_refused(tmp_path: Path) -> None:
    """Another database, the old schema, a missing file: the reason is given, nothing is made."""
    with sqlite3.connect(tmp_path / "other.db") as db:
        db.execute("CREATE TABLE sessions (id)")
    with sqlite3.connect(tmp_path / "old.db") as db:
        db.execute("CREATE TABLE sessions (app_name, user_id, id, state, update_time)")
        db.execute("CREATE TABLE events (id, timestamp, actions BLOB)")
    (tmp_path / "text.db").write_text("not a database at all" * 100)
    for url, words in (
        (f"sqlite:///{tmp_path}/other.db", "not a database of google-adk"),
        (f"sqlite:///{tmp_path}/old.db", "adk migrate session"),
        (f"sqlite:///{tmp_path}/text.db", "not a SQLite file"),
        (f"sqlite:///{tmp_path}/none.db", "no such file"),
        ("mysql://host/db", "does not name"),
    ):
        async with limpet.open("memory://") as lp:
            with pytest.raises(limpet.errors.InvalidURL, match=words):
                await import_adk(url, lp)
    code, told = limpet_says("import-adk", f"{tmp_path}/other.db", f"{tmp_path}/support.db")
    assert (code, told["error"]["code"]) == (2, "store.url")
    assert not (tmp_path / "support.db").exists()

"""What our suites check, on google-adk's own DatabaseSessionService: the checks fail there.

So a green suite of ours says something. If one of these begins to fail, ADK was repaired, and the
table in docs/frameworks.md has to say so.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.sessions.database_session_service import DatabaseSessionService
from google.adk.sessions.session import Session
from sqlalchemy.exc import IntegrityError

from tests.adapters.adk.saying import said

ADA = {"app_name": "support", "user_id": "ada"}


@pytest.fixture
async def theirs(tmp_path: Path) -> AsyncIterator[DatabaseSessionService]:
    async with DatabaseSessionService(f"sqlite+aiosqlite:///{tmp_path}/adk.db") as service:
        yield service


async def got(service: Any) -> Session:
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    return found


async def test_a_stale_writer_is_accepted_if_the_clock_stood_still(
    theirs: DatabaseSessionService,
) -> None:
    """An event dated as the last update leaves an object that has not seen it "fresh"."""
    await theirs.create_session(**ADA, session_id="s")
    one, other = await got(theirs), await got(theirs)
    await theirs.append_event(one, said("one", timestamp=one.last_update_time))
    await theirs.append_event(other, said("other", timestamp=one.last_update_time))
    assert len((await got(theirs)).events) == 2  # nobody was told


async def test_time_runs_backwards_with_an_older_event(theirs: DatabaseSessionService) -> None:
    """The time of the last update is that of the event, even if it is earlier."""
    await theirs.create_session(**ADA, session_id="s")
    session = await got(theirs)
    before = session.last_update_time
    await theirs.append_event(session, said("late", timestamp=before - 100))
    assert (await got(theirs)).last_update_time < before


async def test_a_repeated_event_is_an_error_of_the_database(
    theirs: DatabaseSessionService,
) -> None:
    """A caller who lost the answer and sends its event again gets a raw IntegrityError."""
    await theirs.create_session(**ADA, session_id="s")
    event = said("once")
    await theirs.append_event(await got(theirs), event)
    with pytest.raises(IntegrityError):
        await theirs.append_event(await got(theirs), event.model_copy(deep=True))


async def test_a_refused_append_leaves_its_temporary_keys(theirs: DatabaseSessionService) -> None:
    """The caller's object was changed before anything was recorded, and stays changed."""
    await theirs.create_session(**ADA, session_id="s")
    old = await got(theirs)
    await theirs.append_event(await got(theirs), said("newer"))
    with pytest.raises(StaleSessionError):
        await theirs.append_event(old, said("stale", delta={"temp:ghost": 1}))
    assert old.state["temp:ghost"] == 1


async def test_one_corrupt_row_makes_the_session_unreadable(
    theirs: DatabaseSessionService, tmp_path: Path
) -> None:
    """Nothing of the conversation can be read, because of one event."""
    await theirs.create_session(**ADA, session_id="s")
    session = await got(theirs)
    for text in ("one", "two", "three"):
        await theirs.append_event(session, said(text))
    with sqlite3.connect(tmp_path / "adk.db") as database:
        database.execute("UPDATE events SET event_data = '{\"broken' WHERE event_data LIKE '%two%'")
    database.close()
    with pytest.raises(ValueError):  # noqa: PT011  # whichever their driver raises
        await got(theirs)

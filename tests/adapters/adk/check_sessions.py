"""Sessions as ADK's documentation describes them, on every store."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig

import limpet
from limpet.adapters.adk import LimpetSessionService
from tests.adapters.adk.saying import said

ADA = {"app_name": "support", "user_id": "ada"}


async def test_it_is_a_session_service(service: LimpetSessionService) -> None:
    """Runner and the commands of ADK accept it, and flushing needs nothing."""
    assert isinstance(service, BaseSessionService)
    await service.flush()


async def test_a_new_session_shows_the_merged_state(service: LimpetSessionService) -> None:
    """app: and user: state of earlier sessions is there under its prefix; temp: is never kept."""
    await service.create_session(**ADA, state={"app:a": 1, "user:u": {"x": None}, "own": 2})
    made = await service.create_session(**ADA, state={"own": 3, "temp:t": 4})
    assert made.state == {"app:a": 1, "user:u": {"x": None}, "own": 3}
    assert made.events == []
    again = await service.get_session(**ADA, session_id=made.id)
    assert again is not None
    assert again.model_dump() == made.model_dump()
    other = await service.create_session(app_name="support", user_id="bob")
    assert other.state == {"app:a": 1}


async def test_an_id_is_taken_without_its_padding(service: LimpetSessionService) -> None:
    """Ids are normalised at every door, and a blank one stands for none."""
    made = await service.create_session(**ADA, session_id="  s1 ")
    assert made.id == "s1"
    assert await service.get_session(**ADA, session_id=" s1\n") is not None
    with pytest.raises(AlreadyExistsError):
        await service.create_session(**ADA, session_id="s1")
    assert (await service.create_session(**ADA, session_id="   ")).id
    await service.delete_session(**ADA, session_id=" s1 ")
    assert await service.get_session(**ADA, session_id="s1") is None


async def test_one_of_many_creators_wins(service: LimpetSessionService) -> None:
    """Creators of one id at the same time: one session, and AlreadyExistsError for the rest."""
    tries = [service.create_session(**ADA, session_id="s", state={"n": n}) for n in range(5)]
    made = await asyncio.gather(*tries, return_exceptions=True)
    assert sum(isinstance(each, AlreadyExistsError) for each in made) == 4


@pytest.mark.parametrize("id", ["none", "", "x" * 300, "a\x00b"])
async def test_a_session_that_is_not_there_is_none(service: LimpetSessionService, id: str) -> None:
    """Reading gives None and deleting is fine, also for ids that could not be one."""
    assert await service.get_session(**ADA, session_id=id) is None
    await service.delete_session(**ADA, session_id=id)


async def test_deleting_keeps_shared_state_and_frees_the_id(service: LimpetSessionService) -> None:
    """The session is gone, app: and user: state stay, and the id can be used again."""
    first = await service.create_session(**ADA, session_id="s", state={"user:u": 1, "own": 1})
    await service.append_event(first, said("hi", delta={"app:a": 2}))
    await service.delete_session(**ADA, session_id="s")
    await service.delete_session(**ADA, session_id="s")
    assert await service.get_user_state(**ADA) == {"u": 1}
    again = await service.create_session(**ADA, session_id="s")
    assert (again.state, again.events) == ({"user:u": 1, "app:a": 2}, [])
    with pytest.raises(SessionNotFoundError):
        await service.append_event(first, said("late"))
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    assert found.events == []


async def test_a_late_write_does_not_bring_a_session_back(service: LimpetSessionService) -> None:
    """An append to a deleted session is SessionNotFoundError, and the session stays away."""
    session = await service.create_session(**ADA, session_id="s")
    await service.delete_session(**ADA, session_id="s")
    with pytest.raises(SessionNotFoundError):
        await service.append_event(session, said("late"))
    assert await service.get_session(**ADA, session_id="s") is None
    assert session.events == []


async def test_lists_come_in_the_order_of_updates(service: LimpetSessionService) -> None:
    """The session that was updated last is at the end; events are left out, state is there."""
    for id in ("a", "b", "c"):
        await service.create_session(**ADA, session_id=id, state={"id": id})
    await service.create_session(app_name="support", user_id="bob", session_id="d")
    await service.create_session(app_name="other", user_id="ada", session_id="e")
    first = await service.get_session(**ADA, session_id="a")
    assert first is not None
    await service.append_event(first, said("hi", delta={"user:seen": True}))
    listed = (await service.list_sessions(**ADA)).sessions
    assert [s.id for s in listed] == ["b", "c", "a"]
    assert [s.state["id"] for s in listed] == ["b", "c", "a"]
    assert all(s.events == [] and s.state["user:seen"] is True for s in listed)
    everybody = (await service.list_sessions(app_name="support")).sessions
    assert {s.id for s in everybody} == {"a", "b", "c", "d"}
    assert (await service.list_sessions(app_name="none")).sessions == []


async def test_a_listed_session_can_be_appended_to(service: LimpetSessionService) -> None:
    """A session object from a list is as good as one that was got."""
    await service.create_session(**ADA, session_id="s")
    (listed,) = (await service.list_sessions(**ADA)).sessions
    await service.append_event(listed, said("hi"))


async def test_recent_events(service: LimpetSessionService) -> None:
    """num_recent_events takes the last ones, 0 none; after_timestamp is inclusive; both combine."""
    session = await service.create_session(**ADA, session_id="s")
    for n in range(1, 31):
        await service.append_event(session, said(f"{n}", timestamp=float(n)))

    async def texts(**config: Any) -> list[str]:
        found = await service.get_session(**ADA, session_id="s", config=GetSessionConfig(**config))
        assert found is not None
        return [event.content.parts[0].text for event in found.events]

    numbers = [f"{n}" for n in range(1, 31)]
    assert await texts() == numbers
    assert await texts(num_recent_events=0) == []
    assert await texts(num_recent_events=3) == ["28", "29", "30"]
    assert await texts(num_recent_events=100) == numbers
    assert await texts(after_timestamp=29.0) == ["29", "30"]
    assert await texts(after_timestamp=31.0) == []
    assert await texts(after_timestamp=2.0, num_recent_events=2) == ["29", "30"]
    assert await texts(after_timestamp=29.5, num_recent_events=5) == ["30"]


async def test_a_partial_read_still_writes(service: LimpetSessionService) -> None:
    """A session object that holds few of its events is not stale for that."""
    session = await service.create_session(**ADA, session_id="s")
    for n in range(3):
        await service.append_event(session, said(f"{n}"))
    few = await service.get_session(
        **ADA, session_id="s", config=GetSessionConfig(num_recent_events=0)
    )
    assert few is not None
    await service.append_event(few, said("more"))


async def test_user_state_without_a_session(service: LimpetSessionService) -> None:
    """get_user_state has the keys without their prefix; a stranger has none."""
    await service.create_session(**ADA, state={"user:a": None, "user:b:c": [1], "app:x": 1, "y": 2})
    assert await service.get_user_state(**ADA) == {"a": None, "b:c": [1]}
    assert await service.get_user_state(app_name="support", user_id="eve") == {}


async def test_any_key_is_a_name_in_state(service: LimpetSessionService) -> None:
    """ADK takes any text as a key; so does the service, and every key reads back as it was."""
    odd = ["a:b", "owner:key:x", "", " ", " pad ", "100%", "%3A", "%", "a\tb", "\u2003em", "ä.ö"]
    keys = [f"{scope}{name}" for scope in ("", "app:", "user:") for name in odd]
    made = await service.create_session(**ADA, session_id="s", state=dict.fromkeys(odd, 0))
    assert made.state == dict.fromkeys(odd, 0)
    await service.append_event(made, said("hi", delta=dict.fromkeys(keys, 1)))
    again = await service.get_session(**ADA, session_id="s")
    assert again is not None
    assert again.state == dict.fromkeys(keys, 1)


async def test_an_open_limpet_serves_too() -> None:
    """The service works on a Limpet that its owner opened and closes."""
    async with limpet.open("memory://") as lp:
        service = LimpetSessionService(lp)
        session = await service.create_session(**ADA, session_id="s")
        await service.append_event(session, said("hi", author="user"))
        await service.close()
        found = await lp.get("support", "ada", "s")
        assert found.events[-1].data["text"] == "hi"

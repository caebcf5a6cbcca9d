"""Appending events: what is kept, what is refused, and what the caller's objects show."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from google.adk.auth.auth_credential import AuthCredential, AuthCredentialTypes
from google.adk.auth.auth_schemes import CustomAuthScheme
from google.adk.auth.auth_tool import AuthConfig
from google.adk.errors._stale_session_error import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions, EventCompaction
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.tools.tool_confirmation import ToolConfirmation
from google.genai import types

import limpet
from limpet.adapters.adk import LimpetSessionService
from tests.adapters.adk.saying import answered, called, content, said

ADA = {"app_name": "support", "user_id": "ada"}


@pytest.fixture
async def session(service: LimpetSessionService) -> Session:
    return await service.create_session(**ADA, session_id="s", state={"begun": True})


async def got(service: LimpetSessionService) -> Session:
    found = await service.get_session(**ADA, session_id="s")
    assert found is not None
    return found


def everything() -> list[Event]:
    """Events that together use every part of ADK's events."""
    usage = types.GenerateContentResponseUsageMetadata(
        prompt_token_count=3, candidates_token_count=4, cached_content_token_count=1
    )
    grounding = types.GroundingMetadata(
        web_search_queries=["limpets"],
        grounding_chunks=[
            types.GroundingChunk(web=types.GroundingChunkWeb(uri="https://a.example"))
        ],
        grounding_supports=[
            types.GroundingSupport(
                segment=types.Segment(start_index=0, end_index=3, text="abc"),
                grounding_chunk_indices=[0],
            )
        ],
    )
    auth = AuthConfig(
        auth_scheme=CustomAuthScheme(type="none"),
        raw_auth_credential=AuthCredential(auth_type=AuthCredentialTypes.API_KEY, api_key="k"),
        credential_key="c",
    )
    return [
        said("hi", author="user"),
        said(
            "a",
            "b",
            types.Part(text="hm", thought=True, thought_signature=b"\x00\xfe"),
            branch="x.y",
        ),
        said(
            called("f", "c1", a=None, b=[1, {"c": 2.5}]),
            called("g", "c2"),
            long_running_tool_ids={"c1", "c2"},
        ),
        said(answered("f", "c1", result=None), answered("g", "c2", error="no")),
        said(types.Part(inline_data=types.Blob(mime_type="image/png", data=bytes(range(256))))),
        said(types.Part(file_data=types.FileData(file_uri="gs://b/f", mime_type="text/plain"))),
        said(types.Part(executable_code=types.ExecutableCode(code="1", language="PYTHON"))),
        said(
            "grounded",
            grounding_metadata=grounding,
            usage_metadata=usage,
            model_version="m-1",
            turn_complete=True,
            interrupted=False,
            finish_reason=types.FinishReason.STOP,
            avg_logprobs=float("-inf"),
            custom_metadata={"k": [None, {"x": 1}]},
            input_transcription=types.Transcription(text="heard", finished=True),
        ),
        said(error_code="500", error_message="broken"),
        said("wide", custom_metadata={"n": 2**80, "odd": "\ud800"}),
        said(
            actions=EventActions(
                skip_summarization=True,
                transfer_to_agent="b",
                escalate=True,
                end_of_agent=True,
                artifact_delta={"f.txt": 2},
                agent_state={"step": None},
                route=["a", 1, True],
                requested_auth_configs={"c1": auth},
                requested_tool_confirmations={
                    "c1": ToolConfirmation(hint="sure?", confirmed=False, payload={"x": None})
                },
            )
        ),
        said(
            actions=EventActions(
                compaction=EventCompaction(
                    start_timestamp=1.5, end_timestamp=2.5, compacted_content=content("short")
                )
            )
        ),
        said(actions=EventActions(rewind_before_invocation_id="i0"), author="user"),
        said(output={"rows": [1, None]}, node_info={"path": "wf/a@1", "output_for": ["wf/a@1"]}),
        *spoken_live(),
    ]


def spoken_live() -> list[Event]:
    """What a live conversation and newer parts of ADK add to an event."""
    return [
        said(
            "live",
            cache_metadata={"fingerprint": "f", "contents_count": 2},
            citation_metadata={"citations": [{"uri": "https://a.example", "end_index": 3}]},
            environment_id="e",
            go_away={"time_left": "10s"},
            interaction_id="n",
            interaction_status="completed",
            isolation_scope="scope",
            live_session_id="l",
            live_session_resumption_update={"new_handle": "h", "resumable": True},
            logprobs_result={"log_probability_sum": -1.25},
            output_transcription={"text": "said", "finished": False},
            turn_complete_reason="RESPONSE_REJECTED",
            voice_activity={"audio_offset": "1.5s"},
            actions=EventActions(
                render_ui_widgets=[{"id": "w", "provider": "p", "payload": {"x": None}}],
                set_model_response={"answer": [1, None]},
                transfer_reason="because",
            ),
        )
    ]


def test_the_events_that_are_tried_use_every_field_of_adk() -> None:
    """So that a field that a later ADK brings is tried too."""
    events = everything()
    used = {name for event in events for name in event.model_fields_set}
    acted = {name for event in events for name in event.actions.model_fields_set}
    assert set(Event.model_fields) - used <= {"id", "timestamp", "partial"}
    assert set(EventActions.model_fields) - acted <= {"state_delta"}


async def test_every_event_comes_back_as_it_was(
    service: LimpetSessionService, session: Session
) -> None:
    """Calls, responses, bytes, grounding, usage, actions, confirmations, compaction and rewind."""
    events = everything()
    for event in events:
        before = event.model_copy(deep=True)
        assert await service.append_event(session, event) is event
        assert event == before
    read = (await got(service)).events
    for event, back in zip(events, read, strict=True):
        assert back == event
        assert back.model_dump(mode="json") == event.model_dump(mode="json")
    assert session.events == events


@pytest.mark.parametrize("author", ["", " ", "bot\nof two lines", "b" * 400, "\ud800", "a\u200bb"])
async def test_any_author_is_kept(author: str) -> None:
    """An actor of ours has fewer forms than an author of ADK, who comes back as it was."""
    async with LimpetSessionService("memory://") as service:
        session = await service.create_session(**ADA, session_id="s")
        event = said("hi", author=author)
        await service.append_event(session, event)
        assert (await got(service)).events == [event]


async def test_an_event_larger_than_the_limit_comes_back(
    service: LimpetSessionService, session: Session
) -> None:
    """An image of many megabytes is kept beside the log and read with it."""
    large = types.Part(inline_data=types.Blob(mime_type="image/png", data=b"\x07\xff" * 5_000_000))
    event = said("see", large, delta={"seen": True})
    await service.append_event(session, event)
    found = await got(service)
    assert found.events == [event]
    assert found.state["seen"] is True


async def test_deltas_replace_and_none_is_a_value(
    service: LimpetSessionService, session: Session
) -> None:
    """A dict replaces what was there, None is stored, and bools stay bools."""
    first = {"d": {"a": 1, "b": 2}, "n": 1, "t": True, "i": 1, "app:d": {"x": 1}, "user:d": [1]}
    then = {"d": {"c": 3}, "n": None, "app:d": {"y": None}, "user:d": None, "long": "x" * 100}
    await service.append_event(session, said("1", delta=first))
    await service.append_event(session, said("2", delta=then))
    found = await got(service)
    assert found.state == {"begun": True, **first, **then} == session.state
    assert found.state["t"] is True
    assert type(found.state["i"]) is int
    found.state["d"]["own"] = "may be changed"


async def test_temp_lives_on_the_live_session_only(
    service: LimpetSessionService, session: Session
) -> None:
    """temp: keys are seen by the caller's object, and trimmed from what is stored; any value."""
    tool = object()
    event = said("hi", delta={"temp:tool": tool, "kept": 1})
    await service.append_event(session, event)
    assert session.state["temp:tool"] is tool
    assert event.actions.state_delta == {"kept": 1}
    found = await got(service)
    assert found.state == {"begun": True, "kept": 1}
    assert found.events[0].actions.state_delta == {"kept": 1}


async def test_partial_events_are_not_stored(
    service: LimpetSessionService, session: Session
) -> None:
    """A partial event is returned as it is and leaves no trace."""
    event = said("he", partial=True, delta={"x": 1, "temp:y": 2})
    assert await service.append_event(session, event) is event
    assert (session.events, session.state) == ([], {"begun": True})
    assert (await got(service)).events == []


async def test_an_old_session_object_is_stale(
    service: LimpetSessionService, session: Session
) -> None:
    """Who has not seen the last event cannot write, and changes nothing; reading again helps."""
    old = await got(service)
    await service.append_event(session, said("first", timestamp=5.0))
    before = old.model_copy(deep=True)
    late = said("second", timestamp=9.0, delta={"x": 1, "temp:t": 1, "app:x": 1})
    with pytest.raises(StaleSessionError):
        await service.append_event(old, late)
    assert old == before
    assert late.actions.state_delta == {"x": 1, "temp:t": 1, "app:x": 1}
    new = await got(service)
    await service.append_event(new, late)
    assert [e.id for e in (await got(service)).events] == [session.events[0].id, late.id]


async def test_staleness_is_not_a_matter_of_clocks(
    service: LimpetSessionService, session: Session
) -> None:
    """Equal, older and later timestamps change nothing: the version decides, and time goes on."""
    for timestamp in (100.0, 100.0, 50.0, time.time() + 3_600, 1.0):
        old = await got(service)
        before = session.last_update_time
        await service.append_event(session, said("x", timestamp=timestamp))
        assert session.last_update_time >= before
        with pytest.raises(StaleSessionError):
            await service.append_event(old, said("y", timestamp=timestamp))
    found = await got(service)
    assert [e.timestamp for e in found.events] == [e.timestamp for e in session.events]
    assert found.last_update_time == session.last_update_time


async def test_the_time_of_the_last_update_is_that_of_the_event(
    service: LimpetSessionService, session: Session
) -> None:
    """Also for who reads or lists the session; an older event does not turn it back."""
    begun = session.last_update_time
    for timestamp, expected in ((begun + 10, begun + 10), (begun + 5, begun + 10)):
        await service.append_event(session, said("x", timestamp=timestamp))
        listed = (await service.list_sessions(app_name=session.app_name)).sessions
        times = [session.last_update_time, (await got(service)).last_update_time]
        times += [each.last_update_time for each in listed if each.id == session.id]
        assert times == [pytest.approx(expected, abs=1e-6)] * 3
    assert session.state == (await got(service)).state
    assert not [name for name in session.state if "updated" in name]
    await service.append_event(session, said("odd", timestamp=float("inf")))
    assert (await got(service)).last_update_time == pytest.approx(begun + 10, abs=1e-6)


async def test_a_session_made_by_hand_is_held_against_the_log(
    service: LimpetSessionService, session: Session
) -> None:
    """Without a mark of the service, the last event that the object has must be the newest."""
    first = said("first")
    empty = Session(id="s", app_name="support", user_id="ada")
    await service.append_event(empty, first)
    with pytest.raises(StaleSessionError):
        await service.append_event(Session(id="s", app_name="support", user_id="ada"), said("x"))
    same = Session(id="s", app_name="support", user_id="ada", events=[first])
    await service.append_event(same, said("second"))
    assert len((await got(service)).events) == 2


async def test_an_unknown_session_is_not_found(service: LimpetSessionService) -> None:
    """An append to a session that never was is SessionNotFoundError."""
    with pytest.raises(SessionNotFoundError):
        await service.append_event(Session(id="none", app_name="support", user_id="ada"), said("x"))


async def test_tasks_may_share_a_session_object(
    service: LimpetSessionService, session: Session
) -> None:
    """Appends of parallel agents through one object are all recorded, in the object's order."""
    events = [said(f"{n}", delta={f"k{n}": n, "app:last": n}) for n in range(20)]
    await asyncio.gather(*(service.append_event(session, event) for event in events))
    found = await got(service)
    assert [e.id for e in found.events] == [e.id for e in session.events]
    assert found.state == session.state
    assert all(found.state[f"k{n}"] == n for n in range(20))


async def test_a_repeated_event_is_recorded_once(
    service: LimpetSessionService, session: Session
) -> None:
    """The same event again returns the first record and changes nothing, also after others."""
    event = said("hi", called("f"), delta={"n": 1})
    await service.append_event(session, event)
    await service.append_event(session, said("more", delta={"n": 2}))
    again = await service.append_event(session, event.model_copy(deep=True))
    assert again == event
    found = await got(service)
    assert (len(session.events), len(found.events)) == (2, 2)
    assert session.state["n"] == found.state["n"] == 2
    await service.append_event(session, said("and on"))


async def test_a_lost_answer_can_be_asked_for_again(
    service: LimpetSessionService, session: Session
) -> None:
    """A caller that never heard of its append repeats it and can go on."""
    unheard = await got(service)
    event = said("hi", called("f"), delta={"n": 1})
    await service.append_event(session, event.model_copy(deep=True))
    await service.append_event(unheard, event)
    assert (len(unheard.events), unheard.state["n"]) == (1, 1)
    await service.append_event(unheard, said("and on"))
    assert len((await got(service)).events) == 2


async def test_what_cannot_be_stored_changes_nothing(
    service: LimpetSessionService, session: Session
) -> None:
    """State that cannot be held exactly is refused before anything is written or applied."""
    event = said("hi", delta={"n": 2**80, "temp:t": 1})
    with pytest.raises(limpet.errors.InvalidValue):
        await service.append_event(session, event)
    assert (session.state, session.events) == ({"begun": True}, [])
    assert (await got(service)).state == {"begun": True}
    await service.append_event(session, said("hi"))


async def test_rich_values_are_stored_as_adk_stores_them(
    service: LimpetSessionService, session: Session
) -> None:
    """What has a JSON form is stored in it, and a function by its repr, as in ADK's services."""
    await service.append_event(session, said("hi", delta={"c": content("x"), "f": len}))
    state = (await got(service)).state
    assert state["c"]["parts"][0]["text"] == "x"
    assert "len" in state["f"]


async def test_labels_do_not_make_a_session_stale(url: str) -> None:
    """What others note beside the conversation does not stop a run; what they say in it does."""
    if url.startswith("memory"):
        pytest.skip("a memory store is not shared between two openings")
    async with LimpetSessionService(url) as service, limpet.open(url) as lp:
        session = await service.create_session(**ADA, session_id="s")
        native = lp.session("support", "ada", "s", actor="user:ops")
        await native.label({"plan": "gold"})
        await native.lifecycle.set_priority(3)
        await service.append_event(session, said("hi"))
        await native.append("user.message", {"text": "meanwhile"})
        with pytest.raises(StaleSessionError):
            await service.append_event(session, said("ho"))


async def test_the_log_speaks_our_vocabulary(url: str) -> None:
    """Messages, tool calls and results are our events; a final answer processes its inputs."""
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp)
        session = await service.create_session(**ADA, session_id="s")
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=3, candidates_token_count=4
        )
        await service.append_event(session, said("hi", author="user"))
        assert len(await lp.session("support", "ada", "s").pending()) == 1
        await service.append_event(session, said("look", called("f", "c1", x=1), called("g", "c2")))
        await service.append_event(session, said(answered("f", "c1", y=2), answered("g", "c2")))
        await service.append_event(session, said("done", usage_metadata=usage, model_version="m"))
        stored = await lp.get("support", "ada", "s")
        plain = [(e.type, e.actor, {**e.data, "adk": None}) for e in stored.events[1:]]
        assert [bool(e.data.get("adk")) for e in stored.events[1:4]] == [True, True, False]
        told: list[tuple[str, str, dict[str, Any]]] = [
            ("user.message", "user:ada", {"text": "hi"}),
            ("agent.message", "agent:bot", {"text": "look"}),
            ("agent.tool_use", "agent:bot", {"request_id": "c1", "name": "f", "input": {"x": 1}}),
            ("agent.tool_use", "agent:bot", {"request_id": "c2", "name": "g", "input": {}}),
            (
                "agent.tool_result",
                "agent:bot",
                {"request_id": "c1", "name": "f", "output": {"y": 2}},
            ),
            ("agent.tool_result", "agent:bot", {"request_id": "c2", "name": "g", "output": {}}),
            (
                "agent.message",
                "agent:bot",
                {"text": "done", "model": "m", "usage": {"input": 3, "output": 4}},
            ),
            ("session.processed", "agent:adk", {"seqs": [2]}),
        ]
        assert plain == [(kind, who, {**data, "adk": None}) for kind, who, data in told]
        assert stored.events[3].cause == stored.events[2].id
        assert stored.head.pending == 0


async def test_tokens_of_an_answer_that_only_calls_tools_are_counted(url: str) -> None:
    """Its usage stands in a message without a text, which no conversation shows."""
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp)
        session = await service.create_session(**ADA, session_id="s")
        usage = types.GenerateContentResponseUsageMetadata(
            prompt_token_count=3, candidates_token_count=4
        )
        await service.append_event(session, said("hi", author="user"))
        await service.append_event(session, said(called("f", "c1"), usage_metadata=usage))
        await service.append_event(session, said(answered("f", "c1", y=2)))
        await service.append_event(session, said("done", usage_metadata=usage))
        stored = await lp.get("support", "ada", "s")
        assert (stored.runs.usage.input, stored.runs.usage.output) == (6, 8)
        types_ = ["user.message", "agent.message", "agent.tool_use", "agent.tool_result"]
        assert [event.type for event in stored.events[1:5]] == types_
        roles = [message.role for message in await stored.messages()]
        assert roles == ["user", "assistant", "tool", "assistant"]
        again = await service.get_session(**ADA, session_id="s")
        assert again is not None
        assert [event.get_function_calls() != [] for event in again.events] == [0, 1, 0, 0]


async def test_one_unreadable_event_does_not_hide_the_others(url: str) -> None:
    """An event that this ADK cannot read is left out; the session and its other events are read."""
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp)
        session = await service.create_session(**ADA, session_id="s")
        await service.append_event(session, said("one"))
        for other in ('{"id": "x", "author": 7, "actions": "none"}', "not JSON", 7):
            await lp.session("support", "ada", "s").append(
                "adk.event", {"adk": other}, actor="agent:new"
            )
        found = await service.get_session(**ADA, session_id="s")
        assert found is not None
        assert [e.id for e in found.events] == [session.events[0].id]
        await service.append_event(found, said("two"))


async def test_callers_share_nothing(service: LimpetSessionService, session: Session) -> None:
    """What a caller changes in the objects it got is seen by nobody else, at any time."""
    event = said(answered("f", rows=[1]), delta={"d": {"x": [1]}}, custom_metadata={"m": [1]})
    await service.append_event(session, event)
    before = (await got(service)).model_dump()
    for _ in range(2):
        found = await got(service)
        assert found.model_dump() == before
        found.state["d"]["x"].append(2)
        found.events[0].content.parts[0].function_response.response["rows"].append(2)
        found.events[0].content.parts.append(types.Part(text="more"))
        found.events[0].actions.state_delta["d"]["x"].append(2)
        found.events[0].custom_metadata["m"].append(2)
        found.events.clear()
    event.content.parts.clear()
    assert (await got(service)).model_dump() == before


@pytest.mark.parametrize("cache_bytes", [0, 60_000, 10_000_000])
async def test_what_is_kept_at_hand_is_what_is_stored(url: str, cache_bytes: int) -> None:
    """Every way of reading gives the same, whatever was read before, with any room for a cache."""
    async with limpet.open(url) as lp:
        service = LimpetSessionService(lp, cache_bytes=cache_bytes)
        session = await service.create_session(**ADA, session_id="s")
        texts: list[str] = []
        for turn in range(12):
            for n in range(3):
                texts.append(f"{turn}.{n}")
                event = said(texts[-1], called("f"), timestamp=float(turn))
                await service.append_event(session, event)
            for count in (1, 4, 30, None):
                for after in (None, 0.0, turn - 1.0):
                    config = GetSessionConfig(num_recent_events=count, after_timestamp=after)
                    found = await service.get_session(**ADA, session_id="s", config=config)
                    assert found is not None
                    wanted = texts if after is None else texts[3 * max(0, int(after)) :]
                    wanted = wanted if count is None else wanted[-count:]
                    assert [e.content.parts[0].text for e in found.events] == wanted


async def test_a_cancelled_append_happened_or_did_not(url: str) -> None:
    """Who is cancelled hears of it when the commit is over: the object shows what it knew before,
    and the same event can be sent again."""
    if url.startswith("memory"):
        pytest.skip("a commit to memory cannot be cancelled half-way")
    async with LimpetSessionService(url) as service:
        session = await service.create_session(**ADA, session_id="s")
        for n in range(20):
            event = said(f"{n}", delta={"n": n})
            task = asyncio.ensure_future(service.append_event(session, event))
            for _ in range(n % 5):
                await asyncio.sleep(0)
            task.cancel()
            done = await asyncio.gather(task, return_exceptions=True)
            if isinstance(done[0], BaseException):
                await service.append_event(session, event)
        found = await service.get_session(**ADA, session_id="s")
        assert found is not None
        assert [e.id for e in found.events] == [e.id for e in session.events]
        assert len(found.events) == 20

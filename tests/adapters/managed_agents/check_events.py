"""Events by the official client: sent once, listed, streamed, over the death of a server."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from tests.adapters.managed_agents.conftest import client_of
from tests.support.managed_server import ServerProcess

anthropic = pytest.importorskip("anthropic")


def said(text: str) -> Any:
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def until_idle(client: Any, session: Any, *events: Any, **options: Any) -> list[Any]:
    """Send events on an open stream, and return what comes until the session is idle."""
    seen = []
    with client.beta.sessions.events.stream(session.id, **options) as stream:
        client.beta.sessions.events.send(session.id, events=list(events))
        for event in stream:
            seen.append(event)
            if event.type == "session.status_idle":
                return seen
    raise AssertionError([each.type for each in seen])


def texts(events: list[Any]) -> list[str]:
    return [each.content[0].text for each in events if each.type == "agent.message"]


def test_a_conversation(client: Any, session: Any) -> None:
    """A message is shown pending, then processed; the answer comes; a list has the same ids."""
    seen = until_idle(client, session, said("hello"))
    assert texts(seen) == ["echo hello"]
    assert seen[-1].stop_reason.type == "end_turn"
    mine = [each for each in seen if each.type == "user.message"]
    assert [each.processed_at is None for each in mine] == [True, False]
    assert mine[0].id == mine[1].id
    assert "session.status_running" in [each.type for each in seen]
    listed = list(client.beta.sessions.events.list(session.id))
    assert [each.id for each in listed] == list(dict.fromkeys([each.id for each in seen]))
    assert listed[0].processed_at is not None
    assert client.beta.sessions.retrieve(session.id).status == "idle"
    assert until_idle(client, session, said("again"))[-1].type == "session.status_idle"


def test_an_approval(client: Any, session: Any) -> None:
    """The turn waits for the event that asks; a denial reaches it with its message; an answer is
    taken once."""
    seen = until_idle(client, session, said("refund"))
    use = next(each for each in seen if each.type == "agent.tool_use")
    assert (use.name, use.input, use.evaluated_permission) == ("refund", {"amount": 3}, "ask")
    assert seen[-1].stop_reason.type == "requires_action"
    assert seen[-1].stop_reason.event_ids == [use.id]
    answer = {"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "deny"}
    answered = until_idle(client, session, {**answer, "deny_message": "too much"})
    assert texts(answered) == ["not refunded: too much"]
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.beta.sessions.events.send(session.id, events=[answer])
    assert refused.value.body["error"]["details"]["error_code"] == "request.answered"


def test_a_tool_use_names_the_policy_that_decided(client: Any, session: Any) -> None:
    """`evaluation` stands beside `evaluated_permission`: always_ask, or always_allow."""
    seen = until_idle(client, session, said("refund"))
    asked = next(each for each in seen if each.type == "agent.tool_use")
    until_idle(client, session, {"type": "user.interrupt"})
    seen = until_idle(client, session, said("forever"))
    ran = next(each for each in seen if each.type == "agent.tool_use")
    decided = [(each.evaluated_permission, policy_of(each)) for each in (asked, ran)]
    assert decided == [("ask", "always_ask"), ("allow", "always_allow")]


def policy_of(use: Any) -> str:
    """The type of the evaluation; the client of the first generation does not parse it."""
    evaluation = use.evaluation
    return str(evaluation["type"] if isinstance(evaluation, dict) else evaluation.type)


def test_an_agent_at_its_last_step_says_so(client: Any, session: Any) -> None:
    """The turn ends with a tool_use_limit_reached_error and retries_exhausted, in a stream and in a
    list; the next message begins a turn that ends as usual."""
    seen = until_idle(client, session, said("forever"))
    (error,) = [each.error for each in seen if each.type == "session.error"]
    assert (error.type, error.retry_status.type) == ("tool_use_limit_reached_error", "exhausted")
    assert "2 steps" in error.message
    assert seen[-1].stop_reason.type == "retries_exhausted"
    assert not texts(seen)
    listed = list(client.beta.sessions.events.list(session.id))
    assert [each.id for each in listed] == list(dict.fromkeys([each.id for each in seen]))
    assert listed[-1].stop_reason.type == "retries_exhausted"
    assert until_idle(client, session, said("next"))[-1].stop_reason.type == "end_turn"


def test_a_context_beyond_its_tokens_says_so(client: Any, session: Any) -> None:
    """A conversation that cannot be cut down to its tokens is a compaction_limit_reached_error."""
    with client.beta.sessions.events.stream(session.id) as stream:
        client.beta.sessions.events.send(session.id, events=[said("crowded")])
        error = next(each.error for each in stream if each.type == "session.error")
    named = ("compaction_limit_reached_error", "retrying", "session.tokens_insufficient")
    assert (error.type, error.retry_status.type, error.code) == named


def test_a_workspace_is_accepted_and_ignored(client: Any, session: Any) -> None:
    """The header anthropic-workspace-id changes nothing."""
    headers = {"anthropic-workspace-id": "wrkspc_1"}
    sessions = client.beta.sessions
    assert sessions.retrieve(session.id, extra_headers=headers).id == session.id
    sent = sessions.events.send(session.id, events=[said("hello")], extra_headers=headers)
    assert sent.data[0].type == "user.message"


def test_a_custom_tool(client: Any, session: Any) -> None:
    """A question of a turn is a custom tool: its result is the answer."""
    seen = until_idle(client, session, said("ask"))
    use = next(each for each in seen if each.type == "agent.custom_tool_use")
    assert seen[-1].stop_reason.event_ids == [use.id]
    result = {"type": "user.custom_tool_result", "custom_tool_use_id": use.id}
    content = [{"type": "text", "text": "rain"}]
    answered = until_idle(client, session, {**result, "content": content})
    assert texts(answered) == ["you said rain"]
    with pytest.raises(anthropic.NotFoundError):
        client.beta.sessions.events.send(
            session.id, events=[{**result, "custom_tool_use_id": "sevt_none"}]
        )


def test_an_interrupt_ends_what_a_turn_waits_for(client: Any, session: Any) -> None:
    """The session is idle, and takes the next message."""
    until_idle(client, session, said("refund"))
    stopped = until_idle(client, session, {"type": "user.interrupt"})
    assert stopped[-1].stop_reason.type == "end_turn"
    assert texts(until_idle(client, session, said("next"))) == ["echo next"]


def test_an_outcome(client: Any, session: Any) -> None:
    """It has an id, and is shown on the session."""
    rubric = {"type": "text", "content": "polite\nshort"}
    event = {"type": "user.define_outcome", "description": "An answer", "rubric": rubric}
    (sent,) = client.beta.sessions.events.send(session.id, events=[event]).data
    assert sent.outcome_id.startswith("outc_")
    (evaluation,) = client.beta.sessions.retrieve(session.id).outcome_evaluations
    assert (evaluation.outcome_id, evaluation.result) == (sent.outcome_id, "pending")


def test_the_rubric_of_an_outcome_may_be_a_file(client: Any, session: Any) -> None:
    """It is read where the outcome is defined; a file that is no text is refused."""

    def define(name: str, data: bytes) -> Any:
        file = client.beta.files.upload(file=(name, data, "text/plain")).id
        rubric = {"type": "file", "file_id": file}
        event = {"type": "user.define_outcome", "description": "d", "rubric": rubric}
        return client.beta.sessions.events.send(session.id, events=[event]).data[0]

    sent = define("rubric.txt", b"polite\nshort")
    assert (sent.rubric.type, sent.rubric.content) == ("text", "polite\nshort")
    assert sent.processed_at is not None
    with pytest.raises(anthropic.BadRequestError, match="UTF-8"):
        define("rubric.bin", b"\xff\xfe")


def test_pieces_of_a_message_come_before_it(client: Any, session: Any) -> None:
    """event_start and event_delta name the coming event, and only where they were asked for."""
    seen = until_idle(client, session, said("pieces"), event_deltas=["agent.message"])
    whole = next(each for each in seen if each.type == "agent.message")
    deltas = [each for each in seen if each.type == "event_delta"]
    assert [each.event.id for each in seen if each.type == "event_start"] == [whole.id]
    assert "".join([each.delta.content.text for each in deltas]) == whole.content[0].text
    assert {each.event_id for each in deltas} == {whole.id}
    plain = until_idle(client, session, said("pieces"))
    assert not [each for each in plain if each.type.startswith("event_")]


def test_events_are_listed_page_by_page(client: Any, session: Any) -> None:
    """In both orders, by type, each once, also from a page on."""
    until_idle(client, session, *[said(str(n)) for n in range(5)])
    whole = [each.id for each in client.beta.sessions.events.list(session.id)]
    assert [each.id for each in client.beta.sessions.events.list(session.id, limit=2)] == whole
    back = client.beta.sessions.events.list(session.id, limit=2, order="desc")
    assert [each.id for each in back] == whole[::-1]
    mine = client.beta.sessions.events.list(session.id, types=["user.message"], limit=2)
    assert [each.content[0].text for each in mine] == ["0", "1", "2", "3", "4"]


def test_what_cannot_be_sent_stores_nothing(client: Any, session: Any) -> None:
    """One wrong event refuses them all."""
    wrong: list[Any] = [
        {"type": "agent.message", "content": [{"type": "text", "text": "x"}]},
        {"type": "session.status_idle"},
        {"type": "user.message", "content": []},
        {"type": "user.tool_confirmation", "tool_use_id": "sevt_x", "result": "allow"},
        {},
    ]
    for event in wrong:
        with pytest.raises((anthropic.BadRequestError, anthropic.NotFoundError)):
            client.beta.sessions.events.send(session.id, events=[said("first"), event])
    assert not list(client.beta.sessions.events.list(session.id))


def frames(port: int, session: str, **headers: str) -> Iterator[tuple[int | None, Any]]:
    """The frames of a stream as they are: their ids and data. The first is for its opening."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request("GET", f"/v1/sessions/{session}/events/stream", headers=headers)
    response = connection.getresponse()
    assert response.status == 200
    yield None, None
    id = None
    with suppress(OSError, http.client.HTTPException), closing(connection):
        for raw in response:
            line = raw.decode().rstrip()
            if line.startswith("id: "):
                id = int(line[4:])
            elif line.startswith("data: "):
                yield id, json.loads(line[6:])
                id = None


@pytest.mark.skipif(
    anthropic.__version__.startswith(("0.", "1.")),
    reason="its reader is our own: once is enough, since it waits for the leases of the dead",
)
def test_a_stream_goes_on_over_the_death_of_the_server(own_server: ServerProcess) -> None:
    """Killed and started again, the client comes back with Last-Event-ID: every logged event once,
    in order."""
    with client_of(own_server.url, max_retries=0) as client:
        agent = client.beta.agents.create(name="a", model="m")
        session = client.beta.sessions.create(agent=agent.id, environment_id="env_default")
        seen: list[tuple[int, Any]] = []
        for turn in range(3):
            last = str(seen[-1][0] if seen else 0)
            stream = frames(own_server.port, session.id, **{"Last-Event-ID": last})
            next(stream)
            client.beta.sessions.events.send(session.id, events=[said(f"t{turn}")])
            for id, event in stream:
                if id is None:
                    continue
                seen.append((id, event))
                if (
                    event["type"] == "agent.message"
                    and event["content"][0]["text"] == f"echo t{turn}"
                ):
                    break
            own_server.kill()  # in mid-stream
            stream.close()
            own_server.start()
        listed = [each.id for each in client.beta.sessions.events.list(session.id, limit=1_000)]
        assert [event["id"] for _, event in seen] == listed[: len(seen)]
        assert [seq for seq, _ in seen] == sorted({seq for seq, _ in seen})


def test_a_key_makes_a_repeated_send_return_the_first_answer(own_server: ServerProcess) -> None:
    """Also over a restart; with another body it is an error; of another session it is another."""
    with client_of(own_server.url) as client:
        agent = client.beta.agents.create(name="a", model="m")
        session = client.beta.sessions.create(agent=agent.id, environment_id="env_default")
        other = client.beta.sessions.create(agent=agent.id, environment_id="env_default")

        def send(to: Any, *texts: str, key: str = "k1") -> list[str]:
            sent = client.beta.sessions.events.send(
                to.id,
                events=[said(text) for text in texts],
                extra_headers={"Idempotency-Key": key},
            )
            return [each.id for each in sent.data]

        first = send(session, "one", "two")
        assert send(session, "one", "two") == first
        own_server.kill()
        own_server.start()
        assert send(session, "one", "two") == first
        for texts in (("one",), ("one", "two", "three"), ("uno", "two")):
            with pytest.raises(anthropic.BadRequestError) as refused:
                send(session, *texts)
            code = refused.value.body["error"]["details"]["error_code"]
            assert code == "request.key_reused"
        assert send(other, "one") != first[:1]
        assert send(session, "one", "two", key="k2") != first
        mine = client.beta.sessions.events.list(session.id, types=["user.message"])
        assert [each.content[0].text for each in mine] == ["one", "two", "one", "two"]


def test_a_deleted_session_ends_its_streams(client: Any, session: Any) -> None:
    """session.deleted is the last event."""
    with client.beta.sessions.events.stream(session.id) as stream:
        client.beta.sessions.delete(session.id)
        assert [event.type for event in stream] == ["session.deleted"]

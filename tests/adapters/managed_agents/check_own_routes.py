"""The work queue by the official client, and the routes that the wire lacks."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.adapters.managed_agents.check_events import said, until_idle
from tests.adapters.managed_agents.conftest import client_of
from tests.support.managed_server import ServerProcess

anthropic = pytest.importorskip("anthropic")


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A client of a server that runs no turns."""
    process = ServerProcess(tmp_path_factory.mktemp("quiet"), harness=False)
    process.start()
    with client_of(process.url) as client:
        yield client
    assert process.stop() == 0, process.said()


def test_work_is_leased_acknowledged_and_kept_by_heartbeats(quiet: Any) -> None:
    """A heartbeat that does not know the last one is refused; stopped work is due again."""
    environment = quiet.beta.environments.create(name="lab").id
    agent = quiet.beta.agents.create(name="a", model="m")
    session = quiet.beta.sessions.create(agent=agent.id, environment_id=environment)
    queue = quiet.beta.environments.work
    assert queue.poll(environment) is None
    quiet.beta.sessions.events.send(session.id, events=[said("do it")])
    assert queue.stats(environment).depth == 1
    work = queue.poll(environment, block_ms=900)
    assert (work.type, work.data.id, work.state) == ("work", session.id, "queued")
    assert queue.poll(environment) is None
    assert quiet.beta.sessions.retrieve(session.id).status == "running"
    assert queue.ack(work.id, environment_id=environment).state == "starting"

    def beat(last: str) -> Any:
        return queue.heartbeat(work.id, environment_id=environment, expected_last_heartbeat=last)

    first = beat("NO_HEARTBEAT")
    assert (first.lease_extended, first.state) == (True, "active")
    second = beat(first.last_heartbeat)
    with pytest.raises(anthropic.APIStatusError) as refused:
        beat(first.last_heartbeat)
    assert refused.value.status_code == 412
    details = refused.value.body["error"]["details"]
    assert details["error_code"] == "heartbeat_precondition_failed"
    assert details["current_state"]["last_heartbeat"] == second.last_heartbeat
    changed = queue.update(work.id, environment_id=environment, metadata={"a": "b"})
    assert changed.metadata == {"a": "b"}
    assert [each.id for each in queue.list(environment)] == [work.id]
    assert queue.stop(work.id, environment_id=environment).state == "stopped"
    assert beat("anything").lease_extended is False
    assert queue.retrieve(work.id, environment_id=environment).state == "stopped"
    again = queue.poll(environment, block_ms=900)
    assert again is None or again.id != work.id
    with pytest.raises(anthropic.NotFoundError):
        queue.retrieve("work_nothing", environment_id=environment)


def get(client: Any, path: str) -> Any:
    return client.get(f"/limpet/v1{path}", cast_to=object)


def post(client: Any, path: str, body: Any = None) -> Any:
    return client.post(f"/limpet/v1{path}", body=body or {}, cast_to=object)


def test_history_by_our_own_routes(client: Any, session: Any) -> None:
    """State now and then, diff, blame, checkpoints, fork, merge, rewind, events, traces."""
    one = f"/sessions/{session.id}"
    until_idle(client, session, said("hello"))
    before = get(client, f"{one}/state")
    made = post(client, f"{one}/checkpoints")
    client.beta.sessions.update(session.id, title="new")
    assert get(client, f"{one}/state")["state"]["managed"]["title"] == "new"
    then = get(client, f"{one}/state?at={before['version']}")
    assert then["state"]["managed"]["title"] is None
    changes = get(client, f"{one}/diff?from={before['version']}")["changes"]
    assert "title" in str(changes)
    (_, first) = get(client, f"{one}/blame?path=managed")["data"][:2]
    assert first["event"]["type"] == "session.created"
    forked = post(client, f"{one}/fork")
    assert forked["id"] != session.id
    client.beta.sessions.update(forked["id"], title="theirs")
    merged = post(client, f"{one}/merge", {"session_id": forked["id"]})
    assert merged["session"]["title"] == "theirs"
    assert get(client, f"{one}/checkpoints")["data"][0]["ref"]["number"] == made["number"]
    post(client, f"{one}/checkpoints/{made['number']}/restore")
    assert client.beta.sessions.retrieve(session.id).title is None
    post(client, f"{one}/rewind", {"to": before["version"]})
    wakes = get(client, f"{one}/traces")["data"]
    trace = get(client, f"{one}/traces/{wakes[0]['data']['span_id']}")
    assert trace
    seqs, page = [], get(client, f"{one}/events?limit=3")
    while True:
        seqs += [each["seq"] for each in page["data"]]
        if page["next_page"] is None:
            break
        page = get(client, f"{one}/events?limit=3&page={page['next_page']}")
    assert seqs == list(range(1, len(seqs) + 1))
    with pytest.raises(anthropic.BadRequestError):
        get(client, f"{one}/diff")
    with pytest.raises(anthropic.BadRequestError):
        get(client, f"{one}/state?at=99999")


def test_the_life_of_a_session_by_our_own_routes(client: Any, agent: Any) -> None:
    """Suspended, resumed, completed; a step that is not allowed is 400 with its code."""
    session = client.beta.sessions.create(agent=agent.id, environment_id="env_default")
    one = f"/sessions/{session.id}"
    assert post(client, f"{one}/suspend", {"reason": "lunch"})["phase"] == "suspended"
    assert post(client, f"{one}/resume")["phase"] == "active"
    done = post(client, f"{one}/complete", {"output": {"a": 1}})
    assert (done["phase"], done["session"]["status"]) == ("completed", "terminated")
    with pytest.raises(anthropic.BadRequestError) as refused:
        post(client, f"{one}/suspend")
    code = refused.value.body["error"]["details"]["error_code"]
    assert code == "session.invalid_transition"


def test_a_session_travels_in_a_file(client: Any, quiet: Any, session: Any) -> None:
    """Exported from one server, imported by another: the same events."""
    until_idle(client, session, said("hello"))
    with urllib.request.urlopen(
        f"{str(client.base_url).rstrip('/')}/limpet/v1/sessions/{session.id}/export"
    ) as response:
        file = response.read()
    request = urllib.request.Request(
        f"{str(quiet.base_url).rstrip('/')}/limpet/v1/import", data=file, method="POST"
    )
    with urllib.request.urlopen(request) as response:
        assert session.id in response.read().decode()
    here = [each.id for each in client.beta.sessions.events.list(session.id)]
    assert [each.id for each in quiet.beta.sessions.events.list(session.id)] == here


def test_over_all_sessions(client: Any, session: Any) -> None:
    """What waits for an answer, what failed for good, and who was let do what."""
    until_idle(client, session, said("refund"))
    waiting = get(client, "/inbox?limit=1000")["data"]
    assert session.id in [each["session_id"] for each in waiting]
    assert "data" in get(client, "/dead_letters")
    post(client, f"/sessions/{session.id}/terminate")
    actions = [each["action"] for each in get(client, "/audit?limit=1000")["data"]]
    assert "lifecycle" in actions


def test_what_is_not_an_exported_session_is_not_imported(client: Any) -> None:
    """It is refused, and the client does not send it again."""
    with pytest.raises(anthropic.APIStatusError) as refused:
        client.post("/limpet/v1/import", body={"a": 1}, cast_to=object)
    assert refused.value.status_code == 400

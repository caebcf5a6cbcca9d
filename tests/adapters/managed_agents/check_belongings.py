"""What belongs to a session or a user, by the official client: resources, threads, vaults, files,
memory stores; models and skills."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from tests.adapters.managed_agents.check_events import said, until_idle

anthropic = pytest.importorskip("anthropic")

SENT, RECEIVED = "agent.thread_message_sent", "agent.thread_message_received"


def test_files(client: Any) -> None:
    """What was uploaded is downloaded, byte by byte, whatever it holds."""
    data = bytes(range(256)) * 300 + b"\r\n--x\r\n\r\n"
    made = client.beta.files.upload(file=("a b.bin", data, "application/x-test"))
    assert (made.filename, made.mime_type, made.size_bytes) == (
        "a b.bin",
        "application/x-test",
        len(data),
    )
    assert client.beta.files.download(made.id).read() == data
    assert client.beta.files.retrieve_metadata(made.id).id == made.id
    more = client.beta.files.upload(file=("empty.txt", b"", "text/plain"))
    listed = [each.id for each in client.beta.files.list(limit=1)]
    assert [each for each in listed if each in (made.id, more.id)] == [made.id, more.id]
    assert client.beta.files.download(more.id).read() == b""
    for name in ('a "b".txt', "a\\b.txt", "ü 日本.txt"):
        assert client.beta.files.upload(file=(name, b"x", "text/plain")).filename == name
    assert client.beta.files.delete(made.id).type == "file_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.beta.files.download(made.id)


def test_resources_of_a_session(client: Any, agent: Any) -> None:
    """Given with it, added, listed, read and taken away; a token is never shown."""
    repository = {
        "type": "github_repository",
        "url": "https://github.com/o/r.git",
        "authorization_token": "ghp_secret",
    }
    session = client.beta.sessions.create(
        agent=agent.id, environment_id="env_default", resources=[repository]
    )
    (given,) = session.resources
    assert given.mount_path == "/workspace/r"
    assert "ghp_secret" not in session.to_json()
    resources = client.beta.sessions.resources
    file = client.beta.files.upload(file=("x", b"x", "text/plain")).id
    added = resources.add(session.id, type="file", file_id=file, mount_path="/data/x")
    assert [each.id for each in resources.list(session.id)] == [given.id, added.id]
    assert resources.retrieve(added.id, session_id=session.id).mount_path == "/data/x"
    updated = resources.update(given.id, session_id=session.id, authorization_token="new")
    assert updated.id == given.id
    gone = resources.delete(added.id, session_id=session.id)
    assert gone.type == "session_resource_deleted"
    with pytest.raises(anthropic.NotFoundError):
        resources.delete(added.id, session_id=session.id)
    assert [each.id for each in client.beta.sessions.retrieve(session.id).resources] == [given.id]


def test_a_memory_store_of_a_session_is_shown_as_it_was(client: Any, agent: Any) -> None:
    """With its name, description and place at that time; an archived one is refused."""
    store = client.beta.memory_stores.create(name="notes", description="what she likes")
    given = {"type": "memory_store", "memory_store_id": store.id, "access": "read_only"}
    session = client.beta.sessions.create(
        agent=agent.id, environment_id="env_default", resources=[given]
    )
    client.beta.memory_stores.update(store.id, name="renamed")
    (shown,) = client.beta.sessions.retrieve(session.id).resources
    assert (shown.name, shown.description, shown.access) == (
        "notes",
        "what she likes",
        "read_only",
    )
    assert shown.mount_path == f"/mnt/memory/{store.id}"
    client.beta.memory_stores.archive(store.id)
    with pytest.raises(anthropic.BadRequestError, match="archived"):
        client.beta.sessions.create(agent=agent.id, environment_id="env_default", resources=[given])


def test_the_first_thread_is_the_session(client: Any, session: Any) -> None:
    """It is listed, read, and has the events of the session."""
    (thread,) = client.beta.sessions.threads.list(session.id)
    assert (thread.id[:5], thread.session_id, thread.status) == ("sthr_", session.id, "idle")
    assert client.beta.sessions.threads.retrieve(thread.id, session_id=session.id).id == thread.id
    message = {"type": "user.message", "content": [{"type": "text", "text": "refund"}]}
    (sent,) = client.beta.sessions.events.send(session.id, events=[message]).data
    events = client.beta.sessions.threads.events.list(thread.id, session_id=session.id)
    assert next(iter(events)).id == sent.id
    with pytest.raises(anthropic.NotFoundError):
        client.beta.sessions.threads.retrieve("sthr_.ZGVmYXVsdApub25l", session_id=session.id)


def test_a_child_of_a_turn_is_a_thread(client: Any, session: Any) -> None:
    """It is listed after the session itself, and its events are read and streamed."""
    seen = until_idle(client, session, said("delegate"))
    assert seen[-1].stop_reason.type == "end_turn"
    first, child = client.beta.sessions.threads.list(session.id)
    assert (first.parent_thread_id, child.parent_thread_id) == (None, first.id)
    events = client.beta.sessions.threads.events.list(child.id, session_id=session.id)
    texts = [each.content[0].text for each in events if each.type == "agent.message"]
    assert texts == ["echo hello child"]


def test_threads_show_the_messages_between_them(client: Any, session: Any) -> None:
    """The task of a child and its output: sent in one thread, received in the other, and named by
    the other's id. Only the first thread's agent has no name."""
    seen = until_idle(client, session, said("delegate"))
    first, child = client.beta.sessions.threads.list(session.id)
    sent = next(each for each in seen if each.type == SENT)
    assert (sent.to_session_thread_id, text_of(sent)) == (child.id, "hello child")
    received = next(each for each in seen if each.type == RECEIVED)
    assert (received.from_session_thread_id, text_of(received)) == (child.id, "echo hello child")
    assert sent.to_agent_name == received.from_agent_name is not None
    events = list(client.beta.sessions.threads.events.list(child.id, session_id=session.id))
    task, output = [each for each in events if each.type in (SENT, RECEIVED)]
    assert (task.type, output.type) == (RECEIVED, SENT)
    assert (task.from_session_thread_id, text_of(task)) == (first.id, "hello child")
    assert (output.to_session_thread_id, text_of(output)) == (first.id, "echo hello child")
    assert task.from_agent_name is output.to_agent_name is None
    assert "user.message" not in [each.type for each in events]


def text_of(message: Any) -> str:
    assert message.processed_at is not None
    return str(message.content[0].text)


def test_an_approval_in_a_thread_is_answered_through_the_session(client: Any, session: Any) -> None:
    """The event that asks is in the thread; the answer needs nothing but its id."""
    sessions = client.beta.sessions
    sessions.events.send(session.id, events=[said("delegate to refund")])
    thread = next(each for each in threads_of(client, session) if each.parent_thread_id)
    with sessions.threads.events.stream(thread.id, session_id=session.id) as stream:
        read = list(sessions.threads.events.list(thread.id, session_id=session.id))
        use = next(each for each in chain(read, stream) if each.type == "agent.tool_use")
    answer = {"type": "user.tool_confirmation", "tool_use_id": use.id, "result": "allow"}
    with sessions.events.stream(session.id) as stream:
        (sent,) = sessions.events.send(session.id, events=[answer]).data
        assert sent.session_thread_id == thread.id
        said_ = next(each for each in stream if each.type == "agent.message")
    assert "refunded" in said_.content[0].text


def threads_of(client: Any, session: Any) -> list[Any]:
    """The threads of a session once it has delegated something."""
    with client.beta.sessions.events.stream(session.id) as stream:
        read = list(client.beta.sessions.events.list(session.id))
        next(each for each in chain(read, stream) if each.type == SENT)
    return list(client.beta.sessions.threads.list(session.id))


def test_vaults_never_show_a_secret(client: Any) -> None:
    """Credentials are created, changed, listed, archived and deleted without it."""
    vault = client.beta.vaults.create(display_name="mine", metadata={"a": "b"})
    assert client.beta.vaults.update(vault.id, display_name="ours").display_name == "ours"
    credentials = client.beta.vaults.credentials
    auth = {"type": "static_bearer", "token": "s3cret", "mcp_server_url": "https://x.test/mcp"}
    made = credentials.create(vault.id, auth=auth, display_name="x")
    assert made.auth.mcp_server_url == "https://x.test/mcp"
    changed = credentials.update(
        made.id, vault_id=vault.id, auth={"type": "static_bearer", "token": "s4cret"}
    )
    read = credentials.retrieve(made.id, vault_id=vault.id)
    (listed,) = credentials.list(vault.id)
    for each in (made, changed, read, listed):
        assert each.id == made.id
        assert "cret" not in each.to_json().replace("secret", "")
    with pytest.raises(anthropic.BadRequestError):
        credentials.update(
            made.id, vault_id=vault.id, auth={"type": "mcp_oauth", "access_token": "t"}
        )
    assert credentials.archive(made.id, vault_id=vault.id).archived_at is not None
    assert not list(credentials.list(vault.id))
    assert credentials.delete(made.id, vault_id=vault.id).type == "vault_credential_deleted"
    assert client.beta.vaults.archive(vault.id).archived_at is not None
    assert vault.id in [each.id for each in client.beta.vaults.list(include_archived=True)]
    assert client.beta.vaults.delete(vault.id).type == "vault_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.beta.vaults.retrieve(vault.id)


def test_a_secret_of_the_environment_names_where_it_is_put(client: Any) -> None:
    """In the body and in headers, unless the client says otherwise."""
    vault = client.beta.vaults.create(display_name="mine")
    auth = {"type": "environment_variable", "secret_name": "TOKEN", "secret_value": "s3cret"}
    auth |= {"networking": {"type": "unrestricted"}}
    credentials = client.beta.vaults.credentials
    made = credentials.create(vault.id, auth=auth)
    shown = made.auth.injection_location
    assert (made.auth.secret_name, shown.body, shown.header) == ("TOKEN", True, True)
    auth |= {"secret_name": "OTHER", "injection_location": {"body": False}}
    shown = credentials.create(vault.id, auth=auth).auth.injection_location
    assert (shown.body, shown.header) == (False, True)
    assert "s3cret" not in made.to_json()


def test_memory_stores(client: Any) -> None:
    """One memory for each path; a precondition that fails is a conflict which is not repeated;
    versions stay after a deletion."""
    store = client.beta.memory_stores.create(name="notes", description="d")
    assert client.beta.memory_stores.update(store.id, description="e").description == "e"
    memories = client.beta.memory_stores.memories
    made = memories.create(store.id, path="/a/one", content="1")
    memories.create(store.id, path="/a/b/two", content="2")
    memories.create(store.id, path="/three", content="3")
    with pytest.raises(anthropic.ConflictError) as taken:
        memories.create(store.id, path="/three", content="x")
    assert taken.value.response.headers["x-should-retry"] == "false"
    assert taken.value.body["error"]["type"] == "memory_path_conflict_error"
    assert taken.value.body["error"]["details"]["conflicting_path"] == "/three"
    assert [each.path for each in memories.list(store.id, limit=1)] == [
        "/a/b/two",
        "/a/one",
        "/three",
    ]
    assert [each.path for each in memories.list(store.id, path_prefix="/a/", depth=1)] == [
        "/a/b/",
        "/a/one",
    ]
    wrong = {"type": "content_sha256", "content_sha256": "0" * 64}
    with pytest.raises(anthropic.ConflictError) as refused:
        memories.update(made.id, memory_store_id=store.id, content="x", precondition=wrong)
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert refused.value.body["error"]["type"] == "memory_precondition_failed_error"
    right = {**wrong, "content_sha256": made.content_sha256}
    changed = memories.update(
        made.id, memory_store_id=store.id, content="11", path="/a/uno", precondition=right
    )
    assert (changed.content, changed.path) == ("11", "/a/uno")
    memories.create(store.id, path="/a/one", content="free again")
    assert memories.retrieve(made.id, memory_store_id=store.id).content == "11"
    with pytest.raises(anthropic.ConflictError):
        memories.delete(made.id, memory_store_id=store.id, expected_content_sha256="0" * 64)
    assert memories.delete(made.id, memory_store_id=store.id).type == "memory_deleted"
    versions = client.beta.memory_stores.memory_versions
    found = list(versions.list(store.id, memory_id=made.id, limit=1))
    assert [each.operation for each in found] == ["deleted", "modified", "created"]
    assert versions.retrieve(found[2].id, memory_store_id=store.id).content == "1"
    assert client.beta.memory_stores.archive(store.id).archived_at is not None
    with pytest.raises(anthropic.BadRequestError):
        memories.create(store.id, path="/late", content="x")
    assert store.id not in [each.id for each in client.beta.memory_stores.list()]
    assert client.beta.memory_stores.delete(store.id).type == "memory_store_deleted"


def test_a_version_of_a_memory_is_redacted(client: Any) -> None:
    """Its path and content are gone for good, who wrote it and when stays; the others are as they
    were. The current version of a memory is not redacted."""
    store = client.beta.memory_stores.create(name="notes")
    memories = client.beta.memory_stores.memories
    versions = client.beta.memory_stores.memory_versions
    made = memories.create(store.id, path="/card", content="4242 4242")
    with pytest.raises(anthropic.BadRequestError, match="current version"):
        versions.redact(made.memory_version_id, memory_store_id=store.id)
    memories.update(made.id, memory_store_id=store.id, content="gone")
    for _ in range(2):  # the second time nothing changes
        redacted = versions.redact(made.memory_version_id, memory_store_id=store.id)
        assert (redacted.operation, redacted.redacted_at is None) == ("created", False)
        assert (redacted.path, redacted.content, redacted.content_sha256) == (None, None, None)
    read = versions.retrieve(made.memory_version_id, memory_store_id=store.id)
    assert (read.content, read.redacted_at) == (None, redacted.redacted_at)
    assert read.created_by == redacted.created_by is not None
    assert memories.retrieve(made.id, memory_store_id=store.id).content == "gone"
    memories.delete(made.id, memory_store_id=store.id)
    deletion, last, first = versions.list(store.id, memory_id=made.id, view="full")
    shown = [(each.operation, each.path, each.content) for each in (deletion, last, first)]
    assert shown == [
        ("deleted", "/card", None),
        ("modified", "/card", "gone"),
        ("created", None, None),
    ]
    assert versions.redact(last.id, memory_store_id=store.id).redacted_at is not None
    with pytest.raises(anthropic.NotFoundError):
        versions.redact("memver_nonev1", memory_store_id=store.id)


def test_models_and_skills_are_those_of_the_agents(client: Any) -> None:
    """Read only."""
    skill = {"type": "custom", "skill_id": "skill_x", "version": "2"}
    client.beta.agents.create(name="a", model="claude-special", skills=[skill])
    assert "claude-special" in [each.id for each in client.beta.models.list()]
    assert client.beta.models.retrieve("claude-special").type == "model"
    assert "skill_x" in [each.id for each in client.beta.skills.list()]
    xlsx = {"type": "anthropic", "skill_id": "xlsx"}
    assert (
        client.beta.agents.create(name="b", model="m", skills=[xlsx]).skills[0].version == "latest"
    )
    with pytest.raises(anthropic.NotFoundError):
        client.beta.models.retrieve("no-such-model")

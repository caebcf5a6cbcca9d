"""Agents, environments and sessions by the official client."""

from __future__ import annotations

from typing import Any

import pytest

anthropic = pytest.importorskip("anthropic")


def test_an_agent_has_versions(client: Any) -> None:
    """Each update makes a version; an old one can be read; a wrong version is a conflict."""
    agent = client.beta.agents.create(
        name="support",
        model={"id": "claude-opus-5"},
        tools=[{"type": "agent_toolset_20260401"}],
        metadata={"team": "a", "tier": "1"},
    )
    assert (agent.id[:6], agent.type, agent.version) == ("agent_", "agent", 1)
    assert agent.tools[0].default_config.permission_policy.type == "always_allow"
    second = client.beta.agents.update(
        agent.id, version=1, system="Be brief.", metadata={"tier": None}
    )
    assert (second.version, second.system, second.metadata) == (2, "Be brief.", {"team": "a"})
    same = client.beta.agents.update(agent.id, system="Be brief.")
    assert same.version == 2
    assert client.beta.agents.retrieve(agent.id, version=1).system is None
    assert client.beta.agents.retrieve(agent.id).version == 2
    with pytest.raises(anthropic.ConflictError) as refused:
        client.beta.agents.update(agent.id, version=1, name="other")
    assert refused.value.body["error"]["details"]["error_code"] == "document.conflict"
    third = client.beta.agents.update(agent.id, version=2, name="third")
    versions = [each.version for each in client.beta.agents.versions.list(agent.id, limit=1)]
    assert versions == [third.version, 2, 1]
    archived = client.beta.agents.archive(agent.id)
    assert archived.archived_at is not None
    assert archived.version == 3
    assert [each.version for each in client.beta.agents.versions.list(agent.id)] == [3, 2, 1]
    with pytest.raises(anthropic.BadRequestError):
        client.beta.agents.update(agent.id, name="x")
    with pytest.raises(anthropic.BadRequestError):
        client.beta.sessions.create(agent=agent.id, environment_id="env_default")


def test_a_coordinator_names_its_agents(client: Any, agent: Any) -> None:
    """Each by its id and version; a session has them as they are; others are refused."""
    agents, one = client.beta.agents, agent.id
    client.beta.agents.update(one, system="Be curt.")
    second = agents.create(name="second", model="m")
    roster = [one, {"type": "agent", "id": second.id, "version": 1}, {"type": "self"}]
    made = agents.create(name="c", model="m", multiagent={"type": "coordinator", "agents": roster})

    def named(coordinator: Any) -> list[tuple[str, int]]:
        return [(each.id, each.version) for each in coordinator.multiagent.agents]

    assert named(made) == [(one, 2), (second.id, 1), (made.id, 1)]
    assert named(agents.update(made.id, description="d"))[2] == (made.id, 2)
    session = client.beta.sessions.create(
        agent={"type": "agent", "id": made.id, "version": 1}, environment_id="env_default"
    )
    assert [each.name for each in session.agent.multiagent.agents] == [agent.name, "second", "c"]
    assert session.agent.multiagent.agents[0].system == "Be curt."
    client.beta.agents.archive(second.id)
    wrong = [[], [one, one], [made.id], [second.id], ["agent_none"], [5], [{"type": "agent"}]]
    for each in wrong:
        with pytest.raises((anthropic.BadRequestError, anthropic.NotFoundError)):
            agents.update(made.id, multiagent={"type": "coordinator", "agents": each})
    assert agents.retrieve(made.id).version == 2


@pytest.mark.parametrize(
    "given",
    [
        {"tools": [{"type": "custom"}]},
        {"tools": [{"name": "no type"}]},
        {"tools": [{"type": "custom", "name": "x", "input_schema": "no"}]},
        {"tools": [{"type": "mcp_toolset"}]},
        {"tools": [{"type": "agent_toolset_20260401", "default_config": {"permission_policy": 1}}]},
        {
            "tools": [
                {
                    "type": "mcp_toolset",
                    "mcp_server_name": "a",
                    "configs": [{"name": "x", "permission_policy": {"type": "never"}}],
                }
            ]
        },
        {"skills": [{"type": "custom"}]},
        {"mcp_servers": [{"name": "a"}]},
    ],
    ids=str,
)
def test_a_malformed_tool_skill_or_server_is_refused(client: Any, given: Any) -> None:
    """400, where the agent is made and not where it runs."""
    with pytest.raises(anthropic.BadRequestError):
        client.beta.agents.create(name="a", model="m", extra_body=given)


def test_agents_are_listed_page_by_page(client: Any) -> None:
    """Every agent once, archived ones only if they are asked for."""
    made = [client.beta.agents.create(name=f"n{n}", model="m") for n in range(5)]
    client.beta.agents.archive(made[1].id)
    listed = [each.id for each in client.beta.agents.list(limit=2)]
    assert [each for each in listed if each in {m.id for m in made}] == [
        each.id for each in made if each.id != made[1].id
    ]
    assert len(set(listed)) == len(listed)
    every = [each.id for each in client.beta.agents.list(limit=2, include_archived=True)]
    assert made[1].id in every


def test_environments(client: Any) -> None:
    """Created, read, changed, listed, archived and deleted; one is always there."""
    assert client.beta.environments.retrieve("env_default").config.type == "self_hosted"
    made = client.beta.environments.create(
        name="lab", config={"type": "cloud"}, metadata={"a": "b"}
    )
    assert made.config.networking.type == "unrestricted"
    assert made.config.packages.npm == []
    config = {
        "type": "cloud",
        "networking": {"type": "limited", "allowed_hosts": ["pypi.example"]},
        "packages": {"type": "packages", "pip": ["numpy"]},
    }
    limited = client.beta.environments.create(name="limited", config=config).config
    assert limited.networking.allowed_hosts == ["pypi.example"]
    assert limited.networking.allow_package_managers is False
    assert (limited.packages.pip, limited.packages.apt) == (["numpy"], [])
    changed = client.beta.environments.update(made.id, name="lab 2", metadata={"a": None})
    assert (changed.name, changed.metadata) == ("lab 2", {})
    pages = [page.data for page in client.beta.environments.list(limit=1).iter_pages()]
    assert max(len(data) for data in pages) == 1
    listed = [each.id for data in pages for each in data]
    assert listed[0] == "env_default"
    assert made.id in listed
    assert len({*listed}) == len(listed)
    assert client.beta.environments.archive(made.id).archived_at is not None
    assert made.id not in [each.id for each in client.beta.environments.list()]
    assert client.beta.environments.delete(made.id).type == "environment_deleted"
    with pytest.raises(anthropic.NotFoundError):
        client.beta.environments.retrieve(made.id)


def test_a_session_is_created_changed_archived_and_deleted(client: Any, agent: Any) -> None:
    """Its agent is a snapshot; metadata is patched; archived ones are listed on request."""
    session = client.beta.sessions.create(
        agent={"type": "agent", "id": agent.id, "version": 1},
        environment_id="env_default",
        title="first",
        metadata={"a": "1", "b": "2"},
    )
    assert (session.id[:5], session.type, session.status) == ("sesn_", "session", "idle")
    assert (session.agent.id, session.agent.version) == (agent.id, 1)
    client.beta.agents.update(agent.id, system="Be curt.")
    again = client.beta.sessions.retrieve(session.id)
    assert again.agent.system == "Be kind."
    changed = client.beta.sessions.update(session.id, title="second", metadata={"a": None})
    assert (changed.title, changed.metadata) == ("second", {"b": "2"})
    assert client.beta.sessions.archive(session.id).archived_at is not None
    assert client.beta.sessions.archive(session.id).archived_at is not None
    mine = client.beta.sessions.list(agent_id=agent.id)
    assert session.id not in [each.id for each in mine]
    every = client.beta.sessions.list(agent_id=agent.id, include_archived=True)
    assert [each.id for each in every] == [session.id]
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.beta.sessions.events.send(session.id, events=[said("late")])
    assert refused.value.body["error"]["details"]["error_code"].startswith("session.")
    assert client.beta.sessions.delete(session.id).type == "session_deleted"
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.beta.sessions.retrieve(session.id)
    assert missing.value.body["error"]["type"] == "not_found_error"
    assert missing.value.body["request_id"].startswith("req_")


def said(text: str) -> Any:
    return {"type": "user.message", "content": [{"type": "text", "text": text}]}


def test_sessions_are_listed_page_by_page(client: Any, agent: Any) -> None:
    """In both orders, filtered by agent and status, each once."""
    made = [
        client.beta.sessions.create(agent=agent.id, environment_id="env_default").id
        for _ in range(5)
    ]
    newest = [each.id for each in client.beta.sessions.list(agent_id=agent.id, limit=2)]
    assert newest == made[::-1]
    oldest = client.beta.sessions.list(agent_id=agent.id, limit=2, order="asc")
    assert [each.id for each in oldest] == made
    idle = client.beta.sessions.list(agent_id=agent.id, statuses=["idle"])
    assert len(list(idle)) == 5
    assert not list(client.beta.sessions.list(agent_id=agent.id, statuses=["terminated"]))
    after = client.beta.sessions.retrieve(made[2]).created_at
    later = client.beta.sessions.list(agent_id=agent.id, created_at_gt=after)
    assert [each.id for each in later] == made[:2:-1]


def test_a_list_of_sessions_is_read_backwards(client: Any, agent: Any) -> None:
    """`prev_page` leads to the page before, as far as the first, which has none."""
    for _ in range(5):
        client.beta.sessions.create(agent=agent.id, environment_id="env_default")

    def read(page: str | None) -> Any:
        query = {} if page is None else {"page": page}
        return client.beta.sessions.list(agent_id=agent.id, limit=2, extra_query=query)

    pages = [read(None)]
    while pages[-1].next_page:
        pages.append(read(pages[-1].next_page))
    shown = [[each.id for each in page.data] for page in pages]
    assert [len(each) for each in shown] == [2, 2, 1]
    back = [pages[-1]]
    while back[-1].prev_page:
        back.append(read(back[-1].prev_page))
    assert [[each.id for each in page.data] for page in back] == shown[::-1]
    assert [each.id for each in back[-1]] == [id for page in shown for id in page]  # and forward
    for wrong in ("zzz", "eJyLVtJRUIoFAAi-AeY"):
        with pytest.raises(anthropic.BadRequestError):
            read(wrong)


@pytest.mark.parametrize(
    "id", ["sesn_nothing", "sesn_.!!", "other_1", "sesn_." + "QQ" * 300, "sesn_%00"]
)
def test_what_is_missing_is_404_or_400(client: Any, id: str) -> None:
    """An id of another form is refused, never a failure of the server."""
    with pytest.raises((anthropic.NotFoundError, anthropic.BadRequestError)):
        client.beta.sessions.retrieve(id)


def test_what_is_not_offered_is_404_in_the_form_of_the_wire(client: Any) -> None:
    """Not a 5xx, which the client would repeat."""
    with pytest.raises(anthropic.NotFoundError) as missing:
        client.get("/v1/deployments", cast_to=object)
    assert missing.value.body["error"]["details"]["error_code"] == "request.no_route"


def test_tools_of_a_session_are_checked_and_filled_in(client: Any, session: Any) -> None:
    """What a session has in the place of its agent's tools is as an agent's would be."""
    sessions = client.beta.sessions
    tools = [{"type": "agent_toolset_20260401", "configs": [{"name": "bash", "enabled": False}]}]
    (tool,) = sessions.update(session.id, agent={"tools": tools}).agent.tools
    assert tool.default_config.permission_policy.type == "always_allow"
    assert [(each.name, each.enabled) for each in tool.configs] == [("bash", False)]
    with pytest.raises(anthropic.BadRequestError, match="tools"):
        sessions.update(session.id, extra_body={"agent": {"tools": 5}})
    assert len(sessions.retrieve(session.id).agent.tools) == 1


def test_filters_of_a_list_are_never_passed_over(client: Any, session: Any) -> None:
    """A status that there is not is refused; no session here was made by a deployment."""
    sessions = client.beta.sessions
    with pytest.raises(anthropic.BadRequestError, match="statuses"):
        list(sessions.list(statuses=["bogus"]))
    assert session.id in [each.id for each in sessions.list(statuses=["idle"], limit=100)]
    assert not list(sessions.list(extra_query={"deployment_id": "depl_x"}))


def test_a_wrong_body_is_refused_with_a_reason(client: Any) -> None:
    """The message names what is wrong."""
    with pytest.raises(anthropic.BadRequestError, match="name"):
        client.post("/v1/agents", body={"model": "m"}, cast_to=object)
    with pytest.raises(anthropic.BadRequestError, match="metadata"):
        client.beta.agents.create(name="n", model="m", metadata={"k" * 65: "v"})

"""Agents with their versions, and environments: documents of the app."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType
from starlette.routing import BaseRoute

from limpet.errors import DocumentConflict, DocumentNotFound, InvalidInput
from limpet.server.forms import PageForm
from limpet.server.managed import shelf
from limpet.server.managed.forms import AgentForm, DeletedForm, EnvironmentForm
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint, page, place_in, to_token
from limpet.server.openapi import describe
from limpet.server.service import Service
from limpet.session.documents import Document

AGENTS: Final = "agents"
ENVIRONMENTS: Final = "environments"
DEFAULT_ENVIRONMENT: Final = "env_default"  # there without being created
_ALLOW: Final = {"type": "always_allow"}
_SYSTEM_CHARS_MAX: Final = 100_000
_START: Final = "1970-01-01T00:00:00Z"
_ROSTER_MAX: Final = 20  # agents that a coordinator names
_POLICIES: Final = ("always_allow", "always_ask", "auto")
_SKILLS: Final = ("anthropic", "custom")
_NAMES: Final = {"custom": "name", "mcp_toolset": "mcp_server_name"}  # that a tool has to have
# Defaults that an answer shows where the client gave nothing.
SERVICE_ACCOUNT: Final = {"type": "service_account"}
_LATEST: Final = {"version": "latest"}  # of a skill
_MANAGERS: Final = ("apt", "cargo", "gem", "go", "npm", "pip")
_PACKAGES: Final[Json] = {"type": "packages", **{name: [] for name in _MANAGERS}}
_LIMITED: Final[Json] = {
    "allow_mcp_servers": False,
    "allow_package_managers": False,
    "allowed_hosts": [],
}


class AgentCreate(msgspec.Struct):
    """The body of agents.create."""

    model: str | dict[str, Any]
    name: str
    description: str | None = None
    system: str | None = None
    tools: list[dict[str, Any]] = []
    mcp_servers: list[dict[str, Any]] = []
    skills: list[dict[str, Any]] = []
    metadata: dict[str, str] = {}
    multiagent: dict[str, Any] | None = None
    execution_identity: dict[str, Any] | None = None


class AgentUpdate(msgspec.Struct):
    """The body of agents.update: what is not given stays."""

    version: int | None = None
    model: str | dict[str, Any] | UnsetType = UNSET
    name: str | UnsetType = UNSET
    description: str | UnsetType | None = UNSET
    system: str | UnsetType | None = UNSET
    tools: list[dict[str, Any]] | UnsetType | None = UNSET
    mcp_servers: list[dict[str, Any]] | UnsetType | None = UNSET
    skills: list[dict[str, Any]] | UnsetType | None = UNSET
    metadata: dict[str, str | None] | UnsetType | None = UNSET
    multiagent: dict[str, Any] | UnsetType | None = UNSET
    execution_identity: dict[str, Any] | UnsetType | None = UNSET


class EnvironmentCreate(msgspec.Struct):
    """The body of environments.create."""

    name: str
    config: dict[str, Any] | None = None
    description: str | None = None
    metadata: dict[str, str] = {}
    scope: str | None = None


class EnvironmentUpdate(msgspec.Struct):
    """The body of environments.update."""

    name: str | UnsetType | None = UNSET
    config: dict[str, Any] | UnsetType | None = UNSET
    description: str | UnsetType | None = UNSET
    metadata: dict[str, str | None] | UnsetType = UNSET
    scope: str | UnsetType | None = UNSET


def routes(service: Service) -> list[BaseRoute]:
    def at(method: str, path: str, act: Any) -> BaseRoute:
        return endpoint(service, f"/v1{path}", method, act)

    return [
        at("POST", "/agents", create_agent),
        at("GET", "/agents", list_agents),
        at("GET", "/agents/{id}", retrieve_agent),
        at("POST", "/agents/{id}", update_agent),
        at("POST", "/agents/{id}/archive", archive_agent),
        at("GET", "/agents/{id}/versions", list_versions),
        at("POST", "/environments", create_environment),
        at("GET", "/environments", list_environments),
        at("GET", "/environments/{id}", retrieve_environment),
        at("POST", "/environments/{id}", update_environment),
        at("DELETE", "/environments/{id}", delete_environment),
        at("POST", "/environments/{id}/archive", archive_environment),
    ]


# --- agents ---------------------------------------------------------------------------------------


@describe(response=AgentForm)
async def create_agent(call: WireCall) -> Answer:
    body = await call.body(AgentCreate)
    value = checked_agent({**msgspec.to_builtins(body), "version": 1})
    value["multiagent"] = await _with_roster(call, value["multiagent"])
    return agent_form(await shelf.create(call, call.of_app(AGENTS), "agent_", value))


@describe(response=PageForm[AgentForm])
async def list_agents(call: WireCall) -> Answer:
    return await shelf.listed(call, call.of_app(AGENTS), agent_form)


@describe(response=AgentForm)
async def retrieve_agent(call: WireCall) -> Answer:
    version = call.number("version", 0, most=2**31)
    return agent_form(await find_agent(call, call.path("id"), version or None))


async def find_agent(call: WireCall, id: str, version: int | None) -> Document:
    """An agent in this version, or its newest one. Raises DocumentNotFound.

    A version of the agent is that of the document: only archiving makes one more, and it is last.
    """
    documents = call.of_app(AGENTS)
    document = await shelf.find(documents, id, version)
    if version is not None and document.value["version"] != version:
        raise DocumentNotFound(AGENTS, id, version)
    return document


@describe(response=AgentForm)
async def update_agent(call: WireCall) -> Answer:
    body, id = await call.body(AgentUpdate), call.path("id")
    given = {name: value for name, value in msgspec.to_builtins(body).items() if name != "version"}
    if given.get("multiagent") is not None:
        given["multiagent"] = await _with_roster(call, given["multiagent"])

    def changed(value: Json) -> Json | None:
        if body.version not in (None, value["version"]):
            raise DocumentConflict(AGENTS, id, body.version or 0, value["version"])
        new = {**value, **_without_nulls(given)}
        new["metadata"] = shelf.patched(value["metadata"], given.get("metadata"))
        if checked_agent(new) == value:
            return None
        return {**new, "version": value["version"] + 1}

    return agent_form(await shelf.change(call.of_app(AGENTS), id, changed))


def _without_nulls(given: Json) -> Json:
    """Null empties a list."""
    lists = ("tools", "mcp_servers", "skills")
    return {name: [] if value is None and name in lists else value for name, value in given.items()}


@describe(response=AgentForm)
async def archive_agent(call: WireCall) -> Answer:
    return agent_form(await shelf.archive(call, call.of_app(AGENTS), call.path("id")))


@describe(response=PageForm[AgentForm])
async def list_versions(call: WireCall) -> Answer:
    """The newest first."""
    id, limit, token = call.path("id"), call.limit(), call.text("page")
    before = None if token is None else place_in(token)
    documents = call.of_app(AGENTS)
    await shelf.find(documents, id)
    documents_of = await documents.history(id, limit=limit + 1, before=before)
    versions = {each.value["version"]: each for each in reversed(documents_of) if not each.deleted}
    items = [agent_form(versions[number]) for number in sorted(versions, reverse=True)]
    last = documents_of[-1].version if len(documents_of) > limit else 1
    shown = [each for each in items if each["version"] > last or last == 1]
    return page(shown, to_token(str(last + 1)) if last > 1 else None)


# --- the agents that a coordinator may call -------------------------------------------------------


async def _with_roster(call: WireCall, multiagent: Json | None) -> Json | None:
    """A coordinator with the version of each agent that it names. Raises DocumentNotFound,
    InvalidInput."""
    if multiagent is None or multiagent.get("type") != "coordinator":
        return multiagent
    named = multiagent.get("agents")
    if not isinstance(named, list) or not 0 < len(named) <= _ROSTER_MAX:
        raise InvalidInput(f"agents of a coordinator is a list of 1 to {_ROSTER_MAX} agents.")
    roster = [await _entry(call, each) for each in named]
    ids = [each.get("id", each["type"]) for each in roster]
    if len(set(ids)) < len(ids):
        raise InvalidInput("a coordinator names each of its agents once.")
    return {**multiagent, "agents": roster}


async def _entry(call: WireCall, named: object) -> Json:
    """One agent of a coordinator: a text is its id. Raises DocumentNotFound, InvalidInput."""
    given: object = {"type": "agent", "id": named} if isinstance(named, str) else named
    if isinstance(given, Mapping) and given.get("type") == "self":
        return {"type": "self"}  # it is named with its id and version where it is shown
    if isinstance(given, Mapping) and given.get("type") == "advisor":
        if not isinstance(given.get("id", ""), str):
            raise InvalidInput("the id of an advisor is a text.")
        return dict(given)
    id, version = agent_named(given)
    agent = agent_form(await find_agent(call, id, version))
    if agent["archived_at"] is not None or agent["multiagent"] is not None:
        raise InvalidInput(f"the agent {id} is archived, or a coordinator. Name another one.")
    return {"type": "agent", "id": id, "version": agent["version"]}


def agent_named(given: object) -> tuple[str, int | None]:
    """The id and version of an agent, as a client names it. Raises InvalidInput."""
    if isinstance(given, Mapping):
        id, version = given.get("id"), given.get("version")
        if isinstance(id, str) and (version is None or (type(version) is int and version > 0)):
            return id, version
    raise InvalidInput("an agent is named by its id, or by an object with its id and version.")


# --- what an agent looks like ---------------------------------------------------------------------


def agent_form(document: Document) -> Json:
    value = shelf.shown(document, "agent")
    value["tools"] = [tool_form(tool) for tool in value["tools"]]
    value["skills"] = [skill_form(skill) for skill in value["skills"]]
    value["execution_identity"] = value.get("execution_identity") or SERVICE_ACCOUNT
    multiagent = value["multiagent"]
    if multiagent is not None and multiagent.get("type") == "coordinator":
        own = {"type": "agent", "id": document.name, "version": value["version"]}
        roster = [own if each == {"type": "self"} else each for each in multiagent["agents"]]
        value["multiagent"] = {**multiagent, "agents": roster}
    return value


def tool_form(tool: Json) -> Json:
    """A tool with what is the default where nothing was given."""
    if tool.get("type") == "custom":
        return dict(tool)
    config: Json = {"enabled": True, "permission_policy": _ALLOW}
    config |= {k: v for k, v in (tool.get("default_config") or {}).items() if v is not None}
    configs = [{**config, **each} for each in tool.get("configs") or ()]
    if str(tool.get("type")).startswith("agent_toolset"):  # each of its tools is a type of its own
        configs = [{"type": each["name"], **each} if "name" in each else each for each in configs]
    return {**tool, "default_config": config, "configs": configs}


def skill_form(skill: Json) -> Json:
    """A skill with a version; without one it is the latest."""
    return {**_LATEST, **{name: value for name, value in skill.items() if value is not None}}


def checked_agent(value: Json) -> Json:
    """An agent, also with what a session overrides. Raises InvalidInput."""
    for name in ("tools", "mcp_servers", "skills"):
        items = value[name]
        if not isinstance(items, list) or not all([isinstance(each, Mapping) for each in items]):
            raise InvalidInput(f"{name} is a list of objects.")
    if not isinstance(value["system"], str | None):
        raise InvalidInput("system is a text.")
    model = value["model"]
    if isinstance(model, str):
        value["model"] = model = {"id": model}
    if not isinstance(model, Mapping) or not isinstance(model.get("id"), str) or not model["id"]:
        raise InvalidInput("model is the id of a model, or an object with its id.")
    shelf.check_name("name", value["name"])
    if len(value["system"] or "") > _SYSTEM_CHARS_MAX:
        raise InvalidInput(f"system has at most {_SYSTEM_CHARS_MAX:,} characters.")
    for tool in value["tools"]:
        _check_tool(tool)
    for skill in value["skills"]:
        if skill.get("type") not in _SKILLS or not isinstance(skill.get("skill_id"), str):
            raise InvalidInput("a skill has the type anthropic or custom, and a skill_id.")
    for server in value["mcp_servers"]:
        if not all([isinstance(server.get(name), str) for name in ("type", "name", "url")]):
            raise InvalidInput("an MCP server has a type (url), a name and a url.")
    shelf.check_metadata(value["metadata"])
    return value


def _check_tool(tool: Mapping[str, Any]) -> None:
    """Raise InvalidInput unless it is a toolset, or one tool with a name."""
    type = tool.get("type")
    if not isinstance(type, str):
        raise InvalidInput("a tool has a type: agent_toolset_20260401, mcp_toolset or custom.")
    needed = _NAMES.get(type)
    if needed is not None and not (isinstance(tool.get(needed), str) and tool[needed]):
        raise InvalidInput(f"a tool of the type {type} has a {needed}.")
    if type == "custom" and not isinstance(tool.get("input_schema"), Mapping | None):
        raise InvalidInput("input_schema of a custom tool is an object.")
    config, configs = tool.get("default_config"), tool.get("configs")
    if not isinstance(config, Mapping | None) or not isinstance(configs, list | None):
        raise InvalidInput("default_config of a tool is an object, and configs a list.")
    for each in ({} if config is None else config, *(configs or ())):
        if not isinstance(each, Mapping):
            raise InvalidInput("each of the configs of a tool is an object.")
        policy = each.get("permission_policy")
        if policy is None:
            continue
        if not isinstance(policy, Mapping) or policy.get("type") not in _POLICIES:
            known = ", ".join(_POLICIES)
            raise InvalidInput(f"permission_policy is an object whose type is one of {known}.")


# --- environments ---------------------------------------------------------------------------------


@describe(response=EnvironmentForm)
async def create_environment(call: WireCall) -> Answer:
    body = await call.body(EnvironmentCreate)
    value = _checked_environment(msgspec.to_builtins(body))
    document = await shelf.create(call, call.of_app(ENVIRONMENTS), "env_", value)
    return environment_form(document)


def _checked_environment(value: Json) -> Json:
    """Raise InvalidInput unless its name, configuration and metadata are as they should be."""
    shelf.check_name("name", value["name"])
    config = value["config"]
    if config is not None and config.get("type") not in ("cloud", "self_hosted"):
        raise InvalidInput("config of an environment has the type cloud or self_hosted.")
    for name in ("networking", "packages"):
        if config is not None and not isinstance(config.get(name), Mapping | None):
            raise InvalidInput(f"{name} of an environment is an object.")
    shelf.check_metadata(value["metadata"])
    return value


@describe(response=PageForm[EnvironmentForm])
async def list_environments(call: WireCall) -> Answer:
    first = (default_environment(),)
    return await shelf.listed(call, call.of_app(ENVIRONMENTS), environment_form, first=first)


async def find_environment(call: WireCall, id: str) -> Json:
    """Return an environment. Raises DocumentNotFound."""
    if id == DEFAULT_ENVIRONMENT:
        return default_environment()
    return environment_form(await shelf.find(call.of_app(ENVIRONMENTS), id))


@describe(response=EnvironmentForm)
async def retrieve_environment(call: WireCall) -> Answer:
    return await find_environment(call, call.path("id"))


@describe(response=EnvironmentForm)
async def update_environment(call: WireCall) -> Answer:
    given = msgspec.to_builtins(await call.body(EnvironmentUpdate))
    _check_changeable(call)
    if given.get("name", "") is None:
        del given["name"]

    def changed(value: Json) -> Json:
        metadata = shelf.patched(value["metadata"], given.get("metadata"))
        return _checked_environment({**value, **given, "metadata": metadata})

    id = call.path("id")
    return environment_form(await shelf.change(call.of_app(ENVIRONMENTS), id, changed))


@describe(response=DeletedForm)
async def delete_environment(call: WireCall) -> Answer:
    _check_changeable(call)
    return await shelf.remove(call.of_app(ENVIRONMENTS), call.path("id"), "environment_deleted")


@describe(response=EnvironmentForm)
async def archive_environment(call: WireCall) -> Answer:
    _check_changeable(call)
    return environment_form(await shelf.archive(call, call.of_app(ENVIRONMENTS), call.path("id")))


def _check_changeable(call: WireCall) -> None:
    if call.path("id") == DEFAULT_ENVIRONMENT:
        raise InvalidInput(f"{DEFAULT_ENVIRONMENT} is always there as it is. Create another one.")


def environment_form(document: Document) -> Json:
    return _with_config(shelf.shown(document, "environment"))


def default_environment() -> Json:
    """The one that is always there."""
    value: Json = {"id": DEFAULT_ENVIRONMENT, "type": "environment", "name": "default"}
    value |= {"description": None, "metadata": {}, "config": None, "scope": None}
    return _with_config({**value, "created_at": _START, "updated_at": _START, "archived_at": None})


def _with_config(value: Json) -> Json:
    config = value.get("config") or {"type": "self_hosted"}
    if config.get("type") != "cloud":
        return {**value, "config": config}
    networking = config.get("networking") or {"type": "unrestricted"}
    if networking.get("type") == "limited":
        networking = {**_LIMITED, **_given(networking)}
    packages = {**_PACKAGES, **_given(config.get("packages") or {})}
    return {**value, "config": {**config, "networking": networking, "packages": packages}}


def _given(value: Json) -> Json:
    return {name: each for name, each in value.items() if each is not None}

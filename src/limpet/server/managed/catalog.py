"""Models and skills, read only: those that the agents of the app name."""

from __future__ import annotations

from starlette.routing import BaseRoute

from limpet.errors import DocumentNotFound
from limpet.server.managed.agents import AGENTS, agent_form
from limpet.server.managed.forms import CatalogPageForm, ModelForm, SkillForm
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint
from limpet.server.openapi import describe
from limpet.server.service import Service


def routes(service: Service) -> list[BaseRoute]:
    return [
        endpoint(service, "/v1/models", "GET", list_models),
        endpoint(service, "/v1/models/{id}", "GET", retrieve_model),
        endpoint(service, "/v1/skills", "GET", list_skills),
        endpoint(service, "/v1/skills/{id}", "GET", retrieve_skill),
    ]


@describe(response=CatalogPageForm)
async def list_models(call: WireCall) -> Answer:
    return _page(list((await _models(call)).values()))


@describe(response=ModelForm)
async def retrieve_model(call: WireCall) -> Answer:
    return _named(await _models(call), "models", call.path("id"))


@describe(response=CatalogPageForm)
async def list_skills(call: WireCall) -> Answer:
    return _page(list((await _skills(call)).values()))


@describe(response=SkillForm)
async def retrieve_skill(call: WireCall) -> Answer:
    return _named(await _skills(call), "skills", call.path("id"))


def _named(known: dict[str, Json], kind: str, id: str) -> Json:
    if id not in known:
        raise DocumentNotFound(kind, id[:100])
    return known[id]


async def _agents(call: WireCall) -> list[Json]:
    return [agent_form(each) async for each in call.of_app(AGENTS).each()]


async def _models(call: WireCall) -> dict[str, Json]:
    models: dict[str, Json] = {}
    for agent in await _agents(call):
        id = agent["model"]["id"]
        form = {"id": id, "type": "model", "display_name": id, "lifecycle": "active"}
        models.setdefault(id, {**form, "created_at": agent["created_at"]})
    return models


async def _skills(call: WireCall) -> dict[str, Json]:
    skills: dict[str, Json] = {}
    for agent in await _agents(call):
        for skill in agent["skills"]:
            id = str(skill.get("skill_id"))
            form: Json = {"id": id, "type": "skill", "display_name": id}
            form |= {"source": {"type": skill.get("type", "custom")}}
            form |= {"latest_version_id": str(skill.get("version") or "latest")}
            form |= {"created_at": agent["created_at"], "updated_at": agent["updated_at"]}
            skills.setdefault(id, form)
    return skills


def _page(items: list[Json]) -> Json:
    edges = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {"data": items, "has_more": False, "next_page": None, **edges}

"""Models and skills, read only: those that the agents of the app name."""

from __future__ import annotations

from typing import Final

from starlette.routing import BaseRoute

from limpet.errors import DocumentNotFound, InvalidQuery
from limpet.server.managed.agents import AGENTS, agent_form
from limpet.server.managed.forms import CatalogPageForm, ModelForm, SkillForm
from limpet.server.managed.wire import Answer, Json, WireCall, endpoint, page
from limpet.server.openapi import describe
from limpet.server.service import Service

_ACTIVE: Final = "active"
_STAGES: Final = (_ACTIVE, "deprecated", "retired")


def routes(service: Service) -> list[BaseRoute]:
    return [
        endpoint(service, "/v1/models", "GET", list_models),
        endpoint(service, "/v1/models/{id}", "GET", retrieve_model),
        endpoint(service, "/v1/skills", "GET", list_skills),
        endpoint(service, "/v1/skills/{id}", "GET", retrieve_skill),
    ]


@describe(response=CatalogPageForm)
async def list_models(call: WireCall) -> Answer:
    """After or before the id of a model, as this list of the wire is paged; of the stages of life
    that are named. The models here are active."""
    stages, limit = call.texts("lifecycle"), call.limit()
    after, before = call.text("after_id"), call.text("before_id")
    if not set(stages).issubset(_STAGES):
        raise InvalidQuery(f"lifecycle is among {', '.join(_STAGES)}")
    models = await _models(call)
    ids = [] if stages and _ACTIVE not in stages else list(models)
    for named in (after, before):
        if named is not None and named not in models:
            raise DocumentNotFound("models", named[:100])
    if after is not None and ids:
        ids = ids[ids.index(after) + 1 :]
    if before is not None and ids:
        ids = ids[: ids.index(before)]
    shown = ids[:limit] if before is None else ids[-limit:]
    return _page([models[id] for id in shown], has_more=len(ids) > limit)


@describe(response=ModelForm)
async def retrieve_model(call: WireCall) -> Answer:
    return _named(await _models(call), "models", call.path("id"))


@describe(response=CatalogPageForm)
async def list_skills(call: WireCall) -> Answer:
    """Of one source, if it is named."""
    source, skills = call.text("source"), list((await _skills(call)).values())
    part = call.part([each for each in skills if source in (None, each["source"]["type"])])
    next_page = part["next_page"]
    return _page(part["data"], has_more=next_page is not None, next_page=next_page)


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
        form = {"id": id, "type": "model", "display_name": id, "lifecycle": _ACTIVE}
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


def _page(items: list[Json], *, has_more: bool, next_page: str | None = None) -> Json:
    edges = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {}
    return {**page(items, next_page), "has_more": has_more, **edges}

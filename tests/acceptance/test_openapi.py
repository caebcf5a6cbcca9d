"""/openapi.json: every route, with the types that parse its requests."""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import msgspec
import pytest
from starlette.routing import Route

import limpet
from limpet.server import build
from limpet.server.managed.agents import AgentCreate
from limpet.server.openapi import describe, described, document
from limpet.server.serve import serving
from tests.acceptance.test_operation import ask, by_role


@pytest.fixture
async def found() -> dict[str, Any]:
    async with limpet.open("memory://") as lp, serving(lp, dev=True) as url:
        status, headers, body = await ask(url, "/openapi.json")
        assert (status, headers["content-type"]) == (200, "application/json")
        answer: dict[str, Any] = json.loads(body)
        return answer


async def test_it_lists_every_route_with_its_method(found: dict[str, Any]) -> None:
    """A new route needs nothing to be in it."""
    async with limpet.open("memory://") as lp:
        routes = [each for each in build(lp, dev=True).routes if isinstance(each, Route)]
    for route in routes:
        if ":path}" not in route.path:
            for method in (route.methods or set()) - {"HEAD"}:
                assert method.lower() in found["paths"][route.path], route.path
    assert "/v1/agents" in found["paths"]


async def test_a_server_starts_without_reading_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    """The document is made when it is asked for; a server that starts waits for none of it."""

    def read(of: object) -> str:
        raise AssertionError(f"the source of {of} was read")

    monkeypatch.setattr(inspect, "getsource", read)
    async with limpet.open("memory://") as lp:
        app = build(lp, dev=True)
        app.build_middleware_stack()
        with pytest.raises(AssertionError, match="was read"):
            document(app.routes, version="1")


async def test_bodies_are_of_the_types_that_parse_them(found: dict[str, Any]) -> None:
    """With every member of the struct, and all references lead somewhere."""
    body = found["paths"]["/v1/agents"]["post"]["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/AgentCreate"}
    schema = found["components"]["schemas"]["AgentCreate"]
    assert schema["properties"].keys() == set(AgentCreate.__struct_encode_fields__)
    for name in re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(found)):
        assert name in found["components"]["schemas"]


async def test_operations_have_names_of_their_own_and_declare_their_parameters(
    found: dict[str, Any],
) -> None:
    """As generators of clients need them."""
    names = []
    for path, operations in found["paths"].items():
        for operation in operations.values():
            names.append(operation["operationId"])
            parameters = operation.get("parameters", ())
            declared = {each["name"] for each in parameters if each["in"] == "path"}
            assert declared == set(re.findall(r"\{(\w+)\}", path))
    assert len(names) == len(set(names))
    assert found["openapi"] == "3.1.0"
    assert found["paths"]["/healthz"]["get"]["security"] == []


async def test_a_query_is_documented_whole(found: dict[str, Any]) -> None:
    """Also the names that a reader of the request hands on, and labels[name]=value."""

    def query(path: str) -> dict[str, Any]:
        of = found["paths"][path]["get"]["parameters"]
        return {each["name"]: each for each in of if each["in"] == "query"}

    sessions = query("/limpet/v1/sessions")
    assert {"app", "user", "ready", "limit", "page"} <= sessions.keys()
    assert (sessions["labels"]["style"], sessions["labels"]["explode"]) == ("deepObject", True)
    assert {"limit", "page", "statuses[]"} <= query("/v1/sessions/{session_id}/threads").keys()
    memory = query("/v1/memory_stores/{store_id}/memories/{id}")
    assert memory["view"]["schema"]["enum"] == ["basic", "full"]


async def test_it_needs_a_key() -> None:
    """As everything but the probes."""
    async with limpet.open("memory://") as lp, serving(lp, caller_of=by_role(lp)) as url:
        assert (await ask(url, "/openapi.json"))[0] == 401
        assert (await ask(url, "/openapi.json", "x-role: viewer"))[0] == 200


def test_a_route_may_name_its_types() -> None:
    """Where its body is not parsed by `call.body`."""

    class Wish(msgspec.Struct):
        text: str

    @describe(request=Wish, response=Wish)
    async def act(request: Any) -> Any:
        return request

    made = document([Route("/wish/{id}", act, methods=["POST"])], version="1")
    assert described(act).request is Wish
    operation = made["paths"]["/wish/{id}"]["post"]
    assert operation["responses"]["200"]["content"]["application/json"]["schema"] == {
        "$ref": "#/components/schemas/Wish"
    }

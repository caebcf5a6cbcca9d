"""A request goes to the route that Starlette would choose, found without comparing it with all."""

from __future__ import annotations

import re
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.routing import Match, Route, Router

import limpet
from limpet.server.app import build
from limpet.server.routes.index import RouteIndex
from tests.support.asgi import ask


def chosen(routes: list[Any], method: str, path: str) -> Any:
    """The route that Starlette's router takes; None if it answers itself."""
    scope = {"type": "http", "method": method, "path": path, "root_path": ""}
    return next((each for each in routes if each.matches(scope)[0] is Match.FULL), None)


async def test_every_route_of_a_server_is_found_as_the_router_finds_it() -> None:
    """Also where a parameter of one route has the text that is a step of another."""
    async with limpet.open("memory://") as lp:
        routes = build(lp, dev=True).router.routes
        index = RouteIndex(Router(routes))
        plain = [each for each in routes if isinstance(each, Route)]
        words = ("x", "poll", "stats", "events", "stream")
        paths = {re.sub(r"\{[^}]*\}", word, each.path) for each in plain for word in words}
        looked_up = 0
        for method in ("GET", "HEAD", "POST", "DELETE"):
            for path in sorted(paths):
                scope = {"type": "http", "method": method, "path": path}
                wanted = chosen(routes, method, path)
                found = index.find(scope)
                assert found in (wanted, None), (method, path)
                looked_up += found is not None
        assert looked_up > len(plain)


@pytest.mark.parametrize(
    ("method", "path", "answer"),
    [
        ("GET", "/a/b/12", "number 12"),
        ("GET", "/a/b/c/d", "rest c/d"),
        ("POST", "/a/b/12", "405"),
        ("GET", "/a", "404"),
        ("GET", "/elsewhere/b/12", "open 12"),
    ],
)
async def test_parameters_and_what_no_route_has(method: str, path: str, answer: str) -> None:
    """A number is one; what is for none of the routes is answered by the router."""

    def showing(name: str, parameter: str) -> Any:
        async def show(request: Any) -> PlainTextResponse:
            value = request.path_params[parameter]
            kind = int if name == "number" else str
            assert type(value) is kind
            return PlainTextResponse(f"{name} {value}")

        return show

    router = Router(
        [
            Route("/a/b/{of:int}", showing("number", "of")),
            Route("/a/b/{rest:path}", showing("rest", "rest")),
            Route("/{any}/b/{id}", showing("open", "id")),
        ]
    )
    given = await ask(RouteIndex(router), method, path)
    assert answer in (str(given.status), given.body.decode())

"""Routes by how their paths begin: a request is compared with the few that it may be for.

Starlette compares a request with one route after another, which for the last of a hundred takes
longer than most answers. Here those of one method whose first two steps are the request's are
tried, in their order; what is for none of them is the router's to answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from re import Match, Pattern
from typing import Any, TypeAlias

from starlette.convertors import PathConvertor, StringConvertor
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

Start: TypeAlias = tuple[str, str, str]  # the method, and the first two steps of the path


class IndexedRoute:
    """A route, and how its path is compared with that of a request."""

    __slots__ = ("_convertors", "_match", "route")

    def __init__(self, route: Route) -> None:
        self.route = route
        pattern: Pattern[str] = route.path_regex
        self._match: Callable[[str], Match[str] | None] = pattern.match
        texts = (StringConvertor, PathConvertor)  # which leave a text as it is
        every = route.param_convertors.items()
        self._convertors = [(name, of) for name, of in every if not isinstance(of, texts)]

    def parameters(self, path: str) -> dict[str, Any] | None:
        """The parameters in a path; None if it is not this route's."""
        match = self._match(path)
        if match is None:
            return None
        parameters = match.groupdict()
        for name, convertor in self._convertors:
            parameters[name] = convertor.convert(parameters[name])
        return parameters


class RouteIndex:
    """An ASGI app: the routes of a router, found by how their paths begin."""

    def __init__(self, router: Router) -> None:
        self._router = router
        routes = [each for each in router.routes if isinstance(each, Route) and each.methods]
        indexed = [(_steps(route.path), IndexedRoute(route)) for route in routes]
        starts = {start for route in routes for start in _starts(route)}
        self._routes = {start: _for_start(start, indexed) for start in starts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self.find(scope)
        app = self._router if route is None else route.app
        await app(scope, receive, send)

    def find(self, scope: Scope) -> Route | None:
        """The route of a request, which the scope has then with its parameters; None: the router
        looks for it."""
        if scope["type"] != "http" or scope.get("root_path"):
            return None
        path: str = scope["path"]
        for each in self._routes.get(_start(scope["method"], path), ()):
            parameters = each.parameters(path)
            if parameters is not None:
                scope["router"], scope["route"] = self._router, each.route
                scope["endpoint"], scope["path_params"] = each.route.endpoint, parameters
                return each.route
        return None


def _start(method: str, path: str) -> Start:
    return method, *_steps(path)


def _steps(path: str) -> tuple[str, str]:
    """The first two steps of a path."""
    steps = path.split("/", 3)
    return steps[1] if len(steps) > 1 else "", steps[2] if len(steps) > 2 else ""


def _starts(route: Route) -> Iterator[Start]:
    """The starts that a route names; none, if one of their steps is a parameter."""
    first, second = _steps(route.path)
    if not (_is_open(first) or _is_open(second)):
        for method in route.methods or ():
            yield method, first, second


def _for_start(
    start: Start, routes: list[tuple[tuple[str, str], IndexedRoute]]
) -> list[IndexedRoute]:
    """The routes, each with its first two steps, that a request which begins so may be for."""
    method, first, second = start
    return [
        each
        for (own, following), each in routes
        if (own == first or _is_open(own))
        and (following == second or _is_open(following))
        and method in (each.route.methods or ())
    ]


def _is_open(step: str) -> bool:
    """True if a step of a route's path is, or has in it, a parameter."""
    return "{" in step

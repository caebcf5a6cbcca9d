"""The OpenAPI document of a server: made from its routes and from the types that parse requests.

The type of a body is the one that the route's function parses it as: it is read from the call
`call.body(Type)` in its source, so that the document cannot differ from what is accepted. A route
may name its types with `describe` instead. The document is made when it is first asked for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgspec
from starlette.routing import BaseRoute, Route

from limpet.server.limits import BODY_BYTES_MAX

VERSION: Final = "3.1.0"
_DESCRIBED: Final = "limpet_described"
_PARSES: Final = re.compile(r"\bcall\.body\((\w+)\)")
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_OPEN: Final = frozenset(("/healthz", "/readyz"))  # without a key
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message"],
            "properties": {"code": {"type": "string"}, "message": {"type": "string"}},
        }
    },
}
F = TypeVar("F", bound=Callable[..., Any])


class Described(msgspec.Struct, frozen=True):
    """The types of a route: the body that it parses, and what it answers."""

    request: Any = None
    response: Any = None
    media_type: str = "application/json"  # of the answer


def describe(
    *, request: Any = None, response: Any = None, media_type: str = "application/json"
) -> Callable[[F], F]:
    """Name the types of the function that answers a route."""

    def decorate(act: F) -> F:
        setattr(act, _DESCRIBED, Described(request, response, media_type))
        return act

    return decorate


def described(act: Callable[..., Any]) -> Described:
    """The types of the function that answers a route, as it names them or parses its body."""
    act = inspect.unwrap(act)
    found: Described | None = getattr(act, _DESCRIBED, None)
    if found is not None:
        return found
    try:
        parses = _PARSES.search(inspect.getsource(act))
    except (OSError, TypeError):  # without its source
        parses = None
    return Described(None if parses is None else act.__globals__.get(parses[1]))


def document(routes: Sequence[BaseRoute], *, version: str) -> dict[str, Any]:
    """The OpenAPI document of these routes; a path with a rest of any form is not one of them."""
    shown = [each for each in routes if isinstance(each, Route) and ":path}" not in each.path]
    named = [of for each in shown for of in _types(each)]
    wanted = list({id(of): of for of in named if of is not None}.values())
    schemas, components = msgspec.json.schema_components(
        wanted, ref_template="#/components/schemas/{name}"
    )
    schema_of = dict(zip([id(of) for of in wanted], schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for route in shown:
        path = _PARAMETER.sub(r"{\1}", route.path)
        for method in sorted((route.methods or set()) - {"HEAD"}):
            paths.setdefault(path, {})[method.lower()] = _operation(route, method, schema_of)
    return {
        "openapi": VERSION,
        "info": {"title": "Limpet", "version": version},
        "paths": dict(sorted(paths.items())),
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
        "security": [{"key": []}, {"header": []}],
    }


def _types(route: Route) -> tuple[Any, Any]:
    of = described(route.endpoint)
    return of.request, of.response


def _operation(route: Route, method: str, schema_of: dict[int, Any]) -> dict[str, Any]:
    of = described(route.endpoint)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answer: dict[str, Any] = {"description": "Done."}
    if of.response is not None:
        answer["content"] = {of.media_type: {"schema": schema_of[id(of.response)]}}
    elif of.media_type != "application/json":
        answer["content"] = {of.media_type: {"schema": {"type": "string"}}}
    made: dict[str, Any] = {
        "operationId": _operation_id(method, route.path),
        "responses": {
            "200": answer,
            "default": {"description": "Refused, with a stable code.", "content": error},
        },
    }
    names = _PARAMETER.findall(route.path)
    if names:
        made["parameters"] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
            for name in names
        ]
    if of.request is not None:
        made["requestBody"] = {
            "description": f"At most {BODY_BYTES_MAX:,} bytes.",
            "required": True,
            "content": {"application/json": {"schema": schema_of[id(of.request)]}},
        }
    if route.path in _OPEN:
        made["security"] = []
    return made


def _operation_id(method: str, path: str) -> str:
    words = re.sub(r"[^a-zA-Z0-9]+", "_", _PARAMETER.sub(r"by_\1", path)).strip("_")
    return f"{method.lower()}_{words}"

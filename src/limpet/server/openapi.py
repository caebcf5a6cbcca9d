"""The OpenAPI document of a server: made from its routes and from the types that parse requests.

The type of a body is the one that the route's function parses it as: it is read from the call
`call.body(Type)` in its source, so that the document cannot differ from what is accepted. A route
may name its types with `describe` instead. The document is made when it is first asked for.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from starlette.routing import BaseRoute, Route

from limpet.server.limits import BODY_BYTES_MAX

STREAMED: Final = "text/event-stream"
VERSION: Final = "3.1.0"
_DESCRIBED: Final = "limpet_described"
_PARSES: Final = re.compile(r"\bcall\.body\((\w+)\)")
_READS: Final = re.compile(
    r"\bcall\.(text|texts|flag|number|limit|part|view|times|moment|labels|is_ascending|place)"
    r"\((?:\"(\w+)\")?"
)
_HANDS_ON: Final = re.compile(r"\b(\w+)\(call\b")
_TEXT: Final = {"type": "string"}
_TIME: Final = {"type": "string", "format": "date-time"}
_LIMIT: Final = {"type": "integer", "minimum": 1, "maximum": 1_000}
_EVENT: Final = {"type": "object", "required": ["data"], "properties": {"data": _TEXT}}
_QUERIES: Final[Mapping[str, Callable[[str], dict[str, dict[str, Any]]]]] = {
    "text": lambda name: {name: _TEXT},
    "texts": lambda name: {f"{name}[]": {"type": "array", "items": _TEXT}},
    "flag": lambda name: {name: {"type": "boolean"}},
    "number": lambda name: {name: {"type": "integer", "minimum": 1}},
    "place": lambda name: {name: {"type": "integer", "minimum": 0}},
    "limit": lambda _: {"limit": _LIMIT},
    "part": lambda _: {"limit": _LIMIT, "page": _TEXT},
    "view": lambda _: {"view": {"type": "string", "enum": ["basic", "full"]}},
    "labels": lambda _: {"labels": {"type": "object", "additionalProperties": _TEXT}},
    "is_ascending": lambda _: {"order": {"type": "string", "enum": ["asc", "desc"]}},
    "moment": lambda name: {name: _TIME},
    "times": lambda _: {f"created_at[{each}]": _TIME for each in ("gt", "gte", "lt", "lte")},
}
_WITHOUT_NAME: Final = frozenset(("limit", "part", "times", "labels", "is_ascending"))
_OURS: Final = "/limpet/v1/"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_OPEN: Final = frozenset(  # without a key
    ("/", "/errors", "/healthz", "/readyz", "/studio", "/studio/{name}", "/studio/sign_in")
)
_DETAILS: Final = {
    "type": "object",
    "required": ["error_code", "docs"],
    "properties": {"error_code": _TEXT, "docs": {"type": "string", "format": "uri-reference"}},
}
_ERROR: Final = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"type": "string", "const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message", "details"],
            "properties": {"type": _TEXT, "message": _TEXT, "details": _DETAILS},
        },
        "request_id": _TEXT,
    },
}
F = TypeVar("F", bound=Callable[..., Any])


class Described(msgspec.Struct, frozen=True):
    """The types of a route: the body that it parses, and what it answers."""

    request: Any = None
    response: Any = None
    media_type: str = "application/json"  # of the answer
    request_media_type: str = "application/json"
    status: int = 200  # of an answer that is not an error


def describe(
    *,
    request: Any = None,
    response: Any = None,
    media_type: str = "application/json",
    request_media_type: str = "application/json",
    status: int = 200,
) -> Callable[[F], F]:
    """Name the types of the function that answers a route. The type of a body that is parsed by
    `call.body(Type)` need not be named."""

    def decorate(act: F) -> F:
        of = Described(request, response, media_type, request_media_type, status)
        setattr(act, _DESCRIBED, of)
        return act

    return decorate


def named_types(act: Callable[..., Any]) -> Described:
    """The types that a function names with `describe`: its source is not read, which takes longer
    than all else that a server does when it starts."""
    of: Described = getattr(inspect.unwrap(act), _DESCRIBED, Described())
    return of


def described(act: Callable[..., Any]) -> Described:
    """The types of the function that answers a route, as it names them or parses its body."""
    act, description = inspect.unwrap(act), named_types(act)
    if description.request is None and (parses := _PARSES.search(_source(act))) is not None:
        return msgspec.structs.replace(description, request=_named(act, parses[1]))
    return description


def _source(act: Callable[..., Any]) -> str:
    try:
        return inspect.getsource(act)
    except (OSError, TypeError):  # without its source
        return ""


def _named(act: Callable[..., Any], name: str) -> Any:
    """A name in the source of a function: of its module, or of the function around it."""
    within = inspect.getclosurevars(act)
    return within.nonlocals.get(name, act.__globals__.get(name))


def query_of(act: Callable[..., Any]) -> dict[str, dict[str, Any]]:
    """The parameters of the query that a function reads, and the functions that it hands its call
    to, each with its schema."""
    read: dict[str, dict[str, Any]] = {}
    waiting, seen = [inspect.unwrap(act)], set()
    while waiting:
        reader = waiting.pop()
        if reader in seen:
            continue
        seen.add(reader)
        source = _source(reader)
        for kind, name in _READS.findall(source):
            if name or kind in _WITHOUT_NAME:
                read |= _QUERIES[kind](name)
        for name in _HANDS_ON.findall(source):
            of = _named(reader, name)
            if inspect.isfunction(of) and of.__module__.startswith("limpet.server"):
                waiting.append(of)
    return read


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
    return of.request if of.request_media_type == "application/json" else None, of.response


def _operation(route: Route, method: str, schema_of: dict[int, Any]) -> dict[str, Any]:
    of = described(route.endpoint)
    error = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    answer: dict[str, Any] = {"description": "Done."}
    if of.response is not None:
        answer["content"] = {of.media_type: {"schema": schema_of[id(of.response)]}}
    elif of.media_type != "application/json":
        schema = _EVENT if of.media_type == STREAMED else _TEXT
        answer["content"] = {of.media_type: {"schema": schema}}
    made: dict[str, Any] = {
        "operationId": _operation_id(method, route.path),
        "responses": {
            str(of.status): answer,
            "default": {"description": "Refused, with a stable code.", "content": error},
        },
    }
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _TEXT}
        for name in _PARAMETER.findall(route.path)
    ]
    queries = query_of(route.endpoint)
    if route.path.startswith(_OURS):
        queries |= {"app": _TEXT, "user": _TEXT}  # for callers whose key is of several
    for name, schema in queries.items():
        parameter: dict[str, Any] = {"name": name, "in": "query", "schema": schema}
        if schema.get("type") == "object":  # name[key]=value
            parameter |= {"style": "deepObject", "explode": True}
        parameters.append(parameter)
    if parameters:
        made["parameters"] = parameters
    if of.request is not None:
        json = of.request_media_type == "application/json"
        schema = schema_of[id(of.request)] if json else {"type": "string", "format": "binary"}
        made["requestBody"] = {
            "description": f"At most {BODY_BYTES_MAX:,} bytes.",
            "required": True,
            "content": {of.request_media_type: {"schema": schema}},
        }
    if route.path in _OPEN:
        made["security"] = []
    return made


def _operation_id(method: str, path: str) -> str:
    words = re.sub(r"[^a-zA-Z0-9]+", "_", _PARAMETER.sub(r"by_\1", path)).strip("_")
    return f"{method.lower()}_{words}"

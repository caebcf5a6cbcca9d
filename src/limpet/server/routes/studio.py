"""The studio's files: the shell at /studio, and the modules and the style that it loads. The bare
address of a server leads there.

They are the same for everybody and say nothing of the store, so they need no key. Whoever has a
link of `limpet studio` exchanges its token for a key here, once. The page itself uses the public
routes alone.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from limpet.errors import EntryRefused, RouteNotFound
from limpet.server.access import HERE, LinkGate
from limpet.server.answers import error_response
from limpet.server.openapi import describe
from limpet.server.service import Service

_TYPES: Final = {
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS: Final = {
    "content-security-policy": (
        "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",
}
_TOKEN_BYTES_MAX: Final = 1_000


class SignIn(msgspec.Struct):
    """The body of a sign-in: the token of a link."""

    token: str


class SignedIn(msgspec.Struct):
    """The key that the token was exchanged for."""

    key: str


def routes(service: Service) -> list[BaseRoute]:
    static = _read()

    async def home(_: Request) -> Response:
        # Relative: a proxy may serve all of this below a prefix.
        return _moved("studio")

    async def shell(request: Request) -> Response:
        return _answer(request, static["index.html"])

    async def file(request: Request) -> Response:
        if request.path_params["name"] == "index.html":  # what it names lies below /studio
            return _moved("../studio")
        content = static.get(request.path_params["name"])
        if content is None:
            missing = RouteNotFound(f"GET {request.url.path[:200]}")
            return error_response(missing, request.scope)
        return _answer(request, content)

    @describe(request=SignIn, response=SignedIn)
    async def sign_in(request: Request) -> Response:
        try:
            if not isinstance(service.gate, LinkGate):
                raise EntryRefused(HERE, "it gives no links", "Sign in with a key")
            given = msgspec.json.decode(await _body(request), type=SignIn)
            key = await service.gate.exchange(given.token, request)
        except EntryRefused as error:
            return error_response(error, request.scope)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            return error_response(EntryRefused(HERE, str(error)), request.scope, status=400)
        return Response(msgspec.json.encode(SignedIn(key)), media_type="application/json")

    return [
        Route("/", home, methods=["GET"]),
        Route("/studio", shell, methods=["GET"]),
        Route("/studio/sign_in", sign_in, methods=["POST"]),
        Route("/studio/{name}", file, methods=["GET"]),
    ]


class StaticFile(NamedTuple):
    """A file of the page, as it is and compressed."""

    body: bytes
    packed: bytes
    kind: str
    tag: str


@cache
def _read() -> dict[str, StaticFile]:
    """Every file by its name, read and compressed once for all servers of a process."""
    static: dict[str, StaticFile] = {}
    for each in (files("limpet") / "studio" / "static").iterdir():
        kind = _TYPES.get(each.name.rpartition(".")[2])
        if kind is not None:
            body = each.read_bytes()
            tag = hashlib.sha256(body).hexdigest()[:16]
            static[each.name] = StaticFile(body, gzip.compress(body, mtime=0), kind, tag)
    return static


def _answer(request: Request, file: StaticFile) -> Response:
    """The file, compressed for who takes that: over a slow network it is a third of the wait.

    The tag is weak, since both forms have the same.
    """
    tag = f'W/"{file.tag}"'
    headers = {**_HEADERS, "content-type": file.kind, "etag": tag, "vary": "accept-encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        return Response(file.body, headers=headers)
    return Response(file.packed, headers={**headers, "content-encoding": "gzip"})


def _moved(location: str) -> Response:
    return Response(status_code=307, headers={**_HEADERS, "location": location})


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > _TOKEN_BYTES_MAX:
            raise EntryRefused(HERE, "the body is longer than a token")
    return bytes(body)

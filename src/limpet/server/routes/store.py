"""The route of the store protocol: one websocket for each client, or POST for those without."""

from __future__ import annotations

from starlette.requests import HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

from limpet.errors import LimpetError, ProtocolMismatch
from limpet.server.access import HERE, Caller
from limpet.server.answers import error_response
from limpet.server.service import Service
from limpet.store.remote.forms import pack_error
from limpet.store.remote.messages import MEDIA_TYPE, PATH, PROTOCOL_HEADER
from limpet.store.remote.methods import version


def routes(service: Service) -> list[BaseRoute]:
    async def websocket(socket: WebSocket) -> None:
        try:
            caller = await _enter(service, socket)
        except LimpetError as error:
            await socket.send_denial_response(_refusal(error, socket))
            return
        await service.door.serve(socket, caller)

    async def post(request: Request) -> Response:
        try:
            caller = await _enter(service, request)
            answers = await service.door.answer(request, caller)
        except LimpetError as error:
            return _refusal(error, request)
        return _with_version(Response(answers, media_type=MEDIA_TYPE))

    return [WebSocketRoute(PATH, websocket), Route(PATH, post, methods=["POST"])]


async def _enter(service: Service, connection: HTTPConnection) -> Caller:
    """The caller, if it speaks our protocol. Raises EntryRefused, ProtocolMismatch."""
    caller = await service.caller_of(connection)
    spoken = connection.headers.get(PROTOCOL_HEADER, "none")
    if spoken != version():
        raise ProtocolMismatch(HERE, version(), spoken[:40])
    return caller


def _refusal(error: LimpetError, connection: HTTPConnection) -> Response:
    """An error as clients of the store protocol read it, of other releases too: by its code and its
    fields."""
    code, _, fields = pack_error(error)
    more = {"code": code, "retryable": error.retryable, "fields": fields}
    return _with_version(error_response(error, connection.scope, more=more))


def _with_version(response: Response) -> Response:
    response.headers[PROTOCOL_HEADER] = version()
    return response

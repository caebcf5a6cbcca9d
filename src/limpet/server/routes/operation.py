"""The routes for those who operate a server: is it up, is it ready, what does it do.

`/healthz`, `/readyz` and `/errors` need no key and tell nothing of the sessions. `/metrics` is for
admins.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

import limpet
from limpet.errors import AccessDenied, LimpetError
from limpet.security.access import Resource
from limpet.security.roles import EVERY_APP
from limpet.server.answers import ERRORS_PATH, errors_page
from limpet.server.limits import (
    CLOCK_AHEAD_SECONDS,
    READY_KEPT_SECONDS,
    READY_SECONDS,
    STATUS_KEPT_SECONDS,
)
from limpet.server.meter import MEDIA_TYPE, head, sample
from limpet.server.openapi import describe, document
from limpet.server.service import Service
from limpet.session.limpet import journal_of
from limpet.session.overview import StoreStatus
from limpet.store.protocol import Probed, Query

_NO_SCRIPTS: Final = {"content-security-policy": "default-src 'none'"}
_COUNTED: Final = ("leased", "due", "blocked", "dead", "held", "pending")


class HealthAnswer(msgspec.Struct, frozen=True):
    """The answer of /healthz: the process is up."""

    ok: bool = True


class ReadyAnswer(msgspec.Struct, frozen=True):
    """The answer of /readyz."""

    ready: bool
    reasons: tuple[str, ...] = ()


def routes(service: Service) -> list[BaseRoute]:
    counting, readiness = StatusCount(service), Readiness(service)

    @describe(response=HealthAnswer)
    async def healthz(_: Request) -> Response:
        return Response(msgspec.json.encode(HealthAnswer()), media_type="application/json")

    @describe(response=ReadyAnswer)
    async def readyz(_: Request) -> Response:
        reasons = await readiness.reasons()
        body = msgspec.json.encode(ReadyAnswer(not reasons, reasons))
        return Response(body, 503 if reasons else 200, media_type="application/json")

    @describe(media_type="text/plain")
    async def metrics(request: Request) -> Response:
        caller = await service.caller_of(request)
        if not caller.admin:
            error = AccessDenied("access_denied", "inspect", "metrics")
            await journal_of(service.lp).audit.record(
                caller.principal or caller.name,
                "inspect",
                Resource("store", EVERY_APP),
                allowed=False,
                code=error.code,
                address=None if request.client is None else request.client.host,
            )
            raise error
        lines = [*service.meter.lines(), *_store_lines(service), *await counting.lines()]
        return Response("\n".join(lines) + "\n", media_type=MEDIA_TYPE)

    async def openapi(request: Request) -> Response:
        await service.caller_of(request)
        if not made:
            made.append(
                msgspec.json.encode(document(request.app.routes, version=limpet.__version__))
            )
        return Response(made[0], media_type="application/json")

    @describe(media_type="text/html")
    async def errors(_: Request) -> Response:
        return Response(errors_page(), headers=_NO_SCRIPTS, media_type="text/html")

    made: list[bytes] = []
    return [
        Route(ERRORS_PATH, errors, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/healthz", healthz, methods=["GET"]),
        Route("/readyz", readyz, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
    ]


class Readiness:
    """The reason why this server should get no requests now. Anybody may ask, so one probe at a
    time asks the store, at most every half second."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._reasons: tuple[str, ...] = ()
        self._at = float("-inf")

    async def reasons(self) -> tuple[str, ...]:
        """Empty if it should."""
        if self._service.leaving:
            return ("the server is stopping",)
        async with self._lock:
            if time.monotonic() - self._at > READY_KEPT_SECONDS:
                self._reasons = await _unready(self._service)
                self._at = time.monotonic()
            return self._reasons


async def _unready(service: Service) -> tuple[str, ...]:
    store = journal_of(service.lp).store
    try:
        async with asyncio.timeout(READY_SECONDS):
            newest = await store.heads(Query(), cursor=None, limit=1)
            checks = await store.probe() if isinstance(store, Probed) else ()
    except TimeoutError:
        return (f"the store did not answer within {READY_SECONDS:.0f} s",)
    except LimpetError as error:
        return (f"the store cannot be read ({error.code})",)
    reasons = [f"{each.name}: {each.found}" for each in checks if each.severity != "ok"]
    now_us = store.now_us()
    if (
        newest.items
        and (ahead := newest.items[0].created_us - now_us) > CLOCK_AHEAD_SECONDS * 10**6
    ):
        reasons.append(f"clock: the newest session is {ahead / 1e6:,.0f} s in the future")
    if (away := abs(now_us / 1e6 - time.time())) > CLOCK_AHEAD_SECONDS:
        reasons.append(f"clock: this machine's is {away:,.0f} s away from the store's")
    return tuple(reasons)


def _store_lines(service: Service) -> Iterator[str]:
    journal = journal_of(service.lp)
    hub = journal.hub
    yield from sample("limpet_commits_total", "counter", "Commits recorded here.", hub.commits)
    yield from sample("limpet_followers", "gauge", "Followers and watchers here.", hub.followers)
    yield from sample(
        "limpet_connections", "gauge", "Connections of the store protocol.", service.door.connected
    )
    yield from sample(
        "limpet_denials_total", "counter", "Denials recorded here.", journal.audit.denials
    )


class StatusCount:
    """The sessions of the store by kind, counted at most every few seconds."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._lock = asyncio.Lock()
        self._status: StoreStatus | None = None
        self._at = float("-inf")

    async def lines(self) -> list[str]:
        async with self._lock:
            if time.monotonic() - self._at > STATUS_KEPT_SECONDS:
                self._status = await self._service.lp.status()
                self._at = time.monotonic()
        status = self._status
        assert status is not None
        lines = [*head("limpet_sessions", "gauge", "Sessions by what is to be done for them.")]
        for name in _COUNTED:
            lines.append(f'limpet_sessions{{state="{name}"}} {getattr(status, name)}')
        lines += sample("limpet_sessions_all", "gauge", "Sessions.", status.sessions)
        return lines

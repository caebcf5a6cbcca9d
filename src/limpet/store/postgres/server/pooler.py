"""Connections: straight to the server, or through a pooler in transaction mode.

Behind such a pooler another process of the server may answer every transaction, so nothing may be
left in one: no setting, no named statement, no LISTEN, no lock, no temporary table. A connection
through it runs every call in a transaction, and every transaction begins with its settings. That
costs two more round trips a call.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, Final

import asyncpg

from limpet.store.postgres.server import settings
from limpet.store.postgres.server.cluster import cluster_of
from limpet.store.postgres.server.settings import Connection, driver_url, is_pooled

# Settings that a pooler takes when a connection is made, and keeps for the client.
_AT_START: Final = ("application_name", "client_encoding")
_OF_BEGIN: Final = ("default_transaction_isolation",)  # each transaction says its own


class Through(asyncpg.Connection):  # type: ignore[misc]  # asyncpg is not typed
    """A connection that leaves nothing behind in the process that answers it."""

    local = ""  # what every transaction begins with, as SQL
    _server_caps: Any  # asyncpg's

    def transaction(
        self, *, isolation: str | None = None, readonly: bool = False, deferrable: bool = False
    ) -> Any:
        if isolation is None and not self.is_in_transaction():
            isolation = "read_committed"  # in place of the default of the role or the database
        return super().transaction(isolation=isolation, readonly=readonly, deferrable=deferrable)

    async def execute(self, query: str, *args: Any, **more: Any) -> Any:
        if query.startswith("BEGIN"):
            return await self._begin(query)
        if query.startswith("ROLLBACK"):  # also where there is nothing to roll back
            return await super().execute(query)
        async with self._within():
            return await super().execute(query, *args, **more)

    async def fetch(self, query: str, *args: Any, **more: Any) -> Any:
        async with self._within():
            return await super().fetch(query, *args, **more)

    async def fetchrow(self, query: str, *args: Any, **more: Any) -> Any:
        async with self._within():
            return await super().fetchrow(query, *args, **more)

    async def fetchval(self, query: str, *args: Any, **more: Any) -> Any:
        async with self._within():
            return await super().fetchval(query, *args, **more)

    def _within(self) -> AbstractAsyncContextManager[Any]:
        """The transaction that is open, or one for this call alone."""
        transaction: AbstractAsyncContextManager[Any]
        transaction = nullcontext() if self.is_in_transaction() else self.transaction()
        return transaction

    def leave_jit_alone(self) -> None:
        """Asked about arrays, the driver would turn jit off and on again, and leave that behind."""
        self._server_caps = self._server_caps._replace(jit=False)

    async def _begin(self, query: str) -> Any:
        """Begin and set everything in one round trip."""
        try:
            return await super().execute(query + self.local)
        except asyncpg.PostgresError:
            self.terminate()  # the driver takes it for begun, the server does not
            raise


def arguments(url: str, wanted: Mapping[str, str]) -> dict[str, Any]:
    """The driver's arguments. `ready` has to follow where the URL names a pooler."""
    if not is_pooled(url):
        return {"dsn": driver_url(url), "server_settings": dict(wanted)}
    kept = {name: value for name, value in wanted.items() if name in _AT_START}
    return {
        "dsn": driver_url(url),
        "server_settings": kept,
        "statement_cache_size": 0,  # statements without a name: they end with their transaction
        "connection_class": Through,
    }


async def ready(conn: Connection, url: str, wanted: Mapping[str, str]) -> None:
    """Bring a new connection to where calls may use it: durable, with the settings it needs."""
    if is_pooled(url):
        named = [name for name in wanted if name not in (*_AT_START, *_OF_BEGIN)]
        statements = ["SET LOCAL jit = off;"]  # as the driver has it for its own queries
        statements += [f"SET LOCAL {name} = '{wanted[name]}';" for name in named]
        conn.local = "".join([*statements, settings.adjusting(url, locally=True)])
        conn.leave_jit_alone()
    else:
        await conn.execute(settings.adjusting(url))


async def connect_alone(url: str, wanted: Mapping[str, str], **more: Any) -> Connection:
    """One connection outside the pools, as `arguments` and `ready` make it."""
    made, cluster = arguments(url, wanted), cluster_of(url)
    connect = asyncpg.connect if cluster is None else cluster.connect
    conn = await connect(**made, timeout=settings.CONNECT_SECONDS_MAX, **more)
    try:
        await ready(conn, url, wanted)
    except BaseException:
        conn.terminate()
        raise
    return conn

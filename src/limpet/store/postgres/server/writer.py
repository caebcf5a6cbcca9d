"""The connection of a lane: its own, so that no reader keeps the lane from writing."""

from __future__ import annotations

from limpet.store.postgres.server import settings
from limpet.store.postgres.server.address import where
from limpet.store.postgres.server.pooler import connect
from limpet.store.postgres.server.schema import follow_timeline
from limpet.store.postgres.server.settings import Connection


class PostgresWriteConnection:
    """One connection, made when it is needed and made again when it broke."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.place = where(url)
        self._conn: Connection = None

    async def get(self) -> Connection:
        """The connection. Raises what asyncpg raises."""
        if self._conn is None or self._conn.is_closed():
            wanted = settings.connection_settings(settings.LANE_LOCK_SECONDS_MAX)
            conn = await connect(
                self._url,
                wanted | settings.LOOKUP_PLANS,
                command_timeout=settings.STATEMENT_SECONDS_MAX,
            )
            try:
                await follow_timeline(conn, self._url)
            except BaseException:
                conn.terminate()
                raise
            self._conn = conn
        return self._conn

    def drop(self) -> None:
        """Leave a connection that broke, or whose state is unknown."""
        if self._conn is not None:
            self._conn.terminate()
            self._conn = None

    async def close(self) -> None:
        conn, self._conn = self._conn, None
        if conn is not None:
            await conn.close()

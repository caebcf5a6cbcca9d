"""The tables of google-adk's own session services, read as they are, from SQLite or PostgreSQL.

DatabaseSessionService (schema 1) and SqliteSessionService have the same tables: sessions, events
with a JSON `event_data`, app_states, user_states. An older schema holds pickled objects, which are
not read: they could run code.
"""

from __future__ import annotations

import asyncio
import json
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import apsw

from limpet.errors import ExtraMissing, InvalidURL, StoreFailed

_DRIVER: Final = re.compile(r"^(sqlite|postgresql|postgres)(\+\w+)?://")
_ADVICE: Final = "Use sqlite:///adk.db or postgresql://user@host/database, as ADK has it"
_BUSY_MS: Final = 10_000


class Row(NamedTuple):
    """The key of a session of ADK."""

    app: str
    user: str
    id: str


class Stored(NamedTuple):
    """What ADK has stored of a session: its own state, and its events in their JSON form."""

    state: Mapping[str, Any]
    events: list[dict[str, Any]]


class Source(ABC):
    """An ADK database. Nothing in it is changed."""

    order = "id"  # of events with one timestamp
    where = ""

    @abstractmethod
    async def rows(self, sql: str, *args: str) -> list[tuple[Any, ...]]:
        """The rows of one query."""

    @abstractmethod
    def instant(self) -> AbstractAsyncContextManager[None]:
        """What is read in the block is of one instant."""

    async def check(self) -> None:
        """Raise InvalidURL unless these are tables of ADK that can be read."""
        try:
            await self.rows("SELECT state, update_time FROM sessions LIMIT 1")
            await self.rows("SELECT id, timestamp FROM events LIMIT 1")
        except _Missing:
            raise InvalidURL(self.where, "it is not a database of google-adk", _ADVICE) from None
        try:
            await self.rows("SELECT event_data FROM events LIMIT 1")
        except _Missing:
            reason = "its old schema has pickled objects, which are not read"
            raise InvalidURL(self.where, reason, "Migrate it with adk migrate session") from None

    async def count(self) -> int:
        """How many events there are."""
        return int((await self.rows("SELECT count(*) FROM events"))[0][0])

    async def shared(self) -> list[tuple[str, str, Mapping[str, Any]]]:
        """App, user ("" for the app's own) and state, without prefixes."""
        apps = await self.rows("SELECT app_name, '', state FROM app_states")
        users = await self.rows("SELECT app_name, user_id, state FROM user_states")
        return [(app, user, _json(state)) for app, user, state in [*apps, *users]]

    async def sessions(self) -> list[Row]:
        """Every session, the one that was updated last at the end."""
        found = "SELECT app_name, user_id, id FROM sessions ORDER BY update_time, user_id, id"
        return [Row(*row) for row in await self.rows(found)]

    async def read(self, row: Row) -> Stored | None:
        """A session, or None if it was deleted meanwhile."""
        async with self.instant():
            found = await self.rows(_STATE, *row)
            if not found:
                return None
            events = await self.rows(_EVENTS.format(order=self.order), *row)
        return Stored(_json(found[0][0]), [_event(*each) for each in events])


_STATE: Final = "SELECT state FROM sessions WHERE app_name = ?1 AND user_id = ?2 AND id = ?3"
_EVENTS: Final = (
    "SELECT id, invocation_id, timestamp, event_data FROM events "
    "WHERE app_name = ?1 AND user_id = ?2 AND session_id = ?3 ORDER BY timestamp, {order}"
)


class _Missing(Exception):
    """A table or a column is not there."""


@asynccontextmanager
async def open_source(url: str) -> AsyncIterator[Source]:
    """Open the database that a URL of ADK names. Raises InvalidURL, StoreFailed."""
    found = _DRIVER.match(url)
    if found is None:
        raise InvalidURL(url, "it does not name a SQLite file or a PostgreSQL server", _ADVICE)
    opened = _SQLite.opened if found[1] == "sqlite" else _Postgres.opened
    async with opened(url, url[found.end() :]) as source:
        await source.check()
        yield source


class _SQLite(Source):
    """A file. Its rows have the order of their insertion."""

    order = "rowid"

    def __init__(self, url: str, connection: apsw.Connection) -> None:
        self.where, self._connection = url, connection

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, rest: str) -> AsyncIterator[Source]:
        path = Path(unquote(rest.partition("?")[0].removeprefix("/")))
        if not await asyncio.to_thread(path.is_file):
            raise InvalidURL(url, "there is no such file", _ADVICE)
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(_BUSY_MS)
        try:
            yield cls(url, connection)
        finally:
            connection.close()

    async def rows(self, sql: str, *args: str) -> list[tuple[Any, ...]]:
        try:
            return await asyncio.to_thread(lambda: list(self._connection.execute(sql, args)))
        except apsw.SQLError as error:
            raise _Missing from error
        except apsw.NotADBError as error:
            raise InvalidURL(self.where, "it is not a SQLite file", _ADVICE) from error
        except apsw.Error as error:
            raise StoreFailed(self.where, str(error), "read") from error

    @asynccontextmanager
    async def instant(self) -> AsyncIterator[None]:
        await self.rows("BEGIN")
        try:
            yield
        finally:
            await self.rows("END")


class _Postgres(Source):
    """A server."""

    def __init__(self, url: str, connection: Any) -> None:
        self.where, self._connection = url, connection

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str, rest: str) -> AsyncIterator[Source]:
        try:
            import asyncpg
        except ModuleNotFoundError as error:
            raise ExtraMissing("asyncpg", "postgres") from error
        try:
            connection = await asyncpg.connect(f"postgresql://{rest}")
        except (OSError, asyncpg.PostgresError, ValueError) as error:
            raise StoreFailed("the ADK database", str(error), "read") from error
        try:
            yield cls(url, connection)
        finally:
            await connection.close()

    async def rows(self, sql: str, *args: str) -> list[tuple[Any, ...]]:
        import asyncpg

        try:
            return [
                tuple(row) for row in await self._connection.fetch(sql.replace("?", "$"), *args)
            ]
        except (asyncpg.UndefinedTableError, asyncpg.UndefinedColumnError) as error:
            raise _Missing from error
        except (OSError, asyncpg.PostgresError) as error:
            raise StoreFailed("the ADK database", str(error), "read") from error

    @asynccontextmanager
    async def instant(self) -> AsyncIterator[None]:
        async with self._connection.transaction(isolation="repeatable_read", readonly=True):
            yield


def _event(id: str, invocation_id: str, at: Any, data: Any) -> dict[str, Any]:
    """An event as ADK itself reads it: the columns count, but for the exact time in the data."""
    event = {**_json(data), "id": id, "invocation_id": invocation_id}
    event.setdefault("timestamp", _seconds(at))
    event.setdefault("author", "")
    event.setdefault("actions", {})
    return event


def _seconds(at: Any) -> float:
    """A column of times: seconds, or UTC without a zone, as text or not."""
    if isinstance(at, (int, float)):
        return float(at)
    moment = datetime.fromisoformat(at) if isinstance(at, str) else at
    return float((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())


def _json(text: Any) -> dict[str, Any]:
    found = json.loads(text) if isinstance(text, (str, bytes)) else text
    return found if isinstance(found, dict) else {}
